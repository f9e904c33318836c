package nat

import (
	"sync"
	"time"
)

// idleTimer ends a flow without payload. It sleeps from one possible end to the next, so payload costs it nothing.
type idleTimer struct {
	flow  *flow
	limit time.Duration

	mu      sync.Mutex
	timer   Timer
	stopped bool
}

// watchIdle ends f with ReasonIdle when it has carried no payload for limit; negative: never. Stop it when the flow has
// ended.
func (f *flow) watchIdle(limit time.Duration) *idleTimer {
	t := &idleTimer{flow: f, limit: limit}
	if limit < 0 {
		return t
	}
	t.mu.Lock()
	t.timer = f.nat.config.Clock.AfterFunc(limit, t.check)
	t.mu.Unlock()
	t.check() // it counts from the last payload, not from now
	return t
}

func (t *idleTimer) check() {
	idle := t.flow.nat.config.Clock.Now().Sub(time.Unix(0, t.flow.active.Load()))
	if idle >= t.limit {
		t.flow.end(ReasonIdle)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.stopped {
		t.timer.Reset(t.limit - idle)
	}
}

func (t *idleTimer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	if t.timer != nil {
		t.timer.Stop()
	}
}
