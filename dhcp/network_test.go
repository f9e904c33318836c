package dhcp_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"agentvm/dhcp"
	"agentvm/netstack"
	"agentvm/netstack/netstacktest"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// TestLeaseOverTheNetwork leases an address from a client in a second stack, by frames: broadcasts both ways, then a renewal
// to the server's address.
func TestLeaseOverTheNetwork(t *testing.T) {
	network, err := netstack.New(netstack.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	guest := netstacktest.Start(t, netstacktest.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- network.Run(ctx, guest.Link()) }()
	served := serveDHCP(t, ctx, network)
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if err := <-ran; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}()

	a := network.Addresses()
	client, err := guest.ListenUDP(netip.MustParseAddrPort("0.0.0.0:68"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	everybody := netip.MustParseAddrPort("255.255.255.255:67")
	discover, err := dhcpv4.NewDiscovery(a.GuestMAC)
	if err != nil {
		t.Fatal(err)
	}
	offer := converse(t, client, discover, everybody)
	request, err := dhcpv4.NewRequestFromOffer(offer)
	if err != nil {
		t.Fatal(err)
	}
	ack := converse(t, client, request, everybody)
	renew, err := dhcpv4.NewRenewFromAck(ack)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*dhcpv4.DHCPv4{ack, converse(t, client, renew, netip.AddrPortFrom(a.Gateway, 67))} {
		if m.MessageType() != dhcpv4.MessageTypeAck || !m.YourIPAddr.Equal(a.Guest.AsSlice()) || !m.ServerIdentifier().Equal(a.Gateway.AsSlice()) {
			t.Errorf("got %v", m.Summary())
		}
	}
}

// serveDHCP serves as a virtual machine does, until ctx ends.
func serveDHCP(t *testing.T, ctx context.Context, network *netstack.Network) <-chan error {
	t.Helper()
	a := network.Addresses()
	server, err := dhcp.New(dhcp.Config{Server: a.Gateway, Guest: a.Guest, GuestMAC: a.GuestMAC, Subnet: a.Subnet, MTU: network.MTU()})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := network.ListenPacket(netip.MustParseAddrPort("0.0.0.0:67"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, conn) }()
	return served
}

// converse sends a message and waits for the reply to it.
func converse(t *testing.T, conn net.PacketConn, m *dhcpv4.DHCPv4, to netip.AddrPort) *dhcpv4.DHCPv4 {
	t.Helper()
	if _, err := conn.WriteTo(m.ToBytes(), net.UDPAddrFromAddrPort(to)); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 2000)
	for {
		n, _, err := conn.ReadFrom(buffer)
		if err != nil {
			t.Fatalf("no reply to\n%v: %v", m.Summary(), err)
		}
		reply, err := dhcpv4.FromBytes(buffer[:n])
		if err != nil {
			t.Fatal(err)
		}
		if reply.OpCode == dhcpv4.OpcodeBootReply && reply.TransactionID == m.TransactionID {
			return reply
		}
	}
}
