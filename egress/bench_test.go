package egress

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// BenchmarkDecide is one decision with as many allow rules as some long list has, the last of which matches.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{1, 100, 4096} {
		var texts []string
		for i := range n {
			texts = append(texts, fmt.Sprintf("host%d.example:443", i))
		}
		p := Policy{Allow: rules(b, texts...)}
		r := to(TCP, "203.0.112.1:443", fmt.Sprintf("host%d.example", n-1))
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !p.Decide(r).Allowed {
					b.Fatal("denied")
				}
			}
		})
	}
}

// BenchmarkDial is what the gate adds to a dial: pins, decision, bookkeeping, an event.
func BenchmarkDial(b *testing.B) {
	d := &countingDial{}
	g, err := New(Config{Dial: d.dial, Audit: func(Event) {}})
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	if err := g.Answer("a.example", nil, netip.MustParseAddr("203.0.112.1"), time.Hour); err != nil {
		b.Fatal(err)
	}
	address := netip.MustParseAddrPort("203.0.112.1:443")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := g.DialTCP(context.Background(), guest, address); err != syscall.ECONNREFUSED {
			b.Fatal(err)
		}
	}
}
