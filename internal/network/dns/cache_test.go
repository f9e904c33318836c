package dns

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestTimeToLive has kinds of answers, and after how long they are asked for again.
func TestTimeToLive(t *testing.T) {
	const soa = "ns:example.com. 900 SOA ns.example.com. root.example.com. 1 2 3 4 30"
	for _, c := range []struct {
		name    string
		records []string
		lives   time.Duration // 0: not kept
	}{
		{"address", []string{"a.example.com. 60 A 1.1.1.1"}, time.Minute},
		{"the shortest of several", []string{"a.example.com. 60 A 1.1.1.1", "a.example.com. 20 A 1.1.1.2"}, 20 * time.Second},
		{"aliases count", []string{"a.example.com. 5 CNAME b.example.com.", "b.example.com. 60 A 1.1.1.1"}, 5 * time.Second},
		{"zero", []string{"a.example.com. 0 A 1.1.1.1"}, 0},
		{"a week is a day", []string{"a.example.com. 604800 A 1.1.1.1"}, 24 * time.Hour},
		{"no such name: the SOA's minimum", []string{"NXDOMAIN", soa}, 30 * time.Second},
		{"no such name: the SOA's TTL", []string{"NXDOMAIN", "ns:example.com. 9 SOA a. b. 1 2 3 4 30"}, 9 * time.Second},
		{"no such name: at most an hour", []string{"NXDOMAIN", "ns:example.com. 86400 SOA a. b. 1 2 3 4 86400"}, time.Hour},
		{"no such data", []string{soa}, 30 * time.Second},
		{"no such data behind an alias", []string{"a.example.com. 20 CNAME b.example.com.", soa}, 20 * time.Second},
		{"no such name without SOA", []string{"NXDOMAIN"}, 0},
		{"no such data without SOA", nil, 0},
		{"SOA of another zone", []string{"NXDOMAIN", "ns:example.net. 900 SOA a. b. 1 2 3 4 30"}, 0},
		{"failure", []string{"SERVFAIL"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			upstream := newUpstream(t, func(_ string, q *dns.Msg) *dns.Msg { return reply(q, c.records...) })
			k := newKit(t, patient, upstream)
			ask := func(want int, when string) {
				t.Helper()
				k.get(t, "a.example.com", dns.TypeA)
				if n := len(upstream.asked()); n != want {
					t.Errorf("%s: asked %d times, want %d", when, n, want)
				}
			}
			ask(1, "first")
			if c.lives == 0 {
				if n := len(k.cache.entries); n != 0 {
					t.Errorf("%d entries are kept", n)
				}
				ask(2, "again at once")
				return
			}
			k.clock.Advance(c.lives - 1)
			ask(1, "just before the end")
			k.clock.Advance(1)
			ask(2, "after the end")
		})
	}
}

// TestCountdown: TTLs from the cache are what is left, both in answers and for the policy.
func TestCountdown(t *testing.T) {
	k := newKit(t, nil, newUpstream(t, zone(world)))
	for _, c := range []struct {
		advance time.Duration
		want    string
	}{
		{0, "NOERROR; 300 CNAME cdn.example.net.; 20 CNAME edge.example.org.; 10 A 93.184.216.2"},
		{999 * time.Millisecond, "NOERROR; 300 CNAME cdn.example.net.; 20 CNAME edge.example.org.; 10 A 93.184.216.2"},
		{time.Millisecond, "NOERROR; 299 CNAME cdn.example.net.; 19 CNAME edge.example.org.; 9 A 93.184.216.2"},
		{8900 * time.Millisecond, "NOERROR; 291 CNAME cdn.example.net.; 11 CNAME edge.example.org.; 1 A 93.184.216.2"},
		{100 * time.Millisecond, "NOERROR; 300 CNAME cdn.example.net.; 20 CNAME edge.example.org.; 10 A 93.184.216.2"},
	} {
		k.clock.Advance(c.advance)
		if got := summary(k.get(t, "www.example.com", dns.TypeA)); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
	if got := k.policy.told[3]; got != "www.example.com>cdn.example.net>edge.example.org 93.184.216.2 1s" {
		t.Errorf("the policy was asked about %q", got)
	}
	k.get(t, "empty.example.com", dns.TypeA)
	k.clock.Advance(10 * time.Second)
	if got := k.get(t, "empty.example.com", dns.TypeA); got.Ns[0].Header().Ttl != 20 {
		t.Errorf("a negative answer after 10 s: %v", got)
	}
}

// TestCacheBounds: neither entries nor bytes grow over their bound, and what is used stays.
func TestCacheBounds(t *testing.T) {
	now := time.Now()
	named := func(i int) key { return key{fmt.Sprint(i), dns.TypeA} }
	sized := func(n int) *result {
		return &result{packed: make([]byte, n), fetched: now, expires: now.Add(time.Minute)}
	}
	c := newCache(10)
	for i := range 100 {
		c.put(named(i), sized(10))
		if c.get(named(0), now) == nil {
			t.Fatalf("what was used last is gone after %d more", i)
		}
	}
	if len(c.entries) != 10 || c.order.Len() != 10 || c.get(named(1), now) != nil || c.get(named(99), now) == nil {
		t.Errorf("%d entries", len(c.entries))
	}
	for i := range 100 {
		c.put(named(i), sized(3000))
		if c.bytes > 10*1024 {
			t.Fatalf("%d bytes", c.bytes)
		}
	}
	if n := len(c.entries); n != 3 {
		t.Errorf("%d entries of 3000 bytes", n)
	}
	c.put(named(99), sized(20000))
	if n := len(c.entries); n != 3 {
		t.Errorf("an entry larger than the cache: %d are left", n)
	}
	if c.get(named(99), now.Add(time.Minute)) != nil || len(c.entries) != 2 {
		t.Errorf("an expired entry was found, or stayed")
	}
	for e := range c.entries {
		c.remove(c.entries[e])
	}
	if c.bytes != 0 {
		t.Errorf("%d bytes are counted in an empty cache", c.bytes)
	}
}

func TestNoCache(t *testing.T) {
	upstream := newUpstream(t, zone(world))
	k := newKit(t, func(c *Config) { patient(c); c.CacheEntries = -1 }, upstream)
	k.get(t, "example.com", dns.TypeA)
	k.get(t, "example.com", dns.TypeA)
	if n := len(upstream.asked()); n != 2 {
		t.Errorf("asked %d times", n)
	}
}
