//go:build unix

package nat

import "syscall"

func setInlineUrgent(fd uintptr) error {
	return syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_OOBINLINE, 1)
}
