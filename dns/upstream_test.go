package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

const good = "NOERROR; 60 A 93.184.216.34"

func answers(_ string, q *dns.Msg) *dns.Msg {
	return reply(q, q.Question[0].Name+" 60 A 93.184.216.34")
}

func silent(string, *dns.Msg) *dns.Msg { return nil }

// failsWith answers with an RCODE only.
func failsWith(rcode int) handler {
	return func(_ string, q *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, rcode) }
}

// nobody is an address where nothing listens.
func nobody(t *testing.T) netip.AddrPort {
	listener, packets := listenBoth(t)
	listener.Close()
	packets.Close()
	return listener.Addr().(*net.TCPAddr).AddrPort()
}

// TestExchange has what a single server may do to a question. Time-outs are of 200 ms.
func TestExchange(t *testing.T) {
	tampered := func(change func(*dns.Msg)) handler {
		return func(network string, q *dns.Msg) *dns.Msg {
			m := answers(network, q)
			change(m)
			return m
		}
	}
	for _, c := range []struct {
		name   string
		handle handler
		want   string // of the reply
		asked  string // networks
	}{
		{"answers", answers, good, "udp"},
		{"truncates", func(network string, q *dns.Msg) *dns.Msg {
			m := answers(network, q)
			m.Truncated = network == "udp"
			return m
		}, good, "udp tcp"},
		{"truncates TCP too", tampered(func(m *dns.Msg) { m.Truncated = true }), "SERVFAIL", "udp tcp"},
		{"does not know EDNS", func(network string, q *dns.Msg) *dns.Msg {
			if q.IsEdns0() != nil {
				return &dns.Msg{MsgHdr: dns.MsgHdr{Id: q.Id, Response: true, Rcode: dns.RcodeFormatError}}
			}
			return answers(network, q)
		}, good, "udp udp"},
		{"never understands", failsWith(dns.RcodeFormatError), "SERVFAIL", "udp udp"},
		{"fails", failsWith(dns.RcodeServerFailure), "SERVFAIL", "udp"},
		{"refuses", failsWith(dns.RcodeRefused), "SERVFAIL", "udp"},
		{"refers to others", func(_ string, q *dns.Msg) *dns.Msg {
			m := reply(q, "ns:com. 60 NS a.gtld-servers.net.")
			m.RecursionAvailable = false
			return m
		}, "SERVFAIL", "udp"},
		{"answers in capitals", tampered(func(m *dns.Msg) { m.Question[0].Name = strings.ToUpper(m.Question[0].Name) }), good, "udp"},
		{"is silent", silent, "SERVFAIL", "udp udp udp udp"},
		{"answers another ID", tampered(func(m *dns.Msg) { m.Id++ }), "SERVFAIL", "udp udp udp udp"},
		{"answers another name", tampered(func(m *dns.Msg) { m.Question[0].Name = "b.example." }), "SERVFAIL", "udp udp udp udp"},
		{"answers another type", tampered(func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAAAA }), "SERVFAIL", "udp udp udp udp"},
		{"answers another class", tampered(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), "SERVFAIL", "udp udp udp udp"},
		{"answers two questions", tampered(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }), "SERVFAIL", "udp udp udp udp"},
		{"answers no question", tampered(func(m *dns.Msg) { m.Question = nil }), "SERVFAIL", "udp udp udp udp"},
		{"asks back", tampered(func(m *dns.Msg) { m.Response = false }), "SERVFAIL", "udp udp udp udp"},
		{"answers for another name only", tampered(func(m *dns.Msg) { m.Answer[0].Header().Name = "b.example." }), "NOERROR", "udp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			upstream := newUpstream(t, c.handle)
			k := newKit(t, func(config *Config) { config.Timeout = 800 * time.Millisecond }, upstream)
			if got := summary(k.get(t, "a.example", dns.TypeA)); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			var networks []string
			for _, line := range upstream.asked() {
				network, _, _ := strings.Cut(line, " ")
				networks = append(networks, network)
			}
			if diff := cmp.Diff(c.asked, strings.Join(networks, " ")); diff != "" {
				t.Errorf("asked over (-want +got)\n%s", diff)
			}
		})
	}
}

// TestFailover: one server that works is enough, whatever the one before it does; and its answer is remembered.
func TestFailover(t *testing.T) {
	for name, first := range map[string]handler{"silent": silent, "failing": failsWith(dns.RcodeServerFailure), "refusing": failsWith(dns.RcodeRefused)} {
		t.Run(name, func(t *testing.T) {
			bad, fine := newUpstream(t, first), newUpstream(t, answers)
			k := newKit(t, func(c *Config) {
				c.Timeout = 4 * time.Second
				c.Upstreams = append([]netip.AddrPort{nobody(t)}, c.Upstreams...)
			}, bad, fine)
			if got := summary(k.get(t, "a.example", dns.TypeA)); got != good {
				t.Errorf("got %s", got)
			}
			if len(bad.asked()) != 1 || len(fine.asked()) != 1 {
				t.Errorf("the bad one was asked %q, the good one %q", bad.asked(), fine.asked())
			}
		})
	}
}

// TestHealth follows a server that dies and comes back.
func TestHealth(t *testing.T) {
	first, second := newUpstream(t, silent), newUpstream(t, answers)
	k := newKit(t, func(c *Config) { c.Timeout = 2 * time.Second; c.CacheEntries = -1 }, first, second)
	ask := func(when string, want1, want2 int) {
		t.Helper()
		if got := summary(k.get(t, "a.example", dns.TypeA)); got != good {
			t.Errorf("%s: %s", when, got)
		}
		if n1, n2 := len(first.asked()), len(second.asked()); n1 != want1 || n2 != want2 {
			t.Errorf("%s: asked %d and %d times, want %d and %d", when, n1, n2, want1, want2)
		}
	}
	ask("silent", 1, 1)
	ask("resting", 1, 2)
	k.clock.advance(time.Second)
	ask("tried again", 2, 3)
	k.clock.advance(time.Second)
	ask("rests longer", 2, 4)
	k.clock.advance(time.Second)
	first.setHandler(answers)
	ask("is back", 3, 4)
	ask("is preferred again", 4, 4)
}

// TestRestsAreNotForEver: nor longer than a minute.
func TestRestsAreNotForEver(t *testing.T) {
	s := &upstream{}
	now := time.Now()
	for range 100 {
		s.note(false, now)
		rest := s.restsTo.Sub(now)
		if rest < time.Second || rest > time.Minute {
			t.Fatalf("rests %v after %d failures", rest, s.failures)
		}
		now = s.restsTo
	}
	if s.restsTo.Sub(now) != 0 || s.failures != 100 {
		t.Errorf("%d failures", s.failures)
	}
	if n := s.note(true, now); n != 100 || !s.isReady(now) {
		t.Errorf("an answer after %d failures does not help", n)
	}
}

// TestOneAnswerEndsTheWait: a name that a living server fails at is not waited for at a dead one for the whole time-out.
func TestOneAnswerEndsTheWait(t *testing.T) {
	dead, failing := newUpstream(t, silent), newUpstream(t, failsWith(dns.RcodeServerFailure))
	k := newKit(t, func(c *Config) { c.Timeout = time.Second }, dead, failing)
	for range 2 { // the second time in the other order
		got := summary(k.get(t, "a.example", dns.TypeA, withEDNS))
		if want := "SERVFAIL; 23 (Network Error): (DNS server " + failing.address.String() + ": it answered SERVFAIL)"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if n := len(dead.asked()); n != 2 {
		t.Errorf("the dead one was asked %d times", n)
	}
}

// TestNobodyThere: a closed port fails at once, not after the time-out of an hour.
func TestNobodyThere(t *testing.T) {
	k := newKit(t, func(c *Config) { c.Timeout = time.Hour; c.Upstreams = []netip.AddrPort{nobody(t)} })
	if got := summary(k.get(t, "a.example", dns.TypeA)); got != "SERVFAIL" {
		t.Errorf("got %s", got)
	}
	if got := k.policy.reports()[0]; !strings.HasPrefix(got, "a.example A SERVFAIL: DNS server 127.0.0.1:") {
		t.Errorf("reported %q", got)
	}
}

// TestNoUpstream: without servers there are local names, and a reason.
func TestNoUpstream(t *testing.T) {
	k := newKit(t, func(c *Config) { c.Dial = nil })
	if got := summary(k.get(t, "example.com", dns.TypeA, withEDNS)); got != "SERVFAIL; 23 (Network Error): (no DNS server is configured for this machine)" {
		t.Errorf("got %s", got)
	}
	if got := summary(k.get(t, Zone, dns.TypeA)); got != "NOERROR; 60 A 192.168.127.1" {
		t.Errorf("got %s", got)
	}
}

// TestSpoofedDatagrams: a reply that is found among garbage is the one that counts.
func TestSpoofedDatagrams(t *testing.T) {
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 2000)
		n, from, err := packets.ReadFrom(buffer)
		if err != nil {
			return
		}
		query := new(dns.Msg)
		if query.Unpack(buffer[:n]) != nil {
			return
		}
		for i := range mostStrays - 1 {
			m := reply(query, "a.example. 60 A 6.6.6.6")
			m.Id += uint16(i + 1)
			b, _ := m.Pack()
			switch i % 3 {
			case 0:
				b = b[:min(i, len(b))]
			case 1:
				b = append(b[:12], 0xff)
			}
			packets.WriteTo(b, from)
		}
		b, _ := answers("udp", query).Pack()
		packets.WriteTo(b, from)
	}()
	k := newKit(t, func(c *Config) { c.Upstreams = []netip.AddrPort{packets.LocalAddr().(*net.UDPAddr).AddrPort()} })
	if got := summary(k.get(t, "a.example", dns.TypeA)); got != good {
		t.Errorf("got %s", got)
	}
	packets.Close()
	<-ended
}

// TestCancelledQuery: a query whose flow has gone ends at once and counts against no server.
func TestCancelledQuery(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	upstream := newUpstream(t, func(string, *dns.Msg) *dns.Msg { cancel(); return nil })
	k := newKit(t, func(c *Config) { c.Timeout = time.Hour }, upstream)
	if m := parse(t, k.Reply(ctx, question("a.example", dns.TypeA), true)); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("got %v", m)
	}
	if s := k.upstreams.servers[0]; s.failures != 0 {
		t.Errorf("%d failures", s.failures)
	}
}

// TestBlockedDial: a dialer that blocks until its context ends does not hold a query longer.
func TestBlockedDial(t *testing.T) {
	k := newKit(t, func(c *Config) {
		c.Timeout = 100 * time.Millisecond
		c.Upstreams = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}
		c.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
	})
	if got := summary(k.get(t, "a.example", dns.TypeA)); got != "SERVFAIL" {
		t.Errorf("got %s", got)
	}
}

// TestUpstreamQueriesAreBounded: more at a time than there are slots wait, and end in time.
func TestUpstreamQueriesAreBounded(t *testing.T) {
	var now, most atomic.Int64
	k := newKit(t, func(c *Config) {
		c.Timeout, c.QueriesPerSecond = 200*time.Millisecond, -1
		c.Upstreams = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}
		c.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			<-ctx.Done()
			return nil, errors.New("no")
		}
	})
	const queries = 3 * mostUpstreamQueries
	failed := make(chan bool, queries)
	for i := range queries {
		go func() {
			name := "n" + strings.Repeat("x", i%60) + "." + strings.Repeat("y", 1+i/60) + ".example"
			m := new(dns.Msg)
			failed <- m.Unpack(k.Reply(t.Context(), question(name, dns.TypeA), true)) == nil && m.Rcode == dns.RcodeServerFailure
		}()
	}
	for range queries {
		if !<-failed {
			t.Error("a query did not fail")
		}
	}
	if n := most.Load(); n != mostUpstreamQueries {
		t.Errorf("%d at a time, want %d", n, mostUpstreamQueries)
	}
}

// TestQuestionHasNothingOfTheGuests: the name and type only, in lower case, with an ID and a port that change.
func TestQuestionHasNothingOfTheGuests(t *testing.T) {
	seen := make(chan *dns.Msg, 3)
	upstream := newUpstream(t, func(network string, q *dns.Msg) *dns.Msg { seen <- q; return answers(network, q) })
	k := newKit(t, func(c *Config) { c.CacheEntries = -1 }, upstream)
	for range 3 {
		k.get(t, "SeCrEt.ExAmPle", dns.TypeA, func(m *dns.Msg) {
			m.SetEdns0(4000, true)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 65001, Data: []byte("smuggled")}, &dns.EDNS0_COOKIE{Code: 10, Cookie: "0011223344556677"}}
			m.CheckingDisabled, m.AuthenticatedData, m.Zero, m.Id = true, true, true, 7
		})
	}
	ids := map[uint16]bool{}
	for range 3 {
		m := <-seen
		ids[m.Id] = true
		want := new(dns.Msg)
		want.SetQuestion("secret.example.", dns.TypeA)
		want.SetEdns0(datagramSize, false)
		want.Id = m.Id
		if diff := cmp.Diff(want.String(), m.String()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	if len(ids) < 2 {
		t.Errorf("IDs %v", ids)
	}
}
