package netstack

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// filterTests is the adversarial table: what a guest may send (no reason to drop), and what it may not.
func filterTests() []filterTest {
	group := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	solicitedGateway, solicitedGatewayMAC := solicitedNode(addrGateway6)
	solicitedGuest, solicitedGuestMAC := solicitedNode(addrGuest6)
	allNodes, allRouters := netip.IPv6LinkLocalAllNodes(), netip.IPv6LinkLocalAllRouters()
	dhcp := udpSegment(68, 67, 300)
	everywhere := netip.IPv4Unspecified()
	limited := netip.MustParseAddr("255.255.255.255")
	fromMAC, toMAC := macOption(optionSourceMAC, macGuest), macOption(optionTargetMAC, macGuest)

	return []filterTest{
		// Plain traffic.
		{name: "TCP to a server", frame: testFrame{transport: protoTCP, payload: tcpSegment(5)}.bytes()},
		{name: "UDP to a server", frame: testFrame{transport: protoUDP, payload: udpSegment(5, 6, 7)}.bytes()},
		{name: "TCP to the gateway", frame: testFrame{destination: addrGateway, transport: protoTCP, payload: tcpSegment(0)}.bytes()},
		{name: "TCP to the host's alias", frame: testFrame{destination: addrHost, transport: protoTCP, payload: tcpSegment(0)}.bytes()},
		{name: "TCP by IPv6", frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoTCP, payload: tcpSegment(5)}.bytes()},
		{name: "TCP from link-local", frame: testFrame{source: addrGuestLL, destination: addrGatewayLL, transport: protoTCP, payload: tcpSegment(5)}.bytes()},
		{name: "restricted destinations are egress's affair", frame: testFrame{destination: group("10.0.0.1"), transport: protoTCP, payload: tcpSegment(0)}.bytes()},
		{name: "unknown transport", frame: testFrame{transport: 132, payload: filled(3, 1)}.bytes()},
		{name: "padding is cut off", frame: testFrame{transport: protoUDP, payload: udpSegment(5, 6, 1), padding: filled(17, 9)}.bytes(), size: 43},
		{name: "full MTU", frame: testFrame{transport: 132, payload: filled(1480, 1)}.bytes()},
		{name: "DHCP from nowhere", frame: testFrame{to: macBroadcast, source: everywhere, destination: limited, transport: protoUDP, payload: dhcp}.bytes()},
		{name: "DHCP from the guest", frame: testFrame{to: macBroadcast, destination: limited, transport: protoUDP, payload: dhcp}.bytes()},
		{name: "DHCP renewal", frame: testFrame{destination: addrGateway, transport: protoUDP, payload: dhcp}.bytes()},

		// Frames.
		{name: "empty", frame: nil, want: DropTruncated},
		{name: "13 bytes", frame: testFrame{}.bytes()[:13], want: DropTruncated},
		{name: "Ethernet header only", frame: testFrame{}.bytes()[:14], want: DropTruncated},
		{name: "Ethernet header only, IPv6", frame: testFrame{source: addrGuest6, destination: addrServer6}.bytes()[:14], want: DropTruncated},
		{name: "giant", frame: testFrame{transport: 132, payload: filled(1481, 1)}.bytes(), want: DropOversized},
		{name: "giant, IPv6", frame: testFrame{source: addrGuest6, destination: addrServer6, transport: 132, payload: filled(1461, 1)}.bytes(), want: DropOversized},
		{name: "largest possible", frame: testFrame{transport: 132, payload: filled(65515, 1), padding: filled(4, 0)}.bytes(), want: DropOversized},
		{name: "another's MAC", frame: testFrame{from: macStranger}.bytes(), want: DropSourceMAC},
		{name: "the gateway's MAC", frame: testFrame{from: macGateway}.bytes(), want: DropSourceMAC},
		{name: "group MAC as source", frame: testFrame{from: macBroadcast}.bytes(), want: DropSourceMAC},
		{name: "to another MAC", frame: testFrame{to: macStranger}.bytes(), want: DropDestinationMAC},
		{name: "to its own MAC", frame: testFrame{to: macGuest}.bytes(), want: DropDestinationMAC},
		{name: "broadcast MAC, unicast address", frame: testFrame{to: macBroadcast}.bytes(), want: DropDestinationMAC},
		{name: "broadcast MAC, unicast IPv6 address", frame: testFrame{to: macBroadcast, source: addrGuest6, destination: addrServer6}.bytes(), want: DropDestinationMAC},
		{name: "VLAN", frame: testFrame{ethertype: 0x8100}.bytes(), want: DropEtherType},
		{name: "802.3 length", frame: testFrame{ethertype: 60}.bytes(), want: DropEtherType},
		{name: "LLDP", frame: testFrame{ethertype: 0x88cc}.bytes(), want: DropEtherType},

		// ARP.
		{name: "ARP for the gateway", frame: arpFrame(1, macGuest, addrGuest, addrGateway)},
		{name: "ARP for the host's alias", frame: arpFrame(1, macGuest, addrGuest, addrHost)},
		{name: "ARP reply", frame: arpFrame(2, macGuest, addrGuest, addrGateway)},
		{name: "ARP announcement", frame: arpFrame(1, macGuest, addrGuest, addrGuest)},
		{name: "ARP probe", frame: arpFrame(1, macGuest, everywhere, addrGuest)},
		{name: "ARP with padding", frame: append(arpFrame(1, macGuest, addrGuest, addrGateway), filled(18, 0)...), size: 42},
		{name: "ARP for another", frame: arpFrame(1, macGuest, addrGuest, group("192.168.127.77")), want: DropARP},
		{name: "ARP for a foreign address", frame: arpFrame(1, macGuest, addrGuest, addrServer), want: DropARP},
		{name: "ARP in the gateway's name", frame: arpFrame(1, macGuest, addrGateway, addrGateway), want: DropARP},
		{name: "ARP reply in the gateway's name", frame: arpFrame(2, macGuest, addrGateway, addrGateway), want: DropARP},
		{name: "ARP with another's MAC", frame: arpFrame(2, macStranger, addrGuest, addrGateway), want: DropARP},
		{name: "ARP probe for the gateway", frame: arpFrame(1, macGuest, everywhere, addrGateway), want: DropARP},
		{name: "ARP operation 3", frame: arpFrame(3, macGuest, addrGuest, addrGateway), want: DropARP, gvisor: true},
		{name: "ARP for other hardware", frame: patched(arpFrame(1, macGuest, addrGuest, addrGateway), 15, 6), want: DropARP},
		{name: "ARP truncated", frame: arpFrame(1, macGuest, addrGuest, addrGateway)[:41], want: DropTruncated},

		// IPv4.
		{name: "truncated header", frame: testFrame{}.bytes()[:33], want: DropTruncated},
		{name: "longer than the frame", frame: testFrame{longer: 1}.bytes(), want: DropTruncated},
		{name: "shorter than its header", frame: testFrame{longer: -1}.bytes(), want: DropMalformed},
		{name: "version 5", frame: patched(testFrame{}.bytes(), 14, 0x55), want: DropMalformed},
		{name: "header of 16 bytes", frame: patched(testFrame{}.bytes(), 14, 0x44), want: DropMalformed},
		{name: "header checksum", frame: patched(testFrame{}.bytes(), 24, 0x99), want: DropMalformed},
		{name: "source route", frame: testFrame{options: []byte{131, 7, 4, 10, 0, 0, 1, 0}}.bytes(), want: DropOptions},
		{name: "no-operation options", frame: testFrame{options: []byte{1, 1, 1, 1}}.bytes(), want: DropOptions},
		{name: "another's source", frame: testFrame{source: group("192.168.127.77")}.bytes(), want: DropSource},
		{name: "the gateway's source", frame: testFrame{source: addrGateway}.bytes(), want: DropSource},
		{name: "a public source", frame: testFrame{source: addrServer}.bytes(), want: DropSource},
		{name: "loopback source", frame: testFrame{source: group("127.0.0.1")}.bytes(), want: DropSource},
		{name: "multicast source", frame: testFrame{source: group("224.0.0.1")}.bytes(), want: DropSource},
		{name: "broadcast source", frame: testFrame{source: limited}.bytes(), want: DropSource},
		{name: "no source", frame: testFrame{source: everywhere, transport: protoTCP, payload: tcpSegment(0)}.bytes(), want: DropSource},
		{name: "no source, DHCP by unicast", frame: testFrame{source: everywhere, destination: addrGateway, transport: protoUDP, payload: dhcp}.bytes(), want: DropSource},
		{name: "another's source, broadcast", frame: testFrame{to: macBroadcast, source: addrServer, destination: limited, transport: protoUDP, payload: dhcp}.bytes(), want: DropSource},
		{name: "another's source, multicast", frame: testFrame{source: addrServer, destination: group("224.0.0.251")}.bytes(), want: DropSource},
		{name: "to loopback", frame: testFrame{destination: group("127.0.0.1")}.bytes(), want: DropDestination},
		{name: "to nowhere", frame: testFrame{destination: everywhere}.bytes(), want: DropDestination},
		{name: "to 0.0.0.0", frame: testFrame{destination: group("0.0.0.0")}.bytes(), want: DropDestination},
		{name: "to 0.1.2.3, which policy refuses", frame: testFrame{destination: group("0.1.2.3")}.bytes()},
		{name: "to itself", frame: testFrame{destination: addrGuest}.bytes(), want: DropDestination},
		{name: "broadcast, not DHCP", frame: testFrame{to: macBroadcast, destination: limited, transport: protoUDP, payload: udpSegment(1, 53, 9)}.bytes(), want: DropDestination},
		{name: "broadcast TCP", frame: testFrame{to: macBroadcast, destination: limited, transport: protoTCP, payload: tcpSegment(0)}.bytes(), want: DropDestination},
		{name: "broadcast ping", frame: testFrame{to: macBroadcast, destination: group("192.168.127.255"), transport: protoICMPv4, payload: echoMessage(8)}.bytes(), want: DropDestination},
		{name: "broadcast without a transport header", frame: testFrame{to: macBroadcast, destination: limited, transport: protoUDP}.bytes(), want: DropDestination},
		{name: "DHCP to a group MAC", frame: testFrame{to: groupMAC(allNodes), destination: limited, transport: protoUDP, payload: dhcp}.bytes(), want: DropDestinationMAC},
		{name: "IGMP", frame: testFrame{to: []byte{1, 0, 0x5e, 0, 0, 22}, destination: group("224.0.0.22"), transport: 2, options: []byte{148, 4, 0, 0}}.bytes(), want: DropMulticast},
		{name: "IGMP from nowhere", frame: testFrame{to: []byte{1, 0, 0x5e, 0, 0, 22}, source: everywhere, destination: group("224.0.0.22"), transport: 2}.bytes(), want: DropMulticast},
		{name: "mDNS", frame: testFrame{to: []byte{1, 0, 0x5e, 0, 0, 0xfb}, destination: group("224.0.0.251"), transport: protoUDP, payload: udpSegment(5353, 5353, 20)}.bytes(), want: DropMulticast},
		{name: "TTL 1 to a server", frame: testFrame{ttl: 1, transport: protoUDP, payload: udpSegment(1, 2, 3)}.bytes(), want: DropTTL},
		{name: "TTL 1 to the gateway", frame: testFrame{ttl: 1, destination: addrGateway, transport: protoUDP, payload: udpSegment(1, 2, 3)}.bytes()},
		{name: "TTL 0", frame: patchedIPv4(testFrame{destination: addrGateway, transport: protoUDP, payload: udpSegment(1, 2, 3)}.bytes(), 8, 0), want: DropTTL},
		{name: "TCP header truncated", frame: testFrame{transport: protoTCP, payload: tcpSegment(0)[:19]}.bytes(), want: DropTruncated},
		{name: "UDP header truncated", frame: testFrame{transport: protoUDP, payload: filled(7, 0)}.bytes(), want: DropTruncated},
		{name: "ICMP header truncated", frame: testFrame{transport: protoICMPv4, payload: filled(7, 0)}.bytes(), want: DropTruncated},
		{name: "first fragment", frame: testFrame{fragment: 1, transport: protoUDP, payload: udpSegment(1, 2, 1000)}.bytes()},
		{name: "last fragment", frame: testFrame{fragment: 1000, transport: protoUDP, payload: filled(3, 3)}.bytes()},
		{name: "ping in fragments", frame: testFrame{fragment: 1, transport: protoICMPv4, payload: echoMessage(8)}.bytes(), want: DropEcho},
		{name: "ping of the gateway in fragments", frame: testFrame{destination: addrGateway, fragment: 1, transport: protoICMPv4, payload: echoMessage(8)}.bytes()},

		// IPv6.
		{name: "IPv6 truncated header", frame: testFrame{source: addrGuest6, destination: addrServer6}.bytes()[:53], want: DropTruncated},
		{name: "IPv6 longer than the frame", frame: testFrame{source: addrGuest6, destination: addrServer6, longer: 1}.bytes(), want: DropTruncated},
		{name: "IPv6 version 4", frame: patched(testFrame{source: addrGuest6, destination: addrServer6}.bytes(), 14, 0x45), want: DropMalformed},
		{name: "IPv6 source of another network", frame: testFrame{source: addrServer6, destination: addrServer6}.bytes(), want: DropSource},
		{name: "IPv6 source of the gateway", frame: testFrame{source: addrGateway6, destination: addrServer6}.bytes(), want: DropSource},
		{name: "IPv6 source of the gateway, link-local", frame: testFrame{source: addrGatewayLL, destination: addrServer6}.bytes(), want: DropSource},
		{name: "IPv6 source of the host's alias", frame: testFrame{source: addrHost6, destination: addrServer6}.bytes(), want: DropSource},
		{name: "IPv6 loopback source", frame: testFrame{source: netip.IPv6Loopback(), destination: addrServer6}.bytes(), want: DropSource},
		{name: "IPv6 group as source", frame: testFrame{source: allNodes, destination: addrServer6}.bytes(), want: DropSource},
		{name: "IPv4-mapped source", frame: testFrame{source: group("::ffff:192.168.127.3"), destination: addrServer6}.bytes(), want: DropSource},
		{name: "IPv6 from nowhere, TCP", frame: testFrame{source: netip.IPv6Unspecified(), destination: addrServer6, transport: protoTCP, payload: tcpSegment(0)}.bytes(), want: DropSource},
		{name: "IPv6 from nowhere, ping", frame: testFrame{source: netip.IPv6Unspecified(), destination: addrServer6, transport: protoICMPv6, payload: echoMessage(128)}.bytes(), want: DropSource},
		{name: "IPv6 to loopback", frame: testFrame{source: addrGuest6, destination: netip.IPv6Loopback()}.bytes(), want: DropDestination},
		{name: "IPv6 to nowhere", frame: testFrame{source: addrGuest6, destination: netip.IPv6Unspecified()}.bytes(), want: DropDestination},
		{name: "IPv6 to itself", frame: testFrame{source: addrGuest6, destination: addrGuest6}.bytes(), want: DropDestination},
		{name: "hop limit 1 to a server", frame: testFrame{ttl: 1, source: addrGuest6, destination: addrServer6, transport: protoUDP, payload: udpSegment(1, 2, 3)}.bytes(), want: DropTTL},
		{name: "hop limit 0", frame: patched(testFrame{source: addrGuest6, destination: addrGateway6, transport: 132}.bytes(), 21, 0), want: DropTTL},
		{name: "routing header", frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoRouting, payload: filled(8, 0)}.bytes(), want: DropOptions},
		{name: "destination options", frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoDestination, payload: extension(132, 1, filled(3, 1))}.bytes()},
		{name: "routing header behind options", frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoHopByHop, payload: extension(protoRouting, 0, filled(8, 0))}.bytes(), want: DropOptions},
		{name: "too many headers", frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoDestination, payload: bytes.Repeat(extension(protoDestination, 0, nil), 100)}.bytes(), want: DropOptions},
		{name: "header truncated", frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoDestination, payload: filled(7, 0)}.bytes(), want: DropTruncated},
		{name: "header longer than the packet", frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoDestination, payload: []byte{6, 200, 0, 0, 0, 0, 0, 0}}.bytes(), want: DropTruncated},
		{name: "fragment header truncated", frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoFragment, payload: filled(7, 0)}.bytes(), want: DropTruncated},
		{name: "IPv6 fragment", frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoFragment, payload: slices.Concat([]byte{protoUDP, 0, 0, 1, 0, 0, 0, 1}, udpSegment(1, 2, 8))}.bytes()},
		{name: "IPv6 ping in fragments", frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoFragment, payload: slices.Concat([]byte{protoICMPv6, 0, 0, 1, 0, 0, 0, 1}, echoMessage(128))}.bytes(), want: DropEcho},
		{name: "IPv6 fragment that hides its transport", frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoFragment, payload: slices.Concat([]byte{protoDestination, 0, 0, 1, 0, 0, 0, 1}, extension(protoICMPv6, 0, nil))}.bytes(), want: DropOptions},
		{name: "mDNS by IPv6", frame: testFrame{to: groupMAC(group("ff02::fb")), source: addrGuest6, destination: group("ff02::fb"), transport: protoUDP, payload: udpSegment(5353, 5353, 20)}.bytes(), want: DropMulticast},
		{name: "MLD report from nowhere", frame: testFrame{to: groupMAC(group("ff02::16")), source: netip.IPv6Unspecified(), destination: group("ff02::16"), ttl: 1, transport: protoHopByHop, payload: extension(protoICMPv6, 0, icmpMessage(143, filled(24, 0)...))}.bytes(), want: DropMulticast},
		{name: "MLD query", frame: testFrame{to: groupMAC(allNodes), source: addrGuestLL, destination: allNodes, ttl: 1, transport: protoICMPv6, payload: icmpMessage(130, filled(24, 0)...)}.bytes(), want: DropMulticast},
		{name: "ping of all nodes from nowhere", frame: testFrame{to: groupMAC(allNodes), source: netip.IPv6Unspecified(), destination: allNodes, transport: protoICMPv6, payload: echoMessage(128)}.bytes(), want: DropSource},
		{name: "group with another group's MAC", frame: testFrame{to: groupMAC(group("ff02::fb")), source: addrGuest6, destination: allNodes, transport: protoICMPv6, payload: echoMessage(128)}.bytes(), want: DropDestinationMAC},
		{name: "group by unicast MAC", frame: testFrame{source: addrGuest6, destination: allNodes, transport: protoICMPv6, payload: echoMessage(128)}.bytes(), want: DropDestinationMAC},
		{name: "ping of all nodes", frame: testFrame{to: groupMAC(allNodes), source: addrGuest6, destination: allNodes, transport: protoICMPv6, payload: echoMessage(128)}.bytes()},

		// Neighbour discovery.
		{name: "router solicitation", frame: testFrame{to: groupMAC(allRouters), source: addrGuestLL, destination: allRouters, ttl: 255, transport: protoICMPv6, payload: icmpMessage(133, slices.Concat(filled(4, 0), fromMAC)...)}.bytes(), solicits: true},
		{name: "router solicitation from nowhere", frame: testFrame{to: groupMAC(allRouters), source: netip.IPv6Unspecified(), destination: allRouters, ttl: 255, transport: protoICMPv6, payload: icmpMessage(133, filled(4, 0)...)}.bytes(), solicits: true},
		{name: "router solicitation from afar", frame: testFrame{to: groupMAC(allRouters), source: addrGuestLL, destination: allRouters, ttl: 254, transport: protoICMPv6, payload: icmpMessage(133, filled(4, 0)...)}.bytes(), want: DropNDP},
		{name: "solicitation for the gateway", frame: testFrame{to: solicitedGatewayMAC, source: addrGuest6, destination: solicitedGateway, ttl: 255, transport: protoICMPv6, payload: neighbourMessage(135, addrGateway6, fromMAC...)}.bytes()},
		{name: "solicitation for the gateway by unicast", frame: testFrame{source: addrGuestLL, destination: addrGatewayLL, ttl: 255, transport: protoICMPv6, payload: neighbourMessage(135, addrGatewayLL, fromMAC...)}.bytes()},
		{name: "solicitation for another", frame: testFrame{to: solicitedGatewayMAC, source: addrGuest6, destination: solicitedGateway, ttl: 255, transport: protoICMPv6, payload: neighbourMessage(135, group("fd5a:94ef:e40c::77"), fromMAC...)}.bytes(), want: DropNDP},
		{name: "solicitation for a foreign address", frame: testFrame{to: solicitedGatewayMAC, source: addrGuest6, destination: solicitedGateway, ttl: 255, transport: protoICMPv6, payload: neighbourMessage(135, addrServer6, fromMAC...)}.bytes(), want: DropNDP},
		{name: "duplicate address detection", frame: testFrame{to: solicitedGuestMAC, source: netip.IPv6Unspecified(), destination: solicitedGuest, ttl: 255, transport: protoICMPv6, payload: neighbourMessage(135, addrGuest6)}.bytes()},
		{name: "duplicate address detection of the gateway's", frame: testFrame{to: solicitedGatewayMAC, source: netip.IPv6Unspecified(), destination: solicitedGateway, ttl: 255, transport: protoICMPv6, payload: neighbourMessage(135, addrGateway6)}.bytes()},
		{name: "advertisement", frame: testFrame{source: addrGuest6, destination: addrGateway6, ttl: 255, transport: protoICMPv6, payload: neighbourMessage(136, addrGuest6, toMAC...)}.bytes()},
		{name: "advertisement in the gateway's name", frame: testFrame{to: groupMAC(allNodes), source: addrGuest6, destination: allNodes, ttl: 255, transport: protoICMPv6, payload: neighbourMessage(136, addrGateway6, toMAC...)}.bytes(), want: DropNDP},
		{name: "advertisement of another MAC", frame: testFrame{source: addrGuest6, destination: addrGateway6, ttl: 255, transport: protoICMPv6, payload: neighbourMessage(136, addrGuest6, macOption(optionTargetMAC, macStranger)...)}.bytes(), want: DropNDP},
		{name: "advertisement from nowhere", frame: testFrame{to: groupMAC(allNodes), source: netip.IPv6Unspecified(), destination: allNodes, ttl: 255, transport: protoICMPv6, payload: neighbourMessage(136, addrGuest6)}.bytes(), want: DropSource},
		{name: "advertisement truncated", frame: testFrame{source: addrGuest6, destination: addrGateway6, ttl: 255, transport: protoICMPv6, payload: neighbourMessage(136, addrGuest6)[:23]}.bytes(), want: DropTruncated},
		{name: "option of no length", frame: testFrame{source: addrGuest6, destination: addrGateway6, ttl: 255, transport: protoICMPv6, payload: neighbourMessage(136, addrGuest6, filled(8, 0)...)}.bytes(), want: DropNDP},
		{name: "option longer than the message", frame: testFrame{source: addrGuest6, destination: addrGateway6, ttl: 255, transport: protoICMPv6, payload: neighbourMessage(136, addrGuest6, 2, 9, 0, 0, 0, 0, 0, 0)}.bytes(), want: DropNDP},
		{name: "router advertisement", frame: testFrame{to: groupMAC(allNodes), source: addrGuestLL, destination: allNodes, ttl: 255, transport: protoICMPv6, payload: icmpMessage(134, filled(12, 0)...)}.bytes(), want: DropNDP},
		{name: "redirect", frame: testFrame{source: addrGuestLL, destination: addrGatewayLL, ttl: 255, transport: protoICMPv6, payload: icmpMessage(137, filled(36, 0)...)}.bytes(), want: DropNDP},

		// Echo.
		{name: "ping of the gateway", frame: testFrame{destination: addrGateway, transport: protoICMPv4, payload: echoMessage(8)}.bytes()},
		{name: "ping of a server", frame: testFrame{transport: protoICMPv4, payload: echoMessage(8)}.bytes(), echo: true},
		{name: "ping of the host's alias", frame: testFrame{destination: addrHost, transport: protoICMPv4, payload: echoMessage(8)}.bytes(), echo: true},
		{name: "ping with TTL 1", frame: testFrame{ttl: 1, transport: protoICMPv4, payload: echoMessage(8)}.bytes(), want: DropTTL},
		{name: "ping with a wrong checksum", frame: testFrame{transport: protoICMPv4, payload: echoMessage(8), badChecksum: true}.bytes(), want: DropChecksum},
		{name: "ping by IPv6 with a wrong checksum", frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoICMPv6, payload: echoMessage(128), badChecksum: true}.bytes(), want: DropChecksum},
		{name: "ping with another code", frame: testFrame{transport: protoICMPv4, payload: patched(echoMessage(8), 1, 8)}.bytes(), want: DropEcho},
		{name: "echo reply to a server", frame: testFrame{transport: protoICMPv4, payload: echoMessage(0)}.bytes()},
		{name: "ping by IPv6", frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoICMPv6, payload: echoMessage(128)}.bytes(), echo: true},
		{name: "ping of the host's alias by IPv6", frame: testFrame{source: addrGuest6, destination: addrHost6, transport: protoICMPv6, payload: echoMessage(128)}.bytes(), echo: true},
		{name: "ping of the gateway by IPv6", frame: testFrame{source: addrGuest6, destination: addrGateway6, transport: protoICMPv6, payload: echoMessage(128)}.bytes()},
		{name: "ping of the gateway, link-local", frame: testFrame{source: addrGuestLL, destination: addrGatewayLL, transport: protoICMPv6, payload: echoMessage(128)}.bytes()},
	}
}

type filterTest struct {
	name     string
	frame    []byte
	want     DropReason
	size     int  // of the admitted frame; 0: all of it
	gvisor   bool // admitted: gVisor ignores it
	echo     bool
	solicits bool
}

// patched changes one byte.
func patched(frame []byte, at int, to byte) []byte {
	frame[at] = to
	return frame
}

// patchedIPv4 changes one byte of the packet and makes the IPv4 header's checksum right again.
func patchedIPv4(frame []byte, at int, to byte) []byte {
	frame[frameMin+at] = to
	fixIPv4(frame)
	return frame
}

// extension is an IPv6 extension header of 8 + 8 times longer bytes, with what follows.
func extension(next, longer byte, then []byte) []byte {
	return slices.Concat([]byte{next, longer, 1, 4, 0, 0, 0, 0}, filled(8*int(longer), 0), then)
}

func TestFilter(t *testing.T) {
	for _, test := range filterTests() {
		t.Run(test.name, func(t *testing.T) {
			config := linkDefaults(t)
			p, why := newFilter(&config).check(offload{}, slices.Clone(test.frame))
			if test.gvisor {
				test.want = ""
			}
			if why != test.want {
				t.Fatalf("dropped for %q, want %q", why, test.want)
			}
			if why != "" {
				return
			}
			if want := max(test.size, 0); want == 0 && !bytes.Equal(p.frame, test.frame) || want > 0 && len(p.frame) != want {
				t.Errorf("admitted %d bytes of %d, want %d", len(p.frame), len(test.frame), want)
			}
			if p.echo != test.echo || p.solicits != test.solicits {
				t.Errorf("echo %v, router solicitation %v; want %v, %v", p.echo, p.solicits, test.echo, test.solicits)
			}
		})
	}
}

func TestFilterDescribesEcho(t *testing.T) {
	config := linkDefaults(t)
	tests := map[string]testFrame{
		"IPv4": {source: addrGuest, destination: addrServer, ttl: 9, transport: protoICMPv4, payload: echoMessage(8)},
		"IPv6": {source: addrGuest6, destination: addrServer6, ttl: 9, transport: protoICMPv6, payload: echoMessage(128)},
	}
	for name, frame := range tests {
		t.Run(name, func(t *testing.T) {
			p, why := newFilter(&config).check(offload{}, frame.bytes())
			if why != "" {
				t.Fatal(why)
			}
			want := echoRequest{frame.source, frame.destination, 0x1234, 5, 9, []byte("abc"), frame.bytes()[frameMin:]}
			if diff := cmp.Diff(want, p.echoRequest(), cmp.AllowUnexported(echoRequest{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestFilterWithoutIPv6(t *testing.T) {
	c, err := Config{DisableIPv6: true}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	config := linkDefaults(t)
	config.addresses = c.addresses()
	f := newFilter(&config)
	for _, source := range []netip.Addr{addrGuest6, addrGuestLL, netip.IPv6Unspecified()} {
		frame := testFrame{source: source, destination: addrServer6, transport: protoTCP, payload: tcpSegment(0)}.bytes()
		if _, why := f.check(offload{}, frame); why != DropEtherType {
			t.Errorf("from %v: %q, want %q", source, why, DropEtherType)
		}
	}
	if _, why := f.check(offload{}, testFrame{transport: protoTCP, payload: tcpSegment(0)}.bytes()); why != "" {
		t.Errorf("IPv4 was dropped: %s", why)
	}
}

// TestFilterKnowsAllTruncations cuts every admitted frame at every length: nothing may panic, and what is left of a
// packet is never admitted as the whole one.
func TestFilterKnowsAllTruncations(t *testing.T) {
	config := linkDefaults(t)
	f := newFilter(&config)
	for _, test := range filterTests() {
		for n := range len(test.frame) {
			if n > 200 && n < len(test.frame)-5 {
				continue // data
			}
			if p, why := f.check(offload{}, slices.Clone(test.frame[:n])); why == "" && len(p.frame) > n {
				t.Fatalf("%s: admitted %d bytes of %d", test.name, len(p.frame), n)
			} else if why == "" && test.want == "" && test.size == 0 && p.ethertype != 0x0806 {
				t.Errorf("%s: cut to %d bytes, and admitted", test.name, n)
			}
		}
	}
}

// TestEveryDropReasonIsCounted keeps the table of reasons whole.
func TestEveryDropReasonIsCounted(t *testing.T) {
	var c linkCounters
	want := make(map[DropReason]uint64)
	for i, why := range dropReasons {
		for range i + 1 {
			c.drop(why)
		}
		want[why] = uint64(i + 1)
	}
	if diff := cmp.Diff(want, c.snapshot().Dropped); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, test := range filterTests() {
		if test.want != "" && !slices.Contains(dropReasons[:], test.want) {
			t.Errorf("no counter for %q", test.want)
		}
	}
}
