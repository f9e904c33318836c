package jit

import "agentvm/internal/machine/riscv"

// instruction is one guest instruction, 16-bit forms as the instruction they stand for.
type instruction struct {
	at, size int // offset in the page, bytes
	name     string
	riscv.Operands
	word uint32
}

// next is the offset of the instruction behind it.
func (i *instruction) next() int { return i.at + i.size }

// decode reads the instruction at an offset. It reports false for what is no instruction, and for one whose second half
// is in the next page.
func decode(page []byte, at int) (instruction, bool) {
	d, ok := riscv.Decode(page, at)
	return instruction{at: at, size: d.Size, name: d.Name, Operands: d.Operands, word: d.Word}, ok
}

// flow says where control goes after an instruction.
type flow int

const (
	flowNext     flow = iota // at the next instruction
	flowBranch               // there or at its target
	flowJump                 // at its target
	flowIndirect             // at an address from a register
	flowLeave                // the interpreter executes it
)

func (i *instruction) flow() flow {
	switch i.name {
	case "beq", "bne", "blt", "bge", "bltu", "bgeu":
		return flowBranch
	case "jal":
		return flowJump
	case "jalr":
		return flowIndirect
	}
	if emitters()[i.name] == nil {
		return flowLeave
	}
	return flowNext
}
