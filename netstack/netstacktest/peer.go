package netstacktest

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Stations of the default network.
const (
	gatewayMAC = tcpip.LinkAddress("\x5a\x94\xef\xe4\x0c\xdd")
	guestMAC   = tcpip.LinkAddress("\x02\x00\x00\x00\x00\x01")
)

// Flags of a Segment.
const (
	FIN = header.TCPFlagFin
	SYN = header.TCPFlagSyn
	RST = header.TCPFlagRst
	PSH = header.TCPFlagPsh
	ACK = header.TCPFlagAck
)

// Segment is a TCP segment over IPv4, made by hand or taken apart.
type Segment struct {
	Source, Destination netip.AddrPort
	Seq, Ack            uint32
	Flags               header.TCPFlags
	Window              uint16
	Options             []byte // padded to a multiple of four by Frame
	Payload             []byte
}

// String is for failures.
func (s Segment) String() string {
	return fmt.Sprintf("%v > %v %v seq %d ack %d win %d, %d bytes", s.Source, s.Destination, s.Flags, s.Seq, s.Ack, s.Window, len(s.Payload))
}

// Frame is the segment in an Ethernet frame from the guest to the gateway, without a virtio_net_hdr.
func (s Segment) Frame() []byte {
	options := append([]byte(nil), s.Options...)
	for len(options)%4 != 0 {
		options = append(options, 0)
	}
	size := header.TCPMinimumSize + len(options)
	tcp := header.TCP(make([]byte, size, size+len(s.Payload)))
	tcp.Encode(&header.TCPFields{
		SrcPort: s.Source.Port(), DstPort: s.Destination.Port(), SeqNum: s.Seq, AckNum: s.Ack,
		DataOffset: uint8(size), Flags: s.Flags, WindowSize: s.Window,
	})
	copy(tcp[header.TCPMinimumSize:], options)
	tcp = append(tcp, s.Payload...)
	source, destination := address(s.Source.Addr()), address(s.Destination.Addr())
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, source, destination, uint16(len(tcp)))
	tcp.SetChecksum(^checksum.Checksum(tcp, sum))
	return ipv4Frame(source, destination, uint8(header.TCPProtocolNumber), tcp)
}

func ipv4Frame(source, destination tcpip.Address, protocol uint8, payload []byte) []byte {
	const headers = header.EthernetMinimumSize + header.IPv4MinimumSize
	frame := append(make([]byte, headers, headers+len(payload)), payload...)
	header.Ethernet(frame).Encode(&header.EthernetFields{SrcAddr: guestMAC, DstAddr: gatewayMAC, Type: header.IPv4ProtocolNumber})
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(ip)), TTL: 64, Protocol: protocol, SrcAddr: source, DstAddr: destination,
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	return frame
}

// ParseSegment takes a frame apart; ok is false for anything but TCP over IPv4.
func ParseSegment(frame []byte) (s Segment, ok bool) {
	if len(frame) < header.EthernetMinimumSize || header.Ethernet(frame).Type() != header.IPv4ProtocolNumber {
		return s, false
	}
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	if !ip.IsValid(len(ip)) || ip.TransportProtocol() != header.TCPProtocolNumber {
		return s, false
	}
	tcp := header.TCP(ip.Payload())
	if len(tcp) < header.TCPMinimumSize || int(tcp.DataOffset()) > len(tcp) {
		return s, false
	}
	return Segment{
		Source:      netip.AddrPortFrom(addr(ip.SourceAddress()), tcp.SourcePort()),
		Destination: netip.AddrPortFrom(addr(ip.DestinationAddress()), tcp.DestinationPort()),
		Seq:         tcp.SequenceNumber(), Ack: tcp.AckNumber(), Flags: tcp.Flags(), Window: tcp.WindowSize(),
		Options: tcp.Options(), Payload: tcp.Payload(),
	}, true
}

// Peer is a guest made by hand: it answers ARP for its address, and its test does the rest. It knows the default
// network's IPv4 only, without virtio_net_hdr.
type Peer struct {
	*Wire
	frames chan []byte
	wait   sync.WaitGroup
}

// StartPeer makes a peer that ends with the test.
func StartPeer(t testing.TB) *Peer {
	p := &Peer{Wire: NewWire(), frames: make(chan []byte, 4096)}
	p.wait.Go(p.receive)
	t.Cleanup(func() {
		p.Wire.Close()
		p.wait.Wait()
	})
	return p
}

func (p *Peer) receive() {
	for {
		frame, err := p.Receive()
		if err != nil {
			close(p.frames)
			return
		}
		if len(frame) >= header.EthernetMinimumSize && header.Ethernet(frame).Type() == header.ARPProtocolNumber {
			p.answer(header.ARP(frame[header.EthernetMinimumSize:]))
			continue
		}
		select {
		case p.frames <- frame:
		default: // a test that does not look
		}
	}
}

// answer replies to an ARP request.
func (p *Peer) answer(request header.ARP) {
	if !request.IsValid() || request.Op() != header.ARPRequest {
		return
	}
	frame := make([]byte, header.EthernetMinimumSize+header.ARPSize)
	header.Ethernet(frame).Encode(&header.EthernetFields{SrcAddr: guestMAC, DstAddr: gatewayMAC, Type: header.ARPProtocolNumber})
	reply := header.ARP(frame[header.EthernetMinimumSize:])
	reply.SetIPv4OverEthernet()
	reply.SetOp(header.ARPReply)
	copy(reply.HardwareAddressSender(), guestMAC)
	copy(reply.ProtocolAddressSender(), request.ProtocolAddressTarget())
	copy(reply.HardwareAddressTarget(), request.HardwareAddressSender())
	copy(reply.ProtocolAddressTarget(), request.ProtocolAddressSender())
	_ = p.Send(frame)
}

// SendSegment sends s.
func (p *Peer) SendSegment(t testing.TB, s Segment) {
	t.Helper()
	if err := p.Send(s.Frame()); err != nil {
		t.Fatal(err)
	}
}

// Next waits for a frame that is not ARP; nil: none came within limit, or the wire ended.
func (p *Peer) Next(limit time.Duration) []byte {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case frame := <-p.frames:
		return frame
	case <-timer.C:
		return nil
	}
}

// Expect waits for a segment that matches and skips all that comes before it.
func (p *Peer) Expect(t testing.TB, what string, match func(Segment) bool) Segment {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		frame := p.Next(time.Until(end))
		if frame == nil {
			t.Fatalf("no segment came: %s", what)
		}
		if s, ok := ParseSegment(frame); ok && match(s) {
			return s
		}
	}
}

// Quiet fails the test when a segment comes within the time.
func (p *Peer) Quiet(t testing.TB, limit time.Duration) {
	t.Helper()
	for end := time.Now().Add(limit); ; {
		frame := p.Next(time.Until(end))
		if frame == nil {
			return
		}
		if s, ok := ParseSegment(frame); ok {
			t.Errorf("unexpected: %v", s)
		}
	}
}

// ICMPv6Frame is an ICMPv6 message, whose checksum it completes, in an Ethernet frame from the guest.
func ICMPv6Frame(from, to netip.Addr, hopLimit uint8, message []byte) []byte {
	const headers = header.EthernetMinimumSize + header.IPv6MinimumSize
	mac := gatewayMAC
	if to.IsMulticast() {
		mac = header.EthernetAddressFromMulticastIPv6Address(address(to))
	}
	frame := append(make([]byte, headers, headers+len(message)), message...)
	header.Ethernet(frame).Encode(&header.EthernetFields{SrcAddr: guestMAC, DstAddr: mac, Type: header.IPv6ProtocolNumber})
	header.IPv6(frame[header.EthernetMinimumSize:]).Encode(&header.IPv6Fields{
		PayloadLength: uint16(len(message)), TransportProtocol: header.ICMPv6ProtocolNumber, HopLimit: hopLimit,
		SrcAddr: address(from), DstAddr: address(to),
	})
	icmp := header.ICMPv6(frame[headers:])
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: address(from), Dst: address(to)}))
	return frame
}

// ICMPv4Frame is an ICMP message, whose checksum it completes, in an Ethernet frame from the guest.
func ICMPv4Frame(from, to netip.Addr, message []byte) []byte {
	icmp := header.ICMPv4(append([]byte(nil), message...))
	icmp.SetChecksum(0)
	icmp.SetChecksum(^checksum.Checksum(icmp, 0))
	return ipv4Frame(address(from), address(to), uint8(header.ICMPv4ProtocolNumber), icmp)
}
