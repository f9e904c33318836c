package dns

import (
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// silentPolicy allows everything and keeps nothing.
type silentPolicy struct{}

func (silentPolicy) Question(string, uint16) error                            { return nil }
func (silentPolicy) Answer(string, []string, netip.Addr, time.Duration) error { return nil }
func (silentPolicy) Asked(Client, string, uint16, string, error)              {}

// BenchmarkReplyCached is a look-up that the cache answers, by kinds of answers: the part of a guest's look-up that is ours.
func BenchmarkReplyCached(b *testing.B) {
	for _, c := range []struct {
		name, ask string
		kind      uint16
	}{
		{"address", "example.com", dns.TypeA}, {"aliases", "www.example.com", dns.TypeA},
		{"no such name", "nowhere.example.com", dns.TypeA}, {"local", Zone, dns.TypeA},
	} {
		b.Run(c.name, func(b *testing.B) {
			k := newKit(b, func(config *Config) { config.Policy, config.QueriesPerSecond = silentPolicy{}, -1 }, newUpstream(b, zone(world)))
			query := question(c.ask, c.kind)
			k.Reply(b.Context(), query, true)
			before := k.Stats()
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if k.Reply(b.Context(), query, true) == nil {
					b.Fatal("no reply")
				}
			}
			b.StopTimer()
			if after := k.Stats(); after.Cached+after.Local-before.Cached-before.Local != uint64(b.N) {
				b.Errorf("%+v: not all from the cache", after)
			}
		})
	}
}

// BenchmarkReplyUpstream is a look-up that goes to a server on loopback.
func BenchmarkReplyUpstream(b *testing.B) {
	k := newKit(b, func(config *Config) {
		config.Policy, config.QueriesPerSecond, config.CacheEntries = silentPolicy{}, -1, -1
	}, newUpstream(b, zone(world)))
	query := question("example.com", dns.TypeA)
	b.ReportAllocs()
	for b.Loop() {
		if k.Reply(b.Context(), query, true) == nil {
			b.Fatal("no reply")
		}
	}
}
