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

// unused is an address where nothing listens.
func unused(t *testing.T) netip.AddrPort {
	listener, packets := listenBoth(t)
	listener.Close()
	packets.Close()
	return listener.Addr().(*net.TCPAddr).AddrPort()
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
	k.clock.Advance(time.Second)
	ask("tried again", 2, 3)
	k.clock.Advance(time.Second)
	ask("rests longer", 2, 4)
	k.clock.Advance(time.Second)
	down = false
	ask("is back", 3, 4)
	ask("is preferred again", 4, 4)
	down = true
	ask("dead again", 5, 5)
	if n := strings.Count(log.String(), "does not answer"); n != 1 {
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

// TestNoListener: a closed port fails at once, not after the time-out of an hour.
func TestNoListener(t *testing.T) {
	k := newKit(t, func(c *Config) { c.Timeout = time.Hour; c.Upstreams = []netip.AddrPort{unused(t)} })
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
	if got := summary(k.get(t, "example.com", dns.TypeA, withEDNS)); got != "SERVFAIL; 23 (Network Error): (no DNS server is configured for this VM)" {
		t.Errorf("got %s", got)
	}
	if got := summary(k.get(t, Zone, dns.TypeA)); got != "NOERROR; 60 A 192.168.127.1" {
		t.Errorf("got %s", got)
	}
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
		c.Timeout, c.QueriesPerSecond = 2*time.Second, -1 // enough for all slots to be taken at once
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
	const queries = 3 * maxUpstreamQueries
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
	if n := most.Load(); n != maxUpstreamQueries {
		t.Errorf("%d at a time, want %d", n, maxUpstreamQueries)
	}
}
