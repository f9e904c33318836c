package guestrpc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"agentvm/internal/guest/capnprpc"
)

// link is the guest's side of the control stream. It looks for hellos, which may come at any moment: a host that vanished
// in the middle of a message leaves a gap that no framing survives. A host waits for the answer to its hello, so that a hello is always
// the last thing that has arrived; only repetitions of it may precede the first message.
type link struct {
	port  io.ReadWriteCloser
	buf   [64 << 10]byte
	ready []byte // of buf: arrived, not yet read
	last  []byte // the newest bytes, up to helloSize
	nonce uint64 // of the session
	fresh bool   // no message has begun in this session
}

// errRestart ends a session because a new hello has arrived; errKeep also says that its programs are to run on.
var (
	errRestart = errors.New("the host said hello again")
	errKeep    = fmt.Errorf("%w and keeps what runs", errRestart)
)

func (l *link) write(b []byte) error {
	_, err := l.port.Write(b)
	return err
}

// fill reads once from the port.
func (l *link) fill() error {
	n, err := l.port.Read(l.buf[:])
	if n == 0 {
		return err
	}
	l.ready = l.buf[:n]
	l.last = append(l.last, l.buf[max(0, n-helloSize):n]...)
	l.last = append(l.last[:0], l.last[max(0, len(l.last)-helloSize):]...)
	return nil
}

// awaitHello skips to the newest hello.
func (l *link) awaitHello() (hello, error) {
	for {
		if h, ok := parseHello(l.last); ok && h.nonce != l.nonce {
			l.nonce, l.fresh, l.ready = h.nonce, true, nil
			return h, nil
		}
		if err := l.fill(); err != nil && !errors.Is(err, ErrHangup) {
			return hello{}, err
		}
	}
}

// next returns bytes of the session: at least one, at most limit.
func (l *link) next(limit int) ([]byte, error) {
	for len(l.ready) == 0 {
		if err := l.fill(); err != nil {
			return nil, err
		}
		if h, ok := parseHello(l.last); ok {
			if h.nonce != l.nonce {
				return nil, h.ending()
			}
			l.ready = l.ready[:max(0, len(l.ready)-helloSize)]
		}
		l.skipRepetitions()
	}
	b := l.ready[:min(limit, len(l.ready))]
	l.ready = l.ready[len(b):]
	return b, nil
}

// ending is the reason why the session before a hello ends.
func (h hello) ending() error {
	if h.flags&helloKeep != 0 {
		return errKeep
	}
	return errRestart
}

// skipRepetitions drops hellos before the session's first message.
func (l *link) skipRepetitions() {
	for l.fresh && len(l.ready) > 0 {
		if !bytes.HasPrefix(l.ready, helloMagic[:]) || len(l.ready) < helloSize {
			l.fresh = false
			return
		}
		l.ready = l.ready[helloSize:]
	}
}

// session is one connection's use of the link. Closing it leaves the port open for the next one.
type session struct {
	link   *link
	closed atomic.Bool
}

func (s *session) Read(b []byte) (int, error) {
	if s.closed.Load() {
		return 0, io.EOF
	}
	p, err := s.link.next(len(b))
	return copy(b, p), err
}

// writeSize is how many bytes the kernel's console driver takes at once (drivers/char/virtio_console.c, port_fops_write).
const writeSize = 32 << 10

// Write fails after the session, also in the middle of b: the rest of an ended session must not delay the next one.
func (s *session) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		if s.closed.Load() {
			return n, io.ErrClosedPipe
		}
		var part int
		part, err = s.link.port.Write(b[n:min(len(b), n+writeSize)])
		n += part
	}
	return n, err
}

func (s *session) Close() error {
	s.closed.Store(true)
	return nil
}

// TakesPipes reports whether the port does.
func (s *session) TakesPipes() bool {
	port, ok := s.link.port.(capnprpc.PipePort)
	return ok && port.TakesPipes()
}

// WritePipe fails after the session, as Write does.
func (s *session) WritePipe(from capnprpc.Pipe, size int) (n int, err error) {
	for n < size && err == nil {
		if s.closed.Load() {
			return n, io.ErrClosedPipe
		}
		var part int
		part, err = s.link.port.(capnprpc.PipePort).WritePipe(from, size-n)
		n += part
	}
	return n, err
}
