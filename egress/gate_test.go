package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDialTCP(t *testing.T) {
	w := newWorld(t, Config{})
	w.serve("203.0.112.1:443")
	w.tell("a.example", "203.0.112.1")
	c, err := w.dialTCP("203.0.112.1:443")
	if err != nil {
		t.Fatal(err)
	}
	echoes(t, c)
	w.clock.Advance(90 * time.Second)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
	to := netip.MustParseAddrPort("203.0.112.1:443")
	want := []Event{
		{Time: noon, Kind: KindTCP, Verdict: VerdictAllow, Flow: 1, Source: guest, Destination: to, Names: []string{"a.example"},
			Reason: ReasonPublic, Message: "a.example (203.0.112.1) port 443/tcp is public (mode public)"},
		{Time: noon.Add(90 * time.Second), Kind: KindTCP, Verdict: VerdictClose, Flow: 1, Source: guest, Destination: to, Names: []string{"a.example"},
			Sent: 5, Received: 5, Duration: 90},
	}
	if diff := cmp.Diff(want, w.seen(), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Stats{Dials: 1, Allowed: 1, Pins: 1}, w.gate.Stats()); diff != "" {
		t.Error(diff)
	}
}

func TestDialIsRefusedByTheServer(t *testing.T) {
	w := newWorld(t, Config{})
	_, err := w.dialTCP("203.0.112.1:443")
	if !errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EACCES) {
		t.Errorf("%v", err)
	}
	e := w.seen()
	if len(e) != 1 || e[0].Verdict != VerdictError || !strings.Contains(e[0].Message, "refused") {
		t.Errorf("%+v", e)
	}
	if s := w.gate.Stats(); s.Dials != 1 || s.DialErrors != 1 || s.Open != 0 || s.Allowed != 1 {
		t.Errorf("%+v", s)
	}
}

func TestDialIsDenied(t *testing.T) {
	w := newWorld(t, Config{})
	for _, address := range []string{"10.0.0.1:80", "127.0.0.1:80", "[::1]:80", "[::ffff:10.0.0.1]:80", "[64:ff9b::7f00:1]:80", "192.168.127.1:80"} {
		if _, err := w.dialTCP(address); !errors.Is(err, syscall.EACCES) {
			t.Errorf("%s: %v", address, err)
		}
		if _, err := w.gate.DialUDP(context.Background(), guest, netip.MustParseAddrPort(address)); !errors.Is(err, syscall.EACCES) {
			t.Errorf("%s by UDP: %v", address, err)
		}
		if err := w.gate.Ping(context.Background(), guest.Addr(), netip.MustParseAddrPort(address).Addr(), nil); !errors.Is(err, syscall.EACCES) {
			t.Errorf("%s by ping: %v", address, err)
		}
	}
	e := w.seen()
	if len(e) != 18 || len(w.gate.Denials()) != 18 || w.gate.Stats().Denied != 18 || len(w.dials()) != 0 {
		t.Errorf("%d events, %d denials, %+v, dialled %q", len(e), len(w.gate.Denials()), w.gate.Stats(), w.dials())
	}
	for _, one := range e {
		if one.Verdict != VerdictDeny || one.Reason == "" || one.Message == "" || one.Source.Addr() != guest.Addr() {
			t.Errorf("%+v", one)
		}
	}
}

// TestNoneDialsNothing tries everything that could reach a socket of the host.
func TestNoneDialsNothing(t *testing.T) {
	var counted countingDial
	resolver := netip.MustParseAddrPort("127.0.0.53:53")
	w := newWorld(t, Config{
		Policy: Policy{Mode: None, Allow: rules(t, "*")}, HostPorts: []uint16{80}, Dial: counted.dial, Resolvers: []netip.AddrPort{resolver},
	})
	ctx := context.Background()
	for _, address := range []string{"8.8.8.8:80", "10.0.0.1:80", "127.0.0.1:80", "192.168.127.254:80", "[2606:4700::1]:80", "[fd5a:94ef:e40c::fe]:80"} {
		to := netip.MustParseAddrPort(address)
		_, err := w.gate.DialTCP(ctx, guest, to)
		denied(t, err, ReasonNone)
		_, err = w.gate.DialUDP(ctx, guest, to)
		denied(t, err, ReasonNone)
		denied(t, w.gate.Ping(ctx, guest.Addr(), to.Addr(), []byte("x")), ReasonNone)
		denied(t, w.gate.Answer("a.example", nil, to.Addr(), time.Hour), ReasonNone)
		denied(t, w.gate.Answer(HostName, nil, to.Addr(), time.Hour), ReasonNone)
	}
	for _, network := range []string{TCP, UDP} {
		_, err := w.gate.DialResolver(ctx, network, resolver.String())
		denied(t, err, ReasonNone)
	}
	denied(t, w.gate.Question("a.example", typeA), ReasonNone)
	if n := counted.calls.Load(); n != 0 || w.gate.Stats().Dials != 0 {
		t.Errorf("%d dials", n)
	}
}

// TestDialsTheVeryAddress: names are never resolved again, whatever the guest has learned meanwhile.
func TestDialsTheVeryAddress(t *testing.T) {
	w := newWorld(t, Config{Policy: Policy{Allow: rules(t, "a.example")}})
	w.tell("a.example", "203.0.112.1")
	w.tell("a.example", "203.0.112.2")
	_, _ = w.dialTCP("203.0.112.1:443")
	_, _ = w.dialTCP("[::ffff:203.0.112.1]:443")
	if diff := cmp.Diff([]string{"tcp 203.0.112.1:443", "tcp 203.0.112.1:443"}, w.dials()); diff != "" {
		t.Error(diff)
	}
}

// TestRebinding: a name server that first answers with a public address and then with the host's.
func TestRebinding(t *testing.T) {
	for mode, p := range map[Mode]Policy{Public: {}, Allowlist: {Allow: rules(t, "evil.example")}, Open: {Mode: Open}} {
		w := newWorld(t, Config{Policy: p, HostPorts: []uint16{80}})
		w.tell("evil.example", "203.0.112.1")
		for address, reason := range map[string]string{
			"127.0.0.1": ReasonLoopback, "::1": ReasonLoopback, "0.0.0.0": ReasonLoopback, "::ffff:127.0.0.1": ReasonLoopback,
			"2002:7f00:1::": ReasonLoopback, "192.168.127.1": ReasonOwnNetwork, "192.168.127.254": ReasonOwnNetwork,
			"::ffff:192.168.127.254": ReasonOwnNetwork, "fd5a:94ef:e40c::1": ReasonOwnNetwork,
		} {
			addr := netip.MustParseAddr(address)
			denied(t, w.gate.Answer("evil.example", nil, addr, time.Hour), reason)
			if names, _ := w.gate.live(addr); len(names) != 0 {
				t.Errorf("mode %s: %s is pinned to %q", mode, addr, names)
			}
		}
		if mode != Open {
			denied(t, w.gate.Answer("evil.example", nil, netip.MustParseAddr("10.0.0.1"), time.Hour), ReasonRestricted)
		}
		_, err := w.dialTCP("127.0.0.1:80")
		denied(t, err, ReasonLoopback)
		if len(w.dials()) != 0 {
			t.Errorf("mode %s: dialled %q", mode, w.dials())
		}
	}
}

// TestAliasToPrivate: a chain of aliases that ends at a private address, and one that goes through a denied name.
func TestAliasToPrivate(t *testing.T) {
	w := newWorld(t, Config{Policy: Policy{Deny: rules(t, "tracker.example", "cdn.example:22")}})
	public, private := netip.MustParseAddr("203.0.112.1"), netip.MustParseAddr("192.168.1.1")
	denied(t, w.gate.Answer("a.example", []string{"b.example", "c.example"}, private, time.Hour), ReasonRestricted)
	denied(t, w.gate.Answer("a.example", []string{"x.example.", "Tracker.Example."}, public, time.Hour), ReasonDenyRule)
	denied(t, w.gate.Answer("a.example", make([]string, 17), public, time.Hour), ReasonLongChain)
	if err := w.gate.Answer("a.example", []string{"a.example.", "CDN.example."}, public, time.Hour); err != nil {
		t.Fatal(err)
	}
	_, err := w.dialTCP("203.0.112.1:22")
	denied(t, err, ReasonDenyRule)
	if _, err := w.dialTCP("203.0.112.1:80"); errors.Is(err, syscall.EACCES) {
		t.Error(err)
	}
}

func TestAllowlistByPins(t *testing.T) {
	w := newWorld(t, Config{Policy: Policy{Allow: rules(t, "a.example:443", "203.0.112.128/25:80")}, PinGrace: time.Minute})
	w.serve("203.0.112.1:443")
	ok := func(address string) bool {
		c, err := w.dialTCP(address)
		if err == nil {
			c.Close()
		}
		return !errors.Is(err, syscall.EACCES)
	}
	if ok("203.0.112.1:443") {
		t.Error("an address without a name")
	}
	denied(t, w.gate.Question("b.example", typeA), ReasonNameNotAllowed)
	denied(t, w.gate.Answer("b.example", nil, netip.MustParseAddr("203.0.112.1"), time.Hour), ReasonNotAllowed)
	w.tell("A.Example.", "203.0.112.1")
	if !ok("203.0.112.1:443") || ok("203.0.112.1:80") || ok("203.0.112.2:443") {
		t.Error("the name's address and port only")
	}
	w.clock.Advance(2*time.Minute - 1)
	if !ok("203.0.112.1:443") {
		t.Error("the pin ended too early")
	}
	w.clock.Advance(1)
	if ok("203.0.112.1:443") {
		t.Error("the pin did not end")
	}
	if !ok("203.0.112.200:80") || ok("203.0.112.200:443") {
		t.Error("the network's addresses need no name")
	}
}

func TestQuestions(t *testing.T) {
	list := Policy{Allow: rules(t, "pypi.org:443", "*.alpinelinux.org", "8.8.8.0/24"), Deny: rules(t, "bad.alpinelinux.org", "port.alpinelinux.org:25", "10.0.0.0/8")}
	open := Policy{Deny: rules(t, "*.tracker.example", "*:25")}
	for _, c := range []struct {
		policy Policy
		name   string
		qtype  uint16
		reason string // empty: yes
	}{
		{open, "pypi.org", typeA, ""}, {open, "pypi.org.", typeAAAA, ""}, {open, "pypi.org", typeTXT, ""}, {open, "pypi.org", typeMX, ""},
		{open, "pypi.org", typeSRV, ""}, {open, "pypi.org", typeNS, ""}, {open, "pypi.org", typeSOA, ""}, {open, "pypi.org", typeCAA, ""},
		{open, "pypi.org", typeCNAME, ""}, {open, ".", typeNS, ""}, {open, "_ldap._tcp.example.org", typeSRV, ""},
		{open, "pypi.org", 255, ReasonQueryType}, {open, "pypi.org", 10, ReasonQueryType}, {open, "pypi.org", 65, ReasonQueryType},
		{open, "pypi.org", 252, ReasonQueryType}, {open, "pypi.org", 65280, ReasonQueryType}, {open, "pypi.org", 0, ReasonQueryType},
		{open, "x.Tracker.example", typeA, ReasonDenyRule}, {open, "tracker.example", typeA, ""},
		{open, "a..b", typeA, ReasonBadName}, {open, `a\.b.example`, typeA, ReasonBadName}, {open, "a b.example", typeA, ReasonBadName},
		{open, "ü.example", typeA, ReasonBadName}, {open, strings.Repeat("a.", 127) + "toolong", typeA, ReasonBadName},
		{open, strings.Repeat("a", 64) + ".example", typeA, ReasonBadName},
		{list, "pypi.org", typeA, ""}, {list, "PYPI.ORG.", typeTXT, ""}, {list, "www.pypi.org", typeA, ReasonNameNotAllowed},
		{list, "dl.alpinelinux.org", typeA, ""}, {list, "alpinelinux.org", typeA, ReasonNameNotAllowed}, {list, "bad.alpinelinux.org", typeA, ReasonDenyRule},
		{list, "port.alpinelinux.org", typeA, ""}, {list, `evil\.alpinelinux.org`, typeA, ReasonBadName},
		{list, "c2VjcmV0.tunnel.example", typeTXT, ReasonNameNotAllowed}, {list, ".", typeNS, ReasonNameNotAllowed},
		{list, "8.8.8.8.in-addr.arpa", typePTR, ""}, {list, "4.4.8.8.in-addr.arpa", typePTR, ReasonNotAllowed}, {list, "1.0.0.10.in-addr.arpa", typePTR, ReasonDenyRule},
		{open, "4.4.8.8.in-addr.arpa", typePTR, ""}, {open, "1.0.0.10.in-addr.arpa", typePTR, ReasonRestricted},
		{open, "1.127.168.192.in-addr.arpa", typePTR, ReasonOwnNetwork}, {open, "1.0.0.127.in-addr.arpa", typePTR, ReasonLoopback},
		{open, strings.Repeat("0.", 28) + "0.0.d.f.ip6.arpa", typePTR, ReasonRestricted},
		{open, strings.Repeat("1.", 28) + "7.6.0.2.ip6.arpa", typePTR, ""}, {open, "8.8.in-addr.arpa", typeNS, ""},
		{list, HostName, typeA, ""}, {list, GatewayName, typeA, ""}, {list, "x." + HostName, typeA, ReasonNameNotAllowed},
		{Policy{Deny: rules(t, HostName)}, HostName, typeA, ReasonDenyRule}, {Policy{Mode: None}, HostName, typeA, ReasonNone},
		{Policy{Deny: rules(t, "*")}, "pypi.org", typeA, ReasonDenyRule},
		{Policy{Allow: rules(t, "*:443")}, "pypi.org", typeA, ""}, {Policy{Mode: Allowlist}, "pypi.org", typeA, ReasonNameNotAllowed},
	} {
		w := newWorld(t, Config{Policy: c.policy})
		err := w.gate.Question(c.name, c.qtype)
		if c.reason == "" && err != nil {
			t.Errorf("%s, %q %s: %v", c.policy, c.name, typeName(c.qtype), err)
		} else if c.reason != "" {
			denied(t, err, c.reason)
		}
	}
}

func TestReverseOfPinnedAddress(t *testing.T) {
	w := newWorld(t, Config{Policy: Policy{Allow: rules(t, "a.example")}})
	denied(t, w.gate.Question("1.112.0.203.in-addr.arpa", typePTR), ReasonNotAllowed)
	w.tell("a.example", "203.0.112.1")
	if err := w.gate.Question("1.112.0.203.in-addr.arpa", typePTR); err != nil {
		t.Error(err)
	}
}

func TestAnswersOfTheVMsOwnNames(t *testing.T) {
	w := newWorld(t, Config{Policy: Policy{Allow: rules(t, "a.example")}})
	for _, addr := range []string{"192.168.127.254", "fd5a:94ef:e40c::fe"} {
		if err := w.gate.Answer("host.agentvm.internal.", nil, netip.MustParseAddr(addr), time.Hour); err != nil {
			t.Error(err)
		}
	}
	if err := w.gate.Answer("agentvm.internal", nil, netip.MustParseAddr("192.168.127.1"), time.Hour); err != nil {
		t.Error(err)
	}
	denied(t, w.gate.Answer("host.agentvm.internal", nil, netip.MustParseAddr("203.0.112.1"), time.Hour), ReasonNotAllowed)
	if n := w.gate.Stats().Pins; n != 0 {
		t.Errorf("%d pins", n)
	}
}

func TestDialUDP(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	port := server.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	w := newWorld(t, Config{HostPorts: []uint16{port}, Dial: new(net.Dialer).DialContext})
	c, err := w.gate.DialUDP(context.Background(), guest, netip.AddrPortFrom(netip.MustParseAddr("192.168.127.254"), port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10)
	n, from, err := server.ReadFrom(b)
	if err != nil || string(b[:n]) != "ping" {
		t.Fatal(err)
	}
	if _, err := server.WriteTo([]byte("pong"), from); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := c.Read(b); err != nil || string(b[:n]) != "pong" {
		t.Fatalf("%q, %v", b[:n], err)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("half-close of UDP: %v", err)
	}
}

func TestDialResolver(t *testing.T) {
	resolver := netip.MustParseAddrPort("127.0.0.53:53")
	w := newWorld(t, Config{Policy: Policy{Allow: rules(t, "a.example")}, Resolvers: []netip.AddrPort{resolver}})
	w.serve("127.0.0.53:53")
	ctx := context.Background()
	for _, address := range []string{"127.0.0.53:54", "127.0.0.1:53", "8.8.8.8:53", "localhost:53", ""} {
		_, err := w.gate.DialResolver(ctx, "tcp", address)
		denied(t, err, ReasonNotResolver)
	}
	_, err := w.gate.DialResolver(ctx, "unix", resolver.String())
	denied(t, err, ReasonNotResolver)
	c, err := w.gate.DialResolver(ctx, "tcp", "[::ffff:127.0.0.53]:53")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	echoes(t, c)
	if e := w.seen(); len(e) != 0 {
		t.Errorf("%+v", e)
	}
	if cut, err := w.gate.SetPolicy(Policy{Mode: None}); cut != 1 || err != nil {
		t.Errorf("%d, %v", cut, err)
	}
	_, err = c.Read(make([]byte, 1))
	denied(t, err, ReasonNone)
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Policy: Policy{Mode: "x"}}, "no network mode"},
		{Config{HostPorts: []uint16{80, 0}}, "host port 0"},
		{Config{HostAddrs: make([]netip.Addr, 1)}, "not set"},
		{Config{Local: make([]netip.Prefix, 1)}, "not valid"},
		{Config{Resolvers: make([]netip.AddrPort, 1)}, "DNS server"},
	} {
		if _, err := New(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}
