package dns

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"agentvm/internal/test/testclock"
)

// TestRateLimit: the burst, the refill, what is answered and how little is reported.
func TestRateLimit(t *testing.T) {
	k := newKit(t, func(c *Config) { c.QueriesPerSecond = 10 })
	count := func(queries int) (answered int) {
		for range queries {
			if m := k.get(t, Zone, dns.TypeA); m.Rcode == dns.RcodeSuccess {
				answered++
			} else if m.Rcode != dns.RcodeServerFailure {
				t.Errorf("got %v", m)
			}
		}
		return answered
	}
	if n := count(100); n != 20 {
		t.Errorf("a burst of %d, want 20", n)
	}
	k.clock.Advance(500 * time.Millisecond)
	if n := count(100); n != 5 {
		t.Errorf("%d after half a second, want 5", n)
	}
	k.clock.Advance(time.Second)
	if n := count(11); n != 10 {
		t.Errorf("%d after a second more, want 10", n)
	}
	var refused []string
	for _, line := range k.policy.reports() {
		if strings.Contains(line, "SERVFAIL") {
			refused = append(refused, line)
		}
	}
	text := errRate.Error()
	want := []string{
		Zone + " A SERVFAIL: " + text + " | " + text,
		Zone + " A SERVFAIL: " + text + " | " + text + " (175 queries refused)",
	}
	if diff := cmp.Diff(want, refused); diff != "" {
		t.Errorf("reports (-want +got)\n%s", diff)
	}
	if got, want := k.Stats(), (Stats{Queries: 211, Limited: 176, Local: 35}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	m := k.get(t, Zone, dns.TypeA, withEDNS)
	if got, want := summary(m), "SERVFAIL; 0 (Other): ("+text+")"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestLimitCountsGarbage: garbage cannot keep the server busy.
func TestLimitCountsGarbage(t *testing.T) {
	k := newKit(t, func(c *Config) { c.QueriesPerSecond = 1 })
	for range 2 {
		k.send(t, make([]byte, 12), true)
	}
	if m := k.get(t, Zone, dns.TypeA); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("got %v", m)
	}
}

// TestLimitWarns at 80 %, and again only after use was under half.
func TestLimitWarns(t *testing.T) {
	var log bytes.Buffer
	k := newKit(t, func(c *Config) { c.QueriesPerSecond = 10; c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	for _, c := range []struct {
		wait     time.Duration
		queries  int
		warnings int
	}{
		{0, 15, 0}, {0, 1, 1}, {0, 10, 1}, {700 * time.Millisecond, 10, 1}, {1200 * time.Millisecond, 1, 1}, {0, 10, 2}, {time.Hour, 1, 2}, {0, 19, 3},
	} {
		k.clock.Advance(c.wait)
		for range c.queries {
			k.get(t, Zone, dns.TypeA)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != c.warnings {
			t.Errorf("after %v and %d queries: %d warnings, want %d\n%s", c.wait, c.queries, n, c.warnings, log.String())
		}
	}
}

func TestNoLimit(t *testing.T) {
	k := newKit(t, func(c *Config) { c.QueriesPerSecond = -1 })
	for range 1000 {
		if m := k.get(t, Zone, dns.TypeA); m.Rcode != dns.RcodeSuccess {
			t.Fatal(m)
		}
	}
}

// TestRefusalsAreCounted: a report of several refusals says how many.
func TestRefusalsAreCounted(t *testing.T) {
	l := newLimit(Config{QueriesPerSecond: 1, Now: testclock.New().Now, Logger: slog.New(slog.DiscardHandler)})
	l.reported, l.refused = time.Time{}, 1314
	report := l.noteRefusal(time.Now())
	if several, ok := report.(interface {
		Count() int
		Denied() bool
	}); !ok || several.Count() != 1315 || !several.Denied() {
		t.Errorf("%v", report)
	}
}
