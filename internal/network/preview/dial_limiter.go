package preview

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// dialsAtOnce is how many connections to one port are made at the same time. A guest works on all of them at once, so that of
// hundreds even the first would be slow. Most requests that wait find a connection that another request no longer needs.
const dialsAtOnce = 8

// dialLimiter bounds how many connections are made to a port at once. Each port has its own bound, so that a port that does not
// answer delays no other.
type dialLimiter struct {
	mu    sync.Mutex
	ports map[string]*portLimiter // the ports with a dial under way or waiting
}

type portLimiter struct {
	places   chan struct{}
	users    int           // callers that have or await a place; guarded by dialLimiter.mu
	answered atomic.Uint64 // dials that ended before their deadline
}

// take waits for a place. The error is context.Canceled when ctx or over ends, and context.DeadlineExceeded when no dial to the port was
// answered for that duration; as long as dials are answered, take waits. The caller passes the dial's error to done, which gives
// the place back.
func (t *dialLimiter) take(ctx context.Context, port string, over <-chan struct{}, unanswered time.Duration) (done func(error), err error) {
	p := t.enter(port)
	if err := p.await(ctx, over, unanswered); err != nil {
		t.leave(port, p)
		return nil, fmt.Errorf("wait for other connections to the port: %w", err)
	}
	return func(err error) {
		if !errors.Is(err, context.DeadlineExceeded) {
			p.answered.Add(1)
		}
		<-p.places
		t.leave(port, p)
	}, nil
}

func (p *portLimiter) await(ctx context.Context, over <-chan struct{}, unanswered time.Duration) error {
	tick := time.NewTicker(unanswered)
	defer tick.Stop()
	for before := p.answered.Load(); ; {
		select {
		case p.places <- struct{}{}:
			return nil
		case <-ctx.Done():
			return context.Canceled
		case <-over:
			return context.Canceled
		case <-tick.C:
		}
		now := p.answered.Load()
		if now == before {
			return context.DeadlineExceeded
		}
		before = now
	}
}

func (t *dialLimiter) enter(port string) *portLimiter {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.ports[port]
	if p == nil {
		p = &portLimiter{places: make(chan struct{}, dialsAtOnce)}
		t.ports[port] = p
	}
	p.users++
	return p
}

func (t *dialLimiter) leave(port string, p *portLimiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.users--; p.users == 0 {
		delete(t.ports, port)
	}
}
