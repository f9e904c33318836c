package netstack

import (
	"bytes"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// IPv4 -----------------------------------------------------------------------------------------------------------

// checkIPv4 looks at header and addresses.
func (f *filter) checkIPv4(p *packet) DropReason {
	ip := header.IPv4(p.frame[frameMin:])
	if len(ip) < header.IPv4MinimumSize {
		return DropTruncated
	}
	headerLength, total := int(ip.HeaderLength()), int(ip.TotalLength())
	if ip[0]>>4 != 4 || headerLength < header.IPv4MinimumSize || total < headerLength {
		return DropMalformed
	}
	if total > len(ip) {
		return DropTruncated
	}
	if checksum.Checksum(ip[:headerLength], 0) != 0xffff {
		return DropMalformed
	}
	p.version, p.ttl, p.transport = 4, ip.TTL(), ip.Protocol()
	p.source, p.destination = netip.AddrFrom4(ip.SourceAddress().As4()), netip.AddrFrom4(ip.DestinationAddress().As4())
	p.frame, p.transportAt = p.frame[:frameMin+total], frameMin+headerLength
	p.fragment = ip.More() || ip.FragmentOffset() != 0
	if why := f.checkIPv4Addresses(p); why != "" {
		return why
	}
	if headerLength != header.IPv4MinimumSize {
		return DropOptions // source routes, record route: nothing that a guest needs (RFC 7126)
	}
	return ""
}

// checkIPv4Addresses admits the guest's own address to any unicast address, and DHCP from it or from nowhere.
func (f *filter) checkIPv4Addresses(p *packet) DropReason {
	to := p.destination
	if to.IsMulticast() {
		if p.source != f.guest && !p.source.IsUnspecified() {
			return DropSource
		}
		return DropMulticast
	}
	if to == netip.AddrFrom4([4]byte{255, 255, 255, 255}) || to == f.broadcast {
		return f.checkIPv4Broadcast(p)
	}
	if p.source != f.guest {
		return DropSource
	}
	if to.IsLoopback() || to.IsUnspecified() || to == f.guest {
		return DropDestination
	}
	if p.kind != tcpip.PacketHost {
		return DropDestinationMAC // RFC 1122, section 3.3.6
	}
	return ""
}

// checkIPv4Broadcast admits DHCP: the only service here that is found by broadcast.
func (f *filter) checkIPv4Broadcast(p *packet) DropReason {
	if p.source != f.guest && !p.source.IsUnspecified() {
		return DropSource
	}
	udp := header.UDP(p.frame[p.transportAt:])
	if p.transport != protoUDP || p.fragment || len(udp) < minUDP || udp.DestinationPort() != portDHCPServer {
		return DropDestination
	}
	if p.kind == tcpip.PacketMulticast {
		return DropDestinationMAC
	}
	return ""
}

// IPv6 -----------------------------------------------------------------------------------------------------------

// maxExtensions bounds the extension headers of a packet. Linux sends one at most.
const maxExtensions = 4

// checkIPv6 looks at headers and addresses.
func (f *filter) checkIPv6(p *packet) DropReason {
	ip := header.IPv6(p.frame[frameMin:])
	if len(ip) < header.IPv6MinimumSize {
		return DropTruncated
	}
	if ip[0]>>4 != 6 {
		return DropMalformed
	}
	total := header.IPv6MinimumSize + int(ip.PayloadLength())
	if total > len(ip) {
		return DropTruncated
	}
	p.version, p.ttl = 6, ip.HopLimit()
	p.source, p.destination = netip.AddrFrom16(ip.SourceAddress().As16()), netip.AddrFrom16(ip.DestinationAddress().As16())
	p.frame = p.frame[:frameMin+total]
	if why := p.walkExtensions(ip.NextHeader()); why != "" {
		return why
	}
	if why := f.checkIPv6Addresses(p); why != "" {
		return why
	}
	if p.transport == protoICMPv6 && !p.fragment {
		return f.checkNDP(p)
	}
	return ""
}

// walkExtensions finds the transport header (RFC 8200, section 4).
func (p *packet) walkExtensions(next uint8) DropReason {
	at := frameMin + header.IPv6MinimumSize
	for range maxExtensions {
		length := 0
		switch next {
		case protoHopByHop, protoDestination:
			if len(p.frame)-at < 8 {
				return DropTruncated
			}
			length = 8 + 8*int(p.frame[at+1])
		case protoFragment:
			if len(p.frame)-at < 8 {
				return DropTruncated
			}
			length, p.fragment = 8, true
		case protoRouting:
			return DropOptions // RFC 5095, and what source routing is for IPv4
		default:
			p.transport, p.transportAt = next, at
			return ""
		}
		if len(p.frame)-at < length {
			return DropTruncated
		}
		next, at = p.frame[at], at+length
		if p.fragment { // behind it are bytes of the whole packet, not necessarily a header
			p.transport, p.transportAt = next, at
			return fragmentOf(next)
		}
	}
	return DropOptions
}

// fragmentOf admits fragments of packets whose transport is known: what is behind further headers of the whole packet
// could not be known (RFC 7112), and it could be an echo request or neighbour discovery for another host.
func fragmentOf(next uint8) DropReason {
	switch next {
	case protoTCP, protoUDP, protoICMPv6:
		return ""
	}
	return DropOptions
}

// checkIPv6Addresses admits the guest's addresses to any unicast address, and neighbour discovery to its groups.
func (f *filter) checkIPv6Addresses(p *packet) DropReason {
	if p.source.IsUnspecified() && (p.transport != protoICMPv6 || p.fragment) || !f.guests6(p.source) && !p.source.IsUnspecified() {
		return DropSource
	}
	to := p.destination
	switch {
	case to.IsMulticast():
		return f.checkIPv6Group(p)
	case p.source.IsUnspecified():
		return DropSource
	case to.IsLoopback() || to.IsUnspecified() || to == p.source:
		return DropDestination
	case p.kind != tcpip.PacketHost:
		return DropDestinationMAC
	}
	return ""
}

// guests6 says whether the guest may use an address: any of the advertised network (SLAAC makes them up) or link-local,
// except those of this side.
func (f *filter) guests6(a netip.Addr) bool {
	return (f.subnet6.Contains(a) || a.IsLinkLocalUnicast()) && !f.here(a)
}

// checkIPv6Group admits ICMPv6 to all nodes, all routers and solicited-node groups, and calls the rest multicast; MLD
// reports are among it.
func (f *filter) checkIPv6Group(p *packet) DropReason {
	to := p.destination.As16()
	if p.kind != tcpip.PacketMulticast || p.frame[0] != 0x33 || p.frame[1] != 0x33 || !bytes.Equal(p.frame[2:6], to[12:]) {
		return DropDestinationMAC // RFC 2464, section 7
	}
	allNodes, allRouters := netip.IPv6LinkLocalAllNodes(), netip.IPv6LinkLocalAllRouters()
	solicited := header.IsSolicitedNodeAddr(tcpip.AddrFrom16(to))
	if p.transport != protoICMPv6 || p.fragment || p.destination != allNodes && p.destination != allRouters && !solicited {
		return DropMulticast
	}
	return ""
}

// Neighbour discovery (RFC 4861). Sizes are with the ICMPv6 header, up to the options.
const (
	routerSolicitSize, neighbourSize = 8, 24
	optionSourceMAC, optionTargetMAC = 1, 2
	ndpHopLimit                      = 255
)

// checkNDP admits of ICMPv6's own link matters only what a host may say about itself.
func (f *filter) checkNDP(p *packet) DropReason {
	icmp := p.frame[p.transportAt:]
	if len(icmp) < minICMP {
		return DropTruncated
	}
	unspecified := p.source.IsUnspecified()
	switch header.ICMPv6Type(icmp[0]) {
	case header.ICMPv6RouterSolicit:
		if p.ttl != ndpHopLimit || !f.honestOptions(icmp, routerSolicitSize) {
			return DropNDP
		}
		p.solicits = true
		return ""
	case header.ICMPv6NeighborSolicit:
		return f.checkNeighbour(p, icmp, unspecified)
	case header.ICMPv6NeighborAdvert:
		if unspecified {
			return DropSource
		}
		return f.checkNeighbour(p, icmp, true)
	case header.ICMPv6RouterAdvert, header.ICMPv6RedirectMsg:
		return DropNDP // the guest is no router
	case header.ICMPv6MulticastListenerQuery, header.ICMPv6MulticastListenerReport,
		header.ICMPv6MulticastListenerDone, header.ICMPv6MulticastListenerV2Report:
		return DropMulticast // nor does it say which groups there are
	}
	if unspecified {
		return DropSource
	}
	return ""
}

// checkNeighbour looks at a solicitation or an advertisement. About itself the guest may ask (duplicate address
// detection) and tell; else it may ask who is here.
func (f *filter) checkNeighbour(p *packet, icmp []byte, aboutItself bool) DropReason {
	if len(icmp) < neighbourSize {
		return DropTruncated
	}
	if p.ttl != ndpHopLimit || !f.honestOptions(icmp, neighbourSize) {
		return DropNDP
	}
	target := netip.AddrFrom16([16]byte(icmp[8:24]))
	if aboutItself && f.guests6(target) {
		return ""
	}
	if header.ICMPv6Type(icmp[0]) == header.ICMPv6NeighborSolicit && f.here(target) {
		return ""
	}
	return DropNDP
}

// honestOptions says whether the options behind size bytes are well-formed and name no MAC but the guest's.
func (f *filter) honestOptions(icmp []byte, size int) bool {
	for options := icmp[size:]; len(options) > 0; {
		if len(options) < 8 {
			return false
		}
		length := 8 * int(options[1])
		if length == 0 || length > len(options) {
			return false
		}
		if kind := options[0]; kind == optionSourceMAC || kind == optionTargetMAC {
			if length != 8 || !bytes.Equal(options[2:8], f.guestMAC[:]) {
				return false
			}
		}
		options = options[length:]
	}
	return true
}
