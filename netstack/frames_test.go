package netstack

import (
	"net"
	"net/netip"
	"slices"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Stations and strangers of the frames that tests make.
var (
	macGateway   = net.HardwareAddr{0x5a, 0x94, 0xef, 0xe4, 0x0c, 0xdd}
	macGuest     = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}
	macStranger  = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x66}
	macBroadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

	addrGateway   = netip.MustParseAddr("192.168.127.1")
	addrGuest     = netip.MustParseAddr("192.168.127.3")
	addrHost      = netip.MustParseAddr("192.168.127.254")
	addrServer    = netip.MustParseAddr("203.0.113.7")
	addrGateway6  = netip.MustParseAddr("fd5a:94ef:e40c::1")
	addrGuest6    = netip.MustParseAddr("fd5a:94ef:e40c::2:3")
	addrHost6     = netip.MustParseAddr("fd5a:94ef:e40c::fe")
	addrServer6   = netip.MustParseAddr("2001:db8::7")
	addrGuestLL   = netip.MustParseAddr("fe80::ff:fe00:1")
	addrGatewayLL = netip.MustParseAddr("fe80::5894:efff:fee4:cdd")
)

// testFrame describes a frame of the guest; the zero value goes from the guest to the server by IPv4, with nothing
// in it. Lengths and checksums are right unless said otherwise.
type testFrame struct {
	to, from             net.HardwareAddr
	ethertype            uint16 // 0: the addresses'
	source, destination  netip.Addr
	transport            uint8
	ttl                  uint8 // 0: 64
	options              []byte
	id, fragment         uint16 // fragment: offset in bytes, plus 1 for "more"
	payload              []byte
	longer               int    // added to the IP length
	padding              []byte // behind the packet
	badChecksum, partial bool   // of TCP, UDP and ICMP
	raw                  func(ip []byte) []byte
}

func (f testFrame) bytes() []byte {
	if !f.source.IsValid() {
		f.source = addrGuest
	}
	if !f.destination.IsValid() {
		f.destination = addrServer
	}
	if f.to == nil {
		f.to = macGateway
	}
	if f.from == nil {
		f.from = macGuest
	}
	if f.ttl == 0 {
		f.ttl = 64
	}
	if f.transport == 0 && f.payload == nil && !f.source.Is4() {
		f.transport = 59 // no next header
	}
	var packet []byte
	ethertype := uint16(header.IPv4ProtocolNumber)
	if f.source.Is4() {
		packet = f.packet4()
	} else {
		packet, ethertype = f.packet6(), uint16(header.IPv6ProtocolNumber)
	}
	if f.raw != nil {
		packet = f.raw(packet)
	}
	if f.ethertype != 0 {
		ethertype = f.ethertype
	}
	return slices.Concat(ethernet(f.to, f.from, ethertype), packet, f.padding)
}

func ethernet(to, from net.HardwareAddr, ethertype uint16) []byte {
	return slices.Concat(to, from, []byte{byte(ethertype >> 8), byte(ethertype)})
}

func (f testFrame) packet4() []byte {
	size := header.IPv4MinimumSize + len(f.options)
	ip := header.IPv4(make([]byte, size, size+len(f.payload)))
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(size + len(f.payload) + f.longer), TTL: f.ttl, Protocol: f.transport, ID: f.id,
		SrcAddr: tcpip.AddrFrom4(f.source.As4()), DstAddr: tcpip.AddrFrom4(f.destination.As4()),
	})
	ip[0] = 4<<4 | byte(size/4)
	copy(ip[header.IPv4MinimumSize:], f.options)
	ip.SetFlagsFragmentOffset(uint8(f.fragment&1), f.fragment&^7)
	ip.SetChecksum(0)
	ip.SetChecksum(^checksum.Checksum(ip, 0))
	return append(ip, f.sum(f.payload)...)
}

func (f testFrame) packet6() []byte {
	ip := header.IPv6(make([]byte, header.IPv6MinimumSize, header.IPv6MinimumSize+len(f.payload)))
	ip.Encode(&header.IPv6Fields{
		PayloadLength: uint16(len(f.payload) + f.longer), TransportProtocol: tcpip.TransportProtocolNumber(f.transport),
		HopLimit: f.ttl, SrcAddr: tcpip.AddrFrom16(f.source.As16()), DstAddr: tcpip.AddrFrom16(f.destination.As16()),
	})
	return append(ip, f.sum(f.payload)...)
}

// checksumField is where a transport's checksum is.
func checksumField(transport uint8) (int, bool) {
	switch transport {
	case protoTCP:
		return header.TCPChecksumOffset, true
	case protoUDP:
		return 6, true
	case protoICMPv4, protoICMPv6:
		return 2, true
	}
	return 0, false
}

// sum fills the transport's checksum in.
func (f testFrame) sum(segment []byte) []byte {
	at, ok := checksumField(f.transport)
	if !ok || len(segment) < at+2 || f.fragment != 0 {
		return segment
	}
	segment = slices.Clone(segment)
	segment[at], segment[at+1] = 0, 0
	pseudo := f.pseudo(len(segment))
	sum := ^checksum.Checksum(segment, pseudo)
	if f.partial {
		sum = pseudo
	}
	if f.badChecksum {
		sum ^= 0x0100
	}
	segment[at], segment[at+1] = byte(sum>>8), byte(sum)
	return segment
}

func (f testFrame) pseudo(length int) uint16 {
	switch {
	case f.transport == protoICMPv4:
		return 0
	case f.source.Is4():
		return header.PseudoHeaderChecksum(tcpip.TransportProtocolNumber(f.transport), tcpip.AddrFrom4(f.source.As4()),
			tcpip.AddrFrom4(f.destination.As4()), uint16(length))
	}
	return header.PseudoHeaderChecksum(tcpip.TransportProtocolNumber(f.transport), tcpip.AddrFrom16(f.source.As16()),
		tcpip.AddrFrom16(f.destination.As16()), uint16(length))
}

// tcpSegment is a SYN with data behind it.
func tcpSegment(data int) []byte {
	s := header.TCP(make([]byte, header.TCPMinimumSize+data))
	s.Encode(&header.TCPFields{SrcPort: 40000, DstPort: 80, SeqNum: 1, DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 1000})
	return s
}

func udpSegment(from, to uint16, data int) []byte {
	s := header.UDP(make([]byte, header.UDPMinimumSize+data))
	s.Encode(&header.UDPFields{SrcPort: from, DstPort: to, Length: uint16(len(s))})
	return s
}

// icmpMessage has the type and the bytes behind the checksum.
func icmpMessage(kind byte, rest ...byte) []byte {
	return slices.Concat([]byte{kind, 0, 0, 0}, rest)
}

// echo4 and echo6 are echo requests: id 0x1234, sequence 5, three bytes.
func echoMessage(kind byte) []byte { return icmpMessage(kind, 0x12, 0x34, 0, 5, 'a', 'b', 'c') }

// arpFrame is an ARP packet of the guest.
func arpFrame(op byte, senderMAC net.HardwareAddr, sender, target netip.Addr) []byte {
	return slices.Concat(ethernet(macBroadcast, macGuest, 0x0806), []byte{0, 1, 8, 0, 6, 4, 0, op},
		senderMAC, sender.AsSlice(), make([]byte, 6), target.AsSlice())
}

// neighbourMessage is a neighbour solicitation (135) or advertisement (136), with options.
func neighbourMessage(kind byte, target netip.Addr, options ...byte) []byte {
	return slices.Concat([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice(), options)
}

func macOption(kind byte, mac net.HardwareAddr) []byte { return slices.Concat([]byte{kind, 1}, mac) }

// solicitedNode is the group of a, and its MAC.
func solicitedNode(a netip.Addr) (netip.Addr, net.HardwareAddr) {
	group := netip.AddrFrom16(header.SolicitedNodeAddr(tcpip.AddrFrom16(a.As16())).As16())
	return group, groupMAC(group)
}

func groupMAC(group netip.Addr) net.HardwareAddr {
	b := group.As16()
	return net.HardwareAddr{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// fixIPv4 makes the header checksum of a frame right.
func fixIPv4(frame []byte) {
	ip := header.IPv4(frame[frameMin:])
	ip.SetChecksum(0)
	ip.SetChecksum(^checksum.Checksum(ip[:ip.HeaderLength()], 0))
}

func allRouters() netip.Addr { return netip.IPv6LinkLocalAllRouters() }

func prefixOf(a netip.Addr, bits int) netip.Prefix { return netip.PrefixFrom(a, bits) }
