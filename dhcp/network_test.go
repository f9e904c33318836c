package dhcp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"

	"github.com/gopacket/gopacket/layers"
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
	mac := withMAC(a.GuestMAC)
	offered := converse(t, client, from(layers.DHCPMsgTypeDiscover, mac), everybody)
	request := from(layers.DHCPMsgTypeRequest, mac, withServer(offered.serverID()), withRequested(offered.YourClientIP.String()))
	acknowledged := converse(t, client, request, everybody)
	renew := from(layers.DHCPMsgTypeRequest, mac, withClient(acknowledged.YourClientIP.String()))
	for _, m := range []*packet{acknowledged, converse(t, client, renew, netip.AddrPortFrom(a.Gateway, 67))} {
		if m.kind() != layers.DHCPMsgTypeAck || !m.YourClientIP.Equal(a.Guest.AsSlice()) || m.serverID() != a.Gateway.String() {
			t.Errorf("got %v", m)
		}
	}
}

// serveDHCP serves as a virtual machine does, until ctx ends.
func serveDHCP(t *testing.T, ctx context.Context, network *netstack.Network) <-chan error {
	t.Helper()
	a := network.Addresses()
	server, err := New(Config{Server: a.Gateway, Guest: a.Guest, GuestMAC: a.GuestMAC, Subnet: a.Subnet, MTU: network.MTU()})
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
func converse(t *testing.T, conn net.PacketConn, m *packet, to netip.AddrPort) *packet {
	t.Helper()
	if _, err := conn.WriteTo(m.bytes(), net.UDPAddrFromAddrPort(to)); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 2000)
	for {
		n, _, err := conn.ReadFrom(buffer)
		if err != nil {
			t.Fatalf("no reply to\n%v: %v", m, err)
		}
		reply, err := read(buffer[:n])
		if err != nil {
			t.Fatal(err)
		}
		if reply.Operation == layers.DHCPOpReply && reply.Xid == m.Xid {
			return reply
		}
	}
}
