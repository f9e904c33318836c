package preview

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestDialLimiter makes many dials to a port at once. One dial takes nearly as long as each may wait without an answer.
func TestDialLimiter(t *testing.T) {
	const many, unanswered = 200, 2 * time.Second
	for _, test := range []struct {
		name   string
		end    error // of each dial
		want   error // of dials that never begin; nil: all begin
		served int32
	}{
		{"it is slow", nil, nil, many},
		{"it refuses", syscall.ECONNREFUSED, nil, many},
		{"it does not answer", context.DeadlineExceeded, context.DeadlineExceeded, 2 * dialsAtOnce},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limiter := dialLimiter{ports: make(map[string]*portLimiter)}
				var visitors sync.WaitGroup
				var busy, served atomic.Int32
				for range many {
					visitors.Go(func() {
						done, err := limiter.take(t.Context(), "a", nil, unanswered)
						if err != nil {
							if !errors.Is(err, test.want) || test.want == nil {
								t.Error(err)
							}
							return
						}
						served.Add(1)
						if n := busy.Add(1); n > dialsAtOnce {
							t.Errorf("%d connect at once", n)
						}
						time.Sleep(unanswered - time.Second/2)
						busy.Add(-1)
						done(test.end)
					})
				}
				synctest.Wait()
				done, err := limiter.take(t.Context(), "b", nil, time.Nanosecond)
				if err != nil {
					t.Errorf("a port holds up another: %v", err)
				} else {
					done(nil)
				}
				visitors.Wait()
				if served.Load() != test.served {
					t.Errorf("%d had a turn, want %d", served.Load(), test.served)
				}
				if len(limiter.ports) != 0 {
					t.Errorf("%d ports are remembered", len(limiter.ports))
				}
			})
		})
	}
}

// TestDialLimiterCancelled: a cancelled dial does not wait.
func TestDialLimiterCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := dialLimiter{ports: make(map[string]*portLimiter)}
		var taken []func(error)
		for range dialsAtOnce {
			done, err := limiter.take(t.Context(), "a", nil, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			taken = append(taken, done)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := limiter.take(ended, "a", nil, time.Second); !errors.Is(err, context.Canceled) {
			t.Errorf("after the server's end: %v", err)
		}
		if _, err := limiter.take(t.Context(), "a", ended.Done(), time.Second); !errors.Is(err, context.Canceled) {
			t.Errorf("after the request's end: %v", err)
		}
		for _, done := range taken {
			done(nil)
		}
		if len(limiter.ports) != 0 {
			t.Errorf("%d ports are remembered", len(limiter.ports))
		}
	})
}

// A slowVM accepts no connection before the test opens it.
type slowVM struct {
	*vms
	let  chan struct{}
	busy atomic.Int32
}

func (v *slowVM) DialPreview(ctx context.Context, vm string, port uint16) (net.Conn, error) {
	v.busy.Add(1)
	defer v.busy.Add(-1)
	select {
	case <-v.let:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return v.vms.DialPreview(ctx, vm, port)
}

// TestManyVisitors makes many requests at once; some are cancelled before their dial begins.
func TestManyVisitors(t *testing.T) {
	const many, impatient = 50, 20
	slow := &slowVM{let: make(chan struct{})}
	w := newWorld(t, func(cfg *ServerConfig) {
		slow.vms = cfg.Dialer.(*vms)
		cfg.Dialer, cfg.Limits.DialTimeout = slow, time.Minute
	})
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	url := create(t, w.store, "dev", 3000, 0).PathURL(w.port)
	waiting := func() (users int) {
		w.server.dials.mu.Lock()
		defer w.server.dials.mu.Unlock()
		for _, p := range w.server.dials.ports {
			users += p.users
		}
		return users
	}
	var visitors, gone sync.WaitGroup
	for range many {
		visitors.Go(func() {
			if got := w.get(t, url); got.status != 200 || got.body != "hello" {
				t.Errorf("%d %q", got.status, got.body)
			}
		})
	}
	eventually(t, "all connect", func() bool { return waiting() == many && slow.busy.Load() == dialsAtOnce })
	ctx, cancel := context.WithCancel(t.Context())
	for range impatient {
		gone.Go(func() {
			r, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if answer, err := w.client.Do(r); err == nil {
				_ = answer.Body.Close()
				t.Errorf("answered: %s", answer.Status)
			}
		})
	}
	eventually(t, "more connect", func() bool { return waiting() == many+impatient })
	cancel()
	gone.Wait()
	eventually(t, "those who have gone do not wait", func() bool { return waiting() == many })
	if n := slow.busy.Load(); n != dialsAtOnce {
		t.Errorf("%d connect at once, want %d", n, dialsAtOnce)
	}
	close(slow.let)
	visitors.Wait()
}
