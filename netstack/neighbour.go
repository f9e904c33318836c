package netstack

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// The host's aliases have the gateway's MAC, and no interface: gVisor would pick them as sources of what the gateway
// itself sends. So the link answers who asks for them. It sends nothing that was not asked for.
//
// With IPv6 it answers for the gateway's own addresses too. gVisor would say that they belong to no router, since it does not
// forward packets itself; a guest whose router says that of itself takes its default route away (RFC 4861, section 7.2.5),
// which Linux does at its first probe, five seconds after the first packet.

// answersARP answers a request, which the filter has admitted, for the host's alias. It reports whether it was one.
func (e *linkEndpoint) answersARP(p *packet) bool {
	a := &e.config.addresses
	asked := header.ARP(p.frame[frameMin:])
	if p.ethertype != header.ARPProtocolNumber || asked.Op() != header.ARPRequest ||
		netip.AddrFrom4([4]byte(asked.ProtocolAddressTarget())) != a.Host {
		return false
	}
	frame := make([]byte, frameMin+header.ARPSize)
	e.putEthernet(frame, header.ARPProtocolNumber)
	reply := header.ARP(frame[frameMin:])
	reply.SetIPv4OverEthernet()
	reply.SetOp(header.ARPReply)
	copy(reply.HardwareAddressSender(), a.GatewayMAC)
	copy(reply.ProtocolAddressSender(), asked.ProtocolAddressTarget())
	copy(reply.HardwareAddressTarget(), a.GuestMAC)
	copy(reply.ProtocolAddressTarget(), asked.ProtocolAddressSender())
	e.sendFrame(frame)
	return true
}

// Flags of a neighbour advertisement (RFC 4861, section 4.4).
const (
	advertRouter    = 0x80
	advertSolicited = 0x40
	advertOverride  = 0x20
)

// answersSolicitation is answersARP for IPv6 (RFC 4861, section 7.2.4): for every address of this side. The filter has
// admitted the solicitation, so it is whole and its sender is the guest.
func (e *linkEndpoint) answersSolicitation(p *packet) bool {
	if p.version != 6 || p.transport != protoICMPv6 || p.fragment {
		return false
	}
	icmp := header.ICMPv6(p.frame[p.transportAt:])
	if icmp.Type() != header.ICMPv6NeighborSolicit {
		return false
	}
	target := netip.AddrFrom16([16]byte(icmp[8:24]))
	if !e.filter.here(target) {
		return false
	}
	to, flags := p.source, byte(advertRouter|advertSolicited|advertOverride)
	if to.IsUnspecified() {
		to, flags = netip.IPv6LinkLocalAllNodes(), advertRouter|advertOverride
	}
	e.sendFrame(e.advertisement(target, to, flags))
	return true
}

// advertisement says that an IPv6 address of this side has the gateway's MAC.
func (e *linkEndpoint) advertisement(target, to netip.Addr, flags byte) []byte {
	a := &e.config.addresses
	const size = neighbourSize + 8
	frame := make([]byte, frameMin+header.IPv6MinimumSize+size)
	e.putEthernet(frame, header.IPv6ProtocolNumber)
	if to.IsMulticast() {
		group := to.As16()
		copy(frame, []byte{0x33, 0x33, group[12], group[13], group[14], group[15]})
	}
	source, destination := tcpip.AddrFrom16(target.As16()), tcpip.AddrFrom16(to.As16())
	header.IPv6(frame[frameMin:]).Encode(&header.IPv6Fields{
		PayloadLength: size, TransportProtocol: header.ICMPv6ProtocolNumber, HopLimit: ndpHopLimit,
		SrcAddr: source, DstAddr: destination,
	})
	icmp := header.ICMPv6(frame[frameMin+header.IPv6MinimumSize:])
	icmp.SetType(header.ICMPv6NeighborAdvert)
	icmp[4] = flags
	copy(icmp[8:], target.AsSlice())
	icmp[24], icmp[25] = optionTargetMAC, 1
	copy(icmp[26:], a.GatewayMAC)
	sum := header.PseudoHeaderChecksum(header.ICMPv6ProtocolNumber, source, destination, size)
	icmp.SetChecksum(^checksum.Checksum(icmp, sum))
	return frame
}

// putEthernet writes the header of a frame to the guest.
func (e *linkEndpoint) putEthernet(frame []byte, ethertype tcpip.NetworkProtocolNumber) {
	a := &e.config.addresses
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(a.GatewayMAC), DstAddr: tcpip.LinkAddress(a.GuestMAC), Type: ethertype,
	})
}
