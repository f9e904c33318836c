package nat

import "syscall"

// inlineUrgent is SO_OOBINLINE of winsock2.h, which package syscall does not have.
const inlineUrgent = 0x0100

func setInlineUrgent(fd uintptr) error {
	return syscall.SetsockoptInt(syscall.Handle(fd), syscall.SOL_SOCKET, inlineUrgent, 1)
}
