//go:build unix && !linux

package nat

import (
	"errors"
	"syscall"
)

// nextDatagram waits for a datagram and leaves it where it is. Its size is not known here. pending is an error that the
// socket had and has no more, for whoever reads it; err means that the socket is closed.
func nextDatagram(raw syscall.RawConn) (size int, pending, err error) {
	var byte [1]byte
	err = raw.Read(func(fd uintptr) bool {
		for {
			_, _, pending = syscall.Recvfrom(int(fd), byte[:], syscall.MSG_PEEK)
			if !errors.Is(pending, syscall.EINTR) {
				return !errors.Is(pending, syscall.EAGAIN)
			}
		}
	})
	if err != nil {
		return 0, nil, err
	}
	return maxDatagram, pending, nil
}
