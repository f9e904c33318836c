package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEventsInJSON(t *testing.T) {
	e := Event{Time: noon, Kind: KindDNS, Verdict: VerdictDeny, Names: []string{"a.example"}, Query: "TXT", Reason: ReasonNone, Message: "off"}
	got, err := json.Marshal(e)
	want := `{"time":"2026-01-01T12:00:00Z","kind":"dns","verdict":"deny","names":["a.example"],"query":"TXT","reason":"mode-none","message":"off"}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v\nwant %s", got, err, want)
	}
	e = Event{Time: noon, Kind: KindTCP, Verdict: VerdictClose, Flow: 7, Source: guest, Destination: netip.MustParseAddrPort("[2606:4700::1]:443"), Sent: 1, Duration: 1.5}
	got, err = json.Marshal(e)
	want = `{"time":"2026-01-01T12:00:00Z","kind":"tcp","verdict":"close","flow":7,"source":"192.168.127.3:40000","destination":"[2606:4700::1]:443","sent":1,"seconds":1.5}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v\nwant %s", got, err, want)
	}
	var back Event
	if err := json.Unmarshal(got, &back); err != nil || !cmp.Equal(back, e, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })) {
		t.Errorf("%+v, %v", back, err)
	}
}

type refusalOfOthers struct{ yes bool }

func (refusalOfOthers) Error() string  { return "too many queries" }
func (r refusalOfOthers) Denied() bool { return r.yes }

func TestAsked(t *testing.T) {
	w := newWorld(t, Config{})
	_, err := w.gate.DialTCP(context.Background(), guest, netip.MustParseAddrPort("10.0.0.1:1"))
	w.seen()
	for _, c := range []struct {
		denied          error
		verdict, reason string
	}{
		{nil, VerdictAllow, ""},
		{err, VerdictDeny, ReasonRestricted},
		{fmt.Errorf("wrapped: %w", err), VerdictDeny, ReasonRestricted},
		{refusalOfOthers{true}, VerdictDeny, ReasonResolverRule},
		{refusalOfOthers{false}, VerdictError, ""},
		{errors.New("time-out"), VerdictError, ""},
	} {
		w.gate.Asked(Query{Source: guest, Process: "wget[7]", Name: "A.Example.", Type: typeAAAA, Answer: "what it got", Problem: c.denied})
		e := w.seen()
		if len(e) != 1 || e[0].Kind != KindDNS || e[0].Verdict != c.verdict || e[0].Reason != c.reason || e[0].Query != "AAAA" ||
			e[0].Answer != "what it got" || e[0].Source != guest || e[0].Process != "wget[7]" || e[0].Names[0] != "a.example" || (e[0].Message == "") != (c.denied == nil) {
			t.Errorf("%v: %+v", c.denied, e)
		}
	}
	if s := w.gate.Stats(); s.Queries != 6 || s.Refused != 3 {
		t.Errorf("%+v", s)
	}
}

func TestEventsAreBounded(t *testing.T) {
	w := newWorld(t, Config{})
	for i := range 50 {
		w.tell(fmt.Sprintf("%s.%d.example", strings.Repeat("x", 60), i), "203.0.112.1")
	}
	w.gate.Asked(Query{Name: strings.Repeat("n", 100_000), Type: 65000, Answer: strings.Repeat("a", 100_000), Problem: errors.New(strings.Repeat("e", 100_000))})
	_, _ = w.dialTCP("203.0.112.1:1")
	for _, e := range w.seen() {
		b, err := json.Marshal(e)
		if err != nil || len(b) > 8192 || len(strings.Join(e.Names, "")) > maxEventText || len(e.Names) == 0 {
			t.Errorf("%d bytes, %d names, %v", len(b), len(e.Names), err)
		}
	}
}

func TestDenialsAreTheNewest(t *testing.T) {
	w := newWorld(t, Config{})
	if got := w.gate.Denials(); len(got) != 0 {
		t.Errorf("%v", got)
	}
	for i := range 1000 {
		_, _ = w.dialTCP(fmt.Sprintf("10.0.0.1:%d", i+1))
	}
	got := w.gate.Denials()
	if len(got) != denialsKept || got[0].Destination.Port() != 1000-denialsKept+1 || got[denialsKept-1].Destination.Port() != 1000 {
		t.Errorf("%d: %d to %d", len(got), got[0].Destination.Port(), got[len(got)-1].Destination.Port())
	}
}

// TestDenialsAreLimited: a guest that provokes refusals as fast as it can does not fill a log, and the next event says so.
func TestDenialsAreLimited(t *testing.T) {
	w := newWorld(t, Config{})
	for range 3000 {
		_, _ = w.dialTCP("10.0.0.1:1")
		w.gate.audit.flush() // so that it is not the queue's bound
	}
	burst := 10 * denialsPerSecond
	if n := len(w.seen()); n != burst {
		t.Errorf("%d events", n)
	}
	_, _ = w.dialTCP("203.0.112.1:1")
	e := w.seen()
	if len(e) != 1 || e[0].Lost != uint64(3000-burst) || w.gate.Stats().EventsLost != uint64(3000-burst) {
		t.Errorf("%+v", e)
	}
	w.clock.Advance(time.Second)
	for range 200 {
		_, _ = w.dialTCP("10.0.0.1:1")
	}
	if n := len(w.seen()); n != denialsPerSecond {
		t.Errorf("a second later: %d events", n)
	}
	if s := w.gate.Stats(); s.Denied != 3200 {
		t.Errorf("%+v", s)
	}
}

// TestSlowAudit: no flow waits for it, what was allowed has the queue's larger half, and order is kept.
func TestSlowAudit(t *testing.T) {
	entered, release := make(chan struct{}, 1), make(chan struct{})
	var mu sync.Mutex
	var got []Event
	seconds := 0
	g, err := New(Config{
		Now:  func() time.Time { seconds++; return noon.Add(time.Duration(seconds) * time.Second) }, // so slow that refusals are not limited
		Dial: func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED },
		Audit: func(e Event) {
			select {
			case entered <- struct{}{}:
			default:
			}
			<-release
			mu.Lock()
			got = append(got, e)
			mu.Unlock()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	dial := func(to string) { _, _ = g.DialTCP(context.Background(), guest, netip.MustParseAddrPort(to)) }
	dial("203.0.112.1:1")
	<-entered // the first one is being delivered, the queue is empty
	for range 5000 {
		dial("10.0.0.1:2")
	}
	for range 5000 {
		dial("203.0.112.1:3")
	}
	close(release)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	counts := map[uint16]int{}
	lost, last := uint64(0), uint64(0)
	for _, e := range got {
		counts[e.Destination.Port()]++
		lost += e.Lost
		if e.Flow <= last {
			t.Errorf("event %d after %d", e.Flow, last)
		}
		last = e.Flow
	}
	if counts[1] != 1 || counts[2] != auditQueue/2 || counts[3] != auditQueue/2 {
		t.Errorf("%v", counts)
	}
	if s := g.Stats(); s.EventsLost != uint64(10001-len(got)) || lost > s.EventsLost || lost == 0 {
		t.Errorf("%d delivered, %d lost, %d said so", len(got), s.EventsLost, lost)
	}
}
