package netstack

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// DialContext connects to the guest, from the gateway's address and a port of its choice. network is "tcp" (the result
// is a *[Conn]) or "udp" (a *[PacketConn]). It fails with syscall.ECONNREFUSED, EHOSTUNREACH, ETIMEDOUT ..., or with
// ctx's error.
func (n *Network) DialContext(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	from := n.addresses.Gateway
	if to.Addr().Unmap().Is6() {
		from = n.addresses.Gateway6
	}
	return n.DialFrom(ctx, network, from, to)
}

// DialFrom is DialContext from any address, which the guest takes for a host beyond the gateway.
func (n *Network) DialFrom(ctx context.Context, network string, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if !from.IsValid() || !to.IsValid() {
		return nil, opError("dial", network, netip.AddrPort{}, to, syscall.ENETUNREACH)
	}
	if !n.guests(to.Addr()) {
		return nil, opError("dial", network, netip.AddrPort{}, to, syscall.EHOSTUNREACH)
	}
	switch network {
	case "tcp":
		return n.dialTCP(ctx, from, to)
	case "udp":
		return n.dialUDP(from, to)
	default:
		return nil, fmt.Errorf("dial %s: network %q: want tcp or udp", to, network)
	}
}

// guests says whether an address may be the guest's: it has one of IPv4, and makes its own of IPv6.
func (n *Network) guests(a netip.Addr) bool {
	return a == n.addresses.Guest || n.addresses.Subnet6.Contains(a) && a != n.addresses.Gateway6 && a != n.addresses.Host6
}

func (n *Network) dialTCP(ctx context.Context, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	c := newConn(n, netip.AddrPortFrom(from, 0), to)
	endpoint, err := n.stack.NewEndpoint(tcp.ProtocolNumber, protocolOf(from), c.queue)
	if err != nil {
		return nil, c.opError("dial", toErrno(err))
	}
	if err := n.connect(ctx, c, endpoint); err != nil {
		endpoint.Close()
		return nil, err
	}
	if local, err := endpoint.GetLocalAddress(); err == nil {
		c.local = fromFull(local)
	}
	if err := c.start(endpoint); err != nil {
		return nil, err
	}
	return c, nil
}

// connect does the handshake of a new endpoint.
func (n *Network) connect(ctx context.Context, c *Conn, endpoint tcpip.Endpoint) error {
	if err := ctx.Err(); err != nil {
		return c.opError("dial", err)
	}
	if n.closed() {
		return c.opError("dial", net.ErrClosed)
	}
	if err := endpoint.Bind(toFull(c.local)); err != nil {
		return c.opError("dial", toErrno(err))
	}
	entry, changed := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	c.queue.EventRegister(&entry)
	defer c.queue.EventUnregister(&entry)
	err := endpoint.Connect(toFull(c.remote))
	if _, started := err.(*tcpip.ErrConnectStarted); started {
		select {
		case <-changed:
			err = endpoint.LastError()
		case <-ctx.Done():
			return c.opError("dial", ctx.Err())
		case <-n.closing:
			return c.opError("dial", net.ErrClosed)
		}
	}
	if err != nil {
		return c.opError("dial", toErrno(err))
	}
	return nil
}

func (n *Network) dialUDP(from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	c := newPacketConn(n, netip.AddrPortFrom(from, 0), to)
	if err := n.bindPacketConn(c); err != nil {
		return nil, err
	}
	if err := c.endpoint.Connect(toFull(to)); err != nil {
		c.Close()
		return nil, c.opError("dial", toErrno(err))
	}
	return c, nil
}

// bindPacketConn gives c an endpoint at its local address, with a port if that has none.
func (n *Network) bindPacketConn(c *PacketConn) error {
	if n.closed() {
		return c.opError("listen", net.ErrClosed)
	}
	endpoint, err := n.stack.NewEndpoint(udp.ProtocolNumber, protocolOf(c.local.Addr()), &c.queue)
	if err != nil {
		return c.opError("listen", toErrno(err))
	}
	at := toFull(c.local)
	if c.local.Addr().IsUnspecified() {
		at.Addr = tcpip.Address{}
	}
	if err := endpoint.Bind(at); err != nil {
		endpoint.Close()
		return c.opError("listen", toErrno(err))
	}
	if local, err := endpoint.GetLocalAddress(); err == nil {
		c.local = netip.AddrPortFrom(c.local.Addr(), local.Port)
	}
	return c.start(endpoint)
}
