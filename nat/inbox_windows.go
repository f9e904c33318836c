package nat

import "syscall"

// nextDatagram waits for a datagram and leaves it where it is: between the two calls of its function, package net does
// so with a read of no bytes. The datagram's size is not known here. err means that the socket is closed.
func nextDatagram(raw syscall.RawConn) (size int, pending, err error) {
	waited := false
	err = raw.Read(func(uintptr) bool {
		first := !waited
		waited = true
		return !first
	})
	return maxDatagram, nil, err
}
