package jit

import (
	"encoding/binary"

	"agentvm/internal/machine/riscv"
)

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
	if at+2 > len(page) {
		return instruction{}, false
	}
	word := uint32(binary.LittleEndian.Uint16(page[at:]))
	if word&3 == 3 {
		if at+4 > len(page) {
			return instruction{}, false
		}
		word = binary.LittleEndian.Uint32(page[at:])
	}
	row := riscv.Lookup(word)
	if row == nil {
		return instruction{}, false
	}
	i := instruction{at: at, size: row.Length, name: row.Name, Operands: row.Operands(word), word: word}
	if row.Length == 2 {
		i.expand(row)
	}
	return i, true
}

// expand gives a 16-bit instruction the operands of the one it stands for.
func (i *instruction) expand(row *riscv.Instruction) {
	const ra, sp = 1, 2
	i.name = row.Expands
	switch row.Format {
	case riscv.FormatCIW:
		i.Rs1 = sp
	case riscv.FormatCNOP:
		i.Imm = 0
	case riscv.FormatCI, riscv.FormatCIW1, riscv.FormatCBSH, riscv.FormatCBI, riscv.FormatCA, riscv.FormatCISH, riscv.FormatCADD:
		i.Rs1 = i.Rd
	case riscv.FormatCI16:
		i.Rd, i.Rs1 = sp, sp
	case riscv.FormatCIFD, riscv.FormatCILW, riscv.FormatCILD, riscv.FormatCSSFD, riscv.FormatCSSW, riscv.FormatCSSD:
		i.Rs1 = sp
	case riscv.FormatCJALR:
		i.Rd = ra
	}
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
