package wasi

import (
	"encoding/binary"
	"io"
	"sync"
)

// frameHeaderSize is the size of the big-endian length before each frame of QEMU's stream socket protocol.
const frameHeaderSize = 4

// Conn is the guest's end of a network link: a [Stream] whose input is frames, each after its length as a 32-bit
// big-endian number. It differs from a Stream in what guests built by container2wasm rely on:
//
//   - The guest never sees part of a header: input becomes readable when the next frame is there as a whole, or the
//     buffer is full. A guest that asks for fewer bytes gets those.
//   - A poll for standard input and a timer ends when a frame arrives, see poll.expireForNews.
//   - The guest never sees the end: after the host closes its side, reads answer ErrnoAgain for ever. Writes fail.
type Conn struct {
	Stream
	remaining uint64 // bytes of the current frame, header included, that the guest has not read; guarded by mu

	toldHead, toldTail uint64 // the input's positions when news last said yes; guarded by mu
}

// NewConn returns a Conn that holds up to capacity bytes in each direction, at least one header.
func NewConn(capacity int) *Conn {
	c := new(Conn)
	c.init(max(capacity, frameHeaderSize))
	return c
}

// Read takes bytes of frames that the host wrote.
func (c *Conn) Read(p []byte) (int, Errno) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < len(p) {
		if c.remaining == 0 {
			size, ok := c.frameAt(0)
			if !ok {
				break
			}
			c.remaining = size
		}
		take := min(uint64(len(p)-n), c.remaining)
		m := c.input.read(p[n:][:take])
		c.remaining -= uint64(m)
		n += m
		if m == 0 {
			break
		}
	}
	if n == 0 && len(p) > 0 {
		return 0, ErrnoAgain
	}
	c.taken.Broadcast()
	return n, ErrnoSuccess
}

// frameAt returns the size with header of the frame that starts at offset of the input, if it may be delivered.
func (c *Conn) frameAt(offset int) (uint64, bool) {
	var head [frameHeaderSize]byte
	if c.input.peekAt(offset, head[:]) < frameHeaderSize {
		return 0, false
	}
	size := frameHeaderSize + uint64(binary.BigEndian.Uint32(head[:]))
	return size, uint64(c.input.size()-offset) >= size || c.input.room() == 0
}

// peek copies what Read would deliver of the current frame.
func (c *Conn) peek(p []byte) (int, Errno) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.deliverable(); n > 0 {
		return c.input.peek(p[:min(uint64(len(p)), n)]), ErrnoSuccess
	}
	return 0, ErrnoAgain
}

// deliverable returns how many bytes of the current or next frame can be read.
func (c *Conn) deliverable() uint64 {
	size := c.remaining
	if size == 0 {
		var ok bool
		if size, ok = c.frameAt(0); !ok {
			return 0
		}
	}
	return min(size, uint64(c.input.size()))
}

// Poll says whether the guest could read or write now. A closed link is never reported.
func (c *Conn) Poll(e Event) Readiness {
	if e == EventWrite {
		return c.Stream.Poll(e)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.deliverable()
	return Readiness{Ready: n > 0, Bytes: n}
}

// news says whether there is something to read and anything has been written or read since it last said so. A guest that
// leaves its input alone is thus told once.
func (c *Conn) news() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deliverable() == 0 || c.toldHead == c.input.head && c.toldTail == c.input.tail {
		return false
	}
	c.toldHead, c.toldTail = c.input.head, c.input.tail
	return true
}

// Listener is a socket from which the guest accepts connections that the host offers. It never blocks; accept answers
// ErrnoAgain until there is one.
type Listener struct {
	mu      sync.Mutex
	notify  func()
	pending []*Conn
	closed  bool
}

// NewListener returns a Listener with the given connections already waiting, so that the guest can accept them at once.
func NewListener(conns ...*Conn) *Listener { return &Listener{pending: conns} }

// Offer queues a connection for the guest. It fails with io.ErrClosedPipe when the guest has closed the listener, and
// the connection then stays the caller's.
func (l *Listener) Offer(c *Conn) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return io.ErrClosedPipe
	}
	l.pending = append(l.pending, c)
	notify := l.notify
	l.mu.Unlock()
	if notify != nil {
		notify()
	}
	return nil
}

// Stat describes the listener as a socket.
func (l *Listener) Stat() (Filestat, Errno) {
	return Filestat{Type: FiletypeSocketStream, Nlink: 1}, ErrnoSuccess
}

// Fdflags returns that accepting does not block.
func (l *Listener) Fdflags() Fdflags { return FdNonblock }

// SetFdflags accepts any flags; the System implements NONBLOCK.
func (l *Listener) SetFdflags(Fdflags) Errno { return ErrnoSuccess }

// Attach sets the function to call when a connection arrives.
func (l *Listener) Attach(notify func()) {
	l.mu.Lock()
	l.notify = notify
	waiting := len(l.pending) > 0
	l.mu.Unlock()
	if waiting && notify != nil {
		notify()
	}
}

// Poll says whether a connection waits.
func (l *Listener) Poll(e Event) Readiness {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Readiness{Ready: e == EventRead && len(l.pending) > 0}
}

// accept takes the oldest connection.
func (l *Listener) accept() (File, Errno) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return nil, ErrnoAgain
	}
	c := l.pending[0]
	l.pending = l.pending[1:]
	return c, ErrnoSuccess
}

// shutdown has no meaning for a listener.
func (l *Listener) shutdown(_, _ bool) Errno { return ErrnoNotconn }

// Close closes the connections that were never accepted.
func (l *Listener) Close() error {
	l.mu.Lock()
	pending := l.pending
	l.pending, l.closed = nil, true
	l.mu.Unlock()
	for _, c := range pending {
		_ = c.Close() // a Stream's Close cannot fail
	}
	return nil
}
