package machine_test

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/internal/machine"
	"agentvm/wasi"
)

// buildHostile compiles a program of testdata/hostile.
func buildHostile(t *testing.T, source string, flags ...string) []byte {
	t.Helper()
	return compileHostile(t, "riscv64-linux-gnu-gcc", append(flags, "-march=rv64gc", "-mabi=lp64d", "-mcmodel=medany", "testdata/hostile/start.S", source))
}

func buildHostileArm64(t *testing.T, source string, flags ...string) []byte {
	t.Helper()
	return compileHostile(t, "aarch64-linux-gnu-gcc", append(flags, "-mstrict-align", "testdata/hostile/start_arm64.S", source))
}

// hostileMachines are those that programs of testdata/hostile are compiled for.
var hostileMachines = []struct {
	name    string
	build   func(t *testing.T, source string, flags ...string) []byte
	program func(testing.TB) *machine.Program
}{{"riscv64", buildHostile, testProgram}, {"arm64", buildHostileArm64, arm64Program}}

func compileHostile(t *testing.T, compiler string, args []string) []byte {
	t.Helper()
	gcc := debianTool(t, compiler)
	output := filepath.Join(t.TempDir(), "program")
	last := len(args) - 1
	args = append(args[:last], filepath.Join("testdata/hostile", args[last]), "-O1", "-nostdlib", "-static", "-fno-pic", "-no-pie", "-ffreestanding",
		"-fno-stack-protector", "-Wno-main", "-Wl,--build-id=none,-T,testdata/hostile/hostile.ld", "-o", output)
	if out, err := exec.Command(gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// TestQueueThatFeedsItself runs a driver that made the balloon loop for ever in one slice. A slice that never ends stops all
// of this process, so the program runs in another one.
func TestQueueThatFeedsItself(t *testing.T) {
	const variable = "AGENTVM_TEST_HOSTILE_PROGRAM"
	for _, of := range hostileMachines {
		t.Run(of.name, func(t *testing.T) {
			if path := os.Getenv(variable); path != "" {
				program, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				m, err := of.program(t).NewMachine(t.Context(), machine.Config{Memory: bareMemory})
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				loadELF(t, m, program, 0)
				exit, err := m.Run(t.Context())
				t.Logf("%+v, %v", exit, err)
				return
			}
			of.program(t)
			path := filepath.Join(t.TempDir(), "program")
			if err := os.WriteFile(path, of.build(t, "queue_loop.c"), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0], "-test.run=^TestQueueThatFeedsItself$/^"+of.name+"$", "-test.count=1", "-test.v")
			cmd.Env = append(os.Environ(), variable+"="+path)
			cmd.WaitDelay = time.Second
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			watchdog := time.AfterFunc(10*time.Minute, func() { _ = cmd.Process.Kill() }) // it compiles the machine first
			err := cmd.Wait()
			if !watchdog.Stop() {
				t.Fatalf("the program did not end within ten minutes\n%s", out.String())
			}
			if came := fmt.Sprintf("%+v", machine.Exit{Reason: machine.Failure, Code: 1}); err != nil || !strings.Contains(out.String(), came) { // refused
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}

// stormDisk counts what is done to it and refuses what no slice should ask for, so that a test of a machine without bounds ends.
type stormDisk struct {
	written, syncs int64
}

const stormLimit = 64 << 20

func (d *stormDisk) ReadAt(p []byte, _ int64) (int, error) { return len(p), nil }

func (d *stormDisk) WriteAt(p []byte, _ int64) (int, error) {
	if d.written > stormLimit {
		return 0, io.ErrShortWrite
	}
	d.written += int64(len(p))
	return len(p), nil
}

func (d *stormDisk) Sync() error {
	if d.syncs > 100 {
		return errors.New("too many")
	}
	d.syncs++
	return nil
}

// TestSliceOfADiskStorm: whatever a driver asks of its disk, a slice does no more than what takes about a millisecond.
func TestSliceOfADiskStorm(t *testing.T) {
	for _, of := range hostileMachines {
		t.Run(of.name, func(t *testing.T) {
			for name, request := range map[string]string{"clear": "13", "flush": "4", "write": "1"} {
				t.Run(name, func(t *testing.T) {
					sliceOfADiskStorm(t, of.program(t), of.build(t, "disk_storm.c", "-DREQUEST="+request))
				})
			}
		})
	}
}

func sliceOfADiskStorm(t *testing.T, p *machine.Program, program []byte) {
	backing := new(stormDisk)
	m, err := p.NewMachine(t.Context(), machine.Config{
		Memory: bareMemory, MachineMode: true, Disks: []machine.Disk{{File: wasi.NewDisk(backing, stormLimit, false)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	loadELF(t, m, program, 0)
	var total stormDisk
	for range 200 {
		*backing = stormDisk{}
		if err := m.Slice(100_000); err != nil {
			t.Fatal(err)
		}
		if backing.written > 2<<20 || backing.syncs > 1 {
			t.Fatalf("one slice wrote %d bytes and synced %d times", backing.written, backing.syncs)
		}
		total.written += backing.written
		total.syncs += backing.syncs
	}
	if total.written < 100<<20 && total.syncs < 100 {
		t.Errorf("200 slices wrote %d bytes and synced %d times: the program does not work", total.written, total.syncs)
	}
}

// loadELF puts a program into a machine's memory and has it begin there, with an argument.
func loadELF(t *testing.T, m *machine.Machine, program []byte, argument int) {
	t.Helper()
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	ram, err := m.RAM()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range file.Progs {
		if s.Type != elf.PT_LOAD || s.Filesz == 0 || s.Paddr < machine.RAMBase {
			continue
		}
		if _, err := s.ReadAt(ram[s.Paddr-machine.RAMBase:][:s.Filesz], 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.EnterAt(file.Entry, uint64(argument)); err != nil {
		t.Fatal(err)
	}
}
