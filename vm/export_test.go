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
	made, err := machine.NewProgram(t.Context(), machine.ProgramConfig{Module: module})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(storeDir, "compiled")
	ready := make(chan struct{})
	close(ready)
	programs.mu.Lock()
	defer programs.mu.Unlock()
	if programs.entries[dir] != nil {
		t.Fatal("a VM runs")
	}
	programs.entries = map[string]*sharedEntry[*machine.Program]{dir: {of: &programs, key: dir, users: 1, ready: ready, value: made}}
}

// Pace exports pace.
type Pace = pace

// Look exports pace.look.
func (p *Pace) Look(slice, call uint64, work time.Duration) time.Duration {
	return p.look(machine.Progress{Slice: slice, Call: call}, work)
}

// FromBase reports whether a VM has continued from a base.
func FromBase(v *VM) bool { return v.resources.baseKey != "" && v.resources.memory != nil }

// BaseKey names the base that a VM has continued from or created.
func BaseKey(v *VM) string { return v.resources.baseKey }

// SavedInUse is how many saved machines VMs of this process share.
func SavedInUse() int {
	savedInUse.mu.Lock()
	defer savedInUse.mu.Unlock()
	return len(savedInUse.entries)
}
