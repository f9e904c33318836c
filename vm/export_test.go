package vm

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"testing"
	"time"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
)

// UseModule makes the VMs of a store run another module than the machine's own. None of them may run yet.
func UseModule(t testing.TB, storeDir string, module []byte) {
	t.Helper()
	made := false
	_, err := programs.Acquire(programKey(platform.Default, false, filepath.Join(storeDir, "compiled")), func() (*machine.Program, error) { // which is never released
		made = true
		return machine.NewProgram(t.Context(), machine.ProgramConfig{Module: module})
	})
	if err != nil || !made {
		t.Fatalf("a VM runs, or %v", err)
	}
}

// MinMountDevices exports minMountDevices.
const MinMountDevices = minMountDevices

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

// RunAsModule has the shell of a VM's guest, on a terminal, run a command as RunModule has the shell of a module's guest.
func RunAsModule(ctx context.Context, v *VM, c Command) (*Result, error) {
	script, err := moduleScript(Config{}, c)
	if err != nil {
		return nil, err
	}
	s := newModuleShell(c, script)
	s.console = io.Discard
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	input, feed := io.Pipe()
	go s.feed(ctx, feed)
	ended := make(chan error, 1)
	go func() {
		_, err := v.Run(ctx, Command{Args: []string{"/bin/sh", "-c", s.prelude()}, Stdin: input, Stdout: s, Stderr: s, Terminal: &Size{80, 25}})
		ended <- err
	}()
	select {
	case <-s.done:
		cancel()
		_ = input.Close()
		<-ended
	case err := <-ended:
		return nil, fmt.Errorf("the shell has ended: %w; it said %q", err, s.held)
	}
	kept, _ := s.kept.Take()
	return &Result{Stdout: kept, ExitCode: s.exitCode}, nil
}

// NameRootDisk makes the snapshots of a VM say that its root disk has the digest that digest returns, which receives the one that versions gave
// it before the store had layers.
func NameRootDisk(t testing.TB, v *VM, digest func(former string) string) {
	t.Helper()
	former, err := v.resources.disk.Value.FormerDigest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	image := *v.resources.image
	image.RootDiskDigest = digest(former)
	v.resources.image = &image
}
