package netstack

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Conn is one TCP connection with the guest. All methods may be called from any goroutine; one Read or ReadTo and one
// Write run at a time, others wait for their turn.
//
//	ESTABLISHED ── CloseWrite ──► FIN_WAIT_1 ─► FIN_WAIT_2 ── guest's FIN ──► TIME_WAIT ─► CLOSED
//	     │
//	     └─ guest's FIN (Read: io.EOF) ──► CLOSE_WAIT ── CloseWrite ──► LAST_ACK ─► CLOSED
//
// Abort, the guest's RST and a guest that does not answer lead to CLOSED from everywhere.
type Conn struct {
	network       *Network
	local, remote netip.AddrPort
	endpoint      *tcp.Endpoint
	queue         *waiter.Queue
	entry         waiter.Entry

	readable, writable          chan struct{} // of one element: something may have changed
	readDeadline, writeDeadline deadline
	done                        chan struct{}
	doneOnce                    sync.Once

	extra extraMemory // of the budget

	readMu sync.Mutex // one reader
	views  [][]byte   // of the reader: what it looks at
	window int        // the receive buffer's size
	read   int        // bytes that the reader has taken since that was set

	writeMu   sync.Mutex // one writer
	source    bytes.Reader
	stalled   bool // the writer reached the high mark and not the low one since
	high, low int
	sendable  int // what there is memory for; less than high: that is the mark

	mu      sync.Mutex
	gone    chan struct{} // closed by Close and Abort
	closed  bool
	reset   bool  // Abort, rather than Close
	looking bool  // a ReadTo uses the endpoint's memory: it must not be freed
	broken  error // the connection's end, when it was no orderly one
}

var _ net.Conn = (*Conn)(nil)

// newConn returns a connection without an endpoint.
func newConn(n *Network, local, remote netip.AddrPort) *Conn {
	return &Conn{
		network: n, local: local, remote: remote, queue: new(waiter.Queue), high: defaultHigh, low: defaultLow, sendable: sendBuffer,
		readable: make(chan struct{}, 1), writable: make(chan struct{}, 1),
		done: make(chan struct{}), gone: make(chan struct{}),
	}
}

// start takes an endpoint that has completed its handshake and notifies c.queue.
func (c *Conn) start(e tcpip.Endpoint) error {
	c.endpoint = e.(*tcp.Endpoint)
	options := e.SocketOptions()
	options.SetDelayOption(false) // who writes here has gathered already: no Nagle
	c.begin()
	c.beginSending()
	high, _ := c.mark()
	options.SetSendBufferSize(int64(high), true)
	c.entry.Init(c, waiter.ReadableEvents|waiter.WritableEvents|waiter.EventHUp|waiter.EventErr)
	c.queue.EventRegister(&c.entry)
	if !c.network.flows.add(c) {
		c.extra.end(c.network)
		c.endpoint.Abort()
		return c.opError("open", net.ErrClosed)
	}
	c.noteEnd()
	return nil
}

// NotifyEvent is gVisor's call when the endpoint changed, under locks of its own: it only passes the word on.
func (c *Conn) NotifyEvent(mask waiter.EventMask) {
	over := waiter.EventHUp | waiter.EventErr
	if mask&(waiter.ReadableEvents|over) != 0 {
		poke(c.readable)
	}
	if mask&(waiter.WritableEvents|over) != 0 {
		poke(c.writable)
	}
	if mask&over != 0 {
		c.noteEnd()
	}
}

// noteEnd closes done when the endpoint has ended.
func (c *Conn) noteEnd() {
	switch c.endpoint.EndpointState() {
	case tcp.StateClose, tcp.StateError, tcp.StateTimeWait:
		c.doneOnce.Do(func() {
			c.network.flows.remove(c)
			close(c.done)
		})
		// What has come unread stays until the connection is closed here.
		if isClosed(c.gone) {
			c.extra.end(c.network)
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Done is closed when the connection has ended both ways: after a reset, or when both FINs are acknowledged.
func (c *Conn) Done() <-chan struct{} { return c.done }

// LocalAddr is the end that is not the guest's, as the guest sees it.
func (c *Conn) LocalAddr() net.Addr { return netAddr("tcp", c.local) }

// RemoteAddr is the guest's end.
func (c *Conn) RemoteAddr() net.Addr { return netAddr("tcp", c.remote) }

// SetDeadline is for Read, ReadTo and Write; see [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline is for Read and ReadTo, also for one that waits already.
func (c *Conn) SetReadDeadline(t time.Time) error {
	if isClosed(c.gone) {
		return c.opError("set", net.ErrClosed)
	}
	c.readDeadline.set(c.network.config.Clock, t)
	poke(c.readable)
	return nil
}

// SetWriteDeadline is for Write, also for one that waits already.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if isClosed(c.gone) {
		return c.opError("set", net.ErrClosed)
	}
	c.writeDeadline.set(c.network.config.Clock, t)
	poke(c.writable)
	return nil
}

func (c *Conn) opError(op string, err error) error {
	return opError(op, "tcp", c.local, c.remote, err)
}

// failure is what a call returns for gVisor's error. The first error that ended the connection stays: gVisor tells
// only one caller.
func (c *Conn) failure(op string, err tcpip.Error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError(op, net.ErrClosed)
	}
	switch err.(type) {
	case *tcpip.ErrClosedForReceive, *tcpip.ErrClosedForSend, *tcpip.ErrNotConnected:
		if c.broken == nil {
			return c.orderly(op)
		}
	default:
		if c.broken == nil {
			c.broken = toErrno(err)
		}
	}
	return c.opError(op, c.broken)
}

// orderly is what follows the last byte of a connection that was not broken.
func (c *Conn) orderly(op string) error {
	if op == "read" {
		return io.EOF
	}
	return c.opError(op, syscall.EPIPE)
}
