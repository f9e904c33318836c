// Package watchdog makes the operating system end this process when its Go code does not run any more.
//
// A goroutine in compiled WebAssembly cannot be interrupted, and as soon as Go wants to stop all goroutines for a moment, for
// example to collect garbage, all others wait for it. So no goroutine can guard against code that never returns. A Timer is the kernel's:
//
//	the process has used Period of processor time ─► reminder ─► a goroutine resets the timer
//	Go does not run, so that nothing resets it    ─► Limit    ─► Signal ends the process
//
// Both count the processor time of this process. One that is stopped, sleeps or gets no processor uses none, and is left alone; an idle
// one is not even woken.
package watchdog

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"time"
)

// Period is the processor time of the process after which Run resets the timer.
const Period = 250 * time.Millisecond

// Limit is the processor time after which the process ends: 2 s for a thread that never returns, when all others wait for it, and as much
// for each processor as honest threads can use while Run is half a second late.
func Limit() time.Duration {
	return 2*time.Second + time.Duration(runtime.GOMAXPROCS(0))*2*Period
}

// Timer ends the process by Signal when Run has not run while the process used its limit of processor time.
type Timer struct {
	last, remind timerID
	limit        time.Duration
	reminders    chan os.Signal
}

// Start starts a timer. It fails with errors.ErrUnsupported on systems other than Linux. Without Run it ends the process after limit.
func Start(limit time.Duration) (_ *Timer, err error) {
	t := &Timer{limit: limit, reminders: make(chan os.Signal, 1)}
	if t.last, err = create(Signal); err != nil {
		return nil, err
	}
	if t.remind, err = create(reminder); err != nil {
		return nil, errors.Join(err, t.last.remove())
	}
	signal.Notify(t.reminders, reminder)
	if err := errors.Join(restoreDefault(Signal), t.remind.set(Period, Period), t.last.set(limit, 0)); err != nil {
		return nil, errors.Join(err, t.stop())
	}
	return t, nil
}

// Run resets the timer as long as Go runs, until stop is closed, and then stops it.
func (t *Timer) Run(stop <-chan struct{}) error {
	for {
		select {
		case <-t.reminders:
			_ = t.last.set(t.limit, 0)
		case <-stop:
			return t.stop()
		}
	}
}

func (t *Timer) stop() error {
	err := errors.Join(t.last.remove(), t.remind.remove())
	signal.Stop(t.reminders)
	return err
}
