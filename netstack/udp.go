package netstack

import (
	"net"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// UDPRequest is a datagram of the guest that belongs to no PacketConn. Accept or Unreachable end it; one that is left
// alone is a datagram that got lost.
type UDPRequest struct {
	// Source is the guest's end, Destination whom it wants.
	Source, Destination netip.AddrPort

	network *Network
	id      stack.TransportEndpointID
	quote   []byte

	mu  sync.Mutex
	pkt *stack.PacketBuffer // nil when the request has ended
}

// HandleUDP sets who decides about datagrams that belong to no PacketConn. f is called on the goroutine that reads
// frames and must not block; the request may be kept for later. When f returns false, the guest learns that the port is
// unreachable (ECONNREFUSED). Call it before Run.
func (n *Network) HandleUDP(f func(*UDPRequest) bool) {
	n.stack.SetTransportProtocolHandler(udp.ProtocolNumber, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		if from := fromAddress(id.RemoteAddress); n.closed() || from == n.addresses.Gateway || from == n.addresses.Gateway6 {
			return true // the stack hears its own broadcasts, such as the DHCP server's
		}
		r := &UDPRequest{
			Source:      netip.AddrPortFrom(fromAddress(id.RemoteAddress), id.RemotePort),
			Destination: netip.AddrPortFrom(fromAddress(id.LocalAddress), id.LocalPort),
			network:     n, id: id, quote: quoteOf(pkt), pkt: pkt.Clone(),
		}
		handled := f(r)
		if !handled {
			r.drop()
		}
		return handled
	})
}

// take gives the first caller the datagram; others get nil.
func (r *UDPRequest) take() *stack.PacketBuffer {
	r.mu.Lock()
	defer r.mu.Unlock()
	pkt := r.pkt
	r.pkt = nil
	return pkt
}

func (r *UDPRequest) drop() {
	if pkt := r.take(); pkt != nil {
		pkt.DecRef()
	}
}

// Accept gives the socket for this 4-tuple; its first datagram is the one that was asked about. It fails when there
// is one already.
func (r *UDPRequest) Accept() (*PacketConn, error) {
	pkt := r.take()
	if pkt == nil {
		return nil, opError("accept", "udp", r.Destination, r.Source, net.ErrClosed)
	}
	defer pkt.DecRef()
	c := newPacketConn(r.network, r.Destination, r.Source)
	c.quote = r.quote
	endpoint, err := udp.NewForwarderRequest(r.network.stack, r.id, pkt).CreateEndpoint(&c.queue)
	if err != nil {
		return nil, opError("accept", "udp", r.Destination, r.Source, toErrno(err))
	}
	if err := c.start(endpoint); err != nil {
		return nil, err
	}
	return c, nil
}

// Unreachable tells the guest why its datagram went nowhere.
func (r *UDPRequest) Unreachable(kind Unreachable) {
	if pkt := r.take(); pkt != nil {
		pkt.DecRef()
		r.network.sendUnreachable(kind, r.quote)
	}
}

var _ waiter.EventListener = (*PacketConn)(nil)
