package blocks

import (
	"encoding/binary"

	"agentvm/internal/machine/a64"
)

// Registers of arm64 guests have the numbers that instructions have; the last one is SP, and ZeroA64 is XZR.
const (
	StackA64 = 31
	ZeroA64  = 32
)

// ZeroOf is a register of a field whose number 31 is XZR.
func ZeroOf(r uint8) uint8 {
	if r == 31 {
		return ZeroA64
	}
	return r
}

// A64 is a decoded instruction of arm64 code. Without a row it is none.
type A64 struct {
	Row  *a64.Instruction
	Word a64.Word
}

// DecodeA64 reads an instruction of a page. All but branches and jumps are left to the interpreter, unless the translator says otherwise.
func DecodeA64(p *Page, at int) (A64, Step) {
	if at&3 != 0 {
		return A64{}, Step{}
	}
	word := binary.LittleEndian.Uint32(p.Code[at:])
	d := A64{Row: a64.Lookup(word), Word: a64.Word(word)}
	s := Step{Size: 4, Flow: FlowLeave}
	if d.Row == nil {
		return d, s
	}
	switch d.Row.Format {
	case a64.FormatB26:
		s.Flow, s.Target, s.Returns = FlowJump, at+int(d.Word.Signed(0, 26))*4, d.Word.Bit(31)
	case a64.FormatBC, a64.FormatCB:
		s.Flow, s.Target = FlowBranch, at+int(d.Word.Signed(5, 19))*4
		if d.Row.Format == a64.FormatBC && d.Word.Field(0, 4) >= 14 { // always
			s.Flow = FlowJump
		}
	case a64.FormatTB:
		s.Flow, s.Target = FlowBranch, at+int(d.Word.Signed(5, 14))*4
	case a64.FormatBR:
		s.Flow, s.Returns = FlowIndirect, d.Row.Name == "blr"
	}
	return d, s
}

// Way is how an address is made.
type Way uint8

// The ways that there are.
const (
	ByOffset Way = iota
	ByIndex
	ByPC
	Before // the base is changed, then used
	After  // used, then changed
)

// AccessA64 is what a load or store of arm64 does.
type AccessA64 struct {
	Size   uint8 // of each register, in bytes
	Count  uint8 // of registers: 1 or 2
	Loads  bool
	Vector bool
	Signed uint8 // a load extends with the sign to so many bits; 0: with zeros
	User   bool  // it is made as EL0 would
	Way    Way
	Rt     [2]uint8
	Base   uint8
	Offset int64
}

// Operands takes those of a load or store out of its word.
func (d *A64) Operands() AccessA64 {
	w := d.Word
	a := AccessA64{Count: 1, Vector: d.Row.Group == "vmemory", Base: w.Rn(), Rt: [2]uint8{w.Rd(), w.Ra()}}
	switch d.Row.Format {
	case a64.FormatLSP:
		a.pair(w)
		return a
	case a64.FormatLSL:
		a.literal(w)
		return a
	}
	scale, opc := w.Field(30, 2), w.Field(22, 2)
	if a.Vector {
		scale += opc >> 1 * 4
		a.Loads = opc&1 != 0
	} else {
		a.Loads = opc != 0
		a.Signed = [4]uint8{0, 0, 64, 32}[opc]
	}
	a.Size = 1 << scale
	switch d.Row.Format {
	case a64.FormatLSU:
		a.Offset = int64(w.Field(10, 12)) << scale
	case a64.FormatLSR:
		a.Way = ByIndex
	default:
		a.Offset = w.Signed(12, 9)
		a.Way = [4]Way{ByOffset, After, ByOffset, Before}[w.Field(10, 2)]
		a.User = w.Field(10, 2) == 2
	}
	return a
}

func (a *AccessA64) pair(w a64.Word) {
	a.Count, a.Loads = 2, w.Bit(22)
	switch {
	case a.Vector:
		a.Size = 4 << w.Field(30, 2)
	case w.Bit(31):
		a.Size = 8
	default:
		a.Size = 4
		if w.Bit(30) {
			a.Signed = 64
		}
	}
	a.Offset = w.Signed(15, 7) * int64(a.Size)
	a.Way = [4]Way{ByOffset, After, ByOffset, Before}[w.Field(23, 2)]
}

func (a *AccessA64) literal(w a64.Word) {
	a.Loads, a.Way, a.Offset = true, ByPC, w.Signed(5, 19)*4
	switch scale := w.Field(30, 2); {
	case a.Vector:
		a.Size = 4 << scale
	case scale == 1:
		a.Size = 8
	default:
		a.Size = 4
		if scale == 2 {
			a.Signed = 64
		}
	}
}

// ChangesBase says whether the access writes its base register.
func (a *AccessA64) ChangesBase() bool { return a.Way == Before || a.Way == After }

// Overlaps says whether it loads or stores a base that it changes, which the architecture leaves open.
func (a *AccessA64) Overlaps() bool {
	return a.ChangesBase() && !a.Vector && (a.Rt[0] == a.Base || a.Count == 2 && a.Rt[1] == a.Base) && a.Base != StackA64
}

// writes has the general registers that an access writes, as bits.
func (a *AccessA64) writes() (set uint32) {
	if a.Loads && !a.Vector {
		for _, r := range a.Rt[:a.Count] {
			if r != 31 {
				set |= 1 << r
			}
		}
	}
	if a.ChangesBase() {
		set |= 1 << a.Base
	}
	return set
}

// Access says what an instruction does to memory by a register and a constant, and what registers it writes; too many do no harm.
func (d *A64) Access() Access {
	w := d.Word
	switch {
	case d.Row == nil:
		return Access{Writes: ^uint32(0)}
	case d.Row.Group == "memory" && d.Row.Format == a64.FormatEXCL, d.Row.Group == "atomic", d.Row.Group == "exclusive":
		return Access{Writes: 1<<w.Rd() | 1<<w.Rm()}
	case d.Row.Group == "memory" || d.Row.Group == "vmemory":
		a := d.Operands()
		if a.Way == ByOffset && !a.User {
			return Access{Base: a.Base, Low: a.Offset, Size: int64(a.Size) * int64(a.Count), Store: !a.Loads, Writes: a.writes()}
		}
		return Access{Writes: a.writes()}
	case d.Row.Group == "structure":
		return Access{Writes: 1 << w.Rn()}
	}
	return Access{Writes: 1 << w.Rd()} // in other formats bits 4 to 0 are something else
}

// Kinds of flags: enum flags of src/arm64/hart.h.
const (
	FlagsSub64  = 0
	FlagsSub32  = 1
	FlagsLogic  = 2
	FlagsPacked = 3
)

// SizedFlags is the kind of a subtraction.
func SizedFlags(wide bool) int32 {
	if wide {
		return FlagsSub64
	}
	return FlagsSub32
}

// FlagOperands are what the hart has as flags.
type FlagOperands struct {
	Kind int32
	A, B uint64
}

// OperandsOf gives the operands for NZCV: those of a subtraction of 64 bits that has them, or of a logical operation, or NZCV themselves, as set_nzcv of
// src/arm64/flags.c does.
func OperandsOf(nzcv uint32) FlagOperands {
	const n, z, c, v = 8, 4, 2, 1
	if nzcv == z {
		return FlagOperands{FlagsLogic, 0, 0}
	}
	for _, s := range [][2]uint64{{0, 1<<64 - 1}, {1, 0}, {1 << 63, 1}, {0, 0}, {0, 1}, {1<<63 - 1, 1<<64 - 1}, {1<<64 - 1, 0}} {
		a, b := s[0], s[1]
		flags := uint32((a-b)>>63*n | ((a^b)&(a^(a-b)))>>63*v)
		if a == b {
			flags |= z
		}
		if a >= b {
			flags |= c
		}
		if flags == nzcv {
			return FlagOperands{FlagsSub64, a, b}
		}
	}
	return FlagOperands{FlagsPacked, uint64(nzcv) << 28, 0}
}

// systemRegister is the number of one, of the fields op0, op1, CRn, CRm and op2 of an instruction.
func systemRegister(op0, op1, crn, crm, op2 uint32) uint32 {
	return op0<<14 | op1<<11 | crn<<7 | crm<<3 | op2
}

// System registers that are more than a word.
var (
	SPEL0     = systemRegister(3, 0, 4, 1, 0)
	DAIF      = systemRegister(3, 3, 4, 2, 1)
	DCZID     = systemRegister(3, 3, 0, 0, 7)
	ZeroBlock = systemRegister(1, 3, 7, 4, 1) // DC ZVA
)

// Bits of PSTATE that mask interrupts: all of them, and I.
const (
	PStateDAIF = 15 << 6
	PStateI    = 1 << 7
)

// WordA64 is a system register that is a word of the hart.
type WordA64 struct {
	At     uint32 // its address
	AnyEL  bool
	Writes bool // MSR does no more than store it
}

// Plain gives a register that is a word.
func (a *ARM64) Plain(number uint32) (WordA64, bool) {
	switch number {
	case systemRegister(3, 3, 13, 0, 2):
		return WordA64{a.TPIDR, true, true}, true
	case systemRegister(3, 3, 13, 0, 3):
		return WordA64{a.TPIDRRO, true, false}, true
	case systemRegister(3, 0, 13, 0, 4):
		return WordA64{a.TPIDR1, false, true}, true
	case systemRegister(3, 0, 4, 0, 0):
		return WordA64{a.SPSR, false, true}, true
	case systemRegister(3, 0, 4, 0, 1):
		return WordA64{a.ELR, false, true}, true
	case systemRegister(3, 0, 5, 2, 0):
		return WordA64{a.ESR, false, true}, true
	case systemRegister(3, 0, 6, 0, 0):
		return WordA64{a.FAR, false, true}, true
	case SPEL0:
		return WordA64{a.SP, false, true}, true
	}
	return WordA64{}, false
}

// Shared says whether what an instruction does differs with several harts: accesses in order, exclusive and atomic ones, and barriers.
func (d *A64) Shared() bool {
	switch d.Row.Group {
	case "exclusive", "atomic":
		return true
	case "memory":
		return d.Row.Format == a64.FormatEXCL
	}
	return d.Row.Name == "dmb" || d.Row.Name == "dsb"
}
