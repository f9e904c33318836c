package machine_test

import (
	"fmt"
	"testing"

	"agentvm/internal/machine"
	"agentvm/internal/machine/riscv"

	"github.com/google/go-cmp/cmp"
)

// tangledLoops are loops in a loop, of which the inner one is entered at two places by the code and at others by the machine, whose slices end
// anywhere. It stores and loads at x8, which is the given number of bytes behind a page's start, twice.
func tangledLoops(at int64) []uint32 {
	return []uint32{
		encode("addi", riscv.Operands{Rd: 5, Imm: 50}),
		encode("auipc", riscv.Operands{Rd: 8, Imm: 0x1000}),
		encode("addi", riscv.Operands{Rd: 8, Rs1: 8, Imm: at/2 - 2}),
		encode("addi", riscv.Operands{Rd: 8, Rs1: 8, Imm: at/2 - 2}),
		encode("addi", riscv.Operands{Rd: 4}), // outer loop
		encode("addi", riscv.Operands{Rd: 2, Rs1: 2, Imm: 1}),
		encode("sd", riscv.Operands{Rs1: 8, Rs2: 2, Imm: 8}),
		encode("ld", riscv.Operands{Rd: 6, Rs1: 8, Imm: 8}),
		encode("ld", riscv.Operands{Rd: 10, Rs1: 8}),
		encode("add", riscv.Operands{Rd: 7, Rs1: 7, Rs2: 6}), // the other head
		encode("addi", riscv.Operands{Rd: 4, Rs1: 4, Imm: 1}),
		encode("andi", riscv.Operands{Rd: 9, Rs1: 4, Imm: 3}),
		encode("beq", riscv.Operands{Rs1: 9, Imm: -12}),
		encode("bne", riscv.Operands{Rs1: 4, Rs2: 5, Imm: -32}),
		encode("addi", riscv.Operands{Rd: 1, Rs1: 1, Imm: 1}),
		encode("jal", riscv.Operands{Imm: -44}),
	}
}

// TestTranslatedLoops: loops are the same translated, wherever they are entered, left and entered again, also when accesses beside each
// other are in two pages.
func TestTranslatedLoops(t *testing.T) {
	modes := map[string]machine.Translation{"all": machine.TranslateAll, "hot": machine.TranslateHot}
	for name, mode := range modes {
		translating := programThat(t, machine.ProgramConfig{Translation: mode})
		for _, at := range []int64{1024, 4088} {
			t.Run(fmt.Sprintf("%s at %d", name, at), func(t *testing.T) {
				var machines [2]*machine.Machine
				for i, p := range []*machine.Program{testProgram(t), translating} {
					m, err := p.NewMachine(t.Context(), machine.Config{Memory: 16 << 20, MachineMode: true})
					if err != nil {
						t.Fatal(err)
					}
					defer m.Close()
					loadCode(t, m, tangledLoops(at)...)
					machines[i] = m
				}
				for step := range 1500 {
					sameAfter(t, machines, int64(step%100+step))
				}
				if s := machines[1].JITStats(); s.Executed < machines[1].Retired()/4 {
					t.Errorf("%d of %d instructions were translated", s.Executed, machines[1].Retired())
				}
			})
		}
	}
}

func sameAfter(t *testing.T, machines [2]*machine.Machine, budget int64) {
	t.Helper()
	var registers [2]machine.Registers
	for i, m := range machines {
		if _, stopped, err := m.Step(budget); stopped || err != nil {
			t.Fatalf("stopped %t, %v", stopped, err)
		}
		registers[i], _ = m.Registers()
	}
	if diff := cmp.Diff(registers[0], registers[1]); diff != "" || machines[0].Retired() != machines[1].Retired() {
		t.Fatalf("after %d instructions interpreted, %d translated: interpreted - translated +\n%s", machines[0].Retired(), machines[1].Retired(), diff)
	}
}
