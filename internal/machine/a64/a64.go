// Package a64 describes the instructions of the arm64 machine: those of Armv8.0-A in AArch64 state with floating point, Advanced SIMD and the
// extensions that instructions.tbl names. Table is generated from that file, the one list that decoders and tests share.
//
// The package holds no state; all functions are safe for concurrent use.
package a64

import "sync"

//go:generate go run agentvm/scripts/isagen ../../..

// Format names how an instruction's operands are encoded.
type Format string

// Bits are values that some bits of an instruction word have.
type Bits struct{ Mask, Match uint32 }

// In reports whether the word has these values.
func (b Bits) In(word uint32) bool { return word&b.Mask == b.Match }

// Instruction is one row of Table. A word is this instruction when it has Bits and none of Except.
type Instruction struct {
	Name      string // the mnemonic, and what tells rows of one mnemonic apart
	Extension string // the section of the table
	Format    Format
	Group     string // the machine's function that executes it
	Bits      Bits
	Except    []Bits
}

func (r *Instruction) is(word uint32) bool {
	if !r.Bits.In(word) {
		return false
	}
	for _, e := range r.Except {
		if e.In(word) {
			return false
		}
	}
	return true
}

// key is what Lookup looks at first: bits 28 to 21, which tell most classes of instructions apart.
func key(word uint32) uint8 { return uint8(word >> 21) }

// buckets has the rows that words of each key can be.
var buckets = sync.OnceValue(func() *[256][]*Instruction {
	var all [256][]*Instruction
	for i := range Table {
		r := &Table[i]
		for k := range all {
			if mask := key(r.Bits.Mask); uint8(k)&mask == key(r.Bits.Match) {
				all[k] = append(all[k], r)
			}
		}
	}
	return &all
})

// Lookup finds the row of an instruction word, nil for what is no instruction of the table.
func Lookup(word uint32) *Instruction {
	for _, r := range buckets()[key(word)] {
		if r.is(word) {
			return r
		}
	}
	return nil
}

// Word is an instruction word.
type Word uint32

// Field is the value of some bits.
func (w Word) Field(low, width uint) uint32 { return uint32(w) >> low & (1<<width - 1) }

// Bit is one bit.
func (w Word) Bit(n uint) bool { return w>>n&1 != 0 }

// Signed is a field with a sign.
func (w Word) Signed(low, width uint) int64 {
	return int64(uint64(w)<<(64-low-width)) >> (64 - width)
}

// Wide says of most instructions on general registers that they are of 64 bits.
func (w Word) Wide() bool { return w.Bit(31) }

// Rd is the register at the usual place of the result, or of what is loaded or stored.
func (w Word) Rd() uint8 { return uint8(w.Field(0, 5)) }

// Rn is that of the first operand, or of the base.
func (w Word) Rn() uint8 { return uint8(w.Field(5, 5)) }

// Ra is that of the third operand, or of what else a pair loads or stores.
func (w Word) Ra() uint8 { return uint8(w.Field(10, 5)) }

// Rm is that of the second operand.
func (w Word) Rm() uint8 { return uint8(w.Field(16, 5)) }
