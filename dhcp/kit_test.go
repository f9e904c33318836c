package dhcp

import (
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"agentvm/internal/test/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	guestMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	gateway   = netip.MustParseAddr("192.168.127.1")
	guest     = netip.MustParseAddr("192.168.127.3")
	broadcast = netip.MustParseAddrPort("255.255.255.255:68")
)

func usual() Config {
	return Config{Server: gateway, Guest: guest, GuestMAC: guestMAC, Subnet: netip.MustParsePrefix("192.168.127.0/24")}
}

func newServer(t testing.TB, change func(*Config)) *Server {
	t.Helper()
	config := usual()
	if change != nil {
		change(&config)
	}
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// message makes a request of the guest's as its client would.
func message(kind dhcpv4.MessageType, modifiers ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	m, err := dhcpv4.New(append([]dhcpv4.Modifier{dhcpv4.WithHwAddr(guestMAC), dhcpv4.WithMessageType(kind)}, modifiers...)...)
	if err != nil {
		panic(err)
	}
	return m
}

func withOption(option dhcpv4.Option) dhcpv4.Modifier { return dhcpv4.WithOption(option) }

func withRequested(a string) dhcpv4.Modifier {
	return withOption(dhcpv4.OptRequestedIPAddress(net.ParseIP(a).To4()))
}

func withServer(a string) dhcpv4.Modifier {
	return withOption(dhcpv4.OptServerIdentifier(net.ParseIP(a).To4()))
}

func withClient(a string) dhcpv4.Modifier { return dhcpv4.WithClientIP(net.ParseIP(a).To4()) }

// ask returns the parsed reply, nil when there is none.
func ask(t testing.TB, s *Server, request []byte) (*dhcpv4.DHCPv4, netip.AddrPort) {
	t.Helper()
	b, to, ok := s.Reply(request)
	if !ok {
		if b != nil || to.IsValid() {
			t.Errorf("not ok, and yet %d bytes for %v", len(b), to)
		}
		return nil, to
	}
	reply, err := dhcpv4.FromBytes(b)
	if err != nil {
		t.Fatalf("the reply does not parse: %v", err)
	}
	return reply, to
}
