package dhcp

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/rfc1035label"

	"agentvm/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var testMAC = [6]byte{2, 0, 0, 0, 0, 1}

// fakeLink is a Link to a server that is a function: what it returns for a request arrives at once. Time is synctest's.
type fakeLink struct {
	t      *testing.T
	serve  func(request *dhcpv4.DHCPv4, to netip.AddrPort) [][]byte
	sent   []sent
	queue  [][]byte
	begin  time.Time
	refuse error // of Send, until ready
	ready  time.Time
	broken error // of Receive
}

type sent struct {
	Kind   string
	To     string
	After  time.Duration
	Server string // option 54
}

func newLink(t *testing.T, serve func(*dhcpv4.DHCPv4, netip.AddrPort) [][]byte) *fakeLink {
	return &fakeLink{t: t, serve: serve, begin: time.Now()}
}

func (l *fakeLink) Send(b []byte, to netip.AddrPort) error {
	if l.refuse != nil && time.Now().Before(l.ready) {
		return l.refuse
	}
	request, err := dhcpv4.FromBytes(b) // an independent reader
	if err != nil {
		l.t.Errorf("the library cannot read what was sent: %v", err)
		return nil
	}
	server := ""
	if ip := request.ServerIdentifier(); ip != nil {
		server = ip.String()
	}
	l.sent = append(l.sent, sent{request.MessageType().String(), to.String(), time.Since(l.begin), server})
	l.queue = append(l.queue, l.serve(request, to)...)
	return nil
}

func (l *fakeLink) Receive(b []byte, until time.Time) (int, error) {
	if l.broken != nil {
		return 0, l.broken
	}
	if len(l.queue) == 0 {
		time.Sleep(time.Until(until))
		return 0, os.ErrDeadlineExceeded
	}
	n := copy(b, l.queue[0])
	l.queue = l.queue[1:]
	return n, nil
}

func (l *fakeLink) client() *Client {
	nonce := uint32(0x1000)
	return &Client{Link: l, MAC: testMAC, Nonce: func() uint32 { nonce++; return nonce }}
}

// respond builds the reply of a usual server by the library.
func respond(t testing.TB, request *dhcpv4.DHCPv4, kind dhcpv4.MessageType, more ...dhcpv4.Modifier) []byte {
	t.Helper()
	modifiers := append([]dhcpv4.Modifier{
		dhcpv4.WithMessageType(kind),
		dhcpv4.WithYourIP(net.IPv4(192, 168, 127, 3)),
		dhcpv4.WithServerIP(net.IPv4(192, 168, 127, 1)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(192, 168, 127, 1))),
		dhcpv4.WithLeaseTime(86400),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
		dhcpv4.WithRouter(net.IPv4(192, 168, 127, 1)),
		dhcpv4.WithDNS(net.IPv4(192, 168, 127, 1), net.IPv4(192, 168, 127, 2)),
		dhcpv4.WithOption(dhcpv4.OptBroadcastAddress(net.IPv4(192, 168, 127, 255))),
		dhcpv4.WithGeneric(dhcpv4.OptionInterfaceMTU, []byte{0x23, 0x28}),
		dhcpv4.WithOption(dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: []string{"a.example", "b.a.example"}})),
	}, more...)
	reply, err := dhcpv4.NewReplyFromRequest(request, modifiers...)
	if err != nil {
		t.Fatal(err)
	}
	return reply.ToBytes()
}

// usualLease is what respond grants.
func usualLease() Lease {
	gateway := netip.MustParseAddr("192.168.127.1")
	return Lease{
		Address: netip.MustParsePrefix("192.168.127.3/24"), Broadcast: netip.MustParseAddr("192.168.127.255"), Server: gateway,
		Routers: []netip.Addr{gateway}, DNS: []netip.Addr{gateway, netip.MustParseAddr("192.168.127.2")},
		Search: []string{"a.example", "b.a.example"}, MTU: 9000,
		Duration: 24 * time.Hour, Renew: 12 * time.Hour, Rebind: 21 * time.Hour,
	}
}
