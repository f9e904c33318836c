package machine_test

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/kernel"
	"agentvm/internal/machine/native"
	"agentvm/internal/machine/riscv"
	"agentvm/internal/test/leaktest"
)

// translatingProgram translates all that a machine reaches before it executes it.
func translatingProgram(t testing.TB) *machine.Program {
	t.Helper()
	return programThat(t, machine.ProgramConfig{Translation: machine.TranslateAll})
}

func programThat(t testing.TB, cfg machine.ProgramConfig) *machine.Program {
	t.Helper()
	if testing.Short() {
		t.Skip("translates")
	}
	if !native.Supported() && cfg.Translation != machine.TranslateNever {
		t.Skip("there is no translator for this system")
	}
	p, err := machine.NewProgram(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestTranslatedStepIsExact: translated code, too, executes exactly the budget.
func TestTranslatedStepIsExact(t *testing.T) {
	m, err := translatingProgram(t).NewMachine(t.Context(), machine.Config{Memory: 16 << 20, MachineMode: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	checkSteps(t, m)
	if s := m.JITStats(); s.Regions != 1 || s.Entered == 0 {
		t.Errorf("JITStats() = %+v, want one region in use", s)
	}
}

// TestTimersLeaveTranslatedCodeSeldom: with the host's clock, timers are looked at some times in a slice, however many instructions that has.
func TestTimersLeaveTranslatedCodeSeldom(t *testing.T) {
	m, err := translatingProgram(t).NewMachine(t.Context(), machine.Config{Memory: 16 << 20, MachineMode: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	checkSteps(t, m)
	before := m.JITStats()
	if _, stopped, err := m.Step(64 << 20); stopped || err != nil {
		t.Fatalf("stopped %t, error %v", stopped, err)
	}
	if s := m.JITStats(); s.Executed-before.Executed < 60<<20 || s.BudgetExits-before.BudgetExits > 32 {
		t.Errorf("translated code was left %d times for the budget's end in %d instructions", s.BudgetExits, s.Executed)
	}
}

// TestTranslatedSequences compares translated code with the interpreter: random sequences of all user-mode instructions on
// random registers, with slices of several lengths. Where a slice ends all of a page is translated again, so these are few; AGENTVM_FUZZ_TRANSLATED says
// how many.
func TestTranslatedSequences(t *testing.T) {
	t.Parallel()
	const each = 40
	interpreted, translated := testProgram(t), translatingProgram(t)
	count, seed := fuzzSetting(t, "AGENTVM_FUZZ_TRANSLATED", 3*each), fuzzSetting(t, "AGENTVM_FUZZ_SEED", 1)
	budgets := []int64{1_000_000, 1000, 37}
	for first := uint64(0); first < count; first += each {
		b, pieces := newBatch(seed<<32+first, each)
		program, budget := b.program(), budgets[first/each%3]
		want, wantRetired := onMachineOf(t, interpreted, program, len(b.blocks), budget)
		got, gotRetired := onMachineOf(t, translated, program, len(b.blocks), budget)
		if wantRetired != gotRetired {
			t.Errorf("seed %d: %d instructions translated, %d interpreted", seed<<32+first, gotRetired, wantRetired)
		}
		for i := range each {
			if !bytes.Equal(block(got, i), block(want, i)) {
				t.Errorf("seed %d, sequence %d:\n%s\n%s", seed<<32+first, i, listing(pieces[i]), blockDifference(block(b.blocks, i), block(want, i), block(got, i)))
				return
			}
		}
	}
}

func listing(pieces []piece) string {
	var text strings.Builder
	for _, word := range words(pieces) {
		fmt.Fprintln(&text, riscv.Disassemble(word, 0))
	}
	return text.String()
}

// TestTranslatedLockstep runs Linux, from power-on through a program that computes, collects garbage, writes files, starts
// processes and sleeps, interpreted and translated side by side. After each million instructions they are the same in
// every register and every byte of RAM. AGENTVM_LOCKSTEP says for how many millions.
func TestTranslatedLockstep(t *testing.T) {
	t.Parallel()
	millions := fuzzSetting(t, "AGENTVM_LOCKSTEP", 80)
	interpreted := lockstepGuest(t, testProgram(t))
	translated := lockstepGuest(t, programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot}))
	for i := range millions {
		for _, w := range []*worker{interpreted, translated} {
			if _, stopped, err := w.Step(1_000_000); stopped || err != nil {
				t.Fatalf("step %d: stopped %t, %v", i, stopped, err)
			}
		}
		if interpreted.hash() != translated.hash() {
			a, _ := interpreted.Registers()
			b, _ := translated.Registers()
			t.Fatalf("step %d: %d instructions interpreted, %d translated; interpreted - translated +\n%s", i, interpreted.Retired(), translated.Retired(), cmp.Diff(a, b))
		}
	}
	s := translated.JITStats()
	t.Logf("%d instructions, %+v", translated.Retired(), s)
	if s.Executed < translated.Retired()/4 {
		t.Errorf("%d of %d instructions were translated ones", s.Executed, translated.Retired())
	}
}

// TestCapturesOfTranslated: what translated code has written is in the images of its machine.
func TestCapturesOfTranslated(t *testing.T) {
	t.Parallel()
	p := programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot})
	untouched, w := lockstepGuest(t, p), lockstepGuest(t, p)
	untouched.advance(70e6)
	w.advance(70e6)
	for generation := range 3 {
		image := w.capture()
		w = newWorker(t)
		w.attach(p.Restore(t.Context(), lockstepConfig(w), image))
		w.advance(15e6)
		untouched.advance(15e6)
		if w.hash() != untouched.hash() {
			t.Fatalf("generation %d differs from a machine that was never captured", generation)
		}
	}
	if s := w.JITStats(); s.Executed < 5e6 {
		t.Errorf("%d instructions of the last generation were translated ones", s.Executed)
	}
}

func lockstepConfig(w *worker) machine.Config {
	return machine.Config{Memory: 64 << 20, Deterministic: true, Rand: zeros{}, Console: w.console}
}

// lockstepGuest is a guest that works without end, at power-on.
func lockstepGuest(t *testing.T, p *machine.Program) *worker {
	t.Helper()
	image, err := kernel.Image(platform.RISCV64)
	if err != nil {
		t.Fatal(err)
	}
	initramfs, err := workerInitramfs()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorker(t)
	w.attach(p.NewMachine(t.Context(), lockstepConfig(w)))
	linux := machine.Linux{Kernel: image, Initramfs: initramfs, CommandLine: "console=hvc0 quiet panic=-1 work=1"}
	if err := w.LoadLinux(linux); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestBareTranslated runs the bare programs, for traps, paging, interrupts, CSRs, atomics and changing code, with all of their code translated when
// it is first reached. AGENTVM_TEST_TRANSLATE=all does the same to any other test; to TestDifferentialQEMU it would do what TestTranslatedSequences does.
func TestBareTranslated(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("translates")
	}
	if !native.Supported() {
		t.Skip("there is no translator for this system")
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^(TestBare|TestStepIsExact|TestTrapsEndTheSlice|TestFinisherPowersOff)$", "-test.v")
	again.Env = append(os.Environ(), "AGENTVM_TEST_TRANSLATE=all")
	out, err := again.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestBare ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTranslationIsBounded: with room for a few regions only, old ones make way, and nothing else changes.
func TestTranslationIsBounded(t *testing.T) {
	t.Parallel()
	interpreted := lockstepGuest(t, testProgram(t))
	translated := lockstepGuest(t, programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot, CodeBytes: 512 << 10}))
	for range 50 {
		for _, w := range []*worker{interpreted, translated} {
			if _, stopped, err := w.Step(1_000_000); stopped || err != nil {
				t.Fatalf("stopped %t, %v", stopped, err)
			}
		}
	}
	if interpreted.hash() != translated.hash() {
		t.Errorf("after %d instructions the two machines differ", translated.Retired())
	}
	if s := translated.JITStats(); s.Evicted == 0 || s.Bytes > 2<<20 {
		t.Errorf("%+v, want evictions and at most 1 MiB", s)
	}
}

// TestMachinesTranslateTogether: machines share code, are closed while others use it, and get exact results.
func TestMachinesTranslateTogether(t *testing.T) {
	const addX1, jumpBack = 0x91000421, 0x17ffffff // add x1, x1, 1; b .-4
	for architecture, loop := range map[platform.Architecture]struct {
		machine elf.Machine
		code    []uint32
	}{platform.RISCV64: {elf.EM_RISCV, []uint32{addiX1, jumpBack4}}, platform.ARM64: {elf.EM_AARCH64, []uint32{addX1, jumpBack}}} {
		t.Run(string(architecture), func(t *testing.T) {
			if !machine.TranslatesByDefault(architecture) {
				t.Skip("is interpreted here")
			}
			code := binary.LittleEndian.AppendUint32(nil, loop.code[0])
			program := wrapELF(machine.RAMBase, binary.LittleEndian.AppendUint32(code, loop.code[1]))
			binary.LittleEndian.PutUint16(program[18:], uint16(loop.machine))
			translateTogether(t, architecture, program)
		})
	}
}

func translateTogether(t *testing.T, architecture platform.Architecture, program []byte) {
	before := goleak.IgnoreCurrent()
	p, err := machine.NewProgram(context.Background(), machine.ProgramConfig{Architecture: architecture, Translation: machine.TranslateHot})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			m, err := p.NewMachine(t.Context(), machine.Config{Memory: 16 << 20, MachineMode: true})
			if err != nil {
				t.Error(err)
				return
			}
			defer m.Close()
			_, err = m.LoadELF(bytes.NewReader(program))
			if err := errors.Join(err, m.EnterAt(machine.RAMBase, 0)); err != nil {
				t.Error(err)
				return
			}
			wait := time.Now().Add(time.Minute)
			for i%2 == 0 && m.JITStats().Executed == 0 && time.Now().Before(wait) || m.Retired() < 100_000 {
				if _, _, err := m.Step(9999); err != nil {
					t.Error(err)
					return
				}
			}
			r, err := m.Registers()
			if want := (m.Retired() + 1) / 2; err != nil || r.X[1] != want {
				t.Errorf("x1 is %d, want %d (%v)", r.X[1], want, err)
			}
			if i%2 == 0 && m.JITStats().Executed == 0 {
				t.Error("the loop was never translated")
			}
		})
	}
	all.Wait()
	if err := p.Close(context.Background()); err != nil {
		t.Error(err)
	}
	leaktest.None(t, before)
}

// TestRestoredMachineTranslatesAnew: the memory of a machine names functions that its copies do not have.
func TestRestoredMachineTranslatesAnew(t *testing.T) {
	for name, cfg := range map[string]machine.ProgramConfig{
		"translated": {Translation: machine.TranslateHot}, "interpreted": {Translation: machine.TranslateNever},
	} {
		t.Run(name, func(t *testing.T) {
			first := lockstepGuest(t, programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot}))
			first.advance(30_000_000)
			image, err := first.Capture(machine.ExtentsForMany)
			if err != nil {
				t.Fatal(err)
			}
			defer image.Close()
			p := programThat(t, cfg)
			w := newWorker(t)
			w.attach(p.Restore(t.Context(), machine.Config{Memory: 64 << 20, Deterministic: true, Rand: zeros{}, Console: w.console}, image))
			for range 10 {
				first.advance(1_000_000)
				w.advance(1_000_000)
				if first.hash() != w.hash() {
					t.Fatalf("the copy differs at %d instructions", w.Retired())
				}
			}
		})
	}
}

// TestTranslatedPagesJoin: a loop whose halves are in two pages is not left any more, for one region continues in the other.
func TestTranslatedPagesJoin(t *testing.T) {
	m, err := programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot}).NewMachine(t.Context(), machine.Config{Memory: 16 << 20, MachineMode: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	code := make([]uint32, 1026)
	code[0], code[1] = addiX1, encode("jal", riscv.Operands{Imm: 4092})
	code[1024], code[1025] = encode("addi", riscv.Operands{Rd: 2, Rs1: 2, Imm: 1}), encode("jal", riscv.Operands{Imm: -4100})
	loadCode(t, m, code...)
	for range 300 {
		if _, _, err := m.Step(10_007); err != nil {
			t.Fatal(err)
		}
	}
	before := m.JITStats()
	for range 100 {
		if _, _, err := m.Step(10_007); err != nil {
			t.Fatal(err)
		}
	}
	after := m.JITStats()
	if n := after.Entered - before.Entered; n > 1000 || after.Executed-before.Executed < 900_000 {
		t.Errorf("regions were entered %d times for %d instructions: %+v", n, after.Executed-before.Executed, after)
	}
	r, err := m.Registers()
	if want := (m.Retired() + 3) / 4; err != nil || r.X[1] != want || r.X[2] != (m.Retired()+1)/4 {
		t.Errorf("x1 is %d, x2 %d after %d instructions, want %d (%v)", r.X[1], r.X[2], m.Retired(), want, err)
	}
}

// TestIdleMachineTranslatesNothing: machines that wait make no translations.
func TestIdleMachineTranslatesNothing(t *testing.T) {
	before := goleak.IgnoreCurrent()
	p := programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot})
	m, err := p.NewMachine(t.Context(), machine.Config{Memory: 16 << 20, MachineMode: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	wait := encode("wfi", riscv.Operands{})
	loadCode(t, m, addiX1, wait, encode("jal", riscv.Operands{Imm: -8}))
	if err := m.Slice(1000); err != nil { // so that it has begun, however busy the host is
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := m.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Run() = %v, want that of the deadline", err)
	}
	if s := m.JITStats(); s.Regions != 0 || s.Bytes != 0 || s.Entered != 0 {
		t.Errorf("JITStats() of an idle machine = %+v", s)
	}
	if m.Retired() == 0 {
		t.Error("the machine has done nothing at all")
	}
	leaktest.None(t, before)
}
