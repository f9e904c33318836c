package netstack_test

import (
	"net"
	"net/netip"
	"testing"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// TestOwnBroadcastsAreNoFlows sends as the DHCP server does. gVisor lets a sender hear its own broadcasts, which must not
// be taken for datagrams of the guest.
func TestOwnBroadcastsAreNoFlows(t *testing.T) {
	n, g := pair(t, netstack.Config{}, netstacktest.Config{})
	requests := make(chan netip.AddrPort, 64)
	n.HandleUDP(func(r *netstack.UDPRequest) bool {
		requests <- r.Source
		return true
	})
	connect(t, n, g)
	server, err := n.ListenPacket(netip.MustParseAddrPort("0.0.0.0:67"))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for range 10 {
		if _, err := server.WriteTo([]byte("offer"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("255.255.255.255:68"))); err != nil {
			t.Fatal(err)
		}
	}
	c, err := g.DialUDP(netip.MustParseAddrPort("203.0.113.7:9"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("a datagram of the guest")); err != nil {
		t.Fatal(err)
	}
	select {
	case from := <-requests:
		if from.Addr() != guestIP {
			t.Errorf("a datagram from %v made a flow", from)
		}
	case <-within(t).Done():
		t.Error("the guest's datagram made no flow")
	}
}
