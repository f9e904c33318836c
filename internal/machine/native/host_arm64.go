//go:build linux || darwin || windows

package native

import (
	"unsafe"

	"agentvm/internal/machine/native/arm64"
	"agentvm/internal/machine/native/arm64/verify"
	"agentvm/internal/machine/native/blocks"
)

const (
	// Reach is how many bytes from the start of linear memory on code may touch.
	Reach = verify.Reach

	verifiedEntries = verify.TableEntries
	returnCode      = "\xc0\x03\x5f\xd6" // ret
)

// Translates says whether code of a guest becomes native code here.
func Translates(blocks.Guest) bool { return Supported() }

// Translate makes native code of a page.
func Translate(l *blocks.Layout, p blocks.Page) (blocks.Translation, bool) {
	if l.Guest == blocks.GuestARM64 {
		return arm64.TranslateA64(l, p)
	}
	return arm64.Translate(l, p)
}

// Host is what translated code may use of this processor.
func Host() blocks.Host {
	h := verify.Host
	return blocks.Host{AES: h.AES, Carryless: h.Carryless, SHA: h.SHA, CRC: h.CRC, RDM: h.RDM, DotProduct: h.DotProduct}
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

// written makes code visible to the processor's fetches. The barrier of the processor that executes it is in enter.
func written(code []byte) { flush(unsafe.Pointer(unsafe.SliceData(code)), uintptr(len(code))) }

// flush is in enter_arm64.s.
//
//go:noescape
func flush(address unsafe.Pointer, size uintptr)
