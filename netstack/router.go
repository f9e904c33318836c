package netstack

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Times of router advertisements. The interval is the longest that RFC 4861, section 6.2.1 has: on a link of two, where
// the guest asks when it comes up, an idle VM need not be woken more often. Everything advertised lasts for several.
const (
	advertiseInterval = 1800 * time.Second
	// firstAdvertisement is for guests that continue from a saved machine, which have the last host's to work with and better things to
	// do at first. Those that boot ask.
	firstAdvertisement = time.Second
	routerLifetime     = 9000 * time.Second  // the longest of RFC 4861
	dnsLifetime        = 5400 * time.Second  // three intervals (RFC 8106, section 5.1)
	prefixPreferred    = 14400 * time.Second // four hours
	prefixValid        = 86400 * time.Second

	// solicitedSpacing bounds the answers to a guest that does nothing but ask.
	solicitedSpacing = 100 * time.Millisecond
)

// router tells the guest about IPv6 by advertisements (RFC 4861, section 6.2): who the router is, the prefix for SLAAC,
// the link's MTU and the resolver. It does nothing when the network has no IPv6.
type router struct {
	network *Network
	from    netip.Addr // the gateway's link-local address

	mu       sync.Mutex
	running  bool
	timer    tcpip.Timer
	answered tcpip.MonotonicTime // when a solicitation was, last
}

func newRouter(n *Network) *router {
	local := header.LinkLocalAddr(tcpip.LinkAddress(n.addresses.GatewayMAC))
	return &router{network: n, from: netip.AddrFrom16(local.As16())}
}

// start advertises soon and then every interval.
func (r *router) start() {
	if r.network.config.DisableIPv6 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = true
	r.timer = r.network.config.Clock.AfterFunc(firstAdvertisement, r.periodic)
}

func (r *router) periodic() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.running {
		return
	}
	r.advertise(netip.IPv6LinkLocalAllNodes())
	r.timer.Reset(advertiseInterval)
}

// stop ends the advertisements.
func (r *router) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = false
	if r.timer != nil {
		r.timer.Stop()
	}
}

// solicited answers a router solicitation. There is no random delay (RFC 4861, section 6.2.6): no other router is on
// the link, and the guest waits for it while it boots.
func (r *router) solicited(source netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.network.config.Clock.NowMonotonic()
	if !r.running || r.answered != (tcpip.MonotonicTime{}) && now.Sub(r.answered) < solicitedSpacing {
		return
	}
	r.answered = now
	if source.IsUnspecified() {
		source = netip.IPv6LinkLocalAllNodes()
	}
	r.advertise(source)
}

// advertise sends an advertisement to the guest or to all nodes. One that finds the queue full is lost.
func (r *router) advertise(to netip.Addr) {
	r.network.link.sendFrame(r.frame(to))
}

// frame is a whole Ethernet frame with an advertisement.
func (r *router) frame(to netip.Addr) []byte {
	a := r.network.addresses
	mac := tcpip.LinkAddress(a.GuestMAC)
	if to.IsMulticast() {
		mac = header.EthernetAddressFromMulticastIPv6Address(toAddress(to))
	}
	message := r.message()
	ip := frameMin + header.IPv6MinimumSize
	frame := append(make([]byte, ip, ip+len(message)), message...)
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(a.GatewayMAC), DstAddr: mac, Type: header.IPv6ProtocolNumber,
	})
	header.IPv6(frame[frameMin:]).Encode(&header.IPv6Fields{
		PayloadLength: uint16(len(message)), TransportProtocol: header.ICMPv6ProtocolNumber, HopLimit: ndpHopLimit,
		SrcAddr: toAddress(r.from), DstAddr: toAddress(to),
	})
	icmp := header.ICMPv6(frame[ip:])
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{
		Header: icmp[:header.ICMPv6MinimumSize], Src: toAddress(r.from), Dst: toAddress(to),
		PayloadCsum: checksum.Checksum(icmp[header.ICMPv6MinimumSize:], 0), PayloadLen: len(icmp) - header.ICMPv6MinimumSize,
	}))
	return frame
}

// message is the advertisement (RFC 4861, section 4.2) without its checksum. Managed and other configuration are off:
// there is no DHCPv6.
func (r *router) message() []byte {
	const hopLimit = 64
	m := []byte{byte(header.ICMPv6RouterAdvert), 0, 0, 0, hopLimit, 0}
	m = binary.BigEndian.AppendUint16(m, uint16(routerLifetime/time.Second))
	m = append(m, make([]byte, 8)...) // reachable and retransmission time: the guest's own
	m = append(m, optionSourceMAC, 1)
	m = append(m, r.network.addresses.GatewayMAC...)
	m = r.appendMTU(m)
	m = r.appendPrefix(m)
	return r.appendDNS(m)
}

// appendMTU is RFC 4861, section 4.6.4.
func (r *router) appendMTU(m []byte) []byte {
	m = append(m, 5, 1, 0, 0)
	return binary.BigEndian.AppendUint32(m, uint32(r.network.config.MTU))
}

// appendPrefix is RFC 4861, section 4.6.2: on link, and for addresses that the guest makes itself.
func (r *router) appendPrefix(m []byte) []byte {
	const onLink, autonomous = 0x80, 0x40
	m = append(m, 3, 4, 64, onLink|autonomous)
	m = binary.BigEndian.AppendUint32(m, uint32(prefixValid/time.Second))
	m = binary.BigEndian.AppendUint32(m, uint32(prefixPreferred/time.Second))
	m = append(m, 0, 0, 0, 0)
	return append(m, r.network.addresses.Subnet6.Addr().AsSlice()...)
}

// appendDNS is RFC 8106, section 5.1: the gateway resolves.
func (r *router) appendDNS(m []byte) []byte {
	m = append(m, 25, 3, 0, 0)
	m = binary.BigEndian.AppendUint32(m, uint32(dnsLifetime/time.Second))
	return append(m, r.network.addresses.Gateway6.AsSlice()...)
}
