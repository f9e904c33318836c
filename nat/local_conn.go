package nat

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// localConn is a connection with the guest's loopback interface as splice uses it. The guest's kernel has it, so that there is nothing to
// probe and no acknowledgement to wait for: what Write has taken is on its way, and stays so when the connection is closed.
type localConn struct {
	net.Conn
	buffer []byte // ReadTo's
	done   chan struct{}

	mu         sync.Mutex
	over       bool // done is closed
	heard, out bool // the guest has sent its FIN; CloseWrite was called
}

func newLocalConn(c net.Conn) *localConn {
	return &localConn{Conn: c, done: make(chan struct{})}
}

// Read is the connection's; its end is noted.
func (c *localConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.note(err)
	return n, err
}

func (c *localConn) note(err error) {
	switch {
	case errors.Is(err, io.EOF):
		c.finish(&c.heard)
	case err != nil:
		c.end()
	}
}

// ReadTo writes to w what comes, at most max bytes. One goroutine reads.
func (c *localConn) ReadTo(w io.Writer, max int) (int, error) {
	if c.buffer == nil {
		c.buffer = make([]byte, min(max, 8*smallBuffer))
	}
	n, err := c.Read(c.buffer)
	if n > 0 {
		return w.Write(c.buffer[:n]) // an error comes again
	}
	return 0, err
}

// CloseWrite sends FIN.
func (c *localConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	err := half.CloseWrite()
	c.finish(&c.out)
	return err
}

// finish notes that one direction is over. With both the connection is.
func (c *localConn) finish(side *bool) {
	c.mu.Lock()
	*side = true
	both := c.heard && c.out
	c.mu.Unlock()
	if both {
		c.end()
	}
}

func (c *localConn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.over = true
		close(c.done)
	}
}

// Abort closes it; the guest's program learns that no one reads.
func (c *localConn) Abort() { _ = c.Close() }

// Close closes it.
func (c *localConn) Close() error {
	c.end()
	return c.Conn.Close()
}

// Done is closed when both directions are over, or it was closed or broken.
func (c *localConn) Done() <-chan struct{} { return c.done }

// State, Unacked, SetWatermarks and SetKeepAlive have nothing to tell and nothing to do.
func (c *localConn) State() string                                        { return "" }
func (c *localConn) Unacked() int                                         { return 0 }
func (c *localConn) SetWatermarks(int, int)                               {}
func (c *localConn) SetKeepAlive(time.Duration, time.Duration, int) error { return nil }
