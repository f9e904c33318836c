package emulator_test

import (
	"strings"
	"testing"

	"agentvm/emulator"
	"agentvm/kernel"
)

// TestTranslatedProcesses: Linux runs a thousand programs, four at a time, with different code at the same addresses and mostly in the
// same pages of RAM. All of them are hot, and each computes what it should.
func TestTranslatedProcesses(t *testing.T) {
	program := programThat(t, emulator.ProgramConfig{Translation: emulator.TranslateWaiting, CodeBytes: 4 << 20})
	image, err := kernel.Image()
	if err != nil {
		t.Fatal(err)
	}
	initramfs, err := initramfsOf("processes")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorker(t)
	w.attach(program.NewMachine(t.Context(), emulator.Config{Memory: 64 << 20, Deterministic: true, Rand: zeros{}, Console: w.console}))
	if err := w.LoadLinux(emulator.Linux{Kernel: image, Initramfs: initramfs, CommandLine: "console=hvc0 quiet panic=-1"}); err != nil {
		t.Fatal(err)
	}
	const slice = 8_000 // so that a program's code is in place while it runs
	for end := false; !end; {
		if _, stopped, err := w.Step(slice); stopped || err != nil {
			t.Fatalf("stopped %t, %v", stopped, err)
		}
		select {
		case line := <-w.lines:
			if end = strings.HasPrefix(line, "="); end && line != "= wrong: 0" {
				t.Errorf("the guest says %q", line)
			} else if !end && line != "ready" {
				t.Log(line)
			}
		default:
			if w.Retired() > 20e9 {
				t.Fatal("the guest does not come to an end")
			}
		}
	}
	s := w.JITStats()
	t.Logf("%d instructions, %+v", w.Retired(), s)
	if s.Regions < 1000 || s.Evicted == 0 || s.Executed < 10e6 {
		t.Errorf("%d regions, %d of them evicted, with %d instructions: the programs were not translated", s.Regions, s.Evicted, s.Executed)
	}
}
