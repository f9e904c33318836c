package machine_test

import (
	"fmt"
	"strings"
	"testing"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/kernel"
)

// TestTranslatedProcesses: Linux runs many programs, four at a time, with different code at the same addresses and mostly in the
// same pages of RAM. All of them are hot, and each computes what it should. AGENTVM_PROCESSES says how many.
func TestTranslatedProcesses(t *testing.T) {
	t.Parallel()
	processes := fuzzSetting(t, "AGENTVM_PROCESSES", 200)
	program := programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot, CodeBytes: 1 << 20})
	image, err := kernel.Image(platform.RISCV64)
	if err != nil {
		t.Fatal(err)
	}
	initramfs, err := initramfsOf(platform.RISCV64, "processes")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorker(t)
	w.attach(program.NewMachine(t.Context(), machine.Config{Memory: 64 << 20, Deterministic: true, Rand: zeros{}, Console: w.console}))
	parameters := fmt.Sprint("console=hvc0 quiet panic=-1 programs=", processes)
	if err := w.LoadLinux(machine.Linux{Kernel: image, Initramfs: initramfs, CommandLine: parameters}); err != nil {
		t.Fatal(err)
	}
	const slice = 8_000 // so that a program's code is in place while it runs
	for end := false; !end; {
		if _, stopped, err := w.Step(slice); stopped || err != nil {
			t.Fatalf("stopped %t, %v", stopped, err)
		}
		select {
		case line := <-w.lines:
			if end = strings.HasPrefix(line, "="); end && line != fmt.Sprintf("= wrong: 0 of %d", processes) {
				t.Errorf("the guest says %q", line)
			} else if !end && line != "ready" {
				t.Log(line)
			}
		default:
			if w.Retired() > 1e9+20e6*processes {
				t.Fatal("the guest does not come to an end")
			}
		}
	}
	s := w.JITStats()
	t.Logf("%d instructions, %+v", w.Retired(), s)
	if s.Regions < int(processes) || s.Evicted == 0 || s.Executed < 10e6 {
		t.Errorf("%d regions, %d of them evicted, with %d instructions: the programs were not translated", s.Regions, s.Evicted, s.Executed)
	}
}
