package egress

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of the audit.
const (
	auditQueue       = 2048 // events that wait for Audit; refusals may fill half of it
	denialsKept      = 256  // what Denials has
	denialsPerSecond = 100  // beyond this, and a burst of ten times as many, refusals are counted but not reported
)

// audit hands events to one function, in order, from a goroutine that lives while there are events.
//
//	emit ─► queue ─► deliver (one goroutine, started by the first event, ends when the queue is empty) ─► sink
//	     └► the newest denials
//
// emit never waits. A guest that provokes refusals can neither fill a log as fast as it can send packets nor push events of what was
// allowed out of the queue.
type audit struct {
	sink func(Event) // may be nil

	mu         sync.Mutex
	quiet      sync.Cond // nothing queued, nothing being delivered
	queue      []Event
	delivering bool
	limit      *rate.Limiter // of refusals
	lost       uint64        // since the last event that was queued
	lostEver   uint64
	denials    []Event // ring
	next       int     // where the oldest is, when the ring is full
}

func newAudit(sink func(Event)) *audit {
	a := &audit{sink: sink, limit: rate.NewLimiter(denialsPerSecond, 10*denialsPerSecond)}
	a.quiet.L = &a.mu
	return a
}

func (a *audit) emit(e Event) {
	e.bound()
	a.mu.Lock()
	defer a.mu.Unlock()
	denied := e.Verdict == VerdictDeny
	if denied {
		a.keep(e)
	}
	if a.sink == nil {
		return
	}
	if !a.room(denied, e.Time) {
		a.lost++
		a.lostEver++
		return
	}
	e.Lost, a.lost = a.lost, 0
	a.queue = append(a.queue, e)
	if !a.delivering {
		a.delivering = true
		go a.deliver()
	}
}

func (a *audit) room(denied bool, now time.Time) bool {
	if denied {
		return len(a.queue) < auditQueue/2 && a.limit.AllowN(now, 1)
	}
	return len(a.queue) < auditQueue
}

func (a *audit) keep(e Event) {
	if len(a.denials) < denialsKept {
		a.denials = append(a.denials, e)
		return
	}
	a.denials[a.next] = e
	a.next = (a.next + 1) % denialsKept
}

func (a *audit) deliver() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.queue) > 0 {
		batch := a.queue
		a.queue = nil
		a.mu.Unlock()
		for _, e := range batch {
			a.sink(e)
		}
		a.mu.Lock()
	}
	a.delivering = false
	a.quiet.Broadcast()
}

// flush waits until every event so far has been delivered.
func (a *audit) flush() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.delivering {
		a.quiet.Wait()
	}
}

func (a *audit) newest() []Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Concat(a.denials[a.next:], a.denials[:a.next])
}

func (a *audit) lostEvents() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lostEver
}
