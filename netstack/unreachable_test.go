package netstack_test

import (
	"bytes"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// TestUnreachableFrames looks at the errors themselves: a Linux guest finds its socket by the packet that they quote.
func TestUnreachableFrames(t *testing.T) {
	tests := []struct {
		kind         netstack.Unreachable
		code4, code6 byte // RFC 792 and RFC 1812; RFC 4443
	}{
		{netstack.UnreachableNet, 0, 0},
		{netstack.UnreachableHost, 1, 3},
		{netstack.UnreachablePort, 3, 4},
		{netstack.UnreachableProhibited, 13, 1},
	}
	for _, test := range tests {
		sent, errors := make(chan []byte, 64), make(chan []byte, 64)
		watch := func(frame []byte, toGuest bool) bool {
			frame = bytes.Clone(frame[header.EthernetMinimumSize:])
			switch {
			case toGuest && isUnreachable(frame):
				errors <- frame
			case !toGuest && isTCP(frame):
				sent <- frame
			}
			return true
		}
		n, g := pair(t, netstack.Config{}, netstacktest.Config{Impair: netstacktest.Impairment{Keep: watch}})
		n.HandleTCP(4, func(r *netstack.TCPRequest) { r.Unreachable(test.kind) })
		connect(t, n, g)
		_, err := g.Address6(within(t))
		mustDo(t, err)
		for _, to := range []netip.AddrPort{server, server6} {
			go g.Dial(within(t), to) // fails or not, see TestRequestAnswers
			syn, icmp := <-sent, <-errors
			if to.Addr().Is4() {
				checkUnreachable4(t, icmp, syn, test.code4)
			} else {
				checkUnreachable6(t, icmp, syn, test.code6)
			}
		}
	}
}

func isTCP(packet []byte) bool {
	if len(packet) < header.IPv4MinimumSize {
		return false
	}
	return packet[0]>>4 == 4 && packet[9] == 6 || packet[0]>>4 == 6 && packet[6] == 6
}

func isUnreachable(packet []byte) bool {
	switch {
	case len(packet) > 40 && packet[0]>>4 == 6:
		return packet[6] == 58 && packet[40] == byte(header.ICMPv6DstUnreachable)
	case len(packet) > 20 && packet[0]>>4 == 4:
		return packet[9] == 1 && packet[20] == byte(header.ICMPv4DstUnreachable)
	}
	return false
}

func checkUnreachable4(t *testing.T, packet, syn []byte, code byte) {
	t.Helper()
	ip := header.IPv4(packet)
	icmp := header.ICMPv4(ip.Payload())
	if from := netip.AddrFrom4(ip.SourceAddress().As4()); from != gateway {
		t.Errorf("from %v, want the gateway", from)
	}
	if byte(icmp.Code()) != code || checksum.Checksum(icmp, 0) != 0xffff {
		t.Errorf("code %d, checksum %#x; want code %d", icmp.Code(), checksum.Checksum(icmp, 0), code)
	}
	if quote := icmp[8:]; !bytes.Equal(quote, syn[:len(quote)]) || len(quote) < 28 {
		t.Errorf("quotes % x, the SYN was % x", quote, syn)
	}
}

func checkUnreachable6(t *testing.T, packet, syn []byte, code byte) {
	t.Helper()
	ip := header.IPv6(packet)
	icmp := header.ICMPv6(ip.Payload())
	if from := netip.AddrFrom16(ip.SourceAddress().As16()); from != gateway6 {
		t.Errorf("from %v, want the gateway", from)
	}
	sum := header.PseudoHeaderChecksum(header.ICMPv6ProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(), uint16(len(icmp)))
	if byte(icmp.Code()) != code || checksum.Checksum(icmp, sum) != 0xffff {
		t.Errorf("code %d, checksum %#x; want code %d", icmp.Code(), checksum.Checksum(icmp, sum), code)
	}
	if quote := icmp[8:]; !bytes.Equal(quote, syn[:len(quote)]) || len(quote) < 48 {
		t.Errorf("quotes % x, the SYN was % x", quote, syn)
	}
}
