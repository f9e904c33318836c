package nat

import (
	"context"
	"net"
	"net/netip"

	"agentvm/netstack"
)

// Peer is a connection, or the datagrams of a pair of sockets, that another VM sends. The guest sees it come from From.
type Peer struct {
	Protocol string // tcp or udp
	From     netip.AddrPort
	Port     uint16 // of the guest
	// Allow is asked like Config.Inward.
	Allow func(protocol string, port uint16) error
	// Answer says to the other VM whether the guest takes it, nil or an error that has a number of the system, and returns the other end, which Deliver
	// closes.
	Answer func(error) (net.Conn, error)
}

// Deliver leads it to the guest, until it has ended. It counts as a flow of a port forward.
func (n *NAT) Deliver(ctx context.Context, p Peer) {
	to := netip.AddrPortFrom(n.network.Addresses().Guest, p.Port)
	f, err := n.openFlow(flowSpec{
		protocol: p.Protocol, direction: In, source: p.From, destination: to, limit: &n.limits.forwardFlows, evicts: true,
	})
	if err != nil {
		_, _ = p.Answer(err)
		return
	}
	guest, err := n.dialFor(ctx, f, p)
	other, answered := p.Answer(err)
	if err == nil {
		err = answered
	}
	if err != nil {
		if guest != nil {
			_ = guest.Close()
		}
		reason, _ := dialFailure(err)
		f.close(reason, err)
		return
	}
	if p.Protocol == "udp" {
		newSession(f, guest.(*netstack.PacketConn), other).run()
		return
	}
	f.establish()
	n.spliceTCP(f, guest.(*netstack.Conn), other)
}

// dialFor connects to the guest, if it may be.
func (n *NAT) dialFor(ctx context.Context, f *flow, p Peer) (net.Conn, error) {
	if err := p.Allow(p.Protocol, p.Port); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(n.ctx, func() { cancel(errEnded) })()
	f.whenEnded(func(Reason) { cancel(errEnded) })
	if timeout := n.config.DialTimeout; timeout >= 0 {
		timer := n.config.Clock.AfterFunc(timeout, func() { cancel(errDialTimeout) })
		defer timer.Stop()
	}
	guest, err := n.network.DialFrom(ctx, p.Protocol, p.From.Addr(), f.destination)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return guest, err
}
