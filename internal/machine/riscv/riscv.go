// Package riscv describes the instructions of the emulated hart: RV64GC with Zicsr, Zifencei, Zicboz, Zicbom, Zba and
// Zbb, and the privileged instructions. Its table is generated from instructions.tbl, the one list that the C
// decoder, the disassembler, the translator and the tests share.
//
// The package holds no state; all functions are safe for concurrent use.
package riscv

//go:generate go run agentvm/scripts/isagen ../../..

// Format names how an instruction's operands are encoded, after the chapters of the Instruction Set Manual.
type Format string

// Instruction is one row of Table.
type Instruction struct {
	Name      string // assembler mnemonic, lower case
	Extension string // the extension that defines it
	Format    Format
	Mask      uint32 // bits that identify the instruction
	Match     uint32 // their values
	Length    int    // bytes: 2 or 4
	Expands   string // 16-bit instructions: the 32-bit instruction that does the same
}

// Lookup finds the row of an instruction word; 16-bit instructions stand in its low half. It reports nil for words
// that are not instructions of the table, reserved operand values included. `c.illegal` is a row, though executing it
// raises an illegal-instruction exception.
func Lookup(word uint32) *Instruction {
	length := 2
	if word&3 == 3 {
		length = 4
	}
	for i := range Table {
		if r := &Table[i]; r.Length == length && word&r.Mask == r.Match {
			if r.reserved(word) {
				return nil
			}
			return r
		}
	}
	return nil
}
