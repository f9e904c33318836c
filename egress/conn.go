package egress

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

// conn is an allowed connection. It counts its bytes. When a new policy cuts it, reads and writes fail with the *DeniedError.
type conn struct {
	net.Conn
	flow           *flow
	sent, received atomic.Int64
	denied         atomic.Pointer[DeniedError]
	names          *names // nil: the connection needs to name no server

	mu     sync.Mutex // orders the last two events of a connection
	closed bool
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(int64(n))
	return n, c.reason(err)
}

func (c *conn) Write(p []byte) (int, error) {
	if c.names != nil {
		return c.writeNamed(p)
	}
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	return n, c.reason(err)
}

// WriteBuffers writes all of b, in one system call where the socket supports that.
func (c *conn) WriteBuffers(b *net.Buffers) (int64, error) {
	if c.names != nil {
		return c.writeNamedBuffers(b)
	}
	if w, ok := c.Conn.(interface {
		WriteBuffers(*net.Buffers) (int64, error)
	}); ok { // another VM's
		n, err := w.WriteBuffers(b)
		c.sent.Add(n)
		return n, c.reason(err)
	}
	n, err := b.WriteTo(c.Conn)
	c.sent.Add(n)
	return n, c.reason(err)
}

// SyscallConn is for waiting and peeking: bytes that pass through it are not counted.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	inner, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%s is no socket of the system: %w", c.RemoteAddr(), errors.ErrUnsupported)
	}
	return inner.SyscallConn()
}

// SetKeepAliveConfig sets how TCP probes the peer. It fails with errors.ErrUnsupported on other sockets.
func (c *conn) SetKeepAliveConfig(config net.KeepAliveConfig) error {
	inner, ok := c.Conn.(interface {
		SetKeepAliveConfig(net.KeepAliveConfig) error
	})
	if !ok {
		return fmt.Errorf("probe %s: %w", c.RemoteAddr(), errors.ErrUnsupported)
	}
	return inner.SetKeepAliveConfig(config)
}

// reason replaces the error of a connection that was cut with the denial.
func (c *conn) reason(err error) error {
	if err == nil {
		return nil
	}
	if denied := c.denied.Load(); denied != nil {
		return denied
	}
	return err
}

// CloseWrite sends FIN after what was written and leaves the other direction open. It fails with errors.ErrUnsupported on sockets
// without a half-close.
func (c *conn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return fmt.Errorf("close %s for writing: %w", c.RemoteAddr(), errors.ErrUnsupported)
	}
	if err := c.endNames(); err != nil {
		return err
	}
	return c.reason(half.CloseWrite())
}

// Close ends the connection in good order: what was written still arrives.
func (c *conn) Close() error { return c.close(c.Conn.Close) }

// Reset ends the connection at once: the peer gets an RST, and what was written may be lost.
func (c *conn) Reset() error { return c.close(func() error { return reset(c.Conn) }) }

func (c *conn) close(how func() error) error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.mu.Unlock()
	if !first {
		return nil
	}
	c.flow.end()
	c.names.stop()
	err := how()
	d := Decision{}
	if denied := c.denied.Load(); denied != nil {
		err, d = nil, denied.Decision // the cut has already closed it
	}
	c.emit(VerdictClose, d)
	return err
}

// cut resets the connection because a policy denies it. Its owner still closes it.
func (c *conn) cut(denied *DeniedError) {
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.denied.Store(denied)
		c.emit(VerdictDeny, denied.Decision)
	}
	c.mu.Unlock()
	if !closed {
		_ = reset(c.Conn) // its reads and writes fail now, which is the purpose
	}
}

// emit reports the connection with its bytes so far.
func (c *conn) emit(verdict string, d Decision) {
	if c.flow.silent {
		return
	}
	e := c.flow.event(verdict, d)
	e.Sent, e.Received = c.sent.Load(), c.received.Load()
	e.Duration = e.Time.Sub(c.flow.began).Seconds()
	c.flow.gate.audit.emit(e)
}

// reset closes a socket so that TCP sends RST in place of FIN (linger time 0, RFC 9293 section 3.10.5). Other sockets are just closed.
func reset(inner net.Conn) error {
	if peer, ok := inner.(interface{ Reset() error }); ok {
		return peer.Reset()
	}
	if tcp, ok := inner.(interface{ SetLinger(seconds int) error }); ok {
		_ = tcp.SetLinger(0) // fails on a socket that has ended already, which needs no reset
	}
	return inner.Close()
}
