package native

import (
	"unsafe"

	"golang.org/x/sys/unix"

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

// forget has an emulated processor forget code that will be overwritten: QEMU before 8.1 sees neither writes to the other mapping nor flush.
func forget(code []byte) {
	if len(code) > 0 && unix.Mprotect(code, unix.PROT_READ) == nil {
		_ = unix.Mprotect(code, unix.PROT_READ|unix.PROT_EXEC)
	}
}

// flush is in enter_linux_arm64.s.
//
//go:noescape
func flush(address unsafe.Pointer, size uintptr)
