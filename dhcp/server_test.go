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
	"github.com/gopacket/gopacket/layers"
)

// TestMessages has each message of RFC 2131 section 4.3 and what it gets.
func TestMessages(t *testing.T) {
	type result struct {
		Kind  layers.DHCPMsgType // None: no reply
		Yours string
		To    string
		Stats Stats
	}
	const unspecified = "0.0.0.0"
	all := broadcast.String()
	unicast := "192.168.127.3:68"
	for _, c := range []struct {
		name    string
		request *packet
		want    result
	}{
		{"discover", from(layers.DHCPMsgTypeDiscover),
			result{layers.DHCPMsgTypeOffer, "192.168.127.3", all, Stats{Offered: 1}}},
		{"discover that wants broadcasts", from(layers.DHCPMsgTypeDiscover, withBroadcast),
			result{layers.DHCPMsgTypeOffer, "192.168.127.3", all, Stats{Offered: 1}}},
		{"discover that wishes another address", from(layers.DHCPMsgTypeDiscover, withRequested("192.168.127.9")),
			result{layers.DHCPMsgTypeOffer, "192.168.127.3", all, Stats{Offered: 1}}},
		{"discover with a foreign address of its own", from(layers.DHCPMsgTypeDiscover, withClient("8.8.8.8")),
			result{layers.DHCPMsgTypeOffer, "192.168.127.3", all, Stats{Offered: 1}}},

		{"selecting", from(layers.DHCPMsgTypeRequest, withServer("192.168.127.1"), withRequested("192.168.127.3")),
			result{layers.DHCPMsgTypeAck, "192.168.127.3", all, Stats{Acknowledged: 1}}},
		{"selecting another address", from(layers.DHCPMsgTypeRequest, withServer("192.168.127.1"), withRequested("192.168.127.4")),
			result{layers.DHCPMsgTypeNak, unspecified, all, Stats{Refused: 1}}},
		{"selecting another server", from(layers.DHCPMsgTypeRequest, withServer("192.168.127.2"), withRequested("192.168.127.3")),
			result{Stats: Stats{Foreign: 1}}},
		{"init-reboot", from(layers.DHCPMsgTypeRequest, withRequested("192.168.127.3")),
			result{layers.DHCPMsgTypeAck, "192.168.127.3", all, Stats{Acknowledged: 1}}},
		{"init-reboot from another network", from(layers.DHCPMsgTypeRequest, withRequested("10.0.2.15")),
			result{layers.DHCPMsgTypeNak, unspecified, all, Stats{Refused: 1}}},
		{"an address in two parts", from(layers.DHCPMsgTypeRequest,
			withOption(layers.DHCPOptRequestIP, 192, 168), withServer("192.168.127.1"), withOption(layers.DHCPOptRequestIP, 127, 3)),
			result{layers.DHCPMsgTypeAck, "192.168.127.3", all, Stats{Acknowledged: 1}}},
		{"renewing", from(layers.DHCPMsgTypeRequest, withClient("192.168.127.3")),
			result{layers.DHCPMsgTypeAck, "192.168.127.3", unicast, Stats{Acknowledged: 1}}},
		{"rebinding", from(layers.DHCPMsgTypeRequest, withClient("192.168.127.3"), withBroadcast),
			result{layers.DHCPMsgTypeAck, "192.168.127.3", unicast, Stats{Acknowledged: 1}}},
		{"renewing another address", from(layers.DHCPMsgTypeRequest, withClient("192.168.127.200")),
			result{layers.DHCPMsgTypeNak, unspecified, all, Stats{Refused: 1}}},
		{"request with two minds", from(layers.DHCPMsgTypeRequest, withClient("8.8.8.8"), withRequested("192.168.127.3")),
			result{layers.DHCPMsgTypeNak, unspecified, all, Stats{Refused: 1}}},
		{"request for nothing", from(layers.DHCPMsgTypeRequest), result{Stats: Stats{Malformed: 1}}},

		{"inform", from(layers.DHCPMsgTypeInform, withClient("192.168.127.3")),
			result{layers.DHCPMsgTypeAck, unspecified, unicast, Stats{Informed: 1}}},
		{"inform from elsewhere", from(layers.DHCPMsgTypeInform, withClient("8.8.8.8")), result{Stats: Stats{Foreign: 1}}},
		{"inform from nowhere", from(layers.DHCPMsgTypeInform), result{Stats: Stats{Foreign: 1}}},
		{"decline", from(layers.DHCPMsgTypeDecline, withServer("192.168.127.1"), withRequested("192.168.127.3")),
			result{Stats: Stats{Declined: 1}}},
		{"release", from(layers.DHCPMsgTypeRelease, withServer("192.168.127.1"), withClient("192.168.127.3")),
			result{Stats: Stats{Released: 1}}},

		{"a server's message", from(layers.DHCPMsgTypeOffer), result{Stats: Stats{Malformed: 1}}},
		{"no message type", from(layers.DHCPMsgTypeUnspecified, func(p *packet) { p.Options = nil }),
			result{Stats: Stats{Malformed: 1}}},
		{"a reply", from(layers.DHCPMsgTypeDiscover, func(p *packet) { p.Operation = layers.DHCPOpReply }),
			result{Stats: Stats{Malformed: 1}}},
		{"not Ethernet", from(layers.DHCPMsgTypeDiscover, func(p *packet) { p.HardwareType = 32 }),
			result{Stats: Stats{Malformed: 1}}},
		{"address option of six bytes", from(layers.DHCPMsgTypeRequest, withOption(layers.DHCPOptRequestIP, make([]byte, 6)...)),
			result{Stats: Stats{Malformed: 1}}},
		{"another MAC", from(layers.DHCPMsgTypeDiscover, withMAC(net.HardwareAddr{2, 0, 0, 0, 0, 2})),
			result{Stats: Stats{Foreign: 1}}},
		{"a MAC with more bytes", from(layers.DHCPMsgTypeDiscover, withMAC(append(guestMAC[:6:6], 0, 0))),
			result{Stats: Stats{Foreign: 1}}},
		{"a relay", from(layers.DHCPMsgTypeDiscover, func(p *packet) { p.RelayAgentIP = net.IPv4(10, 0, 0, 1) }), result{Stats: Stats{Foreign: 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, nil)
			reply, to := ask(t, s, c.request.bytes())
			got := result{Stats: s.Stats()}
			if reply != nil {
				got.Kind, got.Yours, got.To = reply.kind(), reply.YourClientIP.String(), to.String()
				if reply.Xid != c.request.Xid || reply.Operation != layers.DHCPOpReply || reply.Flags != c.request.Flags {
					t.Errorf("not the reply to this request: %v", reply)
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
		if reply, _ := ask(t, s, from(layers.DHCPMsgTypeDiscover, withMAC(mac)).bytes()); reply != nil {
			t.Fatalf("%v got an offer", mac)
		}
	}
	if reply, _ := ask(t, s, from(layers.DHCPMsgTypeDiscover).bytes()); reply == nil || !reply.YourClientIP.Equal(guest.AsSlice()) {
		t.Errorf("the guest got %v", reply)
	}
}

// TestMalformedBytes are messages that the format or the size check turns away.
func TestMalformedBytes(t *testing.T) {
	whole := from(layers.DHCPMsgTypeDiscover).bytes()
	end := strings.LastIndexByte(string(whole), byte(layers.DHCPOptEnd))
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

	discover := from(layers.DHCPMsgTypeDiscover).bytes()
	for _, b := range [][]byte{[]byte("garbage"), make([]byte, 3000), discover, discover} {
		if _, err := client.WriteTo(b, conn.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	offered := receive(t, client)
	request := from(layers.DHCPMsgTypeRequest, withServer(offered.serverID()), withRequested(offered.YourClientIP.String()))
	if _, err := client.WriteTo(request.bytes(), conn.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	if ack := receive(t, client); ack.kind() != layers.DHCPMsgTypeAck || !ack.YourClientIP.Equal(guest.AsSlice()) {
		t.Errorf("got %v", ack)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if want, got := (Stats{Offered: 2, Acknowledged: 1, Malformed: 2}), s.Stats(); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

func receive(t *testing.T, conn net.PacketConn) *packet {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 2000)
	n, _, err := conn.ReadFrom(buffer)
	if err != nil {
		t.Fatal(err)
	}
	m, err := read(buffer[:n])
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
