package nat

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"agentvm/internal/host/budget"
)

const (
	smallBuffer = 4 << 10   // bytes that a flow holds while it waits for the host
	largeBuffer = 256 << 10 // at most, while the host has more than that
	linger      = 200 * time.Millisecond
)

// buffers lends the large buffers of a NAT's flows.
type buffers struct {
	pool   sync.Pool
	size   int
	memory *budget.Budget
}

// get returns a buffer, or nil when there is no memory to spare for one.
func (b *buffers) get() *[]byte {
	if !b.memory.TakeWithin(int64(b.size), 1, 2) {
		return nil
	}
	if p, ok := b.pool.Get().(*[]byte); ok {
		return p
	}
	p := make([]byte, b.size)
	return &p
}

func (b *buffers) put(p *[]byte) {
	b.pool.Put(p)
	b.memory.Give(int64(b.size))
}

// hostReader reads a host's connection with a buffer that fits what comes: a small one while little comes, so that a flow
// that waits costs little, a large one from the pool while reads come full. A read with the large one waits for linger
// at most, and then continues with the small one.
type hostReader struct {
	host     net.Conn
	buffers  *buffers
	small    []byte
	large    *[]byte   // nil: the small one is in use
	deadline time.Time // of the host's connection; zero: none
	last     int       // bytes of the last read
}

// read returns what has arrived, valid until the next call.
func (r *hostReader) read() ([]byte, error) {
	for {
		if r.last < len(r.small) {
			r.shrink()
		}
		if r.large == nil {
			return r.readSmall()
		}
		r.extend()
		n, err := r.host.Read(*r.large)
		r.last = n // also 0, of a read that took too long
		if n > 0 {
			return (*r.large)[:n], nil // an error comes again
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, err
		}
	}
}

func (r *hostReader) readSmall() ([]byte, error) {
	n, err := r.host.Read(r.small)
	r.last = n
	if n == len(r.small) && r.buffers.size > len(r.small) {
		r.large = r.buffers.get()
	}
	if n > 0 {
		err = nil // it comes again
	}
	return r.small[:n], err
}

// extend keeps the deadline between one and two lingers away; setting it costs more than looking. Sockets know the
// system's time only, whatever Config.Clock says.
func (r *hostReader) extend() {
	now := time.Now()
	if r.deadline.Sub(now) > linger {
		return
	}
	r.deadline = now.Add(2 * linger)
	_ = r.host.SetReadDeadline(r.deadline) // fails on a closed connection, where Read does too
}

// shrink returns the large buffer.
func (r *hostReader) shrink() {
	if r.large == nil {
		return
	}
	r.buffers.put(r.large)
	r.large, r.deadline = nil, time.Time{}
	_ = r.host.SetReadDeadline(time.Time{})
}
