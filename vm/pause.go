package vm

import (
	"context"
	"sync"
	"time"

	"agentvm/emulator"
)

// pause is whether the machine stands still.
//
//	running ──Pause──► paused: its clock stands still ──Resume──► running, the guest's clock set
//	                         └──Stop──► running, and on to its end
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

// Pause stops the machine between two instructions. It takes no processor time until Resume, its guest's time stands still,
// and what is asked of it waits for that. Its mounts, sockets and memory stay. Pausing a paused VM does nothing. Stop and
// Close end a paused VM.
func (v *VM) Pause(ctx context.Context) error {
	return v.atDesk(ctx, func(m *emulator.Machine) error {
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

// Resume has a paused machine go on, and sets its clock. When the guest does not answer within 5 s or ctx, its clock is set as soon
// as it does. Resuming a VM that runs does nothing.
func (v *VM) Resume(ctx context.Context) error {
	was := false
	err := v.atDesk(ctx, func(m *emulator.Machine) error {
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

// settleClock sets the clock of a guest whose time stood still. What fails, or takes so long that the clock is late, is tried
// again by watch.
func (v *VM) settleClock(ctx context.Context) {
	select {
	case <-v.dialed:
	default: // a guest that is being greeted is told the time anyway, and again by watch
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

// Paused says whether the machine is paused.
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
	case <-ctx.Done():
		return ctx.Err()
	}
}

// patient is context.WithTimeoutCause for what the guest is to do: as long as the machine is paused, the time does not pass. The machine's
// end does not end it.
func (v *VM) patient(parent context.Context, limit time.Duration, cause error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if v.outlast(stop, limit) {
			cancel(cause)
		}
	}()
	return ctx, func() {
		close(stop)
		<-ended
		cancel(context.Canceled)
	}
}

// outlast returns true after the machine could run for limit, false when stop is closed before.
func (v *VM) outlast(stop <-chan struct{}, limit time.Duration) bool {
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
