// Package watchdog makes the operating system end this process when its Go code does not run any more.
//
// A goroutine in compiled WebAssembly cannot be interrupted, and as soon as Go wants to stop all goroutines for a moment, for
// example to collect garbage, all others wait for it. So no goroutine can guard against code that never returns. A Timer is the kernel's: it measures the
// processor time of this process, and a goroutine resets it again and again. A process that is stopped, sleeps or gets no
// processor uses none, and is left alone.
package watchdog

import (
	"runtime"
	"time"
)

// Period is how often the caller must call Reset.
const Period = 250 * time.Millisecond

// Limit is the processor time after which the process ends: 2 s for a thread that never returns, when all others wait for it, and as much
// for each processor as honest threads can use while Reset is a second late.
func Limit() time.Duration {
	return 2*time.Second + time.Duration(runtime.GOMAXPROCS(0))*2*Period
}

// Timer must be reset more often than Limit.
type Timer struct {
	id    timerID
	limit time.Duration
}

// Start starts a timer that ends the process by Signal. It fails with errors.ErrUnsupported on systems other than Linux.
func Start(limit time.Duration) (*Timer, error) {
	id, err := create()
	if err != nil {
		return nil, err
	}
	t := &Timer{id, limit}
	return t, t.Reset()
}

// Reset gives the process Limit again.
func (t *Timer) Reset() error { return t.id.set(t.limit) }

// Stop ends the timer.
func (t *Timer) Stop() error { return t.id.remove() }
