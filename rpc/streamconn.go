package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"agentvm/rpc/wire"
)

// Conn is this end of a byte stream through the connection between host and guest, or client and daemon. It implements Stream and
// net.Conn. A Write returns when its bytes are on the way: of those that the other end has not read, at most three sends of streamChunk.
//
//	Write ──► out ══ pump ──► Sink of the peer's      two pipes of package net, for their deadlines
//	Read  ◄── in  ══ inlet ◄── Sink for the peer      either direction ends by itself
//
// A direction of Write that has ended keeps the peer's Sink until the other direction is over, or Close: then the peer is told that
// nobody reads here any more, and lets go of its end.
//
// Errors are *net.OpError around an *Error with an errno, around os.ErrDeadlineExceeded or net.ErrClosed, or io.EOF as it is.
type Conn struct {
	in, out net.Conn // the ends that Read and Write use of two pipes
	ended   func()   // see finished
	stop    func() bool
	giveUp  context.CancelFunc // of sending
	linger  time.Duration
	left    chan struct{} // closed by Close
	silent  chan struct{} // closed when the peer has ended its direction

	mu            sync.Mutex
	lingering     *time.Timer // from Close until sending is over
	sending       bool
	local, remote net.Addr
	broken        error // why there is no more to read than io.EOF
	failed        error // why nothing can be written
	open          int   // directions
	closed        bool
	writeClosed   bool
	readClosed    bool
	counted       bool // ended has been called
}

// lingerTime is how long what was written before Close may take to arrive.
const lingerTime = 10 * time.Second

var (
	_ net.Conn      = (*Conn)(nil)
	_ Stream        = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
)

// Linux's numbers, for errors that the guest would have given.
var (
	errBrokenPipe   = &Error{Kind: KindSystem, Errno: 32, Message: "broken pipe"}
	errReset        = &Error{Kind: KindSystem, Errno: 104, Message: "connection reset by peer"}
	errNotConnected = &Error{Kind: KindSystem, Errno: 107, Message: "transport endpoint is not connected"}
)

// lostError is how a stream ends whose connection has ended: a reset, and ErrClosed.
type lostError struct{}

func (lostError) Error() string   { return ErrClosed.Error() }
func (lostError) Unwrap() []error { return []error{ErrClosed, errReset} }

// newConn makes a Conn and the Sink that the peer is to send to.
func (c *conn) newConn(remote net.Addr, ended func()) (*Conn, wire.Sink, net.Conn) {
	in, arriving := net.Pipe()
	out, leaving := net.Pipe()
	s := &Conn{
		local: streamAddr("agentvm"), remote: remote, ended: ended, in: in, out: out, open: 2, linger: lingerTime,
		left: make(chan struct{}), silent: make(chan struct{}),
	}
	s.stop = context.AfterFunc(c.ctx, func() { s.setBroken(lostError{}); _, _ = arriving.Close(), leaving.Close() })
	inlet := &inlet{
		take: func(b []byte) error {
			if len(b) == 0 {
				return nil // a Read would return nothing, without an error
			}
			_, err := arriving.Write(b)
			return s.untaken(err)
		},
		finish: func(why error) error {
			if c.ctx.Err() != nil {
				why = lostError{}
			}
			s.setBroken(why)
			close(s.silent)
			return arriving.Close()
		},
		dropped: s.over, // not before: a peer that keeps the Sink has this end keep it, too
	}
	return s, wire.Sink_ServerToClient(inlet), leaving
}

// begin starts to send to the peer, whose Sink stays the caller's.
func (s *Conn) begin(c *conn, toPeer wire.Sink, leaving net.Conn) error {
	ctx, giveUp := context.WithCancel(c.ctx)
	o := newOutlet(ctx, toPeer.AddRef(), streamChunk, streamSends)
	s.mu.Lock()
	s.giveUp, s.sending = giveUp, true
	s.mu.Unlock()
	if !c.spawn(func() { s.pump(c, leaving, o) }) {
		s.sent()
		o.release()
		return ErrClosed
	}
	return nil
}

// sent ends sending, and the waiting of Close for it.
func (s *Conn) sent() {
	s.mu.Lock()
	s.sending = false
	if s.lingering != nil {
		s.lingering.Stop()
	}
	s.mu.Unlock()
	s.giveUp()
}

// dial makes a Conn. ask gives the peer a reference to a Sink, if it comes so far, and gets one; what it returns is valid until
// the function it returns is called.
func (c *conn) dial(remote net.Addr, ended func(), ask func(s *Conn, toClient wire.Sink) (wire.Sink, func(), error)) (*Conn, error) {
	s, toClient, leaving := c.newConn(remote, ended)
	defer toClient.Release()
	toServer, release, err := ask(s, toClient)
	defer release()
	if err == nil && !toServer.IsValid() {
		err = errors.New("the peer has not answered with a stream")
	}
	if err == nil {
		err = s.begin(c, toServer, leaving)
	}
	if err != nil {
		s.abandon()
		return nil, &net.OpError{Op: "dial", Net: remote.Network(), Addr: s.remote, Err: err}
	}
	return s, nil
}

// abandon frees a Conn that nobody has got.
func (s *Conn) abandon() {
	s.stop()
	_, _ = s.in.Close(), s.out.Close()
}

// untaken is what the peer sees of an error of passing bytes to Read: nobody reads any more, or only nothing more of them.
func (s *Conn) untaken(err error) error {
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readClosed && !s.closed {
		return nil
	}
	return errClosedStream
}

// pump sends what is written until CloseWrite, Close or an error.
func (s *Conn) pump(c *conn, leaving net.Conn, o *outlet) {
	defer s.over()
	defer s.sent()
	defer o.release()
	err := pour(o, leaving)
	failed := (*sendError)(nil)
	if errors.As(err, &failed) {
		err = failed.error
	} else { // closed
		err = o.end()
	}
	switch {
	case err == nil:
		err = errBrokenPipe
	case c.ctx.Err() != nil || errors.Is(err, ErrClosed):
		err = lostError{}
	case errors.Is(err, context.Canceled): // of lingering
		err = net.ErrClosed
	}
	s.mu.Lock()
	s.failed = err
	s.mu.Unlock()
	_ = leaving.Close()
	if failed == nil {
		s.part(o)
	}
}

// part waits, after the end of what is written, until nobody reads here any more, and tells a peer that may still have to say
// something: nothing else would have it let go of a connection whose other end does not mind.
func (s *Conn) part(o *outlet) {
	select {
	case <-s.silent:
		return
	case <-s.left:
	case <-o.ctx.Done():
	}
	o.abort(errClosedStream)
}

// over counts the directions that are over.
func (s *Conn) over() {
	s.mu.Lock()
	if s.open--; s.open == 0 {
		s.stop()
	}
	s.mu.Unlock()
	s.finished()
}

// finished calls ended when the connection is closed and over.
func (s *Conn) finished() {
	s.mu.Lock()
	due := s.closed && s.open == 0 && !s.counted && s.ended != nil
	s.counted = s.counted || due
	s.mu.Unlock()
	if due {
		s.ended()
	}
}

func (s *Conn) setBroken(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = why
	}
}

// Read returns io.EOF when the other end has ended its direction, and its error when it broke off.
func (s *Conn) Read(b []byte) (int, error) {
	n, err := s.in.Read(b)
	if err == nil {
		return n, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		err = net.ErrClosed
	case s.readClosed:
		return n, io.EOF
	case errors.Is(err, io.EOF) && s.broken == nil:
		return n, io.EOF
	case errors.Is(err, io.EOF):
		err = s.broken
	}
	return n, s.fault("read", err)
}

// Write fails with EPIPE after CloseWrite, and when the other end does not read any more.
func (s *Conn) Write(b []byte) (int, error) {
	n, err := s.out.Write(b)
	if err == nil {
		return n, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		err = net.ErrClosed
	case s.writeClosed:
		err = errBrokenPipe
	case errors.Is(err, io.ErrClosedPipe) && s.failed != nil:
		err = s.failed
	case errors.Is(err, io.ErrClosedPipe):
		err = errBrokenPipe
	}
	return n, s.fault("write", err)
}

// torn says that the connection is broken in either direction. It needs s.mu.
func (s *Conn) torn() bool { return s.broken != nil || s.failed != nil && !s.writeClosed }

// fault needs s.mu.
func (s *Conn) fault(op string, err error) error {
	return &net.OpError{Op: op, Net: s.remote.Network(), Source: s.local, Addr: s.remote, Err: err}
}

// ReadFrom writes what r has until its end.
func (s *Conn) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{s}, struct{ io.Reader }{r}, make([]byte, streamChunk))
}

// WriteTo reads all until the end into w.
func (s *Conn) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{s}, make([]byte, streamChunk))
}

// CloseWrite ends the direction of Write once everything has been sent. It does not wait for that. ENOTCONN when the
// connection is broken.
func (s *Conn) CloseWrite() error { return s.closeHalf(&s.writeClosed, s.out) }

// CloseRead has Read return io.EOF; what still comes is thrown away.
func (s *Conn) CloseRead() error { return s.closeHalf(&s.readClosed, s.in) }

// closeHalf ends one direction, and notes it in closed.
func (s *Conn) closeHalf(closed *bool, half net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return s.fault("close", net.ErrClosed)
	case s.torn():
		return s.fault("shutdown", errNotConnected)
	}
	*closed = true
	return half.Close()
}

// Close ends both directions. What was written is still sent, for 10 s, after which the other end sees a reset. Then the peer
// closes its end: whoever still writes there learns that nobody reads.
func (s *Conn) Close() error {
	s.mu.Lock()
	if s.closed {
		defer s.mu.Unlock()
		return s.fault("close", net.ErrClosed)
	}
	s.closed = true
	close(s.left)
	if s.sending {
		s.lingering = time.AfterFunc(s.linger, s.giveUp)
	}
	s.mu.Unlock()
	err := errors.Join(s.out.Close(), s.in.Close())
	s.finished()
	return err
}

// LocalAddr is the guest's word; where it is not known, it tells only that the address is none of the host's.
func (s *Conn) LocalAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.local
}

// RemoteAddr is what was asked for, or who has connected.
func (s *Conn) RemoteAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remote
}

// SetDeadline is for both directions, as net.Conn has it.
func (s *Conn) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline ends reads at t.
func (s *Conn) SetReadDeadline(t time.Time) error { return s.set(s.in.SetReadDeadline(t)) }

// SetWriteDeadline ends writes at t.
func (s *Conn) SetWriteDeadline(t time.Time) error { return s.set(s.out.SetWriteDeadline(t)) }

// set is the outcome of setting a deadline: an error only after Close.
func (s *Conn) set(error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.fault("set", net.ErrClosed)
	}
	return nil
}

type streamAddr string

func (streamAddr) Network() string  { return "agentvm" }
func (a streamAddr) String() string { return string(a) }
