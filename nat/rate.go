package nat

import (
	"cmp"
	"container/heap"
	"context"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	tokens "golang.org/x/time/rate"
)

// A limit of bytes a second belongs to a VM and a direction; all its flows have a share of it:
//
//	TCP flow ─ share.wait ───────────┐
//	TCP flow ─ share.writer ─────────┼─► limiter: turns, first end first ─► token bucket
//	UDP flow ─ delay.push ─ queue ───┘
//
// The order is weighted fair queueing (Demers, Keshav, Shenker: Analysis and Simulation of a Fair Queueing Algorithm,
// 1989) with equal weights. Virtual time is the bytes that each of the flows that wait would have had if all were served
// at once. A share has at most one turn that waits; it begins where the share's last one ended, or now if that is later,
// and the turn that would end first is given first. So busy flows get equal numbers of bytes whatever the sizes of their
// turns, and a flow that asks for little does not wait for the many that ask for much.
//
// A turn begins when there is no debt, and may leave one: in any time T a direction moves at most rate*T, a burst (20 ms of the
// rate, at least 2 KiB) and a turn (16 KiB, or a datagram).

const (
	burstTime  = 20 * time.Millisecond // a timer that is late by less loses nothing
	smallBurst = 2 << 10               // bytes
	largePiece = 16 << 10              // bytes: others come to their turn soon
)

// limiter gives turns to the shares of one direction. nil has no limit.
type limiter struct {
	clock   Clock
	bucket  *tokens.Limiter
	delayed atomic.Int64  // bytes of datagrams that wait
	dropped atomic.Uint64 // datagrams that waited for too long, or found no room

	mu      sync.Mutex
	waiting turns
	virtual float64 // time, in bytes
	asked   uint64  // counts turns: of equals the first is served first
	timer   Timer
	armed   bool   // a timer runs, or its function does: one of them serves
	round   uint64 // of the timer that may serve; others come too late
}

// share is the part of one flow, in one direction. A nil one has no limit.
type share struct {
	of  *limiter
	end float64 // of its last turn, in virtual time; of.mu guards it
}

// turn is a share's wish to move size bytes.
type turn struct {
	share   *share
	size    int
	end     float64 // in virtual time
	order   uint64
	index   int        // in the heap; -1: it is not there any more
	expires time.Time  // zero: never
	granted func(bool) // called once without locks, must not block; false: too late
}

// newLimiter returns nil for 0, no limit.
func newLimiter(bytesPerSecond int64, clock Clock) *limiter {
	if bytesPerSecond <= 0 {
		return nil
	}
	burst := max(smallBurst, int(min(math.MaxInt32, float64(bytesPerSecond)*burstTime.Seconds())))
	return &limiter{clock: clock, bucket: tokens.NewLimiter(tokens.Limit(bytesPerSecond), burst)}
}

// newShare is for one flow. It needs no end.
func (l *limiter) newShare() *share {
	if l == nil {
		return nil
	}
	return &share{of: l}
}

// piece is how many bytes a TCP flow should ask for at once: few enough that others come to their turn soon.
func (s *share) piece() int {
	if s == nil {
		return largePiece
	}
	return min(largePiece, s.of.bucket.Burst())
}

// wait returns nil when n bytes may move, or the context's error when that ends first.
func (s *share) wait(ctx context.Context, n int) error {
	if s == nil {
		return nil
	}
	done := make(chan struct{})
	t := s.ask(n, time.Time{}, func(bool) { close(done) })
	if t == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.of.withdraw(t)
		return ctx.Err()
	}
}

// writer is w, but each piece waits for its turn. It is for one goroutine.
func (s *share) writer(ctx context.Context, w io.Writer) io.Writer {
	if s == nil {
		return w
	}
	return &limitedWriter{ctx: ctx, share: s, to: w}
}

type limitedWriter struct {
	ctx   context.Context // ends with the flow
	share *share
	to    io.Writer
}

func (w *limitedWriter) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		piece := p[:min(len(p), w.share.piece())]
		if err := w.share.wait(w.ctx, len(piece)); err != nil {
			return written, err
		}
		n, err := w.to.Write(piece)
		written += n
		if err != nil {
			return written, err
		}
		p = p[len(piece):]
	}
	return written, nil
}

// now takes size bytes if they can be had at once.
func (s *share) now(size int) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.of.takeNow(s.turn(size), s.of.clock.Now())
}

// ask takes size bytes at once and returns nil, or returns the turn that waits for them. granted may run before ask returns.
func (s *share) ask(size int, expires time.Time, granted func(bool)) *turn {
	l := s.of
	l.mu.Lock()
	defer l.mu.Unlock()
	now, t := l.clock.Now(), s.turn(size)
	if l.takeNow(t, now) {
		return nil
	}
	t.expires, t.granted = expires, granted
	heap.Push(&l.waiting, t)
	if !l.armed {
		l.arm(l.debt(now))
	}
	return t
}

// turn makes one. l.mu is held.
func (s *share) turn(size int) *turn {
	s.of.asked++
	return &turn{share: s, size: size, end: max(s.of.virtual, s.end) + float64(size), order: s.of.asked, index: -1}
}

// takeNow gives t its turn if no other waits and there is no debt. l.mu is held.
func (l *limiter) takeNow(t *turn, now time.Time) bool {
	if len(l.waiting) > 0 || l.debt(now) > 0 {
		return false
	}
	l.take(t, now)
	return true
}

// withdraw takes back a turn that was not granted.
func (l *limiter) withdraw(t *turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.index < 0 {
		return
	}
	heap.Remove(&l.waiting, t.index)
	if len(l.waiting) == 0 && l.armed {
		l.timer.Stop()
		l.armed = false
		l.round++
	}
}

// arm calls serve after a time. l.mu is held.
func (l *limiter) arm(after time.Duration) {
	l.armed = true
	l.round++
	round := l.round
	l.timer = l.clock.AfterFunc(after, func() { l.serve(round) })
}

// serve gives turns until there is a debt or none waits.
func (l *limiter) serve(round uint64) {
	for {
		given, late := l.due(round)
		if len(given)+len(late) == 0 {
			return
		}
		for _, t := range given {
			t.granted(true)
		}
		for _, t := range late {
			t.granted(false)
		}
	}
}

// due takes out the turns that may go now, and those that waited for too long. With none of both it has armed the next timer,
// or none waits.
func (l *limiter) due(round uint64) (given, late []*turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if round != l.round {
		return nil, nil
	}
	now := l.clock.Now()
	for len(l.waiting) > 0 {
		if t := l.waiting[0]; !t.expires.IsZero() && now.After(t.expires) {
			late = append(late, heap.Pop(&l.waiting).(*turn))
			continue
		}
		if l.debt(now) > 0 {
			break
		}
		t := heap.Pop(&l.waiting).(*turn)
		l.take(t, now)
		given = append(given, t)
	}
	if len(given)+len(late) > 0 {
		return given, late
	}
	l.armed = false
	if len(l.waiting) > 0 {
		l.arm(l.debt(now))
	}
	return nil, nil
}

// take pays for a turn, if need be with what is yet to come. l.mu is held.
func (l *limiter) take(t *turn, now time.Time) {
	t.share.end = t.end
	l.virtual += float64(t.size) / float64(len(l.waiting)+1)
	for rest := t.size; rest > 0; rest -= l.bucket.Burst() {
		l.bucket.ReserveN(now, min(rest, l.bucket.Burst()))
	}
}

// debt is how long nothing more may move.
func (l *limiter) debt(now time.Time) time.Duration {
	tokens := l.bucket.TokensAt(now)
	if tokens >= 0 {
		return 0
	}
	return time.Duration(math.Ceil(-tokens/float64(l.bucket.Limit())*float64(time.Second))) + 1
}

// turns is a heap: the turn that would end first is given next.
type turns []*turn

func (h turns) Len() int { return len(h) }

func (h turns) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].end, h[j].end), cmp.Compare(h[i].order, h[j].order)) < 0
}

func (h turns) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *turns) Push(x any) {
	t := x.(*turn)
	t.index = len(*h)
	*h = append(*h, t)
}

func (h *turns) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	t.index = -1
	*h = (*h)[:last]
	return t
}
