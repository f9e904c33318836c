package netstack

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

// PacketConn is a UDP socket of the gateway's: connected to one 4-tuple ([UDPRequest.Accept], [Network.DialContext]), or
// bound to an address of its own ([Network.ListenPacket]). All methods may be called from any goroutine. Datagrams that
// are not read are dropped beyond gVisor's receive buffer.
type PacketConn struct {
	network       *Network
	local, remote netip.AddrPort // remote is invalid when not connected
	endpoint      tcpip.Endpoint
	queue         waiter.Queue
	entry         waiter.Entry
	quote         []byte // of the first datagram, for ICMP errors
	extra         extraMemory
	waiting       atomic.Int32 // datagrams, about: see datagramTable

	readable, writable          chan struct{}
	readDeadline, writeDeadline deadline
	gone                        chan struct{}
	closeOnce                   sync.Once
}

var (
	_ net.Conn       = (*PacketConn)(nil)
	_ net.PacketConn = (*PacketConn)(nil)
)

func newPacketConn(n *Network, local, remote netip.AddrPort) *PacketConn {
	return &PacketConn{
		network: n, local: local, remote: remote, gone: make(chan struct{}),
		readable: make(chan struct{}, 1), writable: make(chan struct{}, 1),
	}
}

// start takes an endpoint that notifies c.queue.
func (c *PacketConn) start(e tcpip.Endpoint) error {
	c.endpoint = e
	c.entry.Init(c, waiter.ReadableEvents|waiter.WritableEvents|waiter.EventHUp|waiter.EventErr)
	c.queue.EventRegister(&c.entry)
	poke(c.readable)
	c.begin()
	c.network.datagrams.add(c)
	if !c.network.addSocket(c) {
		c.network.datagrams.remove(c)
		c.extra.end(c.network)
		e.Close()
		return c.opError("open", net.ErrClosed)
	}
	return nil
}

// NotifyEvent is gVisor's call when the endpoint changed.
func (c *PacketConn) NotifyEvent(mask waiter.EventMask) {
	if mask&^waiter.WritableEvents != 0 {
		poke(c.readable)
	}
	if mask&^waiter.ReadableEvents != 0 {
		poke(c.writable)
	}
}

// Read waits for a datagram; what does not fit into p is lost. An ICMP error of the peer's is syscall.ECONNREFUSED or
// its like, once.
func (c *PacketConn) Read(p []byte) (int, error) {
	n, _, err := c.receive(p)
	return n, err
}

// ReadFrom is Read with the sender's address, a *[net.UDPAddr].
func (c *PacketConn) ReadFrom(p []byte) (int, net.Addr, error) {
	n, from, err := c.receive(p)
	if err != nil {
		return n, nil, err
	}
	return n, net.UDPAddrFromAddrPort(from), nil
}

// ReadTo waits for a datagram and writes it to w, in one or several pieces. A reader that waits here holds no buffer.
func (c *PacketConn) ReadTo(w io.Writer) (int, error) {
	n, _, err := c.receiveTo(func() io.Writer { return w })
	return n, err
}

func (c *PacketConn) receive(p []byte) (int, netip.AddrPort, error) {
	return c.receiveTo(func() io.Writer { w := tcpip.SliceWriter(p); return &w })
}

// receiveTo asks for where to write before each try.
func (c *PacketConn) receiveTo(writer func() io.Writer) (int, netip.AddrPort, error) {
	for {
		if err := c.gate("read", &c.readDeadline); err != nil {
			return 0, netip.AddrPort{}, err
		}
		result, err := c.endpoint.Read(writer(), tcpip.ReadOptions{NeedRemoteAddr: true})
		switch err.(type) {
		case nil:
			c.received()
			return result.Count, fromFull(result.RemoteAddr), nil
		case *tcpip.ErrBadBuffer: // a datagram, and p is empty
			c.received()
			return 0, c.remote, nil
		case *tcpip.ErrWouldBlock:
			c.emptied()
			await(c.readable, &c.readDeadline, c.gone)
		case *tcpip.ErrClosedForReceive:
			return 0, netip.AddrPort{}, io.EOF
		default:
			return 0, netip.AddrPort{}, c.opError("read", toErrno(err))
		}
	}
}

// Write sends a datagram to the peer of a connected socket. It waits while the queue to the guest is full.
func (c *PacketConn) Write(p []byte) (int, error) { return c.send(p, nil) }

// WriteTo sends a datagram to an address in the guest's network, a *[net.UDPAddr].
func (c *PacketConn) WriteTo(p []byte, to net.Addr) (int, error) {
	a, ok := to.(*net.UDPAddr)
	if !ok {
		return 0, c.opError("write", syscall.EINVAL)
	}
	full := toFull(a.AddrPort())
	return c.send(p, &full)
}

func (c *PacketConn) send(p []byte, to *tcpip.FullAddress) (int, error) {
	for {
		if err := c.gate("write", &c.writeDeadline); err != nil {
			return 0, err
		}
		n, err := c.endpoint.Write(bytes.NewReader(p), tcpip.WriteOptions{To: to})
		if err == nil {
			return int(n), nil
		}
		if _, full := err.(*tcpip.ErrWouldBlock); !full {
			return 0, c.opError("write", toErrno(err))
		}
		await(c.writable, &c.writeDeadline, c.gone)
	}
}

// Unreachable tells the guest that its datagrams to this destination do not arrive. It does nothing for sockets that
// did not begin with a datagram of the guest.
func (c *PacketConn) Unreachable(kind Unreachable) { c.network.sendUnreachable(kind, c.quote) }

// gate says why op cannot continue.
func (c *PacketConn) gate(op string, d *deadline) error {
	if isClosed(c.gone) {
		return c.opError(op, net.ErrClosed)
	}
	if d.passed() {
		return c.opError(op, os.ErrDeadlineExceeded)
	}
	return nil
}

// await waits for a change, the deadline or the end.
func await(changed <-chan struct{}, d *deadline, gone <-chan struct{}) {
	select {
	case <-changed:
	case <-d.done():
	case <-gone:
	}
}

// Close frees the socket; blocked calls return [net.ErrClosed].
func (c *PacketConn) Close() error {
	err := c.opError("close", net.ErrClosed)
	c.closeOnce.Do(func() {
		close(c.gone)
		c.network.removeSocket(c)
		c.network.datagrams.remove(c)
		c.endpoint.Close()
		c.extra.end(c.network)
		err = nil
	})
	return err
}

// LocalAddr is the end that is not the guest's, as the guest sees it.
func (c *PacketConn) LocalAddr() net.Addr { return netAddr("udp", c.local) }

// RemoteAddr is the peer of a connected socket, else nil.
func (c *PacketConn) RemoteAddr() net.Addr {
	if !c.remote.IsValid() {
		return nil
	}
	return netAddr("udp", c.remote)
}

// SetDeadline is for reading and writing; see [net.Conn].
func (c *PacketConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline is for Read and ReadFrom.
func (c *PacketConn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(&c.readDeadline, t, c.readable)
}

// SetWriteDeadline is for Write and WriteTo.
func (c *PacketConn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(&c.writeDeadline, t, c.writable)
}

func (c *PacketConn) setDeadline(d *deadline, t time.Time, changed chan struct{}) error {
	if isClosed(c.gone) {
		return c.opError("set", net.ErrClosed)
	}
	d.set(c.network.config.Clock, t)
	poke(changed)
	return nil
}

func (c *PacketConn) opError(op string, err error) error {
	return opError(op, "udp", c.local, c.remote, err)
}
