package netstack

import (
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Unreachable is why a packet did not get where the guest sent it. A Linux guest's connect fails with the errno.
type Unreachable uint8

// Reasons, as ICMP (RFC 792, RFC 1812 section 5.2.7.1) and ICMPv6 (RFC 4443, section 3.1) know them.
const (
	UnreachableNet        Unreachable = iota // ENETUNREACH
	UnreachableHost                          // EHOSTUNREACH
	UnreachablePort                          // ECONNREFUSED
	UnreachableProhibited                    // EHOSTUNREACH with IPv4, EACCES with IPv6
)

// quoteLimit is how much of a packet an error quotes: more than RFC 792's 8 bytes behind the IP header, far less than
// the 576 and 1280 bytes that the error may have.
const quoteLimit = 128

func (u Unreachable) code4() header.ICMPv4Code {
	switch u {
	case UnreachableHost:
		return header.ICMPv4HostUnreachable
	case UnreachablePort:
		return header.ICMPv4PortUnreachable
	case UnreachableProhibited:
		return header.ICMPv4AdminProhibited
	default:
		return header.ICMPv4NetUnreachable
	}
}

func (u Unreachable) code6() header.ICMPv6Code {
	switch u {
	case UnreachableHost:
		return header.ICMPv6AddressUnreachable
	case UnreachablePort:
		return header.ICMPv6PortUnreachable
	case UnreachableProhibited:
		return header.ICMPv6Prohibited
	default:
		return header.ICMPv6NetworkUnreachable
	}
}

// quoteOf copies the start of a packet that the stack has taken apart.
func quoteOf(pkt *stack.PacketBuffer) []byte {
	quote := make([]byte, 0, quoteLimit)
	for _, part := range [][]byte{pkt.NetworkHeader().Slice(), pkt.TransportHeader().Slice()} {
		quote = append(quote, part[:min(len(part), quoteLimit-len(quote))]...)
	}
	return quote
}

// sendUnreachable tells the sender of the quoted packet, from the gateway's address. An error that cannot be sent is
// lost, like any ICMP packet.
func (n *Network) sendUnreachable(kind Unreachable, quote []byte) {
	if len(quote) == 0 {
		return
	}
	if header.IPVersion(quote) == header.IPv4Version {
		n.sendUnreachable4(kind, quote)
	} else {
		n.sendUnreachable6(kind, quote)
	}
}

func (n *Network) sendUnreachable4(kind Unreachable, quote []byte) {
	to := header.IPv4(quote).SourceAddress()
	n.sendICMP(toAddress(n.addresses.Gateway), to, header.IPv4ProtocolNumber, func(r *stack.Route) *stack.PacketBuffer {
		pkt := newICMP(r, header.ICMPv4MinimumSize, quote)
		h := header.ICMPv4(pkt.TransportHeader().Push(header.ICMPv4MinimumSize))
		h.SetType(header.ICMPv4DstUnreachable)
		h.SetCode(kind.code4())
		h.SetChecksum(^checksum.Checksum(quote, checksum.Checksum(h, 0)))
		pkt.TransportProtocolNumber = header.ICMPv4ProtocolNumber
		return pkt
	})
}

func (n *Network) sendUnreachable6(kind Unreachable, quote []byte) {
	to := header.IPv6(quote).SourceAddress()
	n.sendICMP(toAddress(n.addresses.Gateway6), to, header.IPv6ProtocolNumber, func(r *stack.Route) *stack.PacketBuffer {
		pkt := newICMP(r, header.ICMPv6DstUnreachableMinimumSize, quote)
		h := header.ICMPv6(pkt.TransportHeader().Push(header.ICMPv6DstUnreachableMinimumSize))
		h.SetType(header.ICMPv6DstUnreachable)
		h.SetCode(kind.code6())
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
