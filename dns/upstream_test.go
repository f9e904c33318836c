package dns

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
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

// TestExchange has what a single server may do to a question.
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
		{"answers without data", func(_ string, q *dns.Msg) *dns.Msg {
			m := reply(q)
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "a.example.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 9}}}
			return m
		}, "NOERROR", "udp"},
		{"answers for another name only", tampered(func(m *dns.Msg) { m.Answer[0].Header().Name = "b.example." }), "NOERROR", "udp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				servers := newPiped(c.handle)
				k := newKit(t, func(config *Config) { config.Dial = dialPipes(servers) }, servers...)
				began := time.Now()
				if got := summary(k.get(t, "a.example", dns.TypeA)); got != c.want {
					t.Errorf("got %s, want %s", got, c.want)
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("it took %v", took)
				}
				var networks []string
				for _, line := range servers[0].asked() {
					network, _, _ := strings.Cut(line, " ")
					networks = append(networks, network)
				}
				if diff := cmp.Diff(c.asked, strings.Join(networks, " ")); diff != "" {
					t.Errorf("asked over (-want +got)\n%s", diff)
				}
			})
		})
	}
}

// TestFailover: one server that works is enough, whatever those before it do.
func TestFailover(t *testing.T) {
	for name, c := range map[string]struct {
		handle handler
		within time.Duration
	}{
		"silent":   {silent, 1250 * time.Millisecond},
		"failing":  {failsWith(dns.RcodeServerFailure), 0},
		"refusing": {failsWith(dns.RcodeRefused), 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				servers := newPiped(c.handle, answers)
				k := newKit(t, func(config *Config) {
					config.Dial = dialPipes(servers)
					config.Upstreams = append([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.99:53")}, config.Upstreams...)
				}, servers...)
				began := time.Now()
				if got := summary(k.get(t, "a.example", dns.TypeA)); got != good {
					t.Errorf("got %s", got)
				}
				if took := time.Since(began); took != c.within {
					t.Errorf("it took %v, want %v", took, c.within)
				}
				if bad, fine := servers[0].asked(), servers[1].asked(); len(bad) != 1 || len(fine) != 1 {
					t.Errorf("the bad one was asked %q, the good one %q", bad, fine)
				}
			})
		})
	}
}

// TestHealth follows a server that dies and comes back.
func TestHealth(t *testing.T) {
	first, second := newUpstream(t, answers), newUpstream(t, answers)
	var log bytes.Buffer
	dialled := map[string]int{}
	down := true
	k := newKit(t, func(c *Config) {
		c.Timeout, c.CacheEntries, c.Logger = time.Hour, -1, slog.New(slog.NewTextHandler(&log, nil))
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			dialled[address]++
			if down && address == first.address.String() {
				return nil, syscall.EHOSTUNREACH
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		}
	}, first, second)
	ask := func(when string, want1, want2 int) {
		t.Helper()
		if got := summary(k.get(t, "a.example", dns.TypeA)); got != good {
			t.Errorf("%s: %s, reported %q", when, got, k.policy.reports())
		}
		if n1, n2 := dialled[first.address.String()], dialled[second.address.String()]; n1 != want1 || n2 != want2 {
			t.Errorf("%s: asked %d and %d times, want %d and %d", when, n1, n2, want1, want2)
		}
	}
	ask("dead", 1, 1)
	ask("resting", 1, 2)
	k.clock.advance(time.Second)
	ask("tried again", 2, 3)
	k.clock.advance(time.Second)
	ask("rests longer", 2, 4)
	k.clock.advance(time.Second)
	down = false
	ask("is back", 3, 4)
	ask("is preferred again", 4, 4)
	if warned, told := strings.Count(log.String(), "does not answer"), strings.Count(log.String(), "answers again"); warned != 1 || told != 1 {
		t.Errorf("logged\n%s", log.String())
	}
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
	synctest.Test(t, func(t *testing.T) {
		servers := newPiped(silent, failsWith(dns.RcodeServerFailure))
		k := newKit(t, func(c *Config) { c.Dial = dialPipes(servers) }, servers...)
		for range 2 { // the second time in the other order
			began := time.Now()
			got := summary(k.get(t, "a.example", dns.TypeA, withEDNS))
			if want := "SERVFAIL; 23 (Network Error): (DNS server 192.0.2.2:53: it answered SERVFAIL)"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if took := time.Since(began); took != 1250*time.Millisecond {
				t.Errorf("it took %v", took)
			}
		}
	})
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

// TestCutReply: the records of a truncated reply may end anywhere. They are not read, what counts is the bit.
func TestCutReply(t *testing.T) {
	asked := newQuestion(key{"a.example", dns.TypeA}, true)
	m := answers("udp", asked)
	m.Truncated = true
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	for _, length := range []int{len(b), len(b) - 1, len(b) - 10} {
		if m, err := parseResponse(b[:length], asked); err != nil || !m.Truncated || len(m.Answer) != 0 {
			t.Errorf("%d of %d bytes: %v, %v", length, len(b), m, err)
		}
	}
	if _, err := parseResponse(b[:20], asked); err == nil {
		t.Error("a reply that is cut in its question was accepted")
	}
	b[2] &^= 2
	if _, err := parseResponse(b[:len(b)-1], asked); err == nil {
		t.Error("a cut reply without the bit was accepted")
	}
}

// TestTooManyRecords: a message that announces more records than anybody needs is not parsed.
func TestTooManyRecords(t *testing.T) {
	asked := newQuestion(key{"a.example", dns.TypeA}, true)
	for n, ok := range map[int]bool{mostRecords: true, mostRecords + 1: false} {
		m := reply(asked)
		for range n {
			m.Answer = append(m.Answer, answers("tcp", asked).Answer...)
		}
		m.Compress = true
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseResponse(b, asked); (err == nil) != ok {
			t.Errorf("%d records: %v", n, err)
		}
	}
}
