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

// A paused machine takes no processor time, whatever its guest was doing.
func TestPauseTakesNoProcessorTime(t *testing.T) {
	v := ownVM(t, nil)
	p, err := v.Spawn(limited(t), vm.Command{Line: "while :; do :; done"})
	if err != nil {
		t.Fatal(err)
	}
	pause(t, v)
	time.Sleep(200 * time.Millisecond) // the base of the VM may still be written
	before := processorTime(t)
	time.Sleep(2 * time.Second)
	if used := processorTime(t) - before; used > 200*time.Millisecond {
		t.Errorf("2 s of a pause took %v of processor time", used)
	}
	resume(t, v)
	if err := p.Kill(limited(t)); err != nil {
		t.Error(err)
	}
}
