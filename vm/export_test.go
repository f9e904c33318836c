package vm

import (
	"path/filepath"
	"testing"
	"time"

	"agentvm/internal/machine"
)

// UseModule makes the VMs of a store run another module than the machine's own. None of them may run yet.
func UseModule(t testing.TB, storeDir string, module []byte) {
	t.Helper()
	made := false
	_, err := programs.Acquire(filepath.Join(storeDir, "compiled"), func() (*machine.Program, error) { // which is never released
		made = true
		return machine.NewProgram(t.Context(), machine.ProgramConfig{Module: module})
	})
	if err != nil || !made {
		t.Fatalf("a VM runs, or %v", err)
	}
}

// Pace exports pace.
type Pace = pace

// Look exports pace.look.
func (p *Pace) Look(slice, call uint64, work time.Duration) time.Duration {
	return p.look(machine.Progress{Slice: slice, Call: call}, work)
}

// WatchSlices watches a machine for as long as run runs, which says when the machine is busy.
func WatchSlices(progress func() machine.Progress, report func(time.Duration), run func(setBusy func(bool))) {
	w := newSliceWatch(report)
	w.start(progress)
	run(w.setBusy)
	w.stop()
}

// FromBase reports whether a VM has continued from a base.
func FromBase(v *VM) bool { return v.resources.base != nil && v.resources.memory != nil }

// BaseKey names the base that a VM has continued from or created; empty: none.
func BaseKey(v *VM) string {
	if v.resources.base == nil {
		return ""
	}
	return v.resources.base.Key()
}
