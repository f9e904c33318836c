package emulator_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"agentvm/emulator"
	"agentvm/emulator/riscv"
)

func translatingProgram(t testing.TB) *emulator.Program {
	t.Helper()
	p, err := emulator.NewProgram(context.Background(), emulator.ProgramConfig{Translation: emulator.TranslateAll})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	return p
}

// TestTranslatedStepIsExact: translated code, too, executes exactly the budget.
func TestTranslatedStepIsExact(t *testing.T) {
	m, err := translatingProgram(t).NewMachine(t.Context(), emulator.Config{Memory: 16 << 20, MachineMode: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
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
	if s := m.JITStats(); s.Regions != 1 || s.Entered == 0 {
		t.Errorf("JITStats() = %+v, want one region in use", s)
	}
}

// TestTranslatedSequences compares translated code with the interpreter: random sequences of all user-mode instructions on
// random registers, with slices of several lengths.
func TestTranslatedSequences(t *testing.T) {
	interpreted, translated := testProgram(t), translatingProgram(t)
	count, seed := fuzzSetting(t, "AGENTVM_FUZZ_SEQUENCES", 600), fuzzSetting(t, "AGENTVM_FUZZ_SEED", 1)
	budgets := []int64{1_000_000, 1000, 37}
	for first := uint64(0); first < count; first += batchSize {
		b, pieces := newBatch(seed<<32+first, batchSize)
		program, budget := b.program(), budgets[first/batchSize%3]
		want, wantRetired := onMachineOf(t, interpreted, program, len(b.blocks), budget)
		got, gotRetired := onMachineOf(t, translated, program, len(b.blocks), budget)
		if wantRetired != gotRetired {
			t.Errorf("seed %d: %d instructions translated, %d interpreted", seed<<32+first, gotRetired, wantRetired)
		}
		for i := range batchSize {
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
