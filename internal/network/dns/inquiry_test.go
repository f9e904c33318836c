package dns

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// after answers as handle does, but only when so much time has passed.
func after(wait time.Duration, handle handler) handler {
	return func(network string, q *dns.Msg) *dns.Msg {
		time.Sleep(wait)
		return handle(network, q)
	}
}

// TestLateAnswers: a server that needs longer than others wait for it has answered nevertheless, whoever else was asked meanwhile.
func TestLateAnswers(t *testing.T) {
	refuses := failsWith(dns.RcodeServerFailure)
	tests := map[string]struct {
		servers []handler
		want    string
		within  time.Duration
	}{
		"slow":                              {[]handler{after(3*time.Second, answers)}, good, 3 * time.Second},
		"slower than anybody waits":         {[]handler{after(6*time.Second, answers)}, "SERVFAIL", 5 * time.Second},
		"slow, then silent":                 {[]handler{after(3*time.Second, answers), silent}, good, 3 * time.Second},
		"silent, then slow":                 {[]handler{silent, after(3*time.Second, answers)}, good, 4250 * time.Millisecond},
		"slow, then slower":                 {[]handler{after(3*time.Second, answers), after(2*time.Second, answers)}, good, 3 * time.Second},
		"slow, then fast":                   {[]handler{after(3*time.Second, answers), answers}, good, 1250 * time.Millisecond},
		"late to fail, next one slow":       {[]handler{after(2*time.Second, refuses), after(time.Second, answers)}, good, 2250 * time.Millisecond},
		"late to fail, next one silent":     {[]handler{after(2*time.Second, refuses), silent}, "SERVFAIL", 2500 * time.Millisecond},
		"slow without EDNS":                 {[]handler{after(1500*time.Millisecond, withoutEDNS)}, good, 3 * time.Second},
		"slow to truncate, and over TCP":    {[]handler{after(1500*time.Millisecond, truncates)}, good, 3 * time.Second},
		"fails once all others were silent": {[]handler{silent, silent, after(time.Second, refuses)}, "SERVFAIL", 3500 * time.Millisecond},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				servers := newPiped(test.servers...)
				k := newKit(t, func(c *Config) { c.Dial = dialPipes(servers) }, servers...)
				began := time.Now()
				if got := summary(k.get(t, "a.example", dns.TypeA)); got != test.want {
					t.Errorf("got %s, want %s; reported %q", got, test.want, k.policy.reports())
				}
				if took := time.Since(began); took != test.within {
					t.Errorf("it took %v, want %v", took, test.within)
				}
				time.Sleep(time.Minute) // a delay that is the same for all servers does no harm
			})
		})
	}
}

func withoutEDNS(network string, q *dns.Msg) *dns.Msg {
	if q.IsEdns0() != nil {
		return failsWith(dns.RcodeFormatError)(network, q)
	}
	return answers(network, q)
}

func truncates(network string, q *dns.Msg) *dns.Msg {
	m := answers(network, q)
	m.Truncated = network == "udp"
	return m
}

// TestSlowServer is one of the world, on loopback: it answers after three seconds, and the question was sent to it again from
// the same port, with the same ID.
func TestSlowServer(t *testing.T) {
	if testing.Short() {
		t.Skip("three seconds")
	}
	ids := make(chan uint16, 16)
	upstream := newUpstream(t, func(network string, q *dns.Msg) *dns.Msg {
		ids <- q.Id
		time.Sleep(3 * time.Second)
		return answers(network, q)
	})
	k := newKit(t, func(c *Config) { c.Timeout = 10 * time.Second }, upstream) // a quarter of it later the question is sent again
	if got := summary(k.get(t, "a.example", dns.TypeA)); got != good {
		t.Errorf("got %s; reported %q", got, k.policy.reports())
	}
	first := <-ids
	if len(ids) == 0 {
		t.Error("the question was not sent again")
	}
	for len(ids) > 0 {
		if again := <-ids; again != first {
			t.Errorf("sent again with ID %d, first with %d", again, first)
		}
	}
	// It counts as one that is alive.
	if !k.upstreams.servers[0].isReady(k.clock.Now()) {
		t.Error("a server that has answered is in backoff")
	}
}

// TestServerThatComesBack: what was lost on the way is sent again, and a server without a listener is given up at once.
func TestServerThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		servers := newPiped(func(network string, q *dns.Msg) *dns.Msg {
			if asked.Add(1) < 3 {
				return nil
			}
			return answers(network, q)
		})
		k := newKit(t, func(c *Config) {
			c.Dial = dialPipes(servers)
			c.Upstreams = append(c.Upstreams, netip.MustParseAddrPort("192.0.2.99:53"))
		}, servers...)
		began := time.Now()
		if got := summary(k.get(t, "a.example", dns.TypeA)); got != good {
			t.Errorf("got %s; reported %q", got, k.policy.reports())
		}
		if took := time.Since(began); took != 2500*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}
