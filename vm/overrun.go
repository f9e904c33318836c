package vm

import (
	"fmt"
	"sync"
	"time"

	"agentvm/internal/machine"
)

// OverrunTime is how long a slice lasts before it counts as a failure of the machine: it should take a thousandth of that.
const OverrunTime = 2 * time.Second

// A machine computes in slices of less than a millisecond, between which it can be stopped. Should a guest ever find a way to make a slice
// last, this process cannot end it: Go does not interrupt compiled WebAssembly. So a timer looks at it twice a second while it computes:
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

// sliceWatch calls report with how long a slice of a machine lasts, when it lasts too long, and with 0 when that slice has ended. An idle
// machine is not looked at and costs nothing.
type sliceWatch struct {
	progress func() machine.Progress
	report   func(time.Duration)

	looks   sync.Mutex // held during a look with its report
	mu      sync.Mutex
	timer   *time.Timer // runs while the machine is busy or late, except during a look
	busy    bool
	late    time.Duration // what was reported last
	looking bool
	stopped bool
	pace    pace
}

func newSliceWatch(report func(time.Duration)) *sliceWatch {
	w := &sliceWatch{report: report}
	w.timer = time.AfterFunc(overrunLook, w.look)
	w.timer.Stop()
	return w
}

// start begins to look at a machine, which is busy until it says otherwise.
func (w *sliceWatch) start(progress func() machine.Progress) {
	w.progress = progress
	w.setBusy(true)
}

// setBusy is machine.Config.Busy.
func (w *sliceWatch) setBusy(busy bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = busy
	switch {
	case w.looking || w.late != 0 || w.stopped: // the next look is certain, or none follows
	case busy:
		w.timer.Reset(overrunLook)
	default:
		w.timer.Stop()
	}
}

func (w *sliceWatch) look() {
	w.looks.Lock()
	defer w.looks.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	var work time.Duration
	now := w.progress()
	if now.Slice%2 == 1 {
		work = processTime()
	}
	if lasts := w.pace.look(now, work); lasts != w.late {
		w.late, w.looking = lasts, true
		w.mu.Unlock()
		w.report(lasts) // it may wait for other work of the VM
		w.mu.Lock()
		w.looking = false
	}
	if !w.stopped && (w.busy || w.late != 0) {
		w.timer.Reset(overrunLook)
	}
}

// stop ends the looks. After it there are no more reports.
func (w *sliceWatch) stop() {
	w.mu.Lock()
	w.stopped = true
	w.timer.Stop()
	w.mu.Unlock()
	w.looks.Lock() // waits for a look that has begun
	defer w.looks.Unlock()
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
