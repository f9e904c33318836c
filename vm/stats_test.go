package vm_test

import (
	"testing"

	"agentvm/vm"
)

// TestStats reads the counters before and after a command that computes.
func TestStats(t *testing.T) {
	v := sharedVM(t)
	before, err := v.Stats(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	wantOutput(t, v, "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done; echo $i", "5000\n")
	after, err := v.Stats(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	if after.Uptime < before.Uptime || // in whole seconds
		after.User+after.System <= before.User+before.System {
		t.Errorf("a command that computes took no time: before %+v, after %+v", before, after)
	}
	if total := after.MemoryTotal; total < 200<<20 || total > 256<<20 || after.MemoryAvailable > total || after.MemoryFree > total {
		t.Errorf("memory of a VM with 256 MiB: %+v", after)
	}
	if after.Processes < 1 {
		t.Errorf("no processes: %+v", after)
	}
}

// TestStatsAfterTheEnd fails as every call to a VM that is gone does.
func TestStatsAfterTheEnd(t *testing.T) {
	v := ownVM(t, func(c *vm.Config) { c.Network.Disabled = true })
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Stats(limited(t)); err == nil {
		t.Error("a VM that is gone has counters")
	}
}
