package netstack

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Protocol numbers (IANA) that the filter knows.
const (
	protoHopByHop, protoRouting, protoFragment, protoDestination = 0, 43, 44, 60
	protoICMPv4, protoTCP, protoUDP, protoICMPv6                 = 1, 6, 17, 58

	minTCP, minUDP, minICMP = header.TCPMinimumSize, header.UDPMinimumSize, 8

	portDHCPServer = 67
)

// filter decides which frames of the guest reach gVisor. gVisor runs with promiscuous addresses, so it would believe
// any source and serve any destination; who the guest is has to be settled before.
//
//	frame ─► MACs ─► ethertype ─┬► ARP: only the guest's own, only about addresses that are here
//	                            ├► IPv4 ─┬► header, offload ─► addresses ─► transport ─► gVisor
//	                            └► IPv6 ─┘                                  └─► echo, for others
//
// It keeps no state and allocates nothing. One goroutine uses it.
type filter struct {
	guestMAC, gatewayMAC [6]byte
	guest, gateway       netip.Addr // IPv4
	host                 netip.Addr // IPv4 alias of the host
	gateway6, host6      netip.Addr // zero without IPv6
	linkLocal            netip.Addr // the gateway's
	broadcast            netip.Addr // of the IPv4 subnet
	subnet6              netip.Prefix
	mtu                  int
}

// packet is what the filter learnt about a frame that it admits. Offsets count from the frame's first byte.
type packet struct {
	frame       []byte // without what is behind the packet (padding)
	ethertype   tcpip.NetworkProtocolNumber
	kind        tcpip.PacketType
	version     int // of IP; 0 for ARP
	source      netip.Addr
	destination netip.Addr
	ttl         uint8
	transport   uint8
	transportAt int
	fragment    bool
	echo        bool // an echo request that is not for the gateway
	solicits    bool // a router solicitation
	expired     bool // dropped with DropTTL, and an error may say so
}

func newFilter(c *linkConfig) *filter {
	a := &c.addresses
	f := &filter{
		guestMAC: [6]byte(a.GuestMAC), gatewayMAC: [6]byte(a.GatewayMAC),
		guest: a.Guest, gateway: a.Gateway, host: a.Host, broadcast: broadcast(a.Subnet),
		gateway6: a.Gateway6, host6: a.Host6, subnet6: a.Subnet6, linkLocal: c.linkLocal, mtu: c.mtu,
	}
	if f.gateway6.IsValid() && !f.linkLocal.IsValid() {
		made := header.LinkLocalAddr(tcpip.LinkAddress(a.GatewayMAC))
		f.linkLocal = netip.AddrFrom16(made.As16())
	}
	return f
}

// check looks at one frame; it may complete checksums in it. Anything but "" is the reason to drop it.
func (f *filter) check(o offload, frame []byte) (p packet, why DropReason) {
	if len(frame) < frameMin {
		return p, DropTruncated
	}
	p.frame = frame
	if why = f.checkMACs(&p); why != "" {
		return p, why
	}
	if !o.fits(frame) {
		return p, DropOffload
	}
	switch p.ethertype = tcpip.NetworkProtocolNumber(binary.BigEndian.Uint16(frame[12:])); {
	case p.ethertype == header.ARPProtocolNumber:
		return p, f.checkARP(o, &p)
	case p.ethertype == header.IPv4ProtocolNumber:
		why = f.checkIPv4(&p)
	case p.ethertype == header.IPv6ProtocolNumber && f.gateway6.IsValid():
		why = f.checkIPv6(&p)
	default:
		return p, DropEtherType
	}
	if why == "" {
		why = f.checkTransport(o, &p)
	}
	return p, why
}

// checkMACs wants frames from the guest, to the gateway or to a group.
func (f *filter) checkMACs(p *packet) DropReason {
	to, from := p.frame[:6], p.frame[6:12]
	if !bytes.Equal(from, f.guestMAC[:]) {
		return DropSourceMAC
	}
	switch {
	case bytes.Equal(to, f.gatewayMAC[:]):
		p.kind = tcpip.PacketHost
	case bytes.Equal(to, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}):
		p.kind = tcpip.PacketBroadcast
	case to[0]&1 != 0:
		p.kind = tcpip.PacketMulticast
	default:
		return DropDestinationMAC
	}
	return ""
}

// checkARP admits requests for the gateway and the host's alias, what the guest says about itself (RFC 5227), and its
// replies; anything else would be an answer in another host's name or an entry in gVisor's table that is not true.
func (f *filter) checkARP(o offload, p *packet) DropReason {
	arp := header.ARP(p.frame[frameMin:])
	if len(arp) < header.ARPSize {
		return DropTruncated
	}
	if !o.plain() {
		return DropOffload
	}
	if p.kind == tcpip.PacketMulticast || !arp.IsValid() || !bytes.Equal(arp.HardwareAddressSender(), f.guestMAC[:]) {
		return DropARP
	}
	p.frame = p.frame[:frameMin+header.ARPSize]
	sender, _ := netip.AddrFromSlice(arp.ProtocolAddressSender())
	target, _ := netip.AddrFromSlice(arp.ProtocolAddressTarget())
	switch {
	case sender == f.guest && (target == f.gateway || target == f.host || target == f.guest):
		return ""
	case sender.IsUnspecified() && arp.Op() == header.ARPRequest && target == f.guest:
		return "" // a probe for its own address, which has no answer
	}
	return DropARP
}

// checkTransport looks at what is in the packet: the offload that it asks for, its checksum, and who it is for.
func (f *filter) checkTransport(o offload, p *packet) DropReason {
	if o.gso == gsoNone && len(p.frame)-frameMin > f.mtu {
		return DropOversized
	}
	if !o.segments(p, f.mtu) || !o.fits(p.frame) || o.needsChecksum && p.fragment {
		return DropOffload
	}
	if !p.fragment && len(p.frame)-p.transportAt < smallest(p.transport) {
		return DropTruncated
	}
	if o.needsChecksum && !o.leavesTransport(p) {
		o.complete(p.frame)
		o.needsChecksum = false
	}
	if (o.present || p.icmp()) && !o.needsChecksum && !p.fragment && !p.checksumRight() {
		return DropChecksum
	}
	return f.checkDestination(p)
}

// icmp says whether it is the ICMP of the packet's IP version. Its echo requests do not all get to gVisor's checks.
func (p *packet) icmp() bool {
	return p.transport == protoICMPv4 && p.version == 4 || p.transport == protoICMPv6 && p.version == 6
}

// smallest is the size of the transport's header.
func smallest(transport uint8) int {
	switch transport {
	case protoTCP:
		return minTCP
	case protoUDP:
		return minUDP
	case protoICMPv4, protoICMPv6:
		return minICMP
	}
	return 0
}

// checksumRight computes the transport's checksum. gVisor does not when the link has offload: it cannot tell the frames
// apart that came without a finished one. Fragments are not checked by anybody then.
func (p *packet) checksumRight() bool {
	segment := p.frame[p.transportAt:]
	switch p.transport {
	case protoUDP:
		udp := header.UDP(segment)
		if udp.Checksum() == 0 {
			return p.version == 4 // RFC 8200, section 8.1
		}
		if n := int(udp.Length()); n >= minUDP && n <= len(segment) {
			segment = segment[:n]
		}
	case protoICMPv4:
		return checksum.Checksum(segment, 0) == 0xffff
	case protoTCP, protoICMPv6:
	default:
		return true
	}
	return checksum.Checksum(segment, p.pseudoSum(len(segment))) == 0xffff
}

// pseudoSum is the sum of the pseudo header of a segment (RFC 9293, section 3.1; RFC 8200, section 8.1).
func (p *packet) pseudoSum(length int) uint16 {
	source, destination := tcpip.AddrFrom16(p.source.As16()), tcpip.AddrFrom16(p.destination.As16())
	if p.version == 4 {
		source, destination = tcpip.AddrFrom4(p.source.As4()), tcpip.AddrFrom4(p.destination.As4())
	}
	return header.PseudoHeaderChecksum(tcpip.TransportProtocolNumber(p.transport), source, destination, uint16(length))
}

// own says whether the gateway itself has the address.
func (f *filter) own(a netip.Addr) bool {
	return a == f.gateway || a == f.gateway6 || a == f.linkLocal
}

// here says whether this side of the link answers for the address.
func (f *filter) here(a netip.Addr) bool {
	return f.own(a) || a == f.host || a == f.host6
}

// checkDestination finds echo requests to others, and what has no hops left to get there.
func (f *filter) checkDestination(p *packet) DropReason {
	passes := p.kind == tcpip.PacketHost && !f.here(p.destination)
	if p.ttl == 0 || p.ttl == 1 && passes {
		p.expired = passes && p.mayHaveError()
		return DropTTL
	}
	if p.kind != tcpip.PacketHost || f.own(p.destination) {
		return ""
	}
	if !p.icmp() {
		return ""
	}
	if p.fragment {
		return DropEcho // gVisor would put it together and answer in the destination's name
	}
	kind := uint8(header.ICMPv4Echo)
	if p.version == 6 {
		kind = uint8(header.ICMPv6EchoRequest)
	}
	if p.echo = p.frame[p.transportAt] == kind; p.echo && p.frame[p.transportAt+1] != 0 {
		return DropEcho // RFC 792 knows code 0 only; gVisor does not look
	}
	return ""
}

// mayHaveError says whether an ICMP error may be about the packet: not about an ICMP error, nor a fragment but the first (RFC 1122,
// section 3.2.2; RFC 4443, section 2.4). Groups and sources that are no single host's are out before.
func (p *packet) mayHaveError() bool {
	if p.fragment && p.fragmentOffset() != 0 {
		return false
	}
	if !p.icmp() {
		return true
	}
	if len(p.frame) <= p.transportAt {
		return false
	}
	kind := p.frame[p.transportAt]
	if p.version == 6 {
		return kind >= uint8(header.ICMPv6EchoRequest) // the errors are those below
	}
	switch header.ICMPv4Type(kind) {
	case header.ICMPv4DstUnreachable, header.ICMPv4SrcQuench, header.ICMPv4Redirect, header.ICMPv4TimeExceeded, header.ICMPv4ParamProblem:
		return false
	}
	return true
}

// quote is the beginning of the packet, for an ICMP error about it. The bytes are borrowed.
func (p *packet) quote() []byte {
	return p.frame[frameMin:min(len(p.frame), frameMin+quoteLimit)]
}

// echoRequest describes the echo request in p, whose bytes it borrows.
func (p *packet) echoRequest() echoRequest {
	icmp := p.frame[p.transportAt:]
	return echoRequest{
		source: p.source, destination: p.destination, ttl: p.ttl,
		id: binary.BigEndian.Uint16(icmp[4:]), sequence: binary.BigEndian.Uint16(icmp[6:]),
		payload: icmp[minICMP:], quote: p.quote(),
	}
}
