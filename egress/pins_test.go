package egress

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func namesOf(p *pins, now time.Time, addr netip.Addr) string {
	names, _ := p.live(now, addr)
	return strings.Join(names, " ")
}

func TestPinsExpire(t *testing.T) {
	a := netip.MustParseAddr("203.0.112.1")
	for _, c := range []struct {
		name       string
		ttl, grace time.Duration
		want       time.Duration
	}{
		{"ttl and grace", time.Hour, 5 * time.Minute, 65 * time.Minute},
		{"at least a minute", time.Second, 5 * time.Minute, 6 * time.Minute},
		{"at most a day", 1000 * time.Hour, time.Minute, 24*time.Hour + time.Minute},
		{"negative ttl", -time.Hour, 0, time.Minute},
	} {
		p := newPins(c.grace, 10)
		p.add(noon, "a.example", nil, a, c.ttl)
		if got := namesOf(p, noon.Add(c.want-1), a); got != "a.example" {
			t.Errorf("%s: just before: %q", c.name, got)
		}
		if got := namesOf(p, noon.Add(c.want), a); got != "" || p.count(noon.Add(c.want)) != 0 || len(p.byAddr) != 0 || p.bytes != 0 {
			t.Errorf("%s: afterwards: %q, %d pins, %d bytes", c.name, got, len(p.queue), p.bytes)
		}
	}
}

func TestPinsAreRenewed(t *testing.T) {
	a := netip.MustParseAddr("203.0.112.1")
	p := newPins(0, 10)
	p.add(noon, "a.example", []string{"old.example"}, a, time.Hour)
	p.add(noon.Add(time.Minute), "a.example", []string{"new.example"}, a, time.Minute) // does not end earlier than the first
	p.add(noon, "b.example", nil, a, 2*time.Hour)
	names, aliases := p.live(noon.Add(59*time.Minute), a)
	if diff := cmp.Diff([]string{"b.example", "a.example", "new.example"}, append(names, aliases...)); diff != "" {
		t.Error(diff)
	}
	if got := namesOf(p, noon.Add(61*time.Minute), a); got != "b.example" {
		t.Errorf("after an hour: %q", got)
	}
}

func TestPinsAreBounded(t *testing.T) {
	p := newPins(0, 100)
	for i := range 1000 {
		addr := netip.AddrFrom4([4]byte{203, 0, 112, byte(i)})
		p.add(noon, fmt.Sprintf("%d.example", i), nil, addr, time.Duration(i)*time.Hour/1000+time.Hour)
	}
	if n := p.count(noon); n != 100 {
		t.Errorf("%d pins", n)
	}
	newest, oldest := netip.AddrFrom4([4]byte{203, 0, 112, byte(999 % 256)}), netip.AddrFrom4([4]byte{203, 0, 112, byte(899 % 256)})
	if got := namesOf(p, noon, newest); got != "999.example" {
		t.Errorf("the last one to end: %q", got)
	}
	if got := namesOf(p, noon, oldest); strings.Contains(got, "899.example") {
		t.Errorf("the first one to end is still there: %q", got)
	}
}

func TestNamesOfAnAddressAreBounded(t *testing.T) {
	p := newPins(0, maxPins)
	a := netip.MustParseAddr("203.0.112.1")
	for i := range 1000 {
		p.add(noon, fmt.Sprintf("%d.example", i), nil, a, time.Hour+time.Duration(i)*time.Second)
	}
	p.add(noon, "last.example", nil, a, time.Minute) // the first one to end, and the one that the guest means
	names, _ := p.live(noon, a)
	if len(names) != maxNamesPerAddr || p.count(noon) != maxNamesPerAddr {
		t.Errorf("%d names, %d pins", len(names), p.count(noon))
	}
	if names[0] != "last.example" || names[1] != "999.example" || names[maxNamesPerAddr-1] != "937.example" {
		t.Errorf("names %q", names)
	}
}

// TestNameAskedForLast: of names that share an address, the one that the guest has just looked up is the one that it means. All
// are learned, and any of them denies.
func TestNameAskedForLast(t *testing.T) {
	w := newWorld(t, Config{})
	const shared = "203.0.112.1"
	names := func(asked ...string) []string {
		t.Helper()
		for _, name := range asked {
			w.tell(name, shared)
		}
		_, _ = w.dialTCP(shared + ":443") // no process listens there; the audit says so, with the names
		return w.seen()[0].Names
	}
	for _, c := range []struct{ asked, want []string }{
		{[]string{"a.com", "x.a.com"}, []string{"x.a.com", "a.com"}},
		{[]string{"a.com"}, []string{"a.com", "x.a.com"}},
		{[]string{"b.com", "c.com", "d.com", "e.com", "f.com", "g.com", "h.com", "z.com"},
			[]string{"z.com", "h.com", "g.com", "f.com", "e.com", "d.com", "c.com", "b.com", "a.com", "x.a.com"}},
	} {
		if diff := cmp.Diff(c.want, names(c.asked...)); diff != "" {
			t.Errorf("after %q (-want +got)\n%s", c.asked, diff)
		}
	}
	for _, name := range []string{"x.a.com", "z.com", "d.com"} {
		if _, err := w.gate.SetPolicy(Policy{Deny: rules(t, name)}); err != nil {
			t.Fatal(err)
		}
		_, err := w.dialTCP(shared + ":443")
		denied(t, err, ReasonDenyRule)
	}
}

func TestTextOfPinsIsBounded(t *testing.T) {
	p := newPins(0, 1<<20)
	long := strings.Repeat("x", 250)
	chain := []string{long, long, long, long, long, long, long, long, long, long, long, long, long, long, long, long}
	for i := range 5000 {
		p.add(noon, fmt.Sprint(i), chain, netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), time.Hour)
	}
	if p.bytes > maxPinBytes || p.bytes < maxPinBytes/2 {
		t.Errorf("%d bytes in %d pins", p.bytes, len(p.queue))
	}
}
