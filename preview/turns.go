package preview

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// dialsAtOnce is how many connections to one port are made at the same time. A guest works on all that are begun at once, so that of hundreds
// even the first would be late; and meanwhile most visitors find a connection that another one does not need any more.
const dialsAtOnce = 8

// turns has those who connect to a port wait for their turn. Each port has its own, so that one that does not answer holds up no other.
type turns struct {
	mu    sync.Mutex
	ports map[string]*portTurns // of ports that somebody connects to
}

type portTurns struct {
	places   chan struct{}
	users    int           // who have or await a place; guarded by turns.mu
	answered atomic.Uint64 // dials that had an end of their own
}

// take waits for a place. The error is context.Canceled when ctx or over ends, and context.DeadlineExceeded when no dial to the port has been
// answered for so long: while they are, it waits. done gives the place back, and is told how the dial ended.
func (t *turns) take(ctx context.Context, port string, over <-chan struct{}, patience time.Duration) (done func(error), err error) {
	p := t.enter(port)
	if err := p.await(ctx, over, patience); err != nil {
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

func (p *portTurns) await(ctx context.Context, over <-chan struct{}, patience time.Duration) error {
	late := time.NewTicker(patience)
	defer late.Stop()
	for before := p.answered.Load(); ; {
		select {
		case p.places <- struct{}{}:
			return nil
		case <-ctx.Done():
			return context.Canceled
		case <-over:
			return context.Canceled
		case <-late.C:
		}
		now := p.answered.Load()
		if now == before {
			return context.DeadlineExceeded
		}
		before = now
	}
}

func (t *turns) enter(port string) *portTurns {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.ports[port]
	if p == nil {
		p = &portTurns{places: make(chan struct{}, dialsAtOnce)}
		t.ports[port] = p
	}
	p.users++
	return p
}

func (t *turns) leave(port string, p *portTurns) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.users--; p.users == 0 {
		delete(t.ports, port)
	}
}
