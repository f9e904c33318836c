package vm

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// runFake is VM.runLoop for a machine whose slices take a millisecond each and end when run ends.
func runFake(ctx context.Context, q *workQueue, paused *atomic.Bool, slices *atomic.Int64) {
	defer q.close()
	for ctx.Err() == nil {
		q.serve(nil)
		if paused.Load() {
			select {
			case <-q.wake:
			case <-ctx.Done():
			}
			continue
		}
		run, interrupt := context.WithCancel(ctx)
		if q.leave(interrupt) {
			for run.Err() == nil {
				time.Sleep(time.Millisecond)
				slices.Add(1)
			}
			q.enter()
		}
		interrupt()
	}
}

func TestDeskServesEverybodyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, paused, slices := newWorkQueue(), new(atomic.Bool), new(atomic.Int64)
		ctx, stop := context.WithCancel(t.Context())
		go runFake(ctx, q, paused, slices)
		count := 0 // the worker's alone
		var askers sync.WaitGroup
		for range 50 {
			askers.Go(func() {
				served, err := q.do(ctx, func(emulator) { count++ })
				if !served || err != nil {
					t.Errorf("served %v, %v", served, err)
				}
			})
		}
		askers.Wait()
		_, _ = q.do(ctx, func(emulator) {
			if count != 50 {
				t.Errorf("%d requests were served", count)
			}
			paused.Store(true)
		})
		before := slices.Load()
		time.Sleep(time.Hour)
		if slices.Load() != before {
			t.Error("the machine ran while it was paused")
		}
		if served, err := q.do(ctx, func(emulator) { paused.Store(false) }); !served || err != nil {
			t.Errorf("asked while paused: %v, %v", served, err)
		}
		time.Sleep(time.Second)
		if n := slices.Load() - before; n < 900 {
			t.Errorf("%d slices in a second", n)
		}
		stop()
		synctest.Wait()
		if served, err := q.do(t.Context(), func(emulator) { t.Error("served after the end") }); served || err != nil {
			t.Errorf("asked after the end: %v, %v", served, err)
		}
	})
}

func TestDeskGivesRequestsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newWorkQueue() // never served
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		never := func(emulator) { t.Error("served") }
		if served, err := q.do(ctx, never); served || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ctx ended: %v, %v", served, err)
		}
		q.serve(nil)
		if served, err := q.do(ctx, never); served || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ctx had ended: %v, %v", served, err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if served, err := q.do(t.Context(), never); served || err != nil {
				t.Errorf("the machine ended: %v, %v", served, err)
			}
		}()
		synctest.Wait()
		q.close()
		<-ended
	})
}

// A request whose context ends during its turn is completed, since the machine must not be left in between.
func TestDeskFinishesWhatItHasBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newWorkQueue()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() {
			synctest.Wait()
			q.serve(nil)
		}()
		finished := false
		served, err := q.do(ctx, func(emulator) { time.Sleep(time.Minute); finished = true })
		if !served || err != nil || !finished {
			t.Errorf("served %v, %v, finished %v", served, err, finished)
		}
	})
}

// TestPatienceWithAStarvedGuest: a guest that works, however slowly, is waited for; one that waits or is lost in a loop is not.
func TestPatienceWithAStarvedGuest(t *testing.T) {
	for rate, want := range map[uint64]time.Duration{25e3: time.Minute, 200e3: 10 * time.Minute, 400e6: time.Minute, 200e6: 2 * time.Minute} { // instructions a second
		synctest.Test(t, func(t *testing.T) {
			v := &VM{pause: newPause()}
			began := time.Now()
			executed := func() uint64 { return uint64(time.Since(began).Seconds()) * rate }
			ctx, cancel := v.withActiveTimeout(t.Context(), time.Minute, isStarved(time.Minute, executed), errors.New("too late"))
			defer cancel()
			<-ctx.Done()
			if took := time.Since(began); took != want {
				t.Errorf("with %d instructions a second it is given up after %v, not %v", rate, took, want)
			}
		})
	}
}

func TestPatienceDoesNotRunOutWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &VM{pause: newPause()}
		cause := errors.New("too late")
		ctx, cancel := v.withActiveTimeout(t.Context(), time.Minute, nil, cause)
		defer cancel()
		time.Sleep(30 * time.Second)
		v.pause.set(true)
		time.Sleep(time.Hour)
		if ctx.Err() != nil {
			t.Fatal("it ran out while the machine was paused")
		}
		v.pause.set(false)
		time.Sleep(59 * time.Second)
		if ctx.Err() != nil {
			t.Error("it ran out too early")
		}
		time.Sleep(2 * time.Second)
		if !errors.Is(context.Cause(ctx), cause) {
			t.Errorf("it has not run out: %v", context.Cause(ctx))
		}
	})
}
