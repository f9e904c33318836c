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
func bootKernel(t *testing.T, cfg machine.Config) (out string, retired uint64) {
	t.Helper()
	image, err := kernel.Image()
	if err != nil {
		t.Fatal(err)
	}
	c := newConsole()
	cfg.Console = c.stream
	m, err := testProgram(t).NewMachine(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.LoadLinux(machine.Linux{Kernel: image, CommandLine: "console=hvc0 earlycon=sbi panic=-1"}); err != nil {
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
	out, _ := bootKernel(t, machine.Config{Memory: 64 << 20})
	for _, want := range []string{"Linux version 6.", "Unable to mount root fs"} {
		if !strings.Contains(out, want) {
			t.Errorf("the console lacks %q:\n%s", want, out)
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
	firstOut, firstRetired := bootKernel(t, cfg)
	secondOut, secondRetired := bootKernel(t, cfg)
	if firstRetired != secondRetired || firstOut != secondOut {
		t.Errorf("two deterministic boots differ: %d and %d instructions, consoles equal: %t",
			firstRetired, secondRetired, firstOut == secondOut)
	}
}

func TestLoadLinuxRefuses(t *testing.T) {
	image, err := kernel.Image()
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
		{"empty kernel", machine.Linux{}, "not a RISC-V Linux Image"},
		{"text as kernel", machine.Linux{Kernel: bytes.Repeat([]byte("no kernel "), 100)}, "not a RISC-V Linux Image"},
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
