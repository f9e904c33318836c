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
	"unicode/utf8"
)

func FuzzParseRule(f *testing.F) {
	for _, seed := range []string{
		"", "pypi.org", "*.alpine*.org:443", "*:25", "10.1.2.3/8", "[2001:db9::]/32:443/tcp", "2001:db9::1:443", "x:80,443,1000-2000/udp",
		"bücher.example", "x:*/icmp", "[::ffff:1.2.3.4]", "https://a@b/c", "[fe80::1%eth0]:80", "::1/128:1", "a:b:c", "\xff", "[]:", "]:[", "例え.テスト:1-2,3",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRule(text)
		if problem := (*RuleError)(nil); errors.As(err, &problem) {
			if problem.Column < 1 || problem.Column > utf8.RuneCountInString(text)+1 || problem.Problem == "" {
				t.Fatalf("%q: column %d: %q", text, problem.Column, problem.Problem)
			}
			return
		}
		if err != nil {
			t.Fatalf("%q: not a *RuleError: %v", text, err)
		}
		again, err := ParseRule(r.String())
		if err != nil || !again.Equal(r) || again.String() != r.String() {
			t.Fatalf("%q is %q, which is %q, %v", text, r, again, err)
		}
		if r.host == hostName && !validName(r.name) || r.host == hostNothing {
			t.Fatalf("%q names %q, which no query can", text, r.name)
		}
		if r.prefix.IsValid() && r.prefix != r.prefix.Masked() {
			t.Fatalf("%q: %v", text, r.prefix)
		}
	})
}

func FuzzParsePolicy(f *testing.F) {
	for _, seed := range []string{
		"", "mode = \"allowlist\"\nallow = [\"pypi.org:443\", '*.alpine*.org']\ndeny = [\"*:25\"]\n", "allow = [\n # x [\n \"a\", \"\"\"b\"\"\",\n]", "[x]\ny=1",
		"[[a.\"b\"]]\nc = {d = [1, 2], e = 'f'}", "mode = 3", "allow = [[\"a\"]]", "deny = [\"10.0.0.0/8\"]\nallow=[\"10.0.0.0/8\"]", "a = \"\\\"\"\n", "\ufeffmode = \"none\"",
		"allow = '''a''''", "x = 2026-01-01", "mode = \"\"", "a.b.c = [", "allow = [\"a\"", "a = [}", "a = [}]]}", "=",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ParsePolicy("p.toml", text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "p.toml:") {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if err := p.Validate(); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	})
}

// FuzzDecide: outside mode open no address is allowed that the standard library calls private, local or multicast, nor one with such an IPv4
// address at a place where some tunnel has it; and nothing at all leads to the host's loopback.
func FuzzDecide(f *testing.F) {
	for _, c := range addressCases {
		b := netip.MustParseAddr(c.addr).As16()
		f.Add(b[:], uint16(443), "a.example")
		f.Add(netip.MustParseAddr(c.addr).AsSlice(), uint16(0), "")
	}
	policies := []Policy{
		{}, {Allow: rules(f, "*")}, {Allow: rules(f, "0.0.0.0/0", "[::]/0")}, {Allow: rules(f, "*.example:443")}, {Mode: None, Allow: rules(f, "*")},
		{Mode: Open}, {Deny: rules(f, "*")},
	}
	f.Fuzz(func(t *testing.T, address []byte, port uint16, name string) {
		addr, _ := netip.AddrFromSlice(address)
		for _, p := range policies {
			for _, protocol := range []string{TCP, UDP, ICMP, name} {
				d := home().decide(p, Request{protocol, netip.AddrPortFrom(addr, port), []string{name}, []string{name}})
				if d.Reason == "" || d.Message == "" {
					t.Fatalf("%s, %s: %+v", p, addr, d)
				}
				if !d.Allowed || home().isHost(addr.Unmap()) && d.Reason == ReasonHostPort {
					continue
				}
				if !addr.IsValid() || p.Effective() == None || len(p.Deny) > 0 || mustNeverBeDialled(addr) || p.Effective() != Open && looksPrivate(addr) {
					t.Fatalf("%s lets %s port %d through: %+v", p, addr, port, d)
				}
			}
		}
	})
}

// hidden lists the IPv4 addresses at the places that row N7 of the requirements names.
func hidden(a netip.Addr) (list []netip.Addr) {
	list = append(list, a.Unmap())
	b, text := a.As16(), a.StringExpanded()
	at := func(i int) { list = append(list, netip.AddrFrom4([4]byte(b[i:i+4]))) }
	switch {
	case strings.HasPrefix(text, "0000:0000:0000:0000:0000:0000:"), strings.HasPrefix(text, "0064:ff9b:0000:0000:0000:0000:"):
		at(12)
	case strings.HasPrefix(text, "2002:"):
		at(2)
	case strings.HasPrefix(text, "2001:0000:"):
		at(4)
		list = append(list, netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}))
	}
	return list
}

func mustNeverBeDialled(a netip.Addr) bool {
	for _, h := range hidden(a) {
		if h.IsLoopback() || h.IsUnspecified() {
			return true
		}
	}
	return false
}

func looksPrivate(a netip.Addr) bool {
	for _, h := range hidden(a) {
		if h.IsPrivate() || h.IsLinkLocalUnicast() || h.IsMulticast() || h.Is4() && h.As4()[0] >= 224 || h.Is4() && h.As4()[0] == 0 {
			return true
		}
	}
	return false
}

// FuzzAnswer: whatever a name server answers, nothing is pinned that could not be dialled, names stay bounded, and no dial goes elsewhere
// than to the address that was asked for.
func FuzzAnswer(f *testing.F) {
	f.Add("a.example", "b.example", []byte{203, 0, 112, 1}, int64(60), uint16(1))
	f.Add(`a\.b.example`, "", []byte{127, 0, 0, 1}, int64(-1), uint16(255))
	f.Add("host.agentvm.internal", "x", []byte{192, 168, 127, 254}, int64(1<<40), uint16(28))
	f.Add("1.0.0.10.in-addr.arpa", ".", []byte{}, int64(0), uint16(12))
	f.Add(strings.Repeat("0.", 32)+"ip6.arpa.", "..", make([]byte, 16), int64(0), uint16(12))
	f.Fuzz(func(t *testing.T, name, alias string, address []byte, ttl int64, qtype uint16) {
		addr, _ := netip.AddrFromSlice(address)
		for _, p := range []Policy{{}, {Allow: rules(t, "*.example")}, {Mode: None}} {
			var dialled string
			g, err := New(Config{
				Policy: p, HostAddrs: home().hostAddrs, Local: home().local, Now: func() time.Time { return noon },
				Dial: func(_ context.Context, _, to string) (net.Conn, error) {
					dialled = to
					return nil, syscall.ECONNREFUSED
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			_ = g.Question(name, qtype)
			answered := g.Answer(name, []string{alias}, addr, time.Duration(ttl)*time.Second)
			g.Asked(Query{Name: name, Type: qtype, Answer: alias, Problem: answered})
			_, _ = g.DialTCP(context.Background(), guest, netip.AddrPortFrom(addr, 443))
			pinned := g.Stats().Pins
			if pinned > 1 || pinned == 1 && (answered != nil || !addr.IsValid() || looksPrivate(addr) || mustNeverBeDialled(addr) || p.Mode == None) {
				t.Fatalf("%s: %q at %v: %d pins, %v", p, name, addr, pinned, answered)
			}
			if dialled != "" && dialled != netip.AddrPortFrom(addr.Unmap(), 443).String() {
				t.Fatalf("%v was asked for, %s was dialled", addr, dialled)
			}
		}
	})
}
