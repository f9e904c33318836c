package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"agentvm/rpc/wire"
)

// OpenLocalTCP connects to a server that listens on the guest's loopback interface. host is "127.0.0.1", "::1", or
// "localhost" or empty for whichever of both answers. An error has the guest's errno, such as syscall.ECONNREFUSED. The
// connection ends with the client at the latest.
func (c *Client) OpenLocalTCP(ctx context.Context, host string, port uint16) (*Conn, error) {
	address := net.JoinHostPort(host, strconv.Itoa(int(port)))
	return c.conn.dial(address, func(toClient wire.Sink) (wire.Sink, func(), error) {
		future, release := c.supervisor.OpenLocalTcp(ctx, func(w wire.Supervisor_openLocalTcp_Params) error {
			w.SetPort(port)
			return errors.Join(w.SetHost(host), w.SetToClient(toClient))
		})
		r, err := future.Struct()
		if err != nil {
			return wire.Sink{}, release, c.fault("connect to "+address+" in the VM", err)
		}
		return r.ToGuest(), release, failureOf(r.Failure())
	})
}

// Conn is the asking end of a byte stream through the connection between host and guest. It implements Stream and
// net.Conn. A Write returns when its bytes are on the way, at most 288 KiB of them unread by the other end.
type Conn struct {
	address string
	in, out net.Conn // the ends that Read and Write use of two pipes
	mu      sync.Mutex
	broken  error // why there is no more to read than io.EOF
	failed  error // why nothing can be written
	open    int   // directions
	stop    func() bool
	giveUp  context.CancelFunc // of sending
	linger  time.Duration
}

// lingerTime is how long what was written before Close may take to arrive.
const lingerTime = 10 * time.Second

var (
	_ net.Conn = (*Conn)(nil)
	_ Stream   = (*Conn)(nil)
)

// dial makes a Conn. ask gives the peer a Sink and gets one; what it returns is valid until the function it returns is
// called.
func (c *conn) dial(address string, ask func(toClient wire.Sink) (wire.Sink, func(), error)) (*Conn, error) {
	in, arriving := net.Pipe()
	out, leaving := net.Pipe()
	s := &Conn{address: address, in: in, out: out, open: 2, linger: lingerTime}
	ctx, giveUp := context.WithCancel(c.ctx)
	s.giveUp = giveUp
	s.stop = context.AfterFunc(c.ctx, func() { s.setBroken(ErrClosed); _, _ = arriving.Close(), leaving.Close() })
	toClient := wire.Sink_ServerToClient(&inlet{
		take: func(b []byte) error { _, err := arriving.Write(b); return brokenPipe(err) },
		finish: func(why error) error {
			if c.ctx.Err() != nil {
				why = ErrClosed
			}
			s.setBroken(why)
			s.ended()
			return arriving.Close()
		},
	})
	toServer, release, err := ask(toClient)
	defer release()
	if err == nil && !toServer.IsValid() {
		err = errors.New("the peer has not answered with a stream")
	}
	if err == nil {
		o := newOutlet(ctx, toServer.AddRef(), streamChunk)
		if !c.spawn(func() { s.pump(leaving, o) }) {
			o.release()
			err = ErrClosed
		}
	}
	if err != nil {
		s.stop()
		giveUp()
		return nil, errors.Join(err, in.Close(), leaving.Close())
	}
	return s, nil
}

// brokenPipe is what the peer sees when nobody reads any more.
func brokenPipe(err error) error {
	if err == nil {
		return nil
	}
	return errClosedStream
}

// pump sends what is written until CloseWrite, Close or an error.
func (s *Conn) pump(leaving net.Conn, o *outlet) {
	defer s.ended()
	defer s.giveUp()
	defer o.release()
	_, err := io.CopyBuffer(o, struct{ io.Reader }{leaving}, make([]byte, streamChunk))
	if err == nil {
		err = o.end()
	}
	if err == nil {
		err = net.ErrClosed
	}
	s.mu.Lock()
	s.failed = err
	s.mu.Unlock()
	_ = leaving.Close()
}

// ended counts the directions that are over.
func (s *Conn) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open--; s.open == 0 {
		s.stop()
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
	if errors.Is(err, io.EOF) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.broken != nil {
			return n, s.fault("read", s.broken)
		}
		return n, io.EOF
	}
	if errors.Is(err, io.ErrClosedPipe) {
		err = s.fault("read", net.ErrClosed)
	}
	return n, err
}

func (s *Conn) Write(b []byte) (int, error) {
	n, err := s.out.Write(b)
	if errors.Is(err, io.ErrClosedPipe) {
		s.mu.Lock()
		defer s.mu.Unlock()
		err = net.ErrClosed
		if s.failed != nil {
			err = s.failed
		}
		err = s.fault("write", err)
	}
	return n, err
}

func (s *Conn) fault(what string, err error) error {
	return fmt.Errorf("%s %s: %w", what, s.address, err)
}

// CloseWrite ends the direction of Write once everything has been sent. It does not wait for that.
func (s *Conn) CloseWrite() error { return s.out.Close() }

// Close ends both directions. What was written is still sent, for 10 s, after which the other end sees a reset; a peer that
// sends more is told that nobody reads.
func (s *Conn) Close() error {
	s.mu.Lock()
	if s.open > 0 {
		time.AfterFunc(s.linger, s.giveUp)
	}
	s.mu.Unlock()
	return errors.Join(s.out.Close(), s.in.Close())
}

// LocalAddr tells only that the address is none of the host's.
func (s *Conn) LocalAddr() net.Addr { return streamAddr("agentvm") }

// RemoteAddr is what was asked for.
func (s *Conn) RemoteAddr() net.Addr { return streamAddr(s.address) }

// SetDeadline is for both directions, as net.Conn has it.
func (s *Conn) SetDeadline(t time.Time) error {
	return errors.Join(s.in.SetDeadline(t), s.out.SetDeadline(t))
}

// SetReadDeadline ends reads at t.
func (s *Conn) SetReadDeadline(t time.Time) error { return s.in.SetReadDeadline(t) }

// SetWriteDeadline ends writes at t.
func (s *Conn) SetWriteDeadline(t time.Time) error { return s.out.SetWriteDeadline(t) }

type streamAddr string

func (streamAddr) Network() string  { return "agentvm" }
func (a streamAddr) String() string { return string(a) }
