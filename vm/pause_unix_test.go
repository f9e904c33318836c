//go:build unix

package vm_test

import (
	"syscall"
	"testing"
	"time"

	"agentvm/vm"
)

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A paused machine takes no processor time, whatever its guest was doing. What the process does once after a start, such as writing and
// verifying the base, may still run in the first seconds.
func TestPauseTakesNoProcessorTime(t *testing.T) {
	v := ownVM(t, nil)
	p, err := v.Start(limited(t), vm.Command{Line: "while :; do :; done"})
	if err != nil {
		t.Fatal(err)
	}
	pause(t, v)
	used := time.Hour
	for range 5 {
		before := processorTime(t)
		time.Sleep(2 * time.Second)
		if used = processorTime(t) - before; used <= 200*time.Millisecond {
			break
		}
	}
	if used > 200*time.Millisecond {
		t.Errorf("2 s of a pause took %v of processor time", used)
	}
	resume(t, v)
	if err := p.Kill(limited(t)); err != nil {
		t.Error(err)
	}
}
