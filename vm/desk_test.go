package vm

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentvm/emulator"
)

// drive is VM.drive of a machine whose slices take a millisecond each and end when run ends.
func driveFake(ctx context.Context, d *desk, paused *atomic.Bool, slices *atomic.Int64) {
	defer d.close()
	for ctx.Err() == nil {
		d.serve(nil)
		if paused.Load() {
			select {
			case <-d.bell:
			case <-ctx.Done():
			}
			continue
		}
		run, interrupt := context.WithCancel(ctx)
		if d.leave(interrupt) {
			for run.Err() == nil {
				time.Sleep(time.Millisecond)
				slices.Add(1)
			}
			d.arrive()
		}
		interrupt()
	}
}

func TestDeskServesEverybodyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, paused, slices := newDesk(), new(atomic.Bool), new(atomic.Int64)
		ctx, stop := context.WithCancel(t.Context())
		go driveFake(ctx, d, paused, slices)
		count := 0 // the worker's alone
		var askers sync.WaitGroup
		for range 50 {
			askers.Go(func() {
				served, err := d.ask(ctx, func(*emulator.Machine) { count++ })
				if !served || err != nil {
					t.Errorf("served %v, %v", served, err)
				}
			})
		}
		askers.Wait()
		_, _ = d.ask(ctx, func(*emulator.Machine) {
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
		if served, err := d.ask(ctx, func(*emulator.Machine) { paused.Store(false) }); !served || err != nil {
			t.Errorf("asked while paused: %v, %v", served, err)
		}
		time.Sleep(time.Second)
		if n := slices.Load() - before; n < 900 {
			t.Errorf("%d slices in a second", n)
		}
		stop()
		synctest.Wait()
		if served, err := d.ask(t.Context(), func(*emulator.Machine) { t.Error("served after the end") }); served || err != nil {
			t.Errorf("asked after the end: %v, %v", served, err)
		}
	})
}

func TestDeskGivesRequestsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk() // nobody serves it
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		never := func(*emulator.Machine) { t.Error("served") }
		if served, err := d.ask(ctx, never); served || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ctx ended: %v, %v", served, err)
		}
		d.serve(nil)
		if served, err := d.ask(ctx, never); served || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ctx had ended: %v, %v", served, err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if served, err := d.ask(t.Context(), never); served || err != nil {
				t.Errorf("the machine ended: %v, %v", served, err)
			}
		}()
		synctest.Wait()
		d.close()
		<-ended
	})
}

// A request whose context ends during its turn is done to its end, for what it does to the machine has no half.
func TestDeskFinishesWhatItHasBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() {
			synctest.Wait()
			d.serve(nil)
		}()
		finished := false
		served, err := d.ask(ctx, func(*emulator.Machine) { time.Sleep(time.Minute); finished = true })
		if !served || err != nil || !finished {
			t.Errorf("served %v, %v, finished %v", served, err, finished)
		}
	})
}

func TestPatienceDoesNotRunOutWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &VM{pause: newPause()}
		cause := errors.New("too late")
		ctx, cancel := v.patient(t.Context(), time.Minute, cause)
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
