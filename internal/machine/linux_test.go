package machine_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/kernel"
	"agentvm/wasi"
)

// console collects what a guest prints.
type console struct {
	stream *wasi.Stream
	mu     sync.Mutex
	text   bytes.Buffer
	done   chan struct{}
}

func newConsole() *console {
	c := &console{stream: wasi.NewStream(1 << 16), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		_, _ = io.Copy(c, c.stream.Host())
	}()
	return c
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(p)
}

// wait returns all of the output once the machine has closed its end.
func (c *console) wait() string {
	<-c.done
	return c.text.String()
}

// bootKernel runs the real kernel without a root, which it answers with a panic and, with the option for it, a reset.
func bootKernel(t *testing.T, architecture platform.Architecture, cfg machine.Config) (out string, retired uint64) {
	t.Helper()
	image, err := kernel.Image(architecture)
	if err != nil {
		t.Fatal(err)
	}
	program, console := testProgram(t), "earlycon=sbi"
	if architecture == platform.ARM64 {
		program, console = arm64Program(t), "earlycon=smh"
	}
	c := newConsole()
	cfg.Console = c.stream
	m, err := program.NewMachine(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.LoadLinux(machine.Linux{Kernel: image, CommandLine: "console=hvc0 panic=-1 " + console}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	exit, err := m.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if exit.Reason != machine.Reboot && exit.Reason != machine.Failure {
		t.Errorf("the guest %v, want a reset after its panic", exit.Reason)
	}
	retired = m.Retired()
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	return c.wait(), retired
}

func TestBootLinux(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a machine")
	}
	for _, architecture := range platform.Supported() {
		out, _ := bootKernel(t, architecture, machine.Config{Memory: 64 << 20})
		for _, want := range []string{"Linux version 6.", "Unable to mount root fs"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: the console lacks %q:\n%s", architecture, want, out)
			}
		}
	}
}

// zeros is a source of randomness that always gives the same.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestBootIsDeterministic(t *testing.T) {
	if testing.Short() {
		t.Skip("boots machines")
	}
	cfg := machine.Config{Memory: 64 << 20, Deterministic: true, Rand: zeros{}}
	for _, architecture := range platform.Supported() {
		firstOut, firstRetired := bootKernel(t, architecture, cfg)
		secondOut, secondRetired := bootKernel(t, architecture, cfg)
		if firstRetired != secondRetired || firstOut != secondOut {
			t.Errorf("%s: two deterministic boots differ: %d and %d instructions, consoles equal: %t",
				architecture, firstRetired, secondRetired, firstOut == secondOut)
		}
		t.Logf("%s: %d instructions to the end of a boot", architecture, firstRetired)
	}
}

func TestLoadLinuxRefuses(t *testing.T) {
	image, err := kernel.Image(platform.RISCV64)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := kernel.Image(platform.ARM64)
	if err != nil {
		t.Fatal(err)
	}
	moved := bytes.Clone(image)
	moved[10] ^= 1 // text_offset
	tests := []struct {
		name  string
		linux machine.Linux
		want  string
	}{
		{"empty kernel", machine.Linux{}, "not a Linux Image for RISC-V"},
		{"a kernel of the other machine", machine.Linux{Kernel: foreign}, "not a Linux Image for RISC-V"},
		{"text as kernel", machine.Linux{Kernel: bytes.Repeat([]byte("no kernel "), 100)}, "not a Linux Image for RISC-V"},
		{"other load address", machine.Linux{Kernel: moved}, "text_offset"},
		{"initramfs larger than RAM", machine.Linux{Kernel: image, Initramfs: make([]byte, 17<<20)}, "too little for the kernel and an initramfs"},
		{"endless command line", machine.Linux{Kernel: image, CommandLine: strings.Repeat("x", 64<<10)}, "too long"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t, machine.Config{Memory: 16 << 20})
			err := m.LoadLinux(tt.linux)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("LoadLinux() = %v, want an error with %q", err, tt.want)
			}
		})
	}
	m := newMachine(t, machine.Config{Memory: 16 << 20})
	if err := m.LoadLinux(machine.Linux{}); !errors.Is(err, machine.ErrNotKernel) {
		t.Errorf("LoadLinux() = %v, want ErrNotKernel", err)
	}
}

func newMachine(t *testing.T, cfg machine.Config) *machine.Machine {
	t.Helper()
	m, err := testProgram(t).NewMachine(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}
