package machine_test

import (
	"math/rand/v2"
	"testing"

	"agentvm/internal/machine"
	"agentvm/internal/machine/riscv"
)

// TestInstructionDecode: the machine takes exactly those words for instructions that riscv.Lookup knows, and says the
// word in mtval for all others. Every 16-bit word is tried, and 32-bit ones at random and one bit away from each row.
func TestInstructionDecode(t *testing.T) {
	var words []uint32
	for word := range uint32(1 << 16) {
		if word&3 != 3 {
			words = append(words, word)
		}
	}
	random := rand.New(rand.NewPCG(5, 5))
	for range 60_000 {
		words = append(words, random.Uint32()|3)
	}
	for i := range riscv.Table {
		row := &riscv.Table[i]
		if row.Length == 2 {
			continue
		}
		for bit := range 32 {
			word := row.Match | random.Uint32()&^row.Mask
			words = append(words, word, word^1<<bit|3)
		}
	}
	r := newRig(t)
	for _, word := range words {
		if r.next > rigFar-64 {
			r = newRig(t)
		}
		r.checkLegality(word)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d words", len(words))
}

// checkLegality runs one word, with all registers pointing into the data area, and looks for an illegal-instruction
// trap. CSR instructions are left out: which registers exist is no matter of decoding.
func (r *rig) checkLegality(word uint32) {
	row := riscv.Lookup(word)
	if row != nil && (row.Extension == "Zicsr" || row.Name == "wfi" || row.Name == "sret" || row.Name == "mret") {
		return
	}
	before := hartState{csrs: csrs{MStatus: fsInitial | 3<<11}}
	before.PC = r.place(word)
	for i := 1; i < 32; i++ {
		before.X[i] = rigData + 0x800
	}
	after := r.run(before)
	illegal := after.Trapped && after.MCause == causeIllegal
	if want := row == nil || row.Name == "c.illegal"; illegal != want {
		r.Errorf("%08x (%s): illegal is %v, want %v", word, riscv.Disassemble(word, before.PC), illegal, want)
	}
	if illegal && (after.MTVal != uint64(word) || after.MEPC != before.PC) {
		r.Errorf("%08x: mtval %#x, mepc %#x instead of %#x", word, after.MTVal, after.MEPC, before.PC)
	}
	after.X[0] = 0
	if illegal && after.X != before.X {
		r.Errorf("%08x is illegal but changed a register", word)
	}
}

// FuzzInstruction runs 64 bytes as code, in M-mode and with traps to a handler: whatever they are, the slice ends and
// x0 stays zero.
func FuzzInstruction(f *testing.F) {
	f.Add([]byte{0x73, 0, 0, 0}, uint64(0))
	f.Add([]byte{0x01, 0xa0}, uint64(rigData))
	f.Fuzz(func(t *testing.T, code []byte, register uint64) {
		r := newRig(t)
		at := uint64(rigCode + 0x1000)
		copy(r.ram[at-machine.RAMBase:], code[:min(len(code), 64)])
		registers := machine.Registers{PC: at}
		for i := range registers.X {
			registers.X[i] = register
		}
		before := r.m.Retired()
		after := r.steps(registers, 1000)
		if after.X[0] != 0 {
			t.Errorf("x0 is %#x", after.X[0])
		}
		if executed := r.m.Retired() - before; executed > 1000 {
			t.Errorf("%d instructions in a slice of 1000", executed)
		}
	})
}
