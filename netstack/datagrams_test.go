package netstack_test

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// datagram is a UDP datagram over IPv6, from the guest to a server.
func datagram(from, to netip.AddrPort, payload []byte) []byte {
	udp := header.UDP(make([]byte, header.UDPMinimumSize+len(payload)))
	copy(udp[header.UDPMinimumSize:], payload)
	frame := netstacktest.ICMPv6Frame(from.Addr(), to.Addr(), 64, udp) // the packet around it is the same
	ip := header.IPv6(frame[header.EthernetMinimumSize:])
	ip.SetNextHeader(uint8(header.UDPProtocolNumber))
	udp = header.UDP(ip.Payload())
	udp.Encode(&header.UDPFields{SrcPort: from.Port(), DstPort: to.Port(), Length: uint16(len(udp))})
	sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(), uint16(len(udp)))
	udp.SetChecksum(^checksum.Checksum(udp, sum))
	return frame
}

// TestEmptyDatagramsAreCounted: an unread socket keeps a bounded number of datagrams, also of such that have no bytes
// to count, and takes new ones when it was read.
func TestEmptyDatagramsAreCounted(t *testing.T) {
	n := newNetwork(t, netstack.Config{})
	peer := netstacktest.StartPeer(t)
	sockets := make(chan *netstack.PacketConn, 1)
	n.HandleUDP(func(r *netstack.UDPRequest) bool {
		c, err := r.Accept()
		if err == nil {
			sockets <- c
		}
		return err == nil
	})
	runOn(t, n, peer.Host())
	from, to := netip.MustParseAddrPort("[fd5a:94ef:e40c::ff:fe00:1]:4000"), server6
	mustDo(t, peer.Send(datagram(from, to, nil)))
	c := <-sockets
	const sent = 5000
	for round := range 2 {
		before := n.Stats()
		for range sent {
			mustDo(t, peer.Send(datagram(from, to, nil)))
		}
		eventually(t, "all have come", func() bool { return n.Stats().FramesFromGuest-before.FramesFromGuest >= sent })
		mustDo(t, c.SetReadDeadline(time.Now().Add(patience)))
		kept, buffer := 0, make([]byte, 10)
		for {
			if _, err := c.Read(buffer); errors.Is(err, os.ErrDeadlineExceeded) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			kept++
			mustDo(t, c.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
		}
		if dropped := n.Stats().Dropped[netstack.DropSocketFull] - before.Dropped[netstack.DropSocketFull]; kept > 1100 || kept < 1000 || dropped < sent-1100 {
			t.Errorf("round %d: of %d datagrams %d were kept, %d dropped", round, sent, kept, dropped)
		}
	}
}
