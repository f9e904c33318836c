package vm_test

import (
	"testing"

	"agentvm/vm"
)

// TestTerminalsHaveAWorker: the guest's kernel hands on what is written to terminals by a worker with the policy SCHED_BATCH (tty.patch), which
// does not take the processor from a shell at each byte that it echoes.
func TestTerminalsHaveAWorker(t *testing.T) {
	const batch = "3\n" // the 41st field of proc_pid_stat(5)
	r := mustRun(t, sharedVM(t), vm.Command{Line: `cat /proc/[0-9]*/stat | sed -n 's/^[0-9]* (tty) //p' | cut -d ' ' -f 39`})
	if got := string(r.Stdout); got != batch {
		t.Errorf("the policy of the worker is %q, want %q", got, batch)
	}
}
