package nat

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// smallLimits has each limit at ten, for the list below.
func smallLimits() Limits {
	return Limits{
		TCPFlows: 10, UDPFlows: 10, PendingDials: 10, ForwardFlows: 10, Forwards: 10, PendingEchoes: 10, EchoesPerSecond: 10,
	}
}

// held are the limits of things that are given back, by their names.
func (g *gauges) held() map[string]*gauge {
	return map[string]*gauge{
		"tcp flows": &g.tcpFlows, "udp flows": &g.udpFlows, "pending dials": &g.pendingDials,
		"forward flows": &g.forwardFlows, "forwards": &g.forwards, "pending echoes": &g.pendingEchoes,
	}
}

func TestEveryLimitHasNameAndDefault(t *testing.T) {
	var l Limits
	fields := l.fields()
	if got, want := len(fields), reflect.TypeFor[Limits]().NumField(); got != want {
		t.Fatalf("%d limits are listed, Limits has %d", got, want)
	}
	filled, err := l.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	used := newGauges(filled, newStepClock(), nil).use()
	if len(used) != len(fields) {
		t.Fatalf("%d limits are in use, %d are listed", len(used), len(fields))
	}
	for i, f := range fields {
		if used[i].Limit != f.name || used[i].Maximum != f.otherwise || f.otherwise <= 0 {
			t.Errorf("limit %q with default %d is in use as %+v", f.name, f.otherwise, used[i])
		}
	}
}

func TestNegativeLimitsAreErrors(t *testing.T) {
	for i := range (&Limits{}).fields() {
		var l Limits
		f := l.fields()[i]
		*f.value = -1
		if _, err := l.withDefaults(); err == nil || !strings.Contains(err.Error(), f.name) {
			t.Errorf("%s of -1: error %v; it has to name the limit", f.name, err)
		}
	}
}

// TestLimits takes each limit up and down: refusal with the limit's name, a warning at four fifths, and none again
// before fewer than half were taken.
func TestLimits(t *testing.T) {
	var warnings []LimitUse
	g := newGauges(smallLimits(), newStepClock(), func(u LimitUse) { warnings = append(warnings, u) })
	for name, limit := range g.held() {
		t.Run(name, func(t *testing.T) {
			warnings = nil
			takeAll(t, limit, 7)
			wantWarnings(t, warnings)
			takeAll(t, limit, 3)
			eighth := LimitUse{Limit: name, Used: 8, Maximum: 10}
			wantWarnings(t, warnings, eighth)
			wantRefusal(t, limit.take(), name)

			giveBack(limit, 5) // 5 of 10 are not fewer than half
			takeAll(t, limit, 5)
			wantWarnings(t, warnings, eighth)
			giveBack(limit, 6)
			takeAll(t, limit, 4)
			wantWarnings(t, warnings, eighth, LimitUse{Limit: name, Used: 8, Maximum: 10, Refused: 1})
		})
	}
}

func TestLimitOfOne(t *testing.T) {
	warned := 0
	var g gauge
	g.set("things", 1, func(LimitUse) { warned++ })
	for range 3 {
		takeAll(t, &g, 1)
		wantRefusal(t, g.take(), "things")
		g.give()
	}
	if warned != 3 {
		t.Errorf("%d warnings, want one each time that the only one is taken", warned)
	}
}

func TestRateLimit(t *testing.T) {
	var warnings []LimitUse
	clock := newStepClock()
	g := newGauges(smallLimits(), clock, func(u LimitUse) { warnings = append(warnings, u) })
	take := func(n int) {
		t.Helper()
		for range n {
			if err := g.echoRate.take(); err != nil {
				t.Fatal(err)
			}
		}
	}
	const name = "echoes per second"
	take(10)
	wantRefusal(t, g.echoRate.take(), name)
	clock.advance(time.Second)
	take(10) // a busy second behind a busy second: the warning is not repeated
	wantWarnings(t, warnings, LimitUse{Limit: name, Used: 8, Maximum: 10})
	clock.advance(time.Second)
	take(3)
	clock.advance(time.Second)
	take(9)
	wantWarnings(t, warnings, LimitUse{Limit: name, Used: 8, Maximum: 10}, LimitUse{Limit: name, Used: 8, Maximum: 10, Refused: 1})
	clock.advance(time.Hour)
	if got := g.echoRate.read().Used; got != 0 {
		t.Errorf("%d are taken an hour later", got)
	}
}

func takeAll(t *testing.T, g *gauge, n int) {
	t.Helper()
	for i := range n {
		if err := g.take(); err != nil {
			t.Fatalf("%d of %d: %v", i+1, n, err)
		}
	}
}

func giveBack(g *gauge, n int) {
	for range n {
		g.give()
	}
}

func wantRefusal(t *testing.T, err error, name string) {
	t.Helper()
	var limit *LimitError
	if !errors.As(err, &limit) || limit.Limit != name || !strings.Contains(err.Error(), name) {
		t.Errorf("error %v, want a LimitError of %q", err, name)
	}
}

func wantWarnings(t *testing.T, got []LimitUse, want ...LimitUse) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}
