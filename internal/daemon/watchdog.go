package daemon

import (
	"errors"
	"fmt"
	"os"
	"time"

	"agentvm/internal/daemon/watchdog"
	"agentvm/internal/host/debugenv"
	"agentvm/vm"
)

// A daemon whose guest has found a way to keep the machine in one slice can neither stop the VM nor, sooner or later, do anything else
// (vm.Config.Overrun). Then the process ends:
//
//	vm reports a slice of half a second ─► end.json has the reason, in case that it cannot be written later
//	   of two seconds                   ─► logged, the process ends itself
//	Go hangs before that                ─► the kernel's timer is not reset, and ends the process
//
// The files are as after kill -9. AGENTVM_DEBUG=nowatchdog switches it off, for debuggers.

// overran is the end.json of such a daemon.
func overran(lasts time.Duration) ending {
	return ending{Ended: time.Now().UTC(), Error: fmt.Sprintf("the watchdog ended the VM, which could not be stopped: %v", &vm.OverrunError{Lasts: lasts})}
}

// watched reports whether the watchdog may end this process.
func (d *daemon) watched() bool { return d.timing.ownProcess && !debugenv.Has("nowatchdog") }

// overrun is vm.Config.Overrun.
func (d *daemon) overrun(lasts time.Duration) {
	if !d.watched() {
		return
	}
	if lasts == 0 {
		if err := os.Remove(d.paths.end()); err != nil {
			d.logger.Warn("the VM was slow, but runs", "error", err)
		}
		return
	}
	if err := d.paths.writeEnd(overran(lasts)); err != nil {
		d.logger.Warn("note that the VM does not get on", "error", err)
	}
	if lasts >= vm.OverrunTime {
		d.logger.Error("the watchdog ends the daemon", "slice", lasts)
		os.Exit(exitOverrun) // it waits for no goroutine
	}
}

// exitOverrun is the exit status of a daemon whose watchdog has ended it.
const exitOverrun = 70

// startWatchdog starts the kernel's timer, which has to run before the guest does: a goroutine may get no processor beside it.
// It returns nil when there is no timer to reset.
func (d *daemon) startWatchdog() *watchdog.Timer {
	if !d.watched() {
		return nil
	}
	timer, err := watchdog.Start(watchdog.Limit())
	if err != nil {
		if !errors.Is(err, errors.ErrUnsupported) {
			d.logger.Warn("this process has no watchdog in the kernel", "error", err)
		}
		return nil
	}
	return timer
}
