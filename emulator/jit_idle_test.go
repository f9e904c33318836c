package emulator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"agentvm/emulator"
	"agentvm/emulator/riscv"
	"agentvm/internal/leaktest"

	"go.uber.org/goleak"
)

// TestIdleMachineTranslatesNothing: machines that wait make the translator neither start nor work.
func TestIdleMachineTranslatesNothing(t *testing.T) {
	before := goleak.IgnoreCurrent()
	p := programThat(t, emulator.ProgramConfig{Translation: emulator.TranslateHot})
	m, err := p.NewMachine(t.Context(), emulator.Config{Memory: 16 << 20, MachineMode: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	wait := encode("wfi", riscv.Operands{})
	loadCode(t, m, addiX1, wait, encode("jal", riscv.Operands{Imm: -8}))
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
