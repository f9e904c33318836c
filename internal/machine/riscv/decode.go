package riscv

import (
	"encoding/binary"
	"sync"
)

// Decoded is one instruction of a program, a 16-bit form with the name and the operands of the instruction that it stands for.
type Decoded struct {
	Name string
	Size int // bytes: 2 or 4
	Word uint32
	Operands
}

// Decode reads the instruction at an offset of code, in bytes. It reports false for what is no instruction, and for one that the code ends in.
func Decode(code []byte, at int) (Decoded, bool) {
	if at < 0 || at+2 > len(code) {
		return Decoded{}, false
	}
	word := uint32(binary.LittleEndian.Uint16(code[at:]))
	if word&3 == 3 {
		if at+4 > len(code) {
			return Decoded{}, false
		}
		word = binary.LittleEndian.Uint32(code[at:])
	}
	row := lookup(word)
	if row == nil {
		return Decoded{}, false
	}
	d := Decoded{Name: row.Name, Size: row.Length, Word: word, Operands: row.Operands(word)}
	if row.Length == 2 {
		d.expand(row)
	}
	return d, true
}

// expand gives a 16-bit instruction the operands of the one it stands for.
func (d *Decoded) expand(row *Instruction) {
	const ra, sp = 1, 2
	d.Name = row.Expands
	switch row.Format {
	case FormatCIW:
		d.Rs1 = sp
	case FormatCNOP:
		d.Imm = 0
	case FormatCI, FormatCIW1, FormatCBSH, FormatCBI, FormatCA, FormatCISH, FormatCADD:
		d.Rs1 = d.Rd
	case FormatCI16:
		d.Rd, d.Rs1 = sp, sp
	case FormatCIFD, FormatCILW, FormatCILD, FormatCSSFD, FormatCSSW, FormatCSSD:
		d.Rs1 = sp
	case FormatCJALR:
		d.Rd = ra
	}
}

// byOpcode has the rows that a word may be, in the order of the table, by its seven lowest bits.
var byOpcode = sync.OnceValue(func() *[128][]*Instruction {
	rows := new([128][]*Instruction)
	for i := range Table {
		r := &Table[i]
		for opcode := range rows {
			if word := uint32(opcode); (r.Length == 4) == (word&3 == 3) && (word^r.Match)&r.Mask&127 == 0 {
				rows[opcode] = append(rows[opcode], r)
			}
		}
	}
	return rows
})

// lookup is Lookup, which goes through the whole table.
func lookup(word uint32) *Instruction {
	for _, r := range byOpcode()[word&127] {
		if word&r.Mask == r.Match {
			if r.reserved(word) {
				return nil
			}
			return r
		}
	}
	return nil
}
