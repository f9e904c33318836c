package dhcp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
)

// TestMessages has each message of RFC 2131 section 4.3 and what it gets.
func TestMessages(t *testing.T) {
	type result struct {
		Kind  dhcpv4.MessageType // None: no reply
		Yours string
		To    string
		Stats Stats
	}
	const unspecified = "0.0.0.0"
	all := broadcast.String()
	unicast := "192.168.127.3:68"
	for _, c := range []struct {
		name    string
		request *dhcpv4.DHCPv4
		want    result
	}{
		{"discover", message(dhcpv4.MessageTypeDiscover),
			result{dhcpv4.MessageTypeOffer, "192.168.127.3", all, Stats{Offered: 1}}},
		{"discover that wants broadcasts", message(dhcpv4.MessageTypeDiscover, dhcpv4.WithBroadcast(true)),
			result{dhcpv4.MessageTypeOffer, "192.168.127.3", all, Stats{Offered: 1}}},
		{"discover that wishes another address", message(dhcpv4.MessageTypeDiscover, withRequested("192.168.127.9")),
			result{dhcpv4.MessageTypeOffer, "192.168.127.3", all, Stats{Offered: 1}}},
		{"discover with a foreign address of its own", message(dhcpv4.MessageTypeDiscover, withClient("8.8.8.8")),
			result{dhcpv4.MessageTypeOffer, "192.168.127.3", all, Stats{Offered: 1}}},

		{"selecting", message(dhcpv4.MessageTypeRequest, withServer("192.168.127.1"), withRequested("192.168.127.3")),
			result{dhcpv4.MessageTypeAck, "192.168.127.3", all, Stats{Acknowledged: 1}}},
		{"selecting another address", message(dhcpv4.MessageTypeRequest, withServer("192.168.127.1"), withRequested("192.168.127.4")),
			result{dhcpv4.MessageTypeNak, unspecified, all, Stats{Refused: 1}}},
		{"selecting another server", message(dhcpv4.MessageTypeRequest, withServer("192.168.127.2"), withRequested("192.168.127.3")),
			result{Stats: Stats{Foreign: 1}}},
		{"init-reboot", message(dhcpv4.MessageTypeRequest, withRequested("192.168.127.3")),
			result{dhcpv4.MessageTypeAck, "192.168.127.3", all, Stats{Acknowledged: 1}}},
		{"init-reboot from another network", message(dhcpv4.MessageTypeRequest, withRequested("10.0.2.15")),
			result{dhcpv4.MessageTypeNak, unspecified, all, Stats{Refused: 1}}},
		{"renewing", message(dhcpv4.MessageTypeRequest, withClient("192.168.127.3")),
			result{dhcpv4.MessageTypeAck, "192.168.127.3", unicast, Stats{Acknowledged: 1}}},
		{"rebinding", message(dhcpv4.MessageTypeRequest, withClient("192.168.127.3"), dhcpv4.WithBroadcast(true)),
			result{dhcpv4.MessageTypeAck, "192.168.127.3", unicast, Stats{Acknowledged: 1}}},
		{"renewing another address", message(dhcpv4.MessageTypeRequest, withClient("192.168.127.200")),
			result{dhcpv4.MessageTypeNak, unspecified, all, Stats{Refused: 1}}},
		{"request with two minds", message(dhcpv4.MessageTypeRequest, withClient("8.8.8.8"), withRequested("192.168.127.3")),
			result{dhcpv4.MessageTypeNak, unspecified, all, Stats{Refused: 1}}},
		{"request for nothing", message(dhcpv4.MessageTypeRequest), result{Stats: Stats{Malformed: 1}}},

		{"inform", message(dhcpv4.MessageTypeInform, withClient("192.168.127.3")),
			result{dhcpv4.MessageTypeAck, unspecified, unicast, Stats{Informed: 1}}},
		{"inform from elsewhere", message(dhcpv4.MessageTypeInform, withClient("8.8.8.8")), result{Stats: Stats{Foreign: 1}}},
		{"inform from nowhere", message(dhcpv4.MessageTypeInform), result{Stats: Stats{Foreign: 1}}},
		{"decline", message(dhcpv4.MessageTypeDecline, withServer("192.168.127.1"), withRequested("192.168.127.3")),
			result{Stats: Stats{Declined: 1}}},
		{"release", message(dhcpv4.MessageTypeRelease, withServer("192.168.127.1"), withClient("192.168.127.3")),
			result{Stats: Stats{Released: 1}}},

		{"a server's message", message(dhcpv4.MessageTypeOffer), result{Stats: Stats{Malformed: 1}}},
		{"no message type", message(dhcpv4.MessageTypeNone, func(m *dhcpv4.DHCPv4) { m.DeleteOption(dhcpv4.OptionDHCPMessageType) }),
			result{Stats: Stats{Malformed: 1}}},
		{"a reply", message(dhcpv4.MessageTypeDiscover, func(m *dhcpv4.DHCPv4) { m.OpCode = dhcpv4.OpcodeBootReply }),
			result{Stats: Stats{Malformed: 1}}},
		{"not Ethernet", message(dhcpv4.MessageTypeDiscover, func(m *dhcpv4.DHCPv4) { m.HWType = iana.HWTypeInfiniband }),
			result{Stats: Stats{Malformed: 1}}},
		{"address option of six bytes", message(dhcpv4.MessageTypeRequest, withOption(dhcpv4.OptGeneric(dhcpv4.OptionRequestedIPAddress, make([]byte, 6)))),
			result{Stats: Stats{Malformed: 1}}},
		{"another MAC", message(dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, 2})),
			result{Stats: Stats{Foreign: 1}}},
		{"a MAC with more bytes", message(dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(append(guestMAC[:6:6], 0, 0))),
			result{Stats: Stats{Foreign: 1}}},
		{"a relay", message(dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.IPv4(10, 0, 0, 1))), result{Stats: Stats{Foreign: 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, nil)
			reply, to := ask(t, s, c.request.ToBytes())
			got := result{Stats: s.Stats()}
			if reply != nil {
				got.Kind, got.Yours, got.To = reply.MessageType(), reply.YourIPAddr.String(), to.String()
				if reply.TransactionID != c.request.TransactionID || reply.OpCode != dhcpv4.OpcodeBootReply || reply.Flags != c.request.Flags {
					t.Errorf("not the reply to this request: %v", reply.Summary())
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestStarvation: no number of clients gets an address or takes it from the guest.
func TestStarvation(t *testing.T) {
	s := newServer(t, nil)
	for i := range 1000 {
		mac := net.HardwareAddr{2, 0, 0, 1, byte(i >> 8), byte(i)}
		if reply, _ := ask(t, s, message(dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(mac)).ToBytes()); reply != nil {
			t.Fatalf("%v got an offer", mac)
		}
	}
	if reply, _ := ask(t, s, message(dhcpv4.MessageTypeDiscover).ToBytes()); reply == nil || !reply.YourIPAddr.Equal(guest.AsSlice()) {
		t.Errorf("the guest got %v", reply)
	}
}

// TestMalformedBytes are messages that the library or the size check turns away.
func TestMalformedBytes(t *testing.T) {
	whole := message(dhcpv4.MessageTypeDiscover).ToBytes()
	end := strings.LastIndexByte(string(whole), byte(dhcpv4.OptionEnd.Code()))
	noCookie := append([]byte(nil), whole...)
	noCookie[236] = 0
	for name, b := range map[string][]byte{
		"empty": {}, "short": whole[:200], "no options": whole[:240], "without end": whole[:end],
		"no cookie": noCookie, "huge": append(whole, make([]byte, 2000)...),
	} {
		s := newServer(t, nil)
		if reply, _ := ask(t, s, b); reply != nil || s.Stats() != (Stats{Malformed: 1}) {
			t.Errorf("%s: reply %v, %+v", name, reply, s.Stats())
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no addresses":        func(c *Config) { c.Server, c.Guest = netip.Addr{}, netip.Addr{} },
		"IPv6":                func(c *Config) { c.Guest = netip.MustParseAddr("fd00::3") },
		"guest is the server": func(c *Config) { c.Guest = c.Server },
		"guest elsewhere":     func(c *Config) { c.Guest = netip.MustParseAddr("10.0.0.1") },
		"guest is broadcast":  func(c *Config) { c.Guest = netip.MustParseAddr("192.168.127.255") },
		"guest is network":    func(c *Config) { c.Guest = netip.MustParseAddr("192.168.127.0") },
		"no subnet":           func(c *Config) { c.Subnet = netip.Prefix{} },
		"subnet of two":       func(c *Config) { c.Subnet = netip.MustParsePrefix("192.168.127.0/31") },
		"MAC":                 func(c *Config) { c.GuestMAC = c.GuestMAC[:5] },
		"MTU":                 func(c *Config) { c.MTU = 67 },
		"lease":               func(c *Config) { c.Lease = time.Millisecond },
		"negative lease":      func(c *Config) { c.Lease = -time.Hour },
		"router":              func(c *Config) { c.Routers = []netip.Addr{netip.IPv6Loopback()} },
		"nine servers":        func(c *Config) { c.DNS = make([]netip.Addr, 9) },
		"domain":              func(c *Config) { c.Search = []string{"a;reboot"} },
		"empty domain":        func(c *Config) { c.Search = []string{""} },
		"long label":          func(c *Config) { c.Search = []string{strings.Repeat("a", 64)} },
	} {
		config := usual()
		change(&config)
		if s, err := New(config); err == nil || s != nil {
			t.Errorf("%s: no error", name)
		} else if !strings.HasPrefix(err.Error(), "dhcp: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// loopback gives a server's end and a client's.
func loopback(t *testing.T) (server, client net.PacketConn) {
	t.Helper()
	for _, end := range []*net.PacketConn{&server, &client} {
		conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		*end = conn
	}
	return server, client
}

// redirected sends all replies to one address: there is no port 68 and no broadcast on loopback.
type redirected struct {
	net.PacketConn
	to  net.Addr
	err error // of the first write
}

func (r *redirected) WriteTo(b []byte, _ net.Addr) (int, error) {
	if err := r.err; err != nil {
		r.err = nil
		return 0, err
	}
	return r.PacketConn.WriteTo(b, r.to)
}

// TestServe has a conversation over sockets: garbage and a reply that cannot be sent do not end it.
func TestServe(t *testing.T) {
	conn, client := loopback(t)
	s := newServer(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- s.Serve(ctx, &redirected{conn, client.LocalAddr(), errors.New("the link is down")})
	}()

	discover := message(dhcpv4.MessageTypeDiscover).ToBytes()
	for _, b := range [][]byte{[]byte("garbage"), make([]byte, 3000), discover, discover} {
		if _, err := client.WriteTo(b, conn.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	offer := receive(t, client)
	request, err := dhcpv4.NewRequestFromOffer(offer)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.WriteTo(request.ToBytes(), conn.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	if ack := receive(t, client); ack.MessageType() != dhcpv4.MessageTypeAck || !ack.YourIPAddr.Equal(guest.AsSlice()) {
		t.Errorf("got %v", ack.Summary())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if want, got := (Stats{Offered: 2, Acknowledged: 1, Malformed: 2}), s.Stats(); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

func receive(t *testing.T, conn net.PacketConn) *dhcpv4.DHCPv4 {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 2000)
	n, _, err := conn.ReadFrom(buffer)
	if err != nil {
		t.Fatal(err)
	}
	m, err := dhcpv4.FromBytes(buffer[:n])
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestServeReportsTheConnection: when it was not ctx that ended it.
func TestServeReportsTheConnection(t *testing.T) {
	conn, _ := loopback(t)
	conn.Close()
	if err := newServer(t, nil).Serve(t.Context(), conn); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve: %v", err)
	}
}
