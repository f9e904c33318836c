package netstack

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/faketime"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"agentvm/netstack/netstacktest"
)

// icmpGuest sends frames to a network and collects the ICMP messages that come back.
type icmpGuest struct {
	*netstacktest.Peer
	t     *testing.T
	clock *faketime.ManualClock
}

func newICMPGuest(t *testing.T, echo func(Echo)) *icmpGuest {
	t.Helper()
	clock := faketime.NewManualClock()
	n, err := New(Config{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	n.HandleEcho(echo)
	g := &icmpGuest{netstacktest.StartPeer(t), t, clock}
	ended := make(chan error, 1)
	go func() { ended <- n.Run(context.Background(), g.Host()) }()
	t.Cleanup(func() {
		_ = n.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return g
}

func (g *icmpGuest) send(frame []byte) {
	g.t.Helper()
	if err := g.Send(frame); err != nil {
		g.t.Fatal(err)
	}
}

// next is the next ICMP message's packet; advertisements are passed over.
func (g *icmpGuest) next() []byte {
	g.t.Helper()
	for {
		frame := g.Next(time.Minute)
		if frame == nil {
			g.t.Fatal("no ICMP message came")
		}
		switch ip := frame[frameMin:]; {
		case ip[0]>>4 == 4 && ip[9] == protoICMPv4, ip[0]>>4 == 6 && ip[6] == protoICMPv6 && ip[header.IPv6MinimumSize] < 133:
			return ip
		}
	}
}

// errors are the messages that came for what was sent before: the gateway's reply to a ping ends them.
func (g *icmpGuest) errors() (packets [][]byte) {
	g.t.Helper()
	g.send(testFrame{destination: addrGateway, transport: protoICMPv4, payload: echoMessage(8)}.bytes())
	for {
		ip := g.next()
		if ip[0]>>4 == 4 && ip[header.IPv4MinimumSize] == byte(header.ICMPv4EchoReply) {
			return packets
		}
		packets = append(packets, ip)
	}
}

// checkError looks at an ICMP error of the gateway about the packet of a frame.
func checkError(t *testing.T, ip, frame []byte, kind, code byte) {
	t.Helper()
	size, from, sum := header.IPv4MinimumSize, netip.AddrFrom4([4]byte(ip[12:16])), uint16(0)
	if ip[0]>>4 == 6 {
		size, from = header.IPv6MinimumSize, netip.AddrFrom16([16]byte(ip[8:24]))
		sum = header.PseudoHeaderChecksum(header.ICMPv6ProtocolNumber, header.IPv6(ip).SourceAddress(), header.IPv6(ip).DestinationAddress(), uint16(len(ip)-size))
	}
	icmp := ip[size:]
	if from != addrGateway && from != addrGateway6 || icmp[0] != kind || icmp[1] != code || checksum.Checksum(icmp, sum) != 0xffff {
		t.Errorf("type %d, code %d from %v; want type %d, code %d of the gateway, with a checksum", icmp[0], icmp[1], from, kind, code)
	}
	packet := frame[frameMin:]
	if quote := icmp[icmpErrorSize:]; !bytes.Equal(quote, packet[:min(len(packet), quoteLimit)]) {
		t.Errorf("quotes % x of % x", quote, packet)
	}
}

// TestTimeExceeded: a packet to another host without hops left brings an error, where one may be about it.
func TestTimeExceeded(t *testing.T) {
	udp, udp6 := udpSegment(1, 33434, 300), func(f testFrame) []byte {
		f.source, f.destination = addrGuest6, addrServer6
		return f.bytes()
	}
	fragment6 := func(next, offset byte, payload []byte) []byte {
		return slices.Concat([]byte{next, 0, 0, offset | 1, 0, 0, 0, 1}, payload)
	}
	tests := []struct {
		name  string
		frame []byte
		want  bool
	}{
		{"UDP", testFrame{ttl: 1, transport: protoUDP, payload: udp}.bytes(), true},
		{"TCP", testFrame{ttl: 1, transport: protoTCP, payload: tcpSegment(0)}.bytes(), true},
		{"ping", testFrame{ttl: 1, transport: protoICMPv4, payload: echoMessage(8)}.bytes(), true},
		{"TTL 0", patchedIPv4(testFrame{transport: protoUDP, payload: udp}.bytes(), 8, 0), true},
		{"another protocol", testFrame{ttl: 1, transport: 132, payload: udp}.bytes(), true},
		{"first fragment", testFrame{ttl: 1, fragment: 1, transport: protoUDP, payload: udp}.bytes(), true},
		{"IPv6, UDP", udp6(testFrame{ttl: 1, transport: protoUDP, payload: udp}), true},
		{"IPv6, TCP", udp6(testFrame{ttl: 1, transport: protoTCP, payload: tcpSegment(0)}), true},
		{"IPv6, ping", udp6(testFrame{ttl: 1, transport: protoICMPv6, payload: echoMessage(128)}), true},
		{"IPv6, hop limit 0", patched(udp6(testFrame{transport: protoUDP, payload: udp}), 21, 0), true},
		{"IPv6, first fragment", udp6(testFrame{ttl: 1, transport: protoFragment, payload: fragment6(protoUDP, 0, udp)}), true},

		{"TTL 2", testFrame{ttl: 2, transport: protoICMPv4, payload: echoMessage(8)}.bytes(), false},
		{"the gateway", testFrame{ttl: 1, destination: addrGateway, transport: protoTCP, payload: tcpSegment(0)}.bytes(), false},
		{"the host's alias", testFrame{ttl: 1, destination: addrHost, transport: protoICMPv4, payload: echoMessage(8)}.bytes(), false},
		{"later fragment", testFrame{ttl: 1, fragment: 1481, transport: protoUDP, payload: udp}.bytes(), false},
		{"last fragment", testFrame{ttl: 1, fragment: 1480, transport: protoUDP, payload: udp}.bytes(), false},
		{"unreachable", testFrame{ttl: 1, transport: protoICMPv4, payload: echoMessage(3)}.bytes(), false},
		{"time exceeded", testFrame{ttl: 1, transport: protoICMPv4, payload: echoMessage(11)}.bytes(), false},
		{"parameter problem", testFrame{ttl: 1, transport: protoICMPv4, payload: echoMessage(12)}.bytes(), false},
		{"unreachable, first fragment", testFrame{ttl: 1, fragment: 1, transport: protoICMPv4, payload: echoMessage(3)}.bytes(), false},
		{"a fragment of nothing", testFrame{ttl: 1, fragment: 1, transport: protoICMPv4}.bytes(), false},
		{"broadcast", testFrame{ttl: 1, to: macBroadcast, destination: netip.MustParseAddr("192.168.127.255"), transport: protoUDP, payload: udp}.bytes(), false},
		{"a server by broadcast", testFrame{ttl: 1, to: macBroadcast, transport: protoUDP, payload: udp}.bytes(), false},
		{"multicast", testFrame{ttl: 1, to: []byte{1, 0, 0x5e, 0, 0, 1}, destination: netip.MustParseAddr("224.0.0.1"), transport: protoUDP, payload: udp}.bytes(), false},
		{"another's source", testFrame{ttl: 1, source: addrServer, destination: addrHost, transport: protoUDP, payload: udp}.bytes(), false},
		{"wrong checksum", testFrame{ttl: 1, transport: protoICMPv4, payload: echoMessage(8), badChecksum: true}.bytes(), false},
		{"IPv6, later fragment", udp6(testFrame{ttl: 1, transport: protoFragment, payload: fragment6(protoUDP, 8, udp)}), false},
		{"IPv6, packet too big", udp6(testFrame{ttl: 1, transport: protoICMPv6, payload: echoMessage(2)}), false},
		{"IPv6, the gateway", testFrame{ttl: 1, source: addrGuest6, destination: addrHost6, transport: protoUDP, payload: udp}.bytes(), false},
		{"IPv6, multicast", testFrame{ttl: 1, to: groupMAC(netip.MustParseAddr("ff02::fb")), source: addrGuest6, destination: netip.MustParseAddr("ff02::fb"), transport: protoUDP, payload: udp}.bytes(), false},
	}
	g := newICMPGuest(t, func(Echo) {})
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g.t = t
			g.clock.Advance(time.Second) // nothing is above the rate
			g.send(test.frame)
			packets := slices.DeleteFunc(g.errors(), func(ip []byte) bool { // and not those about ports without a listener
				return ip[0]>>4 == 4 && ip[header.IPv4MinimumSize] != byte(header.ICMPv4TimeExceeded) ||
					ip[0]>>4 == 6 && ip[header.IPv6MinimumSize] != byte(header.ICMPv6TimeExceeded)
			})
			if len(packets) > 1 || len(packets) == 1 != test.want {
				t.Fatalf("%d errors, want one: %v", len(packets), test.want)
			}
			if !test.want {
				return
			}
			kind := byte(header.ICMPv4TimeExceeded)
			if packets[0][0]>>4 == 6 {
				kind = byte(header.ICMPv6TimeExceeded)
			}
			checkError(t, packets[0], test.frame, kind, 0)
		})
	}
}

// TestErrorsHaveARate: more errors than a burst come only as time goes by (RFC 1812, section 4.3.2.8), whatever they are about.
func TestErrorsHaveARate(t *testing.T) {
	g := newICMPGuest(t, func(Echo) {})
	const burst = 50
	for range 2 {
		g.clock.Advance(time.Second)
		for range burst {
			g.send(testFrame{ttl: 1, transport: protoUDP, payload: udpSegment(1, 33434, 3)}.bytes())
			g.send(testFrame{ttl: 1, source: addrGuest6, destination: addrServer6, transport: protoUDP, payload: udpSegment(1, 33434, 3)}.bytes())
		}
		if n := len(g.errors()); n != burst {
			t.Errorf("%d errors, want %d", n, burst)
		}
	}
}

// TestEchoUnreachable: the error about an echo request quotes it.
func TestEchoUnreachable(t *testing.T) {
	g := newICMPGuest(t, func(e Echo) { e.Unreachable(UnreachableProhibited) })
	long := append(echoMessage(8), make([]byte, 1000)...)
	for _, frame := range []testFrame{
		{transport: protoICMPv4, payload: echoMessage(8)},
		{transport: protoICMPv4, payload: long},
		{destination: addrHost, transport: protoICMPv4, payload: echoMessage(8)},
	} {
		g.send(frame.bytes())
		checkError(t, g.next(), frame.bytes(), byte(header.ICMPv4DstUnreachable), byte(header.ICMPv4AdminProhibited))
	}
	for _, payload := range [][]byte{echoMessage(128), append([]byte{128}, long[1:]...)} {
		frame := testFrame{source: addrGuest6, destination: addrServer6, transport: protoICMPv6, payload: payload}.bytes()
		g.send(frame)
		checkError(t, g.next(), frame, byte(header.ICMPv6DstUnreachable), byte(header.ICMPv6Prohibited))
	}
}
