//go:build linux && (riscv64 || arm64)

package guest

import (
	"syscall"
	"unsafe"
)

// quietHandlerAddress returns the address of a signal handler that returns at once.
func quietHandlerAddress() uintptr

// handleReserved gives a handler to signals that end a program by default and for which Go's runtime installs none, because C libraries
// use them. The kernel keeps such signals from PID 1, with a gap: one that arrives while the first thread blocks it, as each handler
// does, goes to another thread and ends the machine. Ignoring them is no remedy, because programs would inherit that.
func handleReserved(signals ...uintptr) {
	const onStack, restart = 0x08000000, 0x10000000 // SA_ONSTACK, SA_RESTART
	action := struct {
		handler, flags uint64
		rest           [2]uint64 // the mask; on arm64 the restorer, which the kernel has itself, and the mask
	}{handler: uint64(quietHandlerAddress()), flags: onStack | restart}
	const maskSize = 8
	for _, s := range signals {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, s, uintptr(unsafe.Pointer(&action)), 0, maskSize, 0, 0)
	}
}
