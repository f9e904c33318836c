package vm

import (
	"context"
	"sync"
	"time"
)

// pause records whether the machine is paused.
//
//	running ──Pause──► paused: its clock is stopped ──Resume──► running, the guest's clock set
//	                         └──Stop──► running, until it has ended
type pause struct {
	mu      sync.Mutex
	paused  bool          // changed by the worker only
	resumed chan struct{} // closed while not paused
	count   int           // how many pauses there were
}

func newPause() *pause {
	p := &pause{resumed: make(chan struct{})}
	close(p.resumed)
	return p
}

func (p *pause) set(paused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused == paused {
		return
	}
	p.paused = paused
	if paused {
		p.resumed = make(chan struct{})
		p.count++
	} else {
		close(p.resumed)
	}
}

func (p *pause) state() (paused bool, resumed <-chan struct{}, count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused, p.resumed, p.count
}

// Pause stops the machine between two instructions. Until Resume it takes no processor time, its guest's time stands still,
// and calls to its guest wait. Its mounts, sockets and memory stay. Pausing a paused VM does nothing. Stop and
// Close end a paused VM.
func (v *VM) Pause(ctx context.Context) error {
	return v.withMachine(ctx, func(m emulator) error {
		if v.Paused() {
			return nil
		}
		if err := m.StopClock(); err != nil {
			return err
		}
		v.pause.set(true)
		return nil
	})
}

// Resume has a paused machine run on, and sets its clock. When the guest does not answer within 5 s or ctx, its clock is set as soon
// as it does. Resuming a VM that runs does nothing.
func (v *VM) Resume(ctx context.Context) error {
	was := false
	err := v.withMachine(ctx, func(m emulator) error {
		if was = v.Paused(); !was {
			return nil
		}
		if err := m.StartClock(); err != nil {
			return err
		}
		v.pause.set(false)
		return nil
	})
	if err != nil || !was {
		return err
	}
	v.clockDue.Store(true)
	v.settleClock(ctx)
	return v.alive()
}

// settleClock sets the clock of a guest whose time stood still. watch tries again what fails, or takes so long that the clock is
// behind.
func (v *VM) settleClock(ctx context.Context) {
	select {
	case <-v.connected:
	default: // the handshake sets the clock, and watch sets it again
		return
	}
	if !v.clockDue.Swap(false) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	began := time.Now()
	if v.SyncClock(ctx) != nil || time.Since(began) > clockTolerance {
		v.clockDue.Store(true)
	}
}

// Paused reports whether the machine is paused.
func (v *VM) Paused() bool {
	paused, _, _ := v.pause.state()
	return paused
}

// running waits until the machine is not paused.
func (v *VM) running(ctx context.Context) error {
	_, resumed, _ := v.pause.state()
	select {
	case <-resumed:
		return nil
	default:
	}
	select {
	case <-resumed:
		return nil
	case <-v.halted:
		return v.cause
	case <-v.stuck:
		return v.stuckErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withActiveTimeout is context.WithTimeoutCause for work of the guest: while the machine is paused, the time does not pass. When the time is over,
// again is asked whether it begins anew; nil: it does not. The context does not end with the machine.
func (v *VM) withActiveTimeout(parent context.Context, limit time.Duration, again func() bool, cause error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for v.sleepActive(stop, limit) {
			if again == nil || !again() {
				cancel(cause)
				return
			}
		}
	}()
	return ctx, func() {
		close(stop)
		<-ended
		cancel(context.Canceled)
	}
}

// sleepActive returns true after the machine could run for limit without a pause, false when stop is closed before.
func (v *VM) sleepActive(stop <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	_, _, before := v.pause.state()
	for {
		select {
		case <-timer.C:
		case <-stop:
			return false
		}
		paused, resumed, count := v.pause.state()
		if !paused && count == before {
			return true
		}
		before = count
		select {
		case <-resumed:
		case <-stop:
			return false
		}
		timer.Reset(limit)
	}
}
