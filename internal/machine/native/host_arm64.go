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

// Translate makes native code of a page.
func Translate(l *blocks.Layout, p blocks.Page) (blocks.Translation, bool) {
	return arm64.Translate(l, p)
}

func verified(code []byte, entries []int) error { return verify.Code(code, entries) }

// written makes code visible to the processor's fetches. The barrier of the processor that executes it is in enter.
func written(code []byte) { flush(unsafe.Pointer(unsafe.SliceData(code)), uintptr(len(code))) }

// flush is in enter_arm64.s.
//
//go:noescape
func flush(address unsafe.Pointer, size uintptr)
