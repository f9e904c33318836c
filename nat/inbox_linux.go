package nat

import (
	"errors"
	"syscall"
)

// nextDatagram waits for a datagram and returns its size, and leaves it where it is. pending is an error that the socket
// had and has no more, for whoever reads it; err means that the socket is closed.
func nextDatagram(raw syscall.RawConn) (size int, pending, err error) {
	var none [0]byte
	err = raw.Read(func(fd uintptr) bool {
		for {
			// MSG_TRUNC: the size of the whole datagram, recv(2).
			size, _, pending = syscall.Recvfrom(int(fd), none[:], syscall.MSG_PEEK|syscall.MSG_TRUNC)
			if !errors.Is(pending, syscall.EINTR) {
				return !errors.Is(pending, syscall.EAGAIN)
			}
		}
	})
	if err != nil {
		return 0, nil, err
	}
	return size, pending, nil
}
