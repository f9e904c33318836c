package vm

import (
	"fmt"
	"time"

	"agentvm/internal/machine"
)

// OverrunTime is how long a slice lasts before it counts as a failure of the machine: it should take a thousandth of that.
const OverrunTime = 2 * time.Second

// A machine computes in slices of less than a millisecond, between which it can be stopped. Should a guest ever find a way to make a slice
// last, this process cannot end it: Go does not interrupt compiled WebAssembly. So a goroutine of the VM looks at it twice a second:
//
//	the same slice again ─► Config.Overrun(time) ─► ... ─► OverrunTime: the VM has failed, all calls that wait for it return an error
//	                               └──► another slice: Config.Overrun(0)
//
// Looks are counted instead of time: a process that was stopped, or a host that slept, has no overrun. A look that finds
// the machine in the same host call as the one before, at a slow disk for example, does not count. The process must also have used
// processor time, which a machine that waits for a processor on a busy host does not.
const (
	overrunLook  = 500 * time.Millisecond
	overrunLooks = int(OverrunTime / overrunLook)
	// overrunWork is the processor time that this process has used at least in OverrunTime when a slice computes.
	overrunWork = OverrunTime / 4
)

// pace is what the looks at one machine found.
type pace struct {
	last machine.Progress
	same int           // looks in a row that found the slice of the look before
	work time.Duration // processor time of the process, at the first of them
}

// look returns how long the slice has lasted at least; 0 for a slice that is not late.
func (p *pace) look(now machine.Progress, work time.Duration) time.Duration {
	last := p.last
	p.last = now
	switch {
	case now.Slice%2 == 0 || now.Slice != last.Slice:
		p.same, p.work = 0, work
	case now.Call%2 == 1 && now.Call == last.Call:
	default:
		p.same++
	}
	if p.same >= overrunLooks && work-p.work < overrunWork {
		p.same = overrunLooks - 1
	}
	return time.Duration(p.same) * overrunLook
}

// watchSlices calls report with how long a slice of the machine lasts, when it lasts too long. After the function that it returns has
// returned there are no more calls.
func watchSlices(progress func() machine.Progress, report func(time.Duration)) (stop func()) {
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(overrunLook)
		defer ticker.Stop()
		var p pace
		var reported time.Duration
		for {
			select {
			case <-stopped:
				return
			case <-ticker.C:
			}
			var work time.Duration
			now := progress()
			if now.Slice%2 == 1 {
				work = processTime()
			}
			if lasts := p.look(now, work); lasts != reported {
				reported = lasts
				report(lasts)
			}
		}
	}()
	return func() {
		close(stopped)
		<-ended
	}
}

// OverrunError says that the guest keeps the machine in a slice that does not end. Only the end of this process ends it.
type OverrunError struct{ Lasts time.Duration }

func (e *OverrunError) Error() string {
	return fmt.Sprintf("the guest has kept its machine busy for %v without a chance to stop it, which it should never be able to: only the end of this process ends that",
		e.Lasts)
}

// overrun receives how long a slice lasts. From OverrunTime on all calls that wait for the VM return an error.
func (v *VM) overrun(lasts time.Duration) {
	if report := v.config.Overrun; report != nil {
		report(lasts)
	}
	if lasts < OverrunTime {
		return
	}
	select {
	case <-v.stuck:
		return
	default:
	}
	err := &OverrunError{lasts}
	v.config.Logger.Error("the VM cannot be stopped", "error", err)
	v.stuckErr = &GuestError{Reason: Overran, Console: v.console.bytes(), Err: err}
	close(v.stuck)
	v.queue.close()    // its callers get the error
	v.kill(v.stuckErr) // takes effect should the slice end after all
	select {
	case <-v.connected:
		if v.client != nil {
			_ = v.client.Close() // ends the calls that wait for the guest
		}
	default: // the handshake has a limit
	}
}

// waitFreed waits until everything of the VM is freed, or until a slice that does not end prevents that.
func (v *VM) waitFreed() error {
	select {
	case <-v.done:
		return nil
	case <-v.stuck:
	}
	select {
	case <-v.done:
		return nil
	case <-time.After(lostTime):
		return v.stuckErr
	}
}
