package nat

import (
	"context"
	"net"
	"sync"

	"agentvm/netstack"
)

// A UDP session is a pair of addresses that the guest uses, and a connected socket of the host for it:
//
//	first datagram ─► limit ─► Intercept? ─► its function
//	                    │
//	                    └──► Egress.DialUDP ─ denied ─► port unreachable
//	                              │
//	                              ▼
//	                         ESTABLISHED ─ no datagram for UDPIdle, CutFlow, denial, Run's end ─► CLOSED
//
// An ICMP error that the host's socket reports is passed on to the guest and ends nothing: the peer may come back. One that the
// guest sends ends the session: its program wants no more datagrams.

// handleUDP takes a session that the guest wants, whose first datagram has come. netstack calls it where it must not block.
// False is port unreachable.
func (n *NAT) handleUDP(request *netstack.UDPRequest) bool {
	handler := n.config.Intercept("udp", request.Destination)
	f, err := n.openFlow(flowSpec{
		protocol: "udp", direction: Out, source: request.Source, destination: request.Destination,
		intercepted: handler != nil, limit: &n.limits.udpFlows, evicts: true, quietFor: evictAfter,
	})
	if err != nil {
		return false
	}
	if handler != nil {
		return n.interceptUDP(f, request, handler)
	}
	host, err := n.config.Egress.DialUDP(n.ctx, request.Source, request.Destination)
	if err != nil {
		reason, kind := udpFailure(err)
		request.Unreachable(kind)
		f.close(reason, err)
		return true
	}
	guest, err := request.Accept()
	if err != nil {
		host.Close()
		f.close(ReasonError, err)
		return true
	}
	s := newSession(f, guest, host)
	if !n.tasks.start(s.run) {
		s.fail(ReasonShutdown, nil)
		f.close(ReasonShutdown, nil)
	}
	return true
}

// udpFailure says why a socket could not be had, or reported an error, and what the guest receives.
func udpFailure(err error) (Reason, netstack.Unreachable) {
	switch {
	case denied(err):
		return ReasonPolicy, netstack.UnreachablePort
	case isAny(err, refusals):
		return ReasonRefused, netstack.UnreachablePort
	case isAny(err, netUnreachables):
		return ReasonUnreachable, netstack.UnreachableNet
	case isAny(err, hostUnreachables):
		return ReasonUnreachable, netstack.UnreachableHost
	}
	return ReasonError, netstack.UnreachablePort
}

// interceptUDP gives the guest's end of a session to the function that wants it.
func (n *NAT) interceptUDP(f *flow, request *netstack.UDPRequest, handler func(context.Context, net.Conn)) bool {
	guest, err := request.Accept()
	if err != nil {
		f.close(ReasonError, err)
		return true
	}
	started := n.tasks.start(func() {
		ctx, cancel := context.WithCancel(n.ctx)
		defer cancel()
		conn := &interceptedDatagrams{PacketConn: guest, flow: f, closed: make(chan struct{})}
		f.establish()
		f.whenEnded(func(Reason) { cancel(); conn.Close() })
		idle := f.watchIdle(n.config.UDPIdle)
		handler(ctx, conn)
		<-conn.closed
		idle.stop()
		f.close(ReasonDone, nil)
	})
	if !started {
		guest.Close()
		f.close(ReasonShutdown, nil)
	}
	return true
}

// interceptedDatagrams is the guest's end of a session in an Intercept function, which counts.
type interceptedDatagrams struct {
	*netstack.PacketConn
	flow   *flow
	once   sync.Once
	closed chan struct{}
}

func (c *interceptedDatagrams) Read(p []byte) (int, error) {
	n, err := c.PacketConn.Read(p)
	if err == nil {
		c.flow.countSent(n)
	}
	return n, err
}

func (c *interceptedDatagrams) Write(p []byte) (int, error) {
	n, err := c.PacketConn.Write(p)
	if err == nil {
		c.flow.countReceived(n)
	}
	return n, err
}

func (c *interceptedDatagrams) Close() error {
	defer c.once.Do(func() { close(c.closed) })
	return c.PacketConn.Close()
}
