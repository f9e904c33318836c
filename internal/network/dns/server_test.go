package dns

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

// world is what the upstream of most tests knows.
var world = map[string][]string{
	"example.com. A":            {"example.com. 300 A 93.184.216.34", "example.com. 300 A 93.184.216.35"},
	"example.com. AAAA":         {"example.com. 300 AAAA 2606:2800:220:1::1"},
	"example.com. MX":           {"example.com. 60 MX 10 mail.example.com.", "extra:mail.example.com. 60 A 10.0.0.1", "extra:mail.example.com. 60 A 93.184.216.9"},
	"example.com. TXT":          {`example.com. 60 TXT "v=spf1 -all"`},
	"example.com. NS":           {"example.com. 60 NS ns.example.com.", "extra:ns.example.com. 60 A 10.0.0.1"},
	"example.com. SOA":          {"example.com. 60 SOA ns.example.com. root.example.com. 1 2 3 4 5"},
	"example.com. CAA":          {`example.com. 60 CAA 0 issue "ca.example"`},
	"example.com. HTTPS":        {`example.com. 60 HTTPS 1 . alpn="h2" ipv4hint="10.0.0.1" ipv6hint="::1"`},
	"_x._tcp.example.com. SRV":  {"_x._tcp.example.com. 60 SRV 1 2 80 t.example.com.", "extra:t.example.com. 60 A 10.0.0.1"},
	"4.3.2.1.in-addr.arpa. PTR": {"4.3.2.1.in-addr.arpa. 60 PTR four.example.com."},
	"empty.example.com. A":      {"ns:example.com. 300 SOA ns.example.com. root.example.com. 1 2 3 4 30"},
	"private.example.com. A":    {"private.example.com. 300 A 10.0.0.1", "private.example.com. 300 A 192.168.0.1"},
	"mixed.example.com. A":      {"mixed.example.com. 300 A 93.184.216.1", "mixed.example.com. 300 A 127.0.0.1"},
	"mapped.example.com. AAAA":  {"mapped.example.com. 300 AAAA ::ffff:127.0.0.1"},
	"www.example.com. A":        {"www.example.com. 300 CNAME cdn.example.net.", "cdn.example.net. 20 CNAME edge.example.org.", "edge.example.org. 10 A 93.184.216.2"},
	"www.example.com. CNAME":    {"www.example.com. 300 CNAME cdn.example.net."},
	"inside.example.com. A":     {"inside.example.com. 300 CNAME intranet.example.com.", "intranet.example.com. 20 A 10.1.2.3"},
	"dangling.example.com. A":   {"dangling.example.com. 300 CNAME gone.example.com.", "NXDOMAIN", "ns:example.com. 300 SOA ns.example.com. root.example.com. 1 2 3 4 30"},
	"alias.example.com. AAAA":   {"alias.example.com. 300 CNAME example.com.", "ns:example.com. 300 SOA ns.example.com. root.example.com. 1 2 3 4 30"},
	"stray.example.com. A":      {"stray.example.com. 300 A 93.184.216.3", "bank.example. 300 A 93.184.216.66", "stray.example.com. 300 AAAA 2606::1", "ns:bank.example. 9 NS evil.example."},
	"circle.example.com. A":     {"circle.example.com. 300 CNAME ring.example.com.", "ring.example.com. 300 CNAME circle.example.com."},
	"odd.example.com. A":        {`odd.example.com. 300 CNAME a\.b.example.com.`, `a\.b.example.com. 300 A 93.184.216.3`},
	"long.example.com. A":       {"long.example.com. 4294967295 A 93.184.216.3"},
}

// TestReplies has a row for each kind of question and answer: what the guest gets, what is reported.
func TestReplies(t *testing.T) {
	upstream := newUpstream(t, zone(world))
	const private = "10.0.0.1 is not a public address"
	deny := map[string]string{
		"secret.example.com":   "denied by rule secret.example.com",
		"example.com TXT":      "no TXT here",
		"edge2.example.org":    "denied by rule *.example.org",
		"intranet.example.com": "denied by rule intranet.example.com",
	}
	for _, c := range []struct {
		name, ask, kind string
		want, report    string
	}{
		{"addresses", "example.com", "A", "NOERROR; 300 A 93.184.216.34; 300 A 93.184.216.35", "example.com A 93.184.216.34 93.184.216.35"},
		{"in capitals", "EXAMPLE.com", "A", "NOERROR; 300 A 93.184.216.34; 300 A 93.184.216.35", "example.com A 93.184.216.34 93.184.216.35"},
		{"IPv6", "example.com", "AAAA", "NOERROR; 300 AAAA 2606:2800:220:1::1", "example.com AAAA 2606:2800:220:1::1"},
		{"MX without additional addresses", "example.com", "MX", "NOERROR; 60 MX 10 mail.example.com.", "example.com MX 1 MX"},
		{"SRV without additional addresses", "_x._tcp.example.com", "SRV", "NOERROR; 60 SRV 1 2 80 t.example.com.", "_x._tcp.example.com SRV 1 SRV"},
		{"NS without glue", "example.com", "NS", "NOERROR; 60 NS ns.example.com.", "example.com NS 1 NS"},
		{"SOA", "example.com", "SOA", "NOERROR; 60 SOA ns.example.com. root.example.com. 1 2 3 4 5", "example.com SOA 1 SOA"},
		{"CAA", "example.com", "CAA", `NOERROR; 60 CAA 0 issue "ca.example"`, "example.com CAA 1 CAA"},
		{"PTR", "4.3.2.1.in-addr.arpa", "PTR", "NOERROR; 60 PTR four.example.com.", "4.3.2.1.in-addr.arpa PTR 1 PTR"},
		{"no such name", "nowhere.example.com", "A", "NXDOMAIN; ns SOA", "nowhere.example.com A NXDOMAIN"},
		{"no such data", "empty.example.com", "A", "NOERROR; ns SOA", "empty.example.com A NODATA"},
		{"aliases", "www.example.com", "A", "NOERROR; 300 CNAME cdn.example.net.; 20 CNAME edge.example.org.; 10 A 93.184.216.2", "www.example.com A 93.184.216.2"},
		{"the alias itself", "www.example.com", "CNAME", "NOERROR; 300 CNAME cdn.example.net.", "www.example.com CNAME 1 CNAME"},
		{"alias to nothing", "dangling.example.com", "A", "NXDOMAIN; 300 CNAME gone.example.com.; ns SOA", "dangling.example.com A NXDOMAIN"},
		{"alias without data", "alias.example.com", "AAAA", "NOERROR; 300 CNAME example.com.; ns SOA", "alias.example.com AAAA 1 CNAME"},
		{"records without a question", "stray.example.com", "A", "NOERROR; 300 A 93.184.216.3", "stray.example.com A 93.184.216.3"},
		{"TTL of 136 years", "long.example.com", "A", "NOERROR; 86400 A 93.184.216.3", "long.example.com A 93.184.216.3"},

		{"private addresses", "private.example.com", "A", "NOERROR; 17 (Filtered): (" + private + ")",
			"private.example.com A NODATA: " + private + " | " + private},
		{"one private address", "mixed.example.com", "A", "NOERROR; 300 A 93.184.216.1; 17 (Filtered): (1 of 2 addresses withheld: 127.0.0.1 is not a public address)",
			"mixed.example.com A 93.184.216.1: 1 of 2 addresses withheld: 127.0.0.1 is not a public address"},
		{"IPv4 in IPv6", "mapped.example.com", "AAAA", "NOERROR; 17 (Filtered): (::ffff:127.0.0.1 is not a public address)",
			"mapped.example.com AAAA NODATA: ::ffff:127.0.0.1 is not a public address | ::ffff:127.0.0.1 is not a public address"},
		{"alias to a denied name", "inside.example.com", "A", "NOERROR; 17 (Filtered): (denied by rule intranet.example.com)",
			"inside.example.com A NODATA: denied by rule intranet.example.com | denied by rule intranet.example.com"},
		{"denied name", "secret.example.com", "A", "NXDOMAIN; 15 (Blocked): (denied by rule secret.example.com)",
			"secret.example.com A NXDOMAIN: denied by rule secret.example.com | denied by rule secret.example.com"},
		{"denied type", "example.com", "TXT", "NXDOMAIN; 15 (Blocked): (no TXT here)", "example.com TXT NXDOMAIN: no TXT here | no TXT here"},
		{"HTTPS", "example.com", "HTTPS", "NOERROR", "example.com HTTPS NODATA"},
		{"SVCB", "_dns.resolver.arpa", "SVCB", "NOERROR", "_dns.resolver.arpa SVCB NODATA"},
		{"a type that is not served", "example.com", "NULL", "NOERROR; 21 (Not Supported): (" + errType.Error() + ")",
			"example.com NULL NODATA: " + errType.Error() + " | " + errType.Error()},
		{"any type", "example.com", "ANY", "REFUSED; 21 (Not Supported): (" + errType.Error() + ")",
			"example.com ANY REFUSED: " + errType.Error() + " | " + errType.Error()},
		{"zone transfer", "example.com", "AXFR", "REFUSED; 21 (Not Supported): (" + errType.Error() + ")",
			"example.com AXFR REFUSED: " + errType.Error() + " | " + errType.Error()},
		{"a dot in a label", `x\.example.com`, "A", "NXDOMAIN; 15 (Blocked): (" + errOddName.Error() + ")",
			`x\.example.com A NXDOMAIN: ` + errOddName.Error() + " | " + errOddName.Error()},
		{"bytes in a label", `\000\255.example.com`, "A", "NXDOMAIN; 15 (Blocked): (" + errOddName.Error() + ")",
			`\000\255.example.com A NXDOMAIN: ` + errOddName.Error() + " | " + errOddName.Error()},
		{"aliases in a circle", "circle.example.com", "A", "SERVFAIL; 23 (Network Error): (the answer has more than 16 aliases, or they go in a circle)",
			"circle.example.com A SERVFAIL: the answer has more than 16 aliases, or they go in a circle | the answer has more than 16 aliases, or they go in a circle"},
		{"alias with a dot in a label", "odd.example.com", "A", "SERVFAIL; 23 (Network Error): (an alias in the answer has bytes that no host name has)",
			"odd.example.com A SERVFAIL: an alias in the answer has bytes that no host name has | an alias in the answer has bytes that no host name has"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newKit(t, nil, upstream)
			k.policy.set(deny)
			for _, again := range []string{"", " from the cache"} {
				m := k.get(t, c.ask, dns.StringToType[c.kind], withEDNS)
				if diff := cmp.Diff(c.want, summary(m)); diff != "" {
					t.Errorf("reply%s (-want +got)\n%s", again, diff)
				}
				if !m.Response || !m.RecursionAvailable || !m.RecursionDesired || m.AuthenticatedData || m.Zero || len(m.Question) != 1 || m.Question[0].Name != dns.Fqdn(c.ask) {
					t.Errorf("header or question: %v", m)
				}
			}
			if diff := cmp.Diff([]string{c.report, c.report}, k.policy.reports()); diff != "" {
				t.Errorf("reports (-want +got)\n%s", diff)
			}
		})
	}
}

// TestEveryAddressIsChecked compares what the policy was asked with what the guest received: name, aliases, and a lifetime
// that is not shorter than the one told.
func TestEveryAddressIsChecked(t *testing.T) {
	k := newKit(t, nil, newUpstream(t, zone(world)))
	k.get(t, "www.example.com", dns.TypeA)
	k.get(t, "WWW.example.com", dns.TypeA)
	k.get(t, "mixed.example.com", dns.TypeA)
	want := []string{
		"www.example.com>cdn.example.net>edge.example.org 93.184.216.2 10s",
		"www.example.com>cdn.example.net>edge.example.org 93.184.216.2 10s",
		"mixed.example.com 93.184.216.1 5m0s",
		"mixed.example.com 127.0.0.1 5m0s",
	}
	if diff := cmp.Diff(want, k.policy.told); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestRebinding: a server that tells a public address first and the host's loopback then gains nothing, cached or not.
func TestRebinding(t *testing.T) {
	address := "93.184.216.34"
	upstream := newUpstream(t, nil)
	flip := func(a, ttl string) {
		upstream.setHandler(func(_ string, q *dns.Msg) *dns.Msg { return reply(q, "rebind.example. "+ttl+" A "+a) })
	}
	k := newKit(t, nil, upstream)
	for _, ttl := range []string{"0", "1"} {
		flip(address, ttl)
		if got, want := summary(k.get(t, "rebind.example", dns.TypeA)), "NOERROR; "+ttl+" A "+address; got != want {
			t.Errorf("first: %s, want %s", got, want)
		}
		flip("127.0.0.1", ttl)
		k.clock.Advance(2e9)
		if got := summary(k.get(t, "rebind.example", dns.TypeA)); got != "NOERROR" {
			t.Errorf("then: %s", got)
		}
		k.clock.Advance(2e9)
	}
}

// TestPolicyChange: what is in the cache is judged by the policy of the moment.
func TestPolicyChange(t *testing.T) {
	upstream := newUpstream(t, zone(world))
	k := newKit(t, patient, upstream)
	const before = "NOERROR; 300 A 93.184.216.34; 300 A 93.184.216.35"
	if got := summary(k.get(t, "example.com", dns.TypeA)); got != before {
		t.Fatal(got)
	}
	k.policy.set(map[string]string{"93.184.216.34": "denied by rule 93.184.216.34"})
	if got := summary(k.get(t, "example.com", dns.TypeA)); got != "NOERROR; 300 A 93.184.216.35" {
		t.Errorf("an address that is denied now: %s", got)
	}
	k.policy.set(map[string]string{"example.com": "denied by rule example.com"})
	if got := summary(k.get(t, "example.com", dns.TypeA)); got != "NXDOMAIN" {
		t.Errorf("a name that is denied now: %s", got)
	}
	k.policy.set(nil)
	if got := summary(k.get(t, "example.com", dns.TypeA)); got != before {
		t.Errorf("allowed again: %s", got)
	}
	if n := len(upstream.asked()); n != 1 {
		t.Errorf("%d questions went out, want 1", n)
	}
}

// TestBadQueries: what is not a query gets an error that reflects nothing, or silence.
func TestBadQueries(t *testing.T) {
	header := func(flags uint16, counts ...byte) []byte {
		b := []byte{0xab, 0xcd, byte(flags >> 8), byte(flags), 0, 0, 0, 0, 0, 0, 0, 0}
		for i, n := range counts {
			b[5+2*i] = n
		}
		return b
	}
	garbage := strings.Repeat("garbage", 10)
	twice := func(m *dns.Msg) { withEDNS(m); m.Extra = append(m.Extra, m.Extra[0]) }
	for _, c := range []struct {
		name  string
		query []byte
		rcode int // -1: silence
	}{
		{"nothing", nil, -1},
		{"half a header", header(0)[:11], -1},
		{"a reply", question("example.com", dns.TypeA, func(m *dns.Msg) { m.Response = true }), -1},
		{"a header", header(0x0100), dns.RcodeFormatError},
		{"a header and garbage", append(header(0x0100, 1), garbage...), dns.RcodeFormatError},
		{"two questions", question("a.example", dns.TypeA, func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }), dns.RcodeFormatError},
		{"no question", question("a.example", dns.TypeA, func(m *dns.Msg) { m.Question = nil }), dns.RcodeFormatError},
		{"an answer", question("a.example", dns.TypeA, func(m *dns.Msg) { m.Answer = reply(m, "a.example. 1 A 1.2.3.4").Answer }), dns.RcodeFormatError},
		{"an authority", question("a.example", dns.TypeA, func(m *dns.Msg) { m.Ns = reply(m, "a.example. 1 A 1.2.3.4").Answer }), dns.RcodeFormatError},
		{"three additional records", question("a.example", dns.TypeA, func(m *dns.Msg) {
			m.Extra = reply(m, "a.example. 1 A 1.2.3.4", "a.example. 1 A 1.2.3.5", "a.example. 1 A 1.2.3.6").Answer
		}), dns.RcodeFormatError},
		{"two OPT records", question("a.example", dns.TypeA, twice), dns.RcodeFormatError},
		{"too long", append(question("a.example", dns.TypeA), make([]byte, 4096)...), dns.RcodeFormatError},
		{"name that points to itself", append(header(0x0100, 1), 0xc0, 12, 0, 1, 0, 1), dns.RcodeFormatError},
		{"counts of more than is there", header(0x0100, 1, 0, 0, 255), dns.RcodeFormatError},
		{"EDNS of the future", question("a.example", dns.TypeA, func(m *dns.Msg) { withEDNS(m); m.IsEdns0().SetVersion(1) }), dns.RcodeBadVers},
		{"class CHAOS", question("version.bind", dns.TypeTXT, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), dns.RcodeNotImplemented},
		{"class ANY", question("a.example", dns.TypeA, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY }), dns.RcodeNotImplemented},
		{"update", question("a.example", dns.TypeSOA, func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }), dns.RcodeNotImplemented},
		{"notify", append(header(0x2000, 1), garbage...), dns.RcodeNotImplemented},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newKit(t, func(config *Config) {
				config.Dial, config.Upstreams = noDial(t), []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}
			})
			b := k.Reply(t.Context(), c.query, true)
			if c.rcode < 0 {
				if b != nil || len(k.policy.reports()) != 0 {
					t.Errorf("replied %x, reported %q", b, k.policy.reports())
				}
				return
			}
			m := parse(t, b)
			if m.Rcode != c.rcode || !m.Response || m.Id != uint16(c.query[0])<<8|uint16(c.query[1]) || m.Opcode != int(c.query[2]>>3&15) {
				t.Errorf("got %v", m)
			}
			if len(m.Question)+len(m.Answer)+len(m.Ns) > 0 || len(b) > 12+11 {
				t.Errorf("the reply has more than a header and OPT: %x", b)
			}
			if n := len(k.policy.reports()); n != 1 {
				t.Errorf("%d reports", n)
			}
		})
	}
}

// TestSizes: a datagram is not longer than the client takes, and says when something is missing; a stream has it all.
func TestSizes(t *testing.T) {
	var records []string
	for i := range 100 {
		records = append(records, fmt.Sprintf("big.example. 300 A 93.184.1.%d", i))
	}
	k := newKit(t, nil, newUpstream(t, func(_ string, q *dns.Msg) *dns.Msg { return reply(q, records...) }))
	withSize := func(size uint16) func(*dns.Msg) { return func(m *dns.Msg) { m.SetEdns0(size, false) } }
	for _, c := range []struct {
		name     string
		query    []byte
		datagram bool
		limit    int
		whole    bool
	}{
		{"without EDNS", question("big.example", dns.TypeA), true, 512, false},
		{"size 100", question("big.example", dns.TypeA, withSize(100)), true, 512, false},
		{"size 1000", question("big.example", dns.TypeA, withSize(1000)), true, 1000, false},
		{"size 65535", question("big.example", dns.TypeA, withSize(65535)), true, 1232, false},
		{"stream", question("big.example", dns.TypeA), false, 65535, true},
	} {
		b := k.Reply(t.Context(), c.query, c.datagram)
		m := parse(t, b)
		if len(b) > c.limit || m.Truncated == c.whole || len(m.Answer) == 0 || (len(m.Answer) == len(records)) != c.whole {
			t.Errorf("%s: %d bytes, %d records, truncated %v", c.name, len(b), len(m.Answer), m.Truncated)
		}
	}
}

// TestManyAddresses: no reply tells, and so no query makes the policy pin, more than maxAddresses.
func TestManyAddresses(t *testing.T) {
	var records []string
	for i := range maxAddresses + 2 {
		records = append(records, fmt.Sprintf("big.example. 300 A 93.184.%d.%d", 200+i/256, i%256))
	}
	k := newKit(t, nil, newUpstream(t, func(_ string, q *dns.Msg) *dns.Msg {
		m := reply(q, records...)
		m.Compress = true
		return m
	}))
	m := k.send(t, question("big.example", dns.TypeA), false)
	if len(m.Answer) != maxAddresses || len(k.policy.told) != maxAddresses || k.Stats().Filtered != 2 {
		t.Errorf("told %d addresses, pinned %d; %+v", len(m.Answer), len(k.policy.told), k.Stats())
	}
}

// TestClip: what others chose ends as one line, of bounded length and valid.
func TestClip(t *testing.T) {
	for text, want := range map[string]string{
		"as it is":                    "as it is",
		"two\nlines\x1b[31m":          "two lines [31m",
		"a\xffb":                      "a?b",
		strings.Repeat("a", 240):      strings.Repeat("a", 240),
		strings.Repeat("a", 241):      strings.Repeat("a", 237) + "...",
		strings.Repeat("\u00e4", 200): strings.Repeat("\u00e4", 118) + "...",
	} {
		if got := clip(text); got != want {
			t.Errorf("%q: got %q", text, got)
		}
	}
}

// TestNewRefuses has configurations that would not be safe, or could not work.
func TestNewRefuses(t *testing.T) {
	good := Config{Policy: &policy{}}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	upstreams := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}
	for name, change := range map[string]func(*Config){
		"no policy": func(c *Config) { c.Policy = nil },
		"no dialer": func(c *Config) { c.Upstreams = upstreams },
		"upstream":  func(c *Config) { c.Dial, c.Upstreams = noDial(t), make([]netip.AddrPort, 1) },
		"upstream port": func(c *Config) {
			c.Dial, c.Upstreams = noDial(t), []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}
		},
		"host name":        func(c *Config) { c.Hosts = map[string][]netip.Addr{"": nil} },
		"host with escape": func(c *Config) { c.Hosts = map[string][]netip.Addr{`a\.b`: nil} },
		"host address":     func(c *Config) { c.Hosts = map[string][]netip.Addr{"a": {{}}} },
	} {
		config := good
		change(&config)
		if s, err := New(config); err == nil || s != nil || !strings.HasPrefix(err.Error(), "dns: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTogether: many flows at once, equal names and different ones, while the policy changes. Each query has a reply and a
// report, and each address told was allowed at the time.
func TestTogether(t *testing.T) {
	upstream := newUpstream(t, zone(world))
	k := newKit(t, func(c *Config) { c.QueriesPerSecond, c.CacheEntries = -1, 3 }, upstream)
	names := []string{"example.com", "www.example.com", "mixed.example.com", "private.example.com", "nowhere.example.com", Zone}
	const flows, each = 20, 50
	var workers sync.WaitGroup
	for i := range flows {
		workers.Go(func() {
			for j := range each {
				if i == 0 {
					k.policy.set(map[string]string{"example.com": "for now"})
				} else if i == 1 {
					k.policy.set(nil)
				}
				m := new(dns.Msg)
				if err := m.Unpack(k.Reply(t.Context(), question(names[(i+j)%len(names)], dns.TypeA), j%2 == 0)); err != nil {
					t.Error(err)
				}
				if text := m.String(); m.Rcode == dns.RcodeServerFailure || strings.Contains(text, "127.0.0.1") || strings.Contains(text, "10.0.0.1") {
					t.Errorf("got %v", text)
				}
			}
		})
	}
	workers.Wait()
	if n := len(k.policy.reports()); n != flows*each {
		t.Errorf("%d reports", n)
	}
}
