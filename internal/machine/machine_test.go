package machine_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"agentvm/internal/machine"
	"agentvm/wasi"
)

func TestNewMachineRefuses(t *testing.T) {
	file := wasi.NewStream(16)
	tests := []struct {
		name string
		cfg  machine.Config
		want string
	}{
		{"too little memory", machine.Config{Memory: 1 << 20}, "memory of 1 MiB"},
		{"too much memory", machine.Config{Memory: 4 << 30}, "memory of 4096 MiB"},
		{"memory in odd bytes", machine.Config{Memory: 16<<20 + 1}, "multiple of 4096"},
		{"short MAC address", machine.Config{MAC: net.HardwareAddr{2, 0, 0}}, "has 3 bytes"},
		{"tiny MTU", machine.Config{MTU: 10}, "MTU of 10"},
		{"too many disks", machine.Config{Disks: make([]machine.Disk, 5)}, "5 disks"},
		{"too many shares", machine.Config{Shares: make([]machine.Share, 21)}, "21 shares"},
		{"empty share tag", machine.Config{Shares: []machine.Share{{File: file}}}, "share tag"},
		{"long share tag", machine.Config{Shares: []machine.Share{{Tag: strings.Repeat("x", 32), File: file}}}, "share tag"},
		{"share without file", machine.Config{Shares: []machine.Share{{Tag: "x"}}}, "no file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := testProgram(t).NewMachine(t.Context(), tt.cfg)
			if err == nil {
				m.Close()
				t.Fatal("NewMachine() succeeded")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("NewMachine() = %v, want an error with %q", err, tt.want)
			}
		})
	}
}

// loadCode puts instruction words at the start of RAM and points the hart there.
func loadCode(t *testing.T, m *machine.Machine, words ...uint32) {
	t.Helper()
	ram, err := m.RAM()
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range words {
		binary.LittleEndian.PutUint32(ram[4*i:], w)
	}
	if err := m.SetRegisters(machine.Registers{PC: machine.RAMBase}); err != nil {
		t.Fatal(err)
	}
}

const (
	wfi        = 0x10500073
	jumpBack4  = 0xffdff06f // jal x0, -4
	addiX1     = 0x00108093 // addi x1, x1, 1
	luiX5Power = 0x001002b7 // lui x5, 0x100: the finisher
	luiX6Pass  = 0x00005337 // lui x6, 5
	addiX6Pass = 0x55530313 // addi x6, x6, 0x555
	swX6X5     = 0x0062a023 // sw x6, 0(x5)
)

func TestStepIsExact(t *testing.T) {
	checkSteps(t, newMachine(t, machine.Config{Memory: 16 << 20, MachineMode: true}))
}

// checkSteps has a bare machine count, and compares what it has executed with what it was given.
func checkSteps(t *testing.T, m *machine.Machine) {
	t.Helper()
	loadCode(t, m, addiX1, jumpBack4)
	for _, budget := range []int64{1, 2, 3, 1000, 16384, 16385, 50_000} {
		before := m.Retired()
		if _, stopped, err := m.Step(budget); stopped || err != nil {
			t.Fatalf("Step(%d) stopped %t, error %v", budget, stopped, err)
		}
		if got := m.Retired() - before; got != uint64(budget) {
			t.Errorf("Step(%d) executed %d instructions", budget, got)
		}
	}
	r, err := m.Registers()
	if err != nil {
		t.Fatal(err)
	}
	if want := (m.Retired() + 1) / 2; r.X[1] != want {
		t.Errorf("x1 is %d after %d instructions, want %d", r.X[1], m.Retired(), want)
	}
}

// A trap whose handler cannot be fetched traps again, for ever: such a guest must still end its slices.
func TestTrapsEndTheSlice(t *testing.T) {
	m := newMachine(t, machine.Config{Memory: 16 << 20, MachineMode: true})
	loadCode(t, m, 0) // an illegal instruction, with mtvec at address 0, where nothing is
	done := make(chan error, 1)
	go func() {
		_, _, err := m.Step(1000)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		panic("Step(1000) never returned") // nothing else can stop a slice
	}
}

func TestFinisherPowersOff(t *testing.T) {
	m := newMachine(t, machine.Config{Memory: 16 << 20, MachineMode: true})
	loadCode(t, m, luiX5Power, luiX6Pass, addiX6Pass, swX6X5, jumpBack4)
	exit, err := m.Run(t.Context())
	if err != nil || exit.Reason != machine.PowerOff {
		t.Errorf("Run() = %v, %v, want a power-off", exit, err)
	}
}

// A guest that waits for interrupts costs nothing, and cancelling ends its wait at once; the machine continues later.
func TestRunIdlesAndIsCancelled(t *testing.T) {
	m := newMachine(t, machine.Config{Memory: 16 << 20, MachineMode: true})
	loadCode(t, m, wfi, jumpBack4)
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		before := m.Retired()
		_, err := m.Run(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Run() = %v, want the context's error", err)
		}
		if executed := m.Retired() - before; executed > 10 {
			t.Errorf("an idle guest executed %d instructions", executed)
		}
	}
}

func TestRunOfBusyGuestIsCancelled(t *testing.T) {
	m := newMachine(t, machine.Config{Memory: 16 << 20, MachineMode: true})
	loadCode(t, m, addiX1, jumpBack4)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := m.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Run() = %v, want the context's error", err)
	}
}

// wazero's interpreter stands in where it has no compiler, and has no use for a cache. Code from the cache is that of the machine.
func TestPrograms(t *testing.T) {
	dir, key := t.TempDir(), make([]byte, 32)
	for _, test := range []struct {
		name   string
		config machine.ProgramConfig
	}{
		{"interpreted", machine.ProgramConfig{Interpreter: true}},
		{"interpreted, with an empty cache", machine.ProgramConfig{Interpreter: true, CacheDir: dir, CacheKey: key}},
		{"compiled into the cache", machine.ProgramConfig{CacheDir: dir, CacheKey: key}},
		{"from the cache", machine.ProgramConfig{CacheDir: dir, CacheKey: key}},
		{"interpreted, with a cache", machine.ProgramConfig{Interpreter: true, CacheDir: dir, CacheKey: key}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := machine.NewProgram(t.Context(), test.config)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close(context.Background())
			m, err := p.NewMachine(t.Context(), machine.Config{Memory: 16 << 20, MachineMode: true})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			loadCode(t, m, luiX5Power, luiX6Pass, addiX6Pass, swX6X5)
			if exit, err := m.Run(t.Context()); err != nil || exit.Reason != machine.PowerOff {
				t.Errorf("Run() = %v, %v, want a power-off", exit, err)
			}
		})
	}
}

func TestCacheFolderMustBePrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no permission bits")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := machine.NewProgram(t.Context(), machine.ProgramConfig{CacheDir: dir, CacheKey: make([]byte, 32)})
	if err == nil || !strings.Contains(err.Error(), "can be written by others") {
		t.Errorf("NewProgram() = %v, want a refusal of the world-writable cache", err)
	}
}
