package nat

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"agentvm/netstack"
)

// interceptTCP gives an accepted connection to the function that wants it. The flow lasts until that has returned and
// the connection is closed.
func (n *NAT) interceptTCP(f *flow, guest *netstack.Conn, handler func(context.Context, net.Conn)) {
	ctx, cancel := context.WithCancel(n.ctx)
	defer cancel()
	conn := &intercepted{Conn: guest, flow: f, closed: make(chan struct{})}
	f.establish()
	f.whenEnded(func(Reason) {
		cancel()
		guest.Abort()
	})
	idle := f.watchIdle(n.config.TCPIdle)
	guest.SetWatermarks(n.config.HighMark, n.config.LowMark)
	handler(ctx, conn)
	select {
	case <-conn.closed:
	case <-guest.Done():
	}
	idle.stop()
	if conn.reset.Load() {
		f.close(ReasonGuestReset, nil)
	}
	f.close(ReasonDone, nil)
}

// intercepted is the guest's connection in an Intercept function, which counts.
type intercepted struct {
	*netstack.Conn
	flow   *flow
	reset  atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (c *intercepted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return c.sent(n), c.note(err)
}

func (c *intercepted) ReadTo(w io.Writer, max int) (int, error) {
	n, err := c.Conn.ReadTo(w, max)
	return c.sent(n), c.note(err)
}

func (c *intercepted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.flow.countReceived(n)
	}
	return n, c.note(err)
}

func (c *intercepted) Close() error {
	defer c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *intercepted) sent(n int) int {
	if n > 0 {
		c.flow.countSent(n)
	}
	return n
}

func (c *intercepted) note(err error) error {
	if isAny(err, resets) {
		c.reset.Store(true)
	}
	return err
}
