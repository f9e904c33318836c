package nat

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
)

// stepClock is a clock that moves when a test says so, and then calls what is due on the test's goroutine.
type stepClock struct {
	mu     sync.Mutex
	now    time.Time
	timers []*stepTimer
}

type stepTimer struct {
	clock *stepClock
	at    time.Time
	f     func() // nil: it does not run
	call  func()
}

func newStepClock() *stepClock { return &stepClock{now: time.Unix(1_000_000, 0)} }

func (c *stepClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *stepClock) AfterFunc(d time.Duration, f func()) Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &stepTimer{clock: c, at: c.now.Add(d), f: f, call: f}
	c.timers = append(c.timers, t)
	return t
}

func (t *stepTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	ran := t.f != nil
	t.f = nil
	t.clock.timers = slices.DeleteFunc(t.clock.timers, func(x *stepTimer) bool { return x == t })
	return ran
}

func (t *stepTimer) Reset(d time.Duration) bool {
	ran := t.Stop()
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.at, t.f = t.clock.now.Add(d), t.call
	t.clock.timers = append(t.clock.timers, t)
	return ran
}

// next takes out the first timer that is due by end, and moves the time to it, or to end.
func (c *stepClock) next(end time.Time) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := -1
	for i, t := range c.timers {
		if !t.at.After(end) && (first < 0 || t.at.Before(c.timers[first].at)) {
			first = i
		}
	}
	if first < 0 {
		c.now = end
		return nil
	}
	t := c.timers[first]
	c.timers = slices.Delete(c.timers, first, first+1)
	f := t.f
	t.f = nil
	if t.at.After(c.now) {
		c.now = t.at
	}
	return f
}

// advance moves the time by d, from timer to timer.
func (c *stepClock) advance(d time.Duration) {
	end := c.Now().Add(d)
	for {
		f := c.next(end)
		if f == nil {
			return
		}
		f()
	}
}

// pending is how many timers run.
func (c *stepClock) pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// greedy is a flow that takes turns of a size for ever, on the clock's goroutine.
type greedy struct {
	share *share
	size  int
	bytes int64
}

func (g *greedy) run() {
	for g.share.ask(g.size, time.Time{}, func(bool) { g.bytes += int64(g.size); g.run() }) == nil {
		g.bytes += int64(g.size)
	}
}

func TestRateIsKept(t *testing.T) {
	for _, perSecond := range []int64{1, 1_000, 100_000, 10_000_000, 1_000_000_000} {
		clock := newStepClock()
		l := newLimiter(perSecond, clock)
		flow := greedy{share: l.newShare(), size: l.newShare().piece()}
		flow.run()
		clock.advance(4 * time.Second)
		want, slack := 4*perSecond, int64(l.bucket.Burst()+flow.size)
		if flow.bytes < want-slack || flow.bytes > want+slack {
			t.Errorf("%d bytes/s: %d bytes in 4 s, want %d and at most %d more or fewer", perSecond, flow.bytes, want, slack)
		}
	}
}

func TestNoLimit(t *testing.T) {
	for _, none := range []*limiter{newLimiter(0, newStepClock()), newLimiter(-1, newStepClock())} {
		s := none.newShare()
		if err := s.wait(context.Background(), 1<<30); err != nil || s != nil {
			t.Errorf("share %v, wait: %v", s, err)
		}
	}
}

// TestRateIsShared: busy flows get the same number of bytes, whatever the sizes of their turns.
func TestRateIsShared(t *testing.T) {
	clock := newStepClock()
	l := newLimiter(1_000_000, clock)
	var flows []*greedy
	for _, size := range []int{50, 100, 1472, 4096, 16384, 65507} {
		flows = append(flows, &greedy{share: l.newShare(), size: size})
	}
	for _, f := range flows {
		f.run()
	}
	clock.advance(10 * time.Second)
	for _, f := range flows {
		want := int64(10_000_000 / len(flows))
		if f.bytes < want-2*65507 || f.bytes > want+2*65507 {
			t.Errorf("turns of %d bytes: %d bytes, want about %d", f.size, f.bytes, want)
		}
	}
}

// TestSeldomIsServedNext: a flow that asks seldom waits for what is being paid for, not for all that queue.
func TestSeldomIsServedNext(t *testing.T) {
	clock := newStepClock()
	l := newLimiter(100_000, clock)
	for range 300 {
		(&greedy{share: l.newShare(), size: 16384}).run()
	}
	seldom := l.newShare()
	clock.advance(60 * time.Second) // everybody has had a turn, a second one waits
	for range 10 {
		asked, granted := clock.Now(), time.Time{}
		if seldom.ask(100, time.Time{}, func(bool) { granted = clock.Now() }) == nil {
			granted = asked
		}
		clock.advance(time.Second)
		if granted.IsZero() || granted.Sub(asked) > 170*time.Millisecond {
			t.Fatalf("waited from %v to %v behind 300 flows; a turn of theirs takes 164 ms", asked, granted)
		}
	}
}

// TestIdleIsNotSaved: who was quiet for an hour has a burst, not the hour's bytes.
func TestIdleIsNotSaved(t *testing.T) {
	clock := newStepClock()
	l := newLimiter(100_000, clock)
	clock.advance(time.Hour)
	flow := greedy{share: l.newShare(), size: 1000}
	flow.run()
	if flow.bytes > 2048+1000 {
		t.Errorf("%d bytes at once", flow.bytes)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	clock := newStepClock()
	l := newLimiter(1000, clock)
	s := l.newShare()
	for s.wait(t.Context(), 1<<20) == nil && l.debt(clock.Now()) == 0 {
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	for range 2 {
		go func() { failed <- l.newShare().wait(ctx, 10) }()
	}
	for l.waits() < 2 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	for range 2 {
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("wait: %v", err)
		}
	}
	if clock.pending() != 0 {
		t.Error("a timer runs though none waits")
	}
	granted := false
	s.ask(1, time.Time{}, func(bool) { granted = true })
	clock.advance(time.Hour)
	if !granted {
		t.Error("no turn after others were withdrawn")
	}
}

func (l *limiter) waits() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// TestLimitedWriter: all bytes arrive in order, in pieces, over the right time.
func TestLimitedWriter(t *testing.T) {
	clock := newStepClock()
	l := newLimiter(100_000, clock)
	data := pattern(100_000)
	sink := &recorder{}
	done := make(chan error, 1)
	go func() {
		_, err := l.newShare().writer(t.Context(), sink).Write(data)
		done <- err
	}()
	began := clock.Now()
	for finished := false; !finished; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			finished = true
		default:
			if l.waits() > 0 {
				clock.advance(time.Millisecond)
			}
		}
	}
	if took := clock.Now().Sub(began); took < 950*time.Millisecond || took > 1010*time.Millisecond {
		t.Errorf("100,000 bytes took %v at 100,000 bytes/s", took)
	}
	if !slices.Equal(sink.data, data) || sink.largest > l.newShare().piece() {
		t.Errorf("%d bytes, largest piece %d", len(sink.data), sink.largest)
	}
}

type recorder struct {
	data    []byte
	largest int
}

func (r *recorder) Write(p []byte) (int, error) {
	r.data = append(r.data, p...)
	r.largest = max(r.largest, len(p))
	return len(p), nil
}

// pattern is n bytes that do not repeat soon.
func pattern(n int) []byte {
	p := make([]byte, n)
	x := uint32(1)
	for i := range p {
		x = x*1664525 + 1013904223
		p[i] = byte(x >> 24)
	}
	return p
}

// TestTurnsFromManyGoroutines is for the race detector, with the system's clock.
func TestTurnsFromManyGoroutines(t *testing.T) {
	l := newLimiter(200_000_000, systemClock{})
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			s := l.newShare()
			for j := range 100 {
				ctx, cancel := context.WithCancel(t.Context())
				if i%4 == 0 && j%3 == 0 {
					cancel()
				}
				_ = s.wait(ctx, 5000)
				cancel()
			}
		})
	}
	group.Wait()
	if l.waits() != 0 {
		t.Error("turns are left")
	}
}
