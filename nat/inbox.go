package nat

import (
	"io"
	"syscall"
)

const (
	// maxDatagram is what the length of IPv6's payload allows; IPv4's is a little less.
	maxDatagram = 65535 - 8
	// smallDatagram is the buffer that a socket has while nothing comes: what passes an Ethernet unfragmented.
	smallDatagram = 2 << 10
)

// inbox reads whole datagrams of any size, and holds little while there are none: it waits for the next datagram, and
// learns its size, before it has a buffer for it. With a connection that cannot do that a large buffer waits.
type inbox struct {
	conn  io.Reader
	raw   syscall.RawConn // nil: conn cannot tell
	small []byte
	taken []byte // what Write was given
}

// newInbox is for a socket of the host. One that is a syscall.Conn costs less memory than another.
func newInbox(conn io.Reader) *inbox {
	b := &inbox{conn: conn}
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			b.raw = raw
		}
	}
	return b
}

// read returns the next datagram, valid until the next call.
func (b *inbox) read() ([]byte, error) {
	if c, ok := b.conn.(datagramReader); ok {
		b.taken = b.small[:0]
		_, err := c.ReadTo(b)
		if cap(b.taken) <= smallDatagram {
			b.small = b.taken
		}
		return b.taken, err
	}
	buffer, err := b.fit()
	if err != nil {
		return nil, err
	}
	n, err := b.conn.Read(buffer)
	return buffer[:n], err
}

// datagramReader writes one whole datagram, and so needs no buffer of the caller's. netstack.PacketConn is one.
type datagramReader interface {
	ReadTo(w io.Writer) (int, error)
}

// Write is for ReadTo only.
func (b *inbox) Write(p []byte) (int, error) {
	b.taken = append(b.taken, p...)
	return len(p), nil
}

// fit waits for a datagram and returns a buffer that it fits into. An error is one that the socket had for its reader;
// when the connection is closed, reading says so.
func (b *inbox) fit() ([]byte, error) {
	if b.raw == nil {
		return b.keep(maxDatagram), nil
	}
	size, pending, err := nextDatagram(b.raw)
	switch {
	case pending != nil:
		return nil, pending
	case err != nil || size <= smallDatagram:
		return b.keep(smallDatagram), nil
	}
	return make([]byte, size), nil
}

// keep is the buffer that stays with the socket.
func (b *inbox) keep(size int) []byte {
	if b.small == nil {
		b.small = make([]byte, size)
	}
	return b.small
}
