package egress

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// DialTCP connects to exactly to, if the policy allows it now. from is the guest's end, for the audit. Errors are *DeniedError, or what
// the dial failed with (net.OpError around a syscall.Errno). The connection is safe for concurrent use and also has
//
//	CloseWrite() error // FIN, the other way stays open
//	Reset() error      // RST
//
// After a new policy has cut it, its reads and writes fail with a *DeniedError; it still has to be closed.
func (g *Gate) DialTCP(ctx context.Context, from, to netip.AddrPort) (net.Conn, error) {
	return g.dialFlow(ctx, TCP, from, to)
}

// DialUDP returns a socket that is connected to exactly to: it receives from no other peer. It does not block and sends nothing.
func (g *Gate) DialUDP(ctx context.Context, from, to netip.AddrPort) (net.Conn, error) {
	return g.dialFlow(ctx, UDP, from, to)
}

func (g *Gate) dialFlow(ctx context.Context, protocol string, from, to netip.AddrPort) (net.Conn, error) {
	f, ctx, err := g.begin(ctx, protocol, from, to)
	if err != nil {
		return nil, err
	}
	if to := f.request.To; g.isPeer(to.Addr()) {
		g.counters.dials.Add(1)
		c, err := g.peers.Dial(ctx, protocol, f.source, to)
		if err != nil {
			g.counters.dialErrors.Add(1)
		}
		return f.finish(c, err)
	}
	if g.isHost(f.request.To.Addr()) {
		return f.finish(g.dialHost(ctx, protocol, to.Port()))
	}
	return f.finish(g.dial(ctx, protocol, f.request.To.String()))
}

// dialHost connects to a port of the host's loopback: IPv4, and if that fails, IPv6. With UDP a
// failure shows only after the first datagram, so UDP always uses IPv4.
func (g *Gate) dialHost(ctx context.Context, network string, port uint16) (net.Conn, error) {
	number := strconv.Itoa(int(port))
	c, err := g.dial(ctx, network, net.JoinHostPort("127.0.0.1", number))
	if err == nil || ctx.Err() != nil {
		return c, err
	}
	if c, err6 := g.dial(ctx, network, net.JoinHostPort("::1", number)); err6 == nil {
		return c, nil
	}
	return nil, err
}

// dial is the one place where sockets are opened and counted.
func (g *Gate) dial(ctx context.Context, network, address string) (net.Conn, error) {
	g.counters.dials.Add(1)
	c, err := g.dialer(ctx, network, address)
	if err != nil {
		g.counters.dialErrors.Add(1)
		return nil, err
	}
	return c, nil
}

// DialResolver connects to one of Config.Resolvers for the VM's own resolver, by "tcp" or "udp". Rules do not apply to these addresses, but in
// mode none there is no look-up either. It makes no events: queries are recorded by Asked.
func (g *Gate) DialResolver(ctx context.Context, network, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	to = unmap(to)
	if err != nil || network != TCP && network != UDP || !slices.Contains(g.resolvers, to) {
		return nil, &DeniedError{deny(ReasonNotResolver, "%s (%s) is not one of the DNS servers of this VM; set it with --dns", address, network)}
	}
	f := &flow{gate: g, kind: network, silent: true, began: g.now(), request: Request{Protocol: network, To: to}, decide: decideResolver}
	f, ctx, err = f.register(ctx)
	if err != nil {
		return nil, err
	}
	return f.finish(g.dial(ctx, network, to.String()))
}

func decideResolver(p Policy) Decision {
	if d, off := newEvaluator(new(environment), p, Request{}).checkNone(); off {
		return d
	}
	return allow(ReasonResolver, "a DNS server of this VM")
}
