package netstack

import (
	"net"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// backlog is how many connections of the guest may wait for Accept.
const backlog = 128

// Listen takes TCP connections to an address of the gateway's. They do not come to HandleTCP's function.
func (n *Network) Listen(at netip.AddrPort) (net.Listener, error) {
	l := &listener{network: n, at: at, changed: make(chan struct{}, 1), gone: make(chan struct{})}
	if n.closed() {
		return nil, l.opError("listen", net.ErrClosed)
	}
	endpoint, err := n.stack.NewEndpoint(tcp.ProtocolNumber, protocolOf(at.Addr()), &l.queue)
	if err != nil {
		return nil, l.opError("listen", toErrno(err))
	}
	if err := l.open(endpoint); err != nil {
		endpoint.Close()
		return nil, err
	}
	return l, nil
}

// ListenPacket takes datagrams to an address of the gateway's. At the unspecified address it gets and may send
// broadcasts.
func (n *Network) ListenPacket(at netip.AddrPort) (net.PacketConn, error) {
	c := newPacketConn(n, at, netip.AddrPort{})
	if err := n.bindPacketConn(c); err != nil {
		return nil, err
	}
	c.endpoint.SocketOptions().SetBroadcast(at.Addr().IsUnspecified())
	return c, nil
}

// listener is a listening TCP socket.
type listener struct {
	network  *Network
	at       netip.AddrPort
	endpoint tcpip.Endpoint
	queue    waiter.Queue
	entry    waiter.Entry
	changed  chan struct{}
	gone     chan struct{}
	once     sync.Once
}

func (l *listener) open(endpoint tcpip.Endpoint) error {
	l.endpoint = endpoint
	l.entry.Init(l, waiter.ReadableEvents|waiter.EventHUp|waiter.EventErr)
	l.queue.EventRegister(&l.entry)
	endpoint.SocketOptions().SetReuseAddress(true) // of connections that a listener before us has accepted
	if err := endpoint.Bind(toFull(l.at)); err != nil {
		return l.opError("listen", toErrno(err))
	}
	if err := endpoint.Listen(backlog); err != nil {
		return l.opError("listen", toErrno(err))
	}
	if local, err := endpoint.GetLocalAddress(); err == nil {
		l.at = netip.AddrPortFrom(l.at.Addr(), local.Port)
	}
	if !l.network.addSocket(l) {
		return l.opError("listen", net.ErrClosed)
	}
	return nil
}

// NotifyEvent is gVisor's call when a connection has come.
func (l *listener) NotifyEvent(waiter.EventMask) { poke(l.changed) }

// Accept waits for a connection, a *[Conn].
func (l *listener) Accept() (net.Conn, error) {
	for {
		if isClosed(l.gone) {
			return nil, l.opError("accept", net.ErrClosed)
		}
		var peer tcpip.FullAddress
		endpoint, queue, err := l.endpoint.Accept(&peer)
		if err == nil {
			poke(l.changed) // there may be more, for another Accept
			return l.accepted(endpoint, queue, peer)
		}
		if _, wait := err.(*tcpip.ErrWouldBlock); !wait {
			return nil, l.opError("accept", toErrno(err))
		}
		select {
		case <-l.changed:
		case <-l.gone:
		}
	}
}

func (l *listener) accepted(endpoint tcpip.Endpoint, queue *waiter.Queue, peer tcpip.FullAddress) (net.Conn, error) {
	local := l.at
	if a, err := endpoint.GetLocalAddress(); err == nil {
		local = fromFull(a)
	}
	c := newConn(l.network, local, fromFull(peer))
	c.queue = queue
	if err := c.start(endpoint); err != nil {
		return nil, err
	}
	return c, nil
}

// Addr is the address that it listens at.
func (l *listener) Addr() net.Addr { return netAddr("tcp", l.at) }

// Close ends listening: connections that were not accepted are reset, blocked Accepts return [net.ErrClosed].
func (l *listener) Close() error {
	err := l.opError("close", net.ErrClosed)
	l.once.Do(func() {
		close(l.gone)
		l.network.removeSocket(l)
		l.endpoint.Close()
		err = nil
	})
	return err
}

func (l *listener) opError(op string, err error) error {
	return opError(op, "tcp", l.at, netip.AddrPort{}, err)
}
