package netstack

import (
	"encoding/binary"
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// virtioHeader is what a driver writes before a frame.
func virtioHeader(flags, gso byte, gsoSize, start, offset uint16) []byte {
	h := make([]byte, virtioHeaderSize)
	h[virtioFlags], h[virtioGSOType] = flags, gso
	binary.LittleEndian.PutUint16(h[virtioHeaderLength:], 0xbad) // it must not be used
	binary.LittleEndian.PutUint16(h[virtioGSOSize:], gsoSize)
	binary.LittleEndian.PutUint16(h[virtioChecksumStart:], start)
	binary.LittleEndian.PutUint16(h[virtioChecksumOff:], offset)
	return h
}

func TestOffloadFromGuest(t *testing.T) {
	const tcpAt, tcpAt6 = frameMin + 20, frameMin + 40
	tcp4 := testFrame{transport: protoTCP, payload: tcpSegment(100), partial: true}
	tcp6 := testFrame{source: addrGuest6, destination: addrServer6, transport: protoTCP, payload: tcpSegment(100), partial: true}
	big4, big6 := tcp4, tcp6
	big4.payload, big6.payload = tcpSegment(60000), tcpSegment(60000)
	udp4 := testFrame{transport: protoUDP, payload: udpSegment(1, 2, 3), partial: true}
	ping := testFrame{transport: protoICMPv4, payload: echoMessage(8), partial: true}
	plain := virtioHeader(0, 0, 0, 0, 0)
	needs := func(start, offset uint16) []byte { return virtioHeader(1, 0, 0, start, offset) }

	tests := []struct {
		name   string
		header []byte
		frame  testFrame
		want   DropReason
	}{
		{name: "nothing to do", header: plain, frame: testFrame{transport: protoTCP, payload: tcpSegment(3)}},
		{name: "DATA_VALID means nothing from a driver", header: virtioHeader(2, 0, 0, 0, 0), frame: testFrame{transport: protoTCP, payload: tcpSegment(3)}},
		{name: "wrong TCP checksum", header: plain, frame: testFrame{transport: protoTCP, payload: tcpSegment(3), badChecksum: true}, want: DropChecksum},
		{name: "wrong UDP checksum", header: plain, frame: testFrame{transport: protoUDP, payload: udpSegment(1, 2, 3), badChecksum: true}, want: DropChecksum},
		{name: "wrong TCP checksum, IPv6", header: plain, frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoTCP, payload: tcpSegment(3), badChecksum: true}, want: DropChecksum},
		{name: "UDP without checksum", header: plain, frame: testFrame{transport: protoUDP, payload: udpSegment(1, 2, 3), raw: zeroed(26)}},
		{name: "UDP without checksum, IPv6", header: plain, frame: testFrame{source: addrGuest6, destination: addrServer6, transport: protoUDP, payload: udpSegment(1, 2, 3), raw: zeroed(46)}, want: DropChecksum},
		{name: "partial without saying so", header: plain, frame: tcp4, want: DropChecksum},
		{name: "partial TCP", header: needs(tcpAt, 16), frame: tcp4},
		{name: "partial TCP, IPv6", header: needs(tcpAt6, 16), frame: tcp6},
		{name: "partial UDP", header: needs(tcpAt, 6), frame: udp4},
		{name: "partial ping is completed", header: needs(tcpAt, 2), frame: ping},
		{name: "checksum in the Ethernet header", header: needs(13, 0), frame: tcp4, want: DropOffload},
		{name: "checksum behind the frame", header: needs(tcpAt, 119), frame: tcp4, want: DropOffload},
		{name: "checksum far behind the frame", header: needs(65535, 65535), frame: tcp4, want: DropOffload},
		{name: "checksum in the padding", header: needs(tcpAt, 122), frame: withPadding(tcp4, 40), want: DropOffload},
		{name: "checksum elsewhere breaks TCP's", header: needs(tcpAt, 30), frame: tcp4, want: DropChecksum},
		{name: "partial fragment", header: needs(tcpAt, 16), frame: testFrame{fragment: 1, transport: protoTCP, payload: tcpSegment(96)}, want: DropOffload},
		{name: "segments", header: virtioHeader(1, 1, 1460, tcpAt, 16), frame: big4},
		{name: "segments, IPv6", header: virtioHeader(1, 4, 1440, tcpAt6, 16), frame: big6},
		{name: "segments without checksum", header: virtioHeader(0, 1, 1460, 0, 0), frame: big4, want: DropOffload},
		{name: "segments of no size", header: virtioHeader(1, 1, 0, tcpAt, 16), frame: big4, want: DropOffload},
		{name: "segments larger than the MTU", header: virtioHeader(1, 1, 1481, tcpAt, 16), frame: big4, want: DropOffload},
		{name: "segments of the wrong version", header: virtioHeader(1, 4, 1440, tcpAt, 16), frame: big4, want: DropOffload},
		{name: "segments of the wrong version, IPv6", header: virtioHeader(1, 1, 1440, tcpAt6, 16), frame: big6, want: DropOffload},
		{name: "segments of UDP", header: virtioHeader(1, 1, 1000, tcpAt, 6), frame: udp4, want: DropOffload},
		{name: "UDP fragmentation offload", header: virtioHeader(1, 3, 1000, tcpAt, 6), frame: udp4, want: DropOffload},
		{name: "UDP segmentation offload", header: virtioHeader(1, 5, 1000, tcpAt, 6), frame: udp4, want: DropOffload},
		{name: "ECN segments were not offered", header: virtioHeader(1, 0x81, 1460, tcpAt, 16), frame: big4, want: DropOffload},
		{name: "giant without segments", header: needs(tcpAt, 16), frame: big4, want: DropOversized},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			config := linkDefaults(t)
			p, why := newFilter(&config).check(parseOffload(test.header), test.frame.bytes())
			if why != test.want {
				t.Fatalf("dropped for %q, want %q", why, test.want)
			}
			if p.echo && checksum.Checksum(p.frame[p.transportAt:], 0) != 0xffff {
				t.Error("the echo request's checksum is not complete")
			}
		})
	}
}

func TestOffloadOfARP(t *testing.T) {
	config := linkDefaults(t)
	_, why := newFilter(&config).check(parseOffload(virtioHeader(1, 0, 0, 14, 0)), arpFrame(1, macGuest, addrGuest, addrGateway))
	if why != DropOffload {
		t.Errorf("dropped for %q, want %q", why, DropOffload)
	}
}

// TestOffloadOfTunnel has a checksum that is missing inside a UDP packet, as Linux leaves it for VXLAN: it has to be
// right when the packet leaves, and the outer one must be, too.
func TestOffloadOfTunnel(t *testing.T) {
	inner := testFrame{transport: protoTCP, payload: tcpSegment(50)}
	want := inner.bytes()
	inner.partial = true
	const innerAt, tcpAt = frameMin + 20 + minUDP, frameMin + 20 + minUDP + frameMin + 20
	outer := testFrame{transport: protoUDP, payload: slices.Concat(udpSegment(1, 4789, 0), want)}
	binary.BigEndian.PutUint16(outer.payload[4:], uint16(len(outer.payload)))
	frame := outer.bytes()
	copy(frame[innerAt:], inner.bytes()) // the outer checksum is already the one of the completed packet

	config := linkDefaults(t)
	p, why := newFilter(&config).check(parseOffload(virtioHeader(1, 0, 0, tcpAt, header.TCPChecksumOffset)), frame)
	if why != "" {
		t.Fatalf("dropped for %q", why)
	}
	if got := p.frame[innerAt:]; !slices.Equal(got, want) {
		t.Errorf("the inner frame is\n%x, want\n%x", got, want)
	}
}

func zeroed(at int) func([]byte) []byte {
	return func(ip []byte) []byte {
		ip[at], ip[at+1] = 0, 0
		return ip
	}
}

func withPadding(f testFrame, n int) testFrame {
	f.padding = filled(n, 0)
	return f
}
