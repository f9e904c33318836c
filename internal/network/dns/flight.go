package dns

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// flights lets equal queries of the same time share one. The first one's goroutine does the work; when its query is given
// up, one of those that wait takes over.
type flights struct {
	mu  sync.Mutex
	now map[key]*flight
}

type flight struct {
	done    chan struct{} // closed when the rest is set
	result  *result
	err     error
	givenUp bool
}

func (f *flights) do(ctx context.Context, k key, fetch func() (*result, error)) (*result, error) {
	for {
		mine, other := f.join(k)
		if mine != nil {
			return f.lead(ctx, k, mine, fetch)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no answer in time: %w", ctx.Err())
		case <-other.done:
			if !other.givenUp {
				return other.result, other.err
			}
		}
	}
}

// join returns a new flight to lead, or the one that is under way.
func (f *flights) join(k key) (mine, other *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if other := f.now[k]; other != nil {
		return nil, other
	}
	if f.now == nil {
		f.now = map[key]*flight{}
	}
	mine = &flight{done: make(chan struct{}), givenUp: true}
	f.now[k] = mine
	return mine, nil
}

// lead ends the flight also when fetch panics: no query waits for ever.
func (f *flights) lead(ctx context.Context, k key, mine *flight, fetch func() (*result, error)) (*result, error) {
	defer func() {
		f.mu.Lock()
		delete(f.now, k)
		f.mu.Unlock()
		close(mine.done)
	}()
	mine.result, mine.err = fetch()
	mine.givenUp = mine.err != nil && errors.Is(ctx.Err(), context.Canceled)
	return mine.result, mine.err
}
