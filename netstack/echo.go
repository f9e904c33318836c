package netstack

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Echo is an echo request (ping) of the guest to a host that is not the gateway.
type Echo struct {
	Source, Destination netip.Addr
	ID, Sequence        uint16
	TTL                 uint8
	Payload             []byte // the handler's own

	// Reply answers it as Destination: same identifier, sequence number and payload. Whoever calls it knows that the
	// destination has answered.
	Reply func()

	// Unreachable tells the guest instead why it gets no answer.
	Unreachable func(Unreachable)
}

// HandleEcho sets who decides about echo requests to addresses that are not the gateway's. f is called on a goroutine
// of its own for each; it bounds how many there are by returning soon. Without it there are no answers. Call it before Run.
func (n *Network) HandleEcho(f func(Echo)) { n.echoes.Store(&f) }

// linkEcho takes an echo request from the link.
func (n *Network) linkEcho(r echoRequest) {
	f := n.echoes.Load()
	if f == nil || !n.enter() {
		return
	}
	e := Echo{
		Source: r.source, Destination: r.destination, ID: r.id, Sequence: r.sequence, TTL: r.ttl,
		Payload: append([]byte(nil), r.payload...),
	}
	quote := append([]byte(nil), r.quote...)
	e.Reply = func() { n.replyEcho(e) }
	e.Unreachable = func(kind Unreachable) { n.sendUnreachable(kind, quote) }
	go func() {
		defer n.handlers.Done()
		(*f)(e)
	}()
}

// replyEcho sends the reply (RFC 792; RFC 4443, section 4.2).
func (n *Network) replyEcho(e Echo) {
	network := protocolOf(e.Destination)
	n.sendICMP(toAddress(e.Destination), toAddress(e.Source), network, func(r *stack.Route) *stack.PacketBuffer {
		if network == header.IPv4ProtocolNumber {
			return echoReply4(r, e)
		}
		return echoReply6(r, e)
	})
}

func echoReply4(r *stack.Route, e Echo) *stack.PacketBuffer {
	pkt := newICMP(r, header.ICMPv4MinimumSize, e.Payload)
	h := header.ICMPv4(pkt.TransportHeader().Push(header.ICMPv4MinimumSize))
	h.SetType(header.ICMPv4EchoReply)
	h.SetIdent(e.ID)
	h.SetSequence(e.Sequence)
	h.SetChecksum(^checksum.Checksum(e.Payload, checksum.Checksum(h, 0)))
	pkt.TransportProtocolNumber = header.ICMPv4ProtocolNumber
	return pkt
}

func echoReply6(r *stack.Route, e Echo) *stack.PacketBuffer {
	pkt := newICMP(r, header.ICMPv6EchoMinimumSize, e.Payload)
	h := header.ICMPv6(pkt.TransportHeader().Push(header.ICMPv6EchoMinimumSize))
	h.SetType(header.ICMPv6EchoReply)
	h.SetIdent(e.ID)
	h.SetSequence(e.Sequence)
	h.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{
		Header: h, Src: r.LocalAddress(), Dst: r.RemoteAddress(),
		PayloadCsum: checksum.Checksum(e.Payload, 0), PayloadLen: len(e.Payload),
	}))
	pkt.TransportProtocolNumber = header.ICMPv6ProtocolNumber
	return pkt
}

// consumeEcho keeps the stack from answering for others: it would do so for any address that it takes packets for.
func (n *Network) consumeEcho(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	to := fromAddress(id.LocalAddress)
	return to != n.addresses.Gateway && to != n.addresses.Gateway6 && !to.IsLinkLocalUnicast()
}
