package netstack

import (
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// icmpError is an error message about a packet, in both versions (RFC 792 and RFC 1812, section 5.2.7; RFC 4443, section 3).
type icmpError struct {
	type4 header.ICMPv4Type
	code4 header.ICMPv4Code
	type6 header.ICMPv6Type
	code6 header.ICMPv6Code
}

// icmpErrorSize is that of a header of either version, up to the quote.
const icmpErrorSize = 8

// quoteLimit is how much of a packet an error quotes: more than RFC 792's 8 bytes behind the IP header, far less than
// the 576 and 1280 bytes that the error may have.
const quoteLimit = 128

// quoteOf copies the start of a packet that the stack has taken apart.
func quoteOf(pkt *stack.PacketBuffer) []byte {
	quote := make([]byte, 0, quoteLimit)
	for _, part := range [][]byte{pkt.NetworkHeader().Slice(), pkt.TransportHeader().Slice()} {
		quote = append(quote, part[:min(len(part), quoteLimit-len(quote))]...)
	}
	return quote
}

// sendTimeExceeded tells the sender of the quoted packet that its hops are used up here, on the way to its destination.
func (n *Network) sendTimeExceeded(quote []byte) {
	n.sendError(icmpError{
		type4: header.ICMPv4TimeExceeded, code4: header.ICMPv4TTLExceeded,
		type6: header.ICMPv6TimeExceeded, code6: header.ICMPv6HopLimitExceeded,
	}, quote)
}

// sendError tells the sender of the quoted packet, from the gateway's address. An error that cannot be sent is lost, like any ICMP
// packet, and so is one above the rate that the stack keeps for its own errors, too (RFC 1812, section 4.3.2.8; RFC 4443, section 2.4).
func (n *Network) sendError(e icmpError, quote []byte) {
	if len(quote) == 0 || !n.stack.AllowICMPMessage() {
		return
	}
	if header.IPVersion(quote) == header.IPv4Version {
		n.sendError4(e, quote)
	} else {
		n.sendError6(e, quote)
	}
}

func (n *Network) sendError4(e icmpError, quote []byte) {
	to := header.IPv4(quote).SourceAddress()
	n.sendICMP(toAddress(n.addresses.Gateway), to, header.IPv4ProtocolNumber, func(r *stack.Route) *stack.PacketBuffer {
		pkt := newICMP(r, icmpErrorSize, quote)
		h := header.ICMPv4(pkt.TransportHeader().Push(icmpErrorSize))
		h.SetType(e.type4)
		h.SetCode(e.code4)
		h.SetChecksum(^checksum.Checksum(quote, checksum.Checksum(h, 0)))
		pkt.TransportProtocolNumber = header.ICMPv4ProtocolNumber
		return pkt
	})
}

func (n *Network) sendError6(e icmpError, quote []byte) {
	to := header.IPv6(quote).SourceAddress()
	n.sendICMP(toAddress(n.addresses.Gateway6), to, header.IPv6ProtocolNumber, func(r *stack.Route) *stack.PacketBuffer {
		pkt := newICMP(r, icmpErrorSize, quote)
		h := header.ICMPv6(pkt.TransportHeader().Push(icmpErrorSize))
		h.SetType(e.type6)
		h.SetCode(e.code6)
		h.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{
			Header: h, Src: r.LocalAddress(), Dst: r.RemoteAddress(),
			PayloadCsum: checksum.Checksum(quote, 0), PayloadLen: len(quote),
		}))
		pkt.TransportProtocolNumber = header.ICMPv6ProtocolNumber
		return pkt
	})
}

func newICMP(r *stack.Route, size int, payload []byte) *stack.PacketBuffer {
	return stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(r.MaxHeaderLength()) + size, Payload: buffer.MakeWithData(payload),
	})
}

// sendICMP sends what build makes for a route between the two.
func (n *Network) sendICMP(from, to tcpip.Address, network tcpip.NetworkProtocolNumber, build func(*stack.Route) *stack.PacketBuffer) {
	r, err := n.stack.FindRoute(nicID, from, to, network, false)
	if err != nil {
		return
	}
	defer r.Release()
	pkt := build(r)
	defer pkt.DecRef()
	protocol := pkt.TransportProtocolNumber
	_ = r.WritePacket(stack.NetworkHeaderParams{Protocol: protocol, TTL: r.DefaultTTL()}, pkt)
}
