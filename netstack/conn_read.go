package netstack

import (
	"io"
	"net"
	"os"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// Read waits for bytes of the guest. io.EOF follows its FIN, syscall.ECONNRESET its RST.
func (c *Conn) Read(p []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	for {
		if err := c.readGate(); err != nil || len(p) == 0 {
			return 0, err
		}
		w := tcpip.SliceWriter(p)
		result, err := c.endpoint.Read(&w, tcpip.ReadOptions{})
		if err == nil {
			c.taken(result.Count)
			return result.Count, nil
		}
		if _, wait := err.(*tcpip.ErrWouldBlock); !wait {
			return 0, c.failure("read", err)
		}
		c.awaitReadable()
	}
}

// ReadTo waits for bytes of the guest and writes what is there, at most max bytes, to w; it returns how many w has
// taken. They come straight out of the stack's memory and leave it when w has them, so that the guest's window opens at
// w's pace. Errors are Read's, or w's. When w is a *[net.TCPConn], or has a method
// WriteBuffers(*net.Buffers) (int64, error), it gets them all at once; otherwise short pieces are gathered first.
func (c *Conn) ReadTo(w io.Writer, max int) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	for {
		if err := c.readGate(); err != nil || max <= 0 {
			return 0, err
		}
		n, err, wait := c.readOnce(w, max)
		if !wait {
			return n, err
		}
		c.awaitReadable()
	}
}

// readGate says why a read cannot continue.
func (c *Conn) readGate() error {
	if isClosed(c.gone) {
		return c.opError("read", net.ErrClosed)
	}
	if c.readDeadline.passed() {
		return c.opError("read", os.ErrDeadlineExceeded)
	}
	return nil
}

func (c *Conn) awaitReadable() {
	select {
	case <-c.readable:
	case <-c.readDeadline.done():
	case <-c.gone:
	}
}

// readOnce writes what has arrived. wait says that there was nothing.
func (c *Conn) readOnce(w io.Writer, max int) (n int, _ error, wait bool) {
	views, err := c.look(max)
	if len(views) == 0 {
		switch err.(type) {
		case nil:
			return 0, c.opError("read", net.ErrClosed), false
		case *tcpip.ErrWouldBlock:
			return 0, nil, true
		}
		return 0, c.failure("read", err), false
	}
	n, failed := writeViews(w, views)
	clear(c.views)
	c.lookedAway(n)
	if n > 0 {
		c.taken(n)
	}
	return n, failed, false
}

// look returns what has arrived, and keeps Close and Abort from freeing it until lookedAway. On a closed connection it
// returns neither views nor an error. Whoever finds c.looking set knows that there are unread bytes.
func (c *Conn) look(max int) ([][]byte, tcpip.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil
	}
	p := peeker{views: c.views[:0], left: max}
	_, err := c.endpoint.Read(&p, tcpip.ReadOptions{Peek: true})
	c.views = p.views
	c.looking = len(p.views) > 0
	return p.views, err
}

// lookedAway takes the n bytes out that the caller has now, and does what Close or Abort could not do before.
func (c *Conn) lookedAway(n int) {
	c.mu.Lock()
	if n > 0 {
		c.endpoint.Read(&discarder{left: n}, tcpip.ReadOptions{})
	}
	c.looking = false
	closed, reset := c.closed, c.reset
	c.mu.Unlock()
	if closed {
		c.release(reset)
	}
}
