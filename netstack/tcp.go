package netstack

import (
	"net"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// TCPRequest is a connection that the guest has asked for with a SYN, which has not been answered yet. Exactly one of
// its methods ends it; later calls do nothing (Accept fails). One that its handler has not ended when it returns is
// dropped. The guest's repeated SYNs do not make a second request.
//
//	          ┌─ Accept ──────► SYN-ACK, handshake, Conn
//	SYN ──────┼─ Reset ───────► RST: connection refused
//	          ├─ Unreachable ─► ICMP: network or host unreachable ...
//	          └─ Drop ────────► nothing: the guest asks again, later gives up
type TCPRequest struct {
	// Source is the guest's end, Destination whom it wants.
	Source, Destination netip.AddrPort

	pending *pendingTCP
	id      stack.TransportEndpointID
	quote   []byte // the SYN's packet, for ICMP errors

	mu      sync.Mutex
	request *tcp.ForwarderRequest // nil when it has ended
}

// HandleTCP sets who decides about connections that the guest begins. f is called on a goroutine of its own for each;
// while maxPending of them have not returned from their decision, further SYNs are dropped (and counted): the guest
// repeats them. Call it before Run.
func (n *Network) HandleTCP(maxPending int, f func(*TCPRequest)) {
	p := &pendingTCP{network: n, handle: f, max: maxPending, requests: make(map[stack.TransportEndpointID]*TCPRequest)}
	p.forwarder = tcp.NewForwarder(n.stack, receiveBuffer, maxPending, p.begin)
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, p.packet)
}

// pendingTCP are the requests that have no answer yet. It wraps gVisor's forwarder, which forgets the packet that an
// ICMP error has to quote.
type pendingTCP struct {
	network   *Network
	handle    func(*TCPRequest)
	max       int
	forwarder *tcp.Forwarder

	mu       sync.Mutex
	requests map[stack.TransportEndpointID]*TCPRequest
}

// packet gets every segment that belongs to no connection. Those that are no SYN are answered with RST by the stack.
func (p *pendingTCP) packet(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	h := header.TCP(pkt.TransportHeader().Slice())
	if len(h) < header.TCPMinimumSize || h.Flags()&(header.TCPFlagSyn|header.TCPFlagAck) != header.TCPFlagSyn {
		return false
	}
	if !p.add(id, pkt) {
		return true
	}
	handled := p.forwarder.HandlePacket(id, pkt)
	if !handled {
		p.remove(id)
		p.network.handlers.Done()
	}
	return handled
}

// add notes a new request for id. It fails when there is one already, and when there are too many.
func (p *pendingTCP) add(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.requests[id]; there {
		return false
	}
	if len(p.requests) >= p.max {
		p.network.stack.Stats().TCP.ForwardMaxInFlightDrop.Increment()
		return false
	}
	if !p.network.enter() {
		return false
	}
	p.requests[id] = &TCPRequest{
		Source:      netip.AddrPortFrom(fromAddress(id.RemoteAddress), id.RemotePort),
		Destination: netip.AddrPortFrom(fromAddress(id.LocalAddress), id.LocalPort),
		pending:     p, id: id, quote: quoteOf(pkt),
	}
	return true
}

func (p *pendingTCP) remove(id stack.TransportEndpointID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.requests, id)
}

// begin runs the handler. It is on a goroutine that gVisor started for r.
func (p *pendingTCP) begin(r *tcp.ForwarderRequest) {
	id := r.ID()
	p.mu.Lock()
	request := p.requests[id]
	p.mu.Unlock()
	request.start(r)
	defer p.network.handlers.Done()
	p.handle(request)
	request.Drop()
}

func (r *TCPRequest) start(request *tcp.ForwarderRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.request = request
}

// take gives the first caller what ends the request; others get nil.
func (r *TCPRequest) take() *tcp.ForwarderRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	request := r.request
	r.request = nil
	return request
}

// complete makes room for a new request. gVisor's table is cleared first, so that ours is never the smaller one.
func (r *TCPRequest) complete(request *tcp.ForwarderRequest, reset bool) {
	request.Complete(reset)
	r.pending.remove(r.id)
}

// Accept answers with SYN-ACK and returns when the guest has completed the handshake. It fails when the guest resets,
// gives up or the network is closed, and when the request has ended before.
func (r *TCPRequest) Accept() (*Conn, error) {
	request := r.take()
	if request == nil {
		return nil, opError("accept", "tcp", r.Destination, r.Source, net.ErrClosed)
	}
	if r.pending.network.closed() {
		r.complete(request, false)
		return nil, opError("accept", "tcp", r.Destination, r.Source, net.ErrClosed)
	}
	c := newConn(r.pending.network, r.Destination, r.Source)
	endpoint, err := request.CreateEndpoint(c.queue)
	r.complete(request, false)
	if err != nil {
		return nil, opError("accept", "tcp", r.Destination, r.Source, toErrno(err))
	}
	if err := c.start(endpoint); err != nil {
		return nil, err
	}
	return c, nil
}

// Reset refuses the connection with RST.
func (r *TCPRequest) Reset() {
	if request := r.take(); request != nil {
		r.complete(request, true)
	}
}

// Unreachable refuses the connection with an ICMP or ICMPv6 error from the gateway.
func (r *TCPRequest) Unreachable(kind Unreachable) {
	if request := r.take(); request != nil {
		r.pending.network.sendUnreachable(kind, r.quote)
		r.complete(request, false)
	}
}

// Drop leaves the SYN unanswered. When the guest repeats it, that is a new request.
func (r *TCPRequest) Drop() {
	if request := r.take(); request != nil {
		r.complete(request, false)
	}
}
