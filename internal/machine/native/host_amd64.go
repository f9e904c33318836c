//go:build linux || darwin || windows

package native

import (
	"agentvm/internal/machine/native/amd64"
	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/native/verify"
)

const (
	// Reach is how many bytes from the start of linear memory on code may touch.
	Reach = verify.Reach

	verifiedEntries = verify.TableEntries
	returnCode      = "\xc3" // ret
)

// Translates says whether code of a guest becomes native code here.
func Translates(blocks.Guest) bool { return Supported() }

// Translate makes native code of a page.
func Translate(l *blocks.Layout, p blocks.Page) (blocks.Translation, bool) {
	if l.Guest == blocks.GuestARM64 {
		return amd64.TranslateA64(l, p)
	}
	return amd64.Translate(l, p)
}

// Host is what translated code may use of this processor.
func Host() blocks.Host {
	h := verify.Host
	return blocks.Host{Fused: h.Fused, AES: h.AES, Carryless: h.Carryless, SHA: h.SHA}
}

// enterFor is the way in to code of a guest.
func enterFor(guest blocks.Guest) func(code, memory, entries, tlb, hart uintptr, page uint64) {
	if guest == blocks.GuestARM64 {
		return enterA64
	}
	return enter
}

// enter and enterA64 are in assembly.
//
//go:noescape
func enter(code, memory, entries, tlb, hart uintptr, page uint64)

//go:noescape
func enterA64(code, memory, entries, tlb, hart uintptr, page uint64)

func verified(code []byte, entries []int) error { return verify.Code(code, entries) }

// written is called when code was written to executable memory: this processor looks by itself.
func written([]byte) {}
