package capnprpc

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/host/errno"
)

// StreamConn is this end of a byte stream through the connection between host and guest, or client and daemon. It implements Stream and
// net.Conn. A Write returns when its bytes are on the way; at most three sends of streamChunk wait for the other end to read them.
//
//	Write ──► out ══ pump ──► the peer's Sink         two pipes of package net, for their deadlines
//	Read  ◄── in  ══ SinkReader ◄── Sink for the peer      either direction ends by itself
//
// After CloseWrite, the peer's Sink is kept until the other direction is over, or Close. Then Abort tells the peer that this end
// reads no more, and the peer releases its end.
//
// Errors are *net.OpError around an *Error with an errno, around os.ErrDeadlineExceeded or net.ErrClosed, or io.EOF as it is.
type StreamConn struct {
	in, out net.Conn // the ends that Read and Write use of two pipes
	ended   func()   // see finished
	stop    func() bool
	giveUp  context.CancelFunc // cancels sending
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
	endCalled     bool // ended has been called
}

// lingerTime is how long bytes written before Close may take to arrive.
const lingerTime = 10 * time.Second

var (
	_ net.Conn      = (*StreamConn)(nil)
	_ Stream        = (*StreamConn)(nil)
	_ io.ReaderFrom = (*StreamConn)(nil)
	_ io.WriterTo   = (*StreamConn)(nil)
)

// The errors that Linux would return, with its numbers.
var (
	errBrokenPipe   = &Error{Kind: KindSystem, Errno: errno.EPIPE, Message: "broken pipe"}
	errReset        = &Error{Kind: KindSystem, Errno: errno.ECONNRESET, Message: "connection reset by peer"}
	errNotConnected = &Error{Kind: KindSystem, Errno: errno.ENOTCONN, Message: "transport endpoint is not connected"}
)

// lostError ends the streams of a connection that has ended: it is a reset and ErrClosed.
type lostError struct{}

func (lostError) Error() string { return ErrClosed.Error() }

func (lostError) Unwrap() []error { return []error{ErrClosed, errReset} }

// newConn makes a StreamConn and the Sink for the direction from the peer. pump reads from the net.Conn, which has what Write got.
func (c *Conn) newConn(remote net.Addr, ended func()) (*StreamConn, streamwire.Sink, net.Conn) {
	in, arriving := net.Pipe()
	out, leaving := net.Pipe()
	s := &StreamConn{
		local: Addr("agentvm"), remote: remote, ended: ended, in: in, out: out, open: 2, linger: lingerTime,
		left: make(chan struct{}), silent: make(chan struct{}),
	}
	s.stop = context.AfterFunc(c.ctx, func() { s.setBroken(lostError{}); _, _ = arriving.Close(), leaving.Close() })
	reader := &SinkReader{
		Take: func(b []byte) error {
			if len(b) == 0 {
				return nil // otherwise a Read would return no bytes and no error
			}
			_, err := arriving.Write(b)
			return s.untaken(err)
		},
		Finish: func(why error) error {
			if c.ctx.Err() != nil {
				why = lostError{}
			}
			s.setBroken(why)
			close(s.silent)
			return arriving.Close()
		},
		Dropped: s.over, // not earlier: this end cannot free a Sink that the peer keeps
	}
	return s, streamwire.Sink_ServerToClient(reader), leaving
}

// begin starts to send to the peer. The caller keeps its reference to toPeer.
func (s *StreamConn) begin(c *Conn, toPeer streamwire.Sink, leaving net.Conn) error {
	ctx, giveUp := context.WithCancel(c.ctx)
	o := NewSinkWriter(ctx, toPeer.AddRef(), streamChunk, streamSends)
	s.mu.Lock()
	s.giveUp, s.sending = giveUp, true
	s.mu.Unlock()
	if !c.Spawn(func() { s.pump(c, leaving, o) }) {
		s.sent()
		o.Release()
		return ErrClosed
	}
	return nil
}

// sent ends sending, and the waiting of Close for it.
func (s *StreamConn) sent() {
	s.mu.Lock()
	s.sending = false
	if s.lingering != nil {
		s.lingering.Stop()
	}
	s.mu.Unlock()
	s.giveUp()
}

// Dial makes a StreamConn. ask sends the peer a reference to toClient and returns the Sink that it gets for it, which is valid until
// the function that ask returns is called. ended is called as Accept says.
func (c *Conn) Dial(remote net.Addr, ended func(), ask func(s *StreamConn, toClient streamwire.Sink) (streamwire.Sink, func(), error)) (*StreamConn, error) {
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

// Accept makes a StreamConn for a stream that the peer has asked for, and the Sink to answer with. The caller keeps its reference to
// toPeer. Unless there is an error, ended, when not nil, is called once when the connection is closed and both directions are over.
func (c *Conn) Accept(local, remote net.Addr, toPeer streamwire.Sink, ended func()) (*StreamConn, streamwire.Sink, error) {
	s, fromPeer, leaving := c.newConn(remote, ended)
	s.local = local
	if err := s.begin(c, toPeer, leaving); err != nil {
		s.abandon()
		fromPeer.Release()
		return nil, streamwire.Sink{}, err
	}
	return s, fromPeer, nil
}

// abandon frees a StreamConn that was not returned to a caller.
func (s *StreamConn) abandon() {
	s.stop()
	_, _ = s.in.Close(), s.out.Close()
}

// untaken is the answer to a send whose bytes could not be passed to Read: an error after Close, none after CloseRead, which discards
// them.
func (s *StreamConn) untaken(err error) error {
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
func (s *StreamConn) pump(c *Conn, leaving net.Conn, o *SinkWriter) {
	defer s.over()
	defer s.sent()
	defer o.Release()
	err := splice(o, leaving)
	failed := (*sendError)(nil)
	if errors.As(err, &failed) {
		err = failed.error
	} else { // closed
		err = o.End()
	}
	switch {
	case err == nil:
		err = errBrokenPipe
	case c.ctx.Err() != nil || errors.Is(err, ErrClosed):
		err = lostError{}
	case errors.Is(err, context.Canceled): // lingerTime has passed
		err = net.ErrClosed
	}
	s.mu.Lock()
	s.failed = err
	s.mu.Unlock()
	_ = leaving.Close()
	if failed == nil {
		s.awaitLeave(o)
	}
}

// awaitLeave waits, after the end of writing, until the peer has ended its direction or this end is closed. In the second case it
// tells the peer, which otherwise would keep the connection for as long as its other end stays open.
func (s *StreamConn) awaitLeave(o *SinkWriter) {
	select {
	case <-s.silent:
		return
	case <-s.left:
	case <-o.ctx.Done():
	}
	o.Abort(errClosedStream)
}

// over is called once for each direction that is over.
func (s *StreamConn) over() {
	s.mu.Lock()
	if s.open--; s.open == 0 {
		s.stop()
	}
	s.mu.Unlock()
	s.finished()
}

// finished calls ended when the connection is closed and over.
func (s *StreamConn) finished() {
	s.mu.Lock()
	due := s.closed && s.open == 0 && !s.endCalled && s.ended != nil
	s.endCalled = s.endCalled || due
	s.mu.Unlock()
	if due {
		s.ended()
	}
}

func (s *StreamConn) setBroken(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = why
	}
}

// Read returns io.EOF when the other end has ended its direction, and its error when it broke off.
func (s *StreamConn) Read(b []byte) (int, error) {
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

// Write fails with EPIPE after CloseWrite, and when the other end reads no more.
func (s *StreamConn) Write(b []byte) (int, error) {
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

// torn reports whether the connection is broken in either direction. The caller holds s.mu.
func (s *StreamConn) torn() bool { return s.broken != nil || s.failed != nil && !s.writeClosed }

// fault wraps err as package net does. The caller holds s.mu.
func (s *StreamConn) fault(op string, err error) error {
	return &net.OpError{Op: op, Net: s.remote.Network(), Source: s.local, Addr: s.remote, Err: err}
}

// ReadFrom writes what r has until its end.
func (s *StreamConn) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{s}, struct{ io.Reader }{r}, make([]byte, streamChunk))
}

// WriteTo writes to w what it reads until the end.
func (s *StreamConn) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{s}, make([]byte, streamChunk))
}

// CloseWrite ends the direction of Write once everything has been sent. It does not wait for that. It fails with ENOTCONN when the
// connection is broken.
func (s *StreamConn) CloseWrite() error { return s.closeHalf(&s.writeClosed, s.out) }

// CloseRead makes Read return io.EOF. What still arrives is discarded.
func (s *StreamConn) CloseRead() error { return s.closeHalf(&s.readClosed, s.in) }

// closeHalf ends one direction and sets closed.
func (s *StreamConn) closeHalf(closed *bool, half net.Conn) error {
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

// Close ends both directions. What was written is still sent for up to 10 s, after which the other end sees a reset. Then the peer
// closes its end, so that a program that still writes there gets EPIPE.
func (s *StreamConn) Close() error {
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

// LocalAddr is the address that the guest reported; "agentvm" where it is not known.
func (s *StreamConn) LocalAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.local
}

// RemoteAddr is the address that was dialled, or that of the program that has connected.
func (s *StreamConn) RemoteAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remote
}

// SetDeadline is for both directions, as net.Conn has it.
func (s *StreamConn) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline ends reads at t.
func (s *StreamConn) SetReadDeadline(t time.Time) error { return s.set(s.in.SetReadDeadline(t)) }

// SetWriteDeadline ends writes at t.
func (s *StreamConn) SetWriteDeadline(t time.Time) error { return s.set(s.out.SetWriteDeadline(t)) }

// set returns the result of setting a deadline: an error only after Close.
func (s *StreamConn) set(error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.fault("set", net.ErrClosed)
	}
	return nil
}

type Addr string

func (Addr) Network() string { return "agentvm" }

func (a Addr) String() string { return string(a) }
