// Package arm64 translates pages of RISC-V code to native code of arm64 in a single pass, as package amd64 does for amd64. It is trusted with
// nothing: package verify below it proves of each translation, from its bytes alone, that it reaches nothing outside of the machine's linear
// memory.
//
//	x23  linear memory                x4, x5, x7, x9 to x16, x19 to x22   ra sp t1 s0 s1 a0 to a7 s2 s3 of the guest
//	x24  table of entries             x0 to x3                            free
//	x25  TLB, in linear memory        x6, x8                              places in linear memory
//	x26  what is left of the budget   x17                                 the address to jump to
//	x27  hart                         x30                                 where ret returns to the machine
//	                                  x18, x28, x29, sp                   not touched: the system's, Go's g, frame and stack
//
// The other guest registers are in the hart. Where the hart's pc points, and what is left to the interpreter, is as in package amd64.
package arm64

import "encoding/binary"

// register is a register of the host, by its number in encodings.
type register uint8

const (
	x0 register = iota
	x1
	x2
	x3

	placeOfSP    register = 6 // of a group of accesses by sp
	placeOfOther register = 8 // and by any other register

	target  register = 17
	memory  register = 23
	entries register = 24
	tlb     register = 25
	budget  register = 26
	hart    register = 27
	link    register = 30
	zero    register = 31 // reads as zero; the stack pointer in immediate additions
)

// inHost has the guest registers that are in registers of the host.
var inHost = [33]register{1: 4, 2: 5, 6: 7, 8: 9, 9: 10, 10: 11, 11: 12, 12: 13, 13: 14, 14: 15, 15: 16, 16: 19, 17: 20, 18: 21, 19: 22}

// assembler writes instructions. Only the forms that translations need are here; package verify has the same list, of its own.
type assembler struct {
	code     []byte
	isGuests bool // the flags are, until something else sets them
}

func (a *assembler) here() int { return len(a.code) }

func (a *assembler) word(w uint32) {
	a.code = binary.LittleEndian.AppendUint32(a.code, w)
	a.isGuests = a.isGuests && !setsFlags(w)
}

// setsFlags says whether an instruction of those here does.
func setsFlags(w uint32) bool {
	return w&0x3f800000 == 0x31000000 || w&0x3f000000 == 0x2b000000 || // adds, subs
		w&0x7f800000 == 0x72000000 || w&0x7f000000 == 0x6a000000 || // ands, bics
		w&0xff20fc07 == 0x1e202000 || w&0xff200c00 == 0x1e200400 // fcmp, fccmp
}

// Operations on three registers, with 32 bits.
const (
	opAdd        = 0x0b000000
	opSub        = 0x4b000000
	opAdds       = 0x2b000000 // with flags
	opSubs       = 0x6b000000
	opAnds       = 0x6a000000
	opAnd        = 0x0a000000
	opOr         = 0x2a000000
	opXor        = 0x4a000000
	opDiv        = 0x1ac00c00
	opDivU       = 0x1ac00800
	opShiftLeft  = 0x1ac02000
	opShiftRight = 0x1ac02400
	opShiftArith = 0x1ac02800
	opMul        = 0x1b007c00
	opMulSub     = 0x1b008000 // and a fourth
	opMulHigh    = 0x1b407c00 // of 64 bits only, as the next
	opMulHighU   = 0x1bc07c00
	opSelect     = 0x1a800000 // and a condition
	opSelectInc  = 0x1a800400
	opSelectNot  = 0x5a800000
	opAndNot     = 0x0a200000
	opOrNot      = 0x2a200000
	opXorNot     = 0x4a200000
	opRotate     = 0x1ac02c00 // to the right
)

// Operations on one register, with 32 bits, except the last.
const (
	opReverse      = 0x5ac00000 // of the bits
	opLeadingZeros = 0x5ac01000
	opSwapBytes    = 0xdac00c00
)

func wideBit(wide bool) uint32 {
	if wide {
		return 1 << 31
	}
	return 0
}

// three is to = from op with.
func (a *assembler) three(wide bool, op uint32, to, from, with register) {
	a.word(op | wideBit(wide) | uint32(with)<<16 | uint32(from)<<5 | uint32(to))
}

// addShifted is to = from + with << by.
func (a *assembler) addShifted(to, from, with register, by uint32) {
	a.word(opAdd | wideBit(true) | uint32(with)<<16 | by<<10 | uint32(from)<<5 | uint32(to))
}

func (a *assembler) move(to, from register) {
	if to != from {
		a.three(true, opOr, to, zero, from)
	}
}

// choose is to = yes when the condition holds, otherwise no, no + 1 or not no, by the operation.
func (a *assembler) choose(wide bool, op uint32, condition byte, to, yes, no register) {
	a.three(wide, op|uint32(condition)<<12, to, yes, no)
}

func (a *assembler) set(to register, condition byte) {
	a.choose(true, opSelectInc, condition^1, to, zero, zero)
}

func (a *assembler) compare(wide bool, first, second register) {
	a.three(wide, opSubs, zero, first, second)
}

const (
	immediateAdd  = 0x91000000 // to = from + 12 bits
	immediateAdds = 0xb1000000
	immediateSub  = 0xd1000000
	immediateSubs = 0xf1000000
	shiftedBy12   = 1 << 22
)

func (a *assembler) immediate(op uint32, to, from register, value uint32) {
	a.word(op | value<<10 | uint32(from)<<5 | uint32(to))
}

// add is to = from + value. When the value is large it uses x1, which must not be from.
func (a *assembler) add(to, from register, value int64) {
	op, size := uint32(immediateAdd), value
	if value < 0 {
		op, size = immediateSub, -value
	}
	switch {
	case value == 0:
		a.move(to, from)
	case size < 1<<12:
		a.immediate(op, to, from, uint32(size))
	case size < 1<<24 && size&0xfff == 0:
		a.immediate(op|shiftedBy12, to, from, uint32(size>>12))
	default:
		a.constant(x1, value)
		a.three(true, opAdd, to, from, x1)
	}
}

// compareWith compares with 12 bits that have a sign.
func (a *assembler) compareWith(first register, value int64) {
	if value < 0 {
		a.immediate(immediateAdds, zero, first, uint32(-value))
		return
	}
	a.immediate(immediateSubs, zero, first, uint32(value))
}

// mask is to = from & ones, which stand from bit low to the one below high, modulo 64.
func (a *assembler) mask(to, from register, low, high uint32) {
	a.word(0x92400000 | (64-low)%64<<16 | (high-low-1)%64<<10 | uint32(from)<<5 | uint32(to))
}

// test sets the flags of from & ones, which stand from bit low to the one below high.
func (a *assembler) test(from register, low, high uint32) {
	a.word(0xf2400000 | (64-low)%64<<16 | (high-low-1)<<10 | uint32(from)<<5 | uint32(zero))
}

func (a *assembler) constant(to register, value int64) {
	const zeros, ones, keep = 0xd2800000, 0x92800000, 0xf2800000
	first, rest := zeros|uint32(uint16(value))<<5, uint16(0)
	if value < 0 {
		first, rest = ones|uint32(^uint16(value))<<5, 0xffff
	}
	a.word(first | uint32(to))
	for half := uint32(1); half < 4; half++ {
		if part := uint16(value >> (16 * half)); part != rest {
			a.word(keep | half<<21 | uint32(part)<<5 | uint32(to))
		}
	}
}

const (
	fieldSigned = 0x93400000 // bits of from, moved, with sign or zeros
	field       = 0xd3400000
)

func (a *assembler) field(op uint32, to, from register, rotate, last uint32) {
	a.word(op | rotate%64<<16 | last<<10 | uint32(from)<<5 | uint32(to))
}

// rotate rotates to the right.
func (a *assembler) rotate(wide bool, to, from register, by uint32) {
	op := uint32(0x13800000)
	if wide {
		op = 0x93c00000
	}
	a.word(op | uint32(from)<<16 | by<<10 | uint32(from)<<5 | uint32(to))
}

func (a *assembler) shiftLeft(to, from register, by uint32)  { a.field(field, to, from, 64-by, 63-by) }
func (a *assembler) shiftRight(to, from register, by uint32) { a.field(field, to, from, by, 63) }
func (a *assembler) signExtend(to, from register)            { a.field(fieldSigned, to, from, 0, 31) }

// access is what a load or store moves: its size as a power of two, a load's extension, and whether it is of a vector register.
type access struct {
	size, op uint32
	vector   bool
}

// bits are its part of an instruction.
func (m access) bits() uint32 {
	switch {
	case !m.vector:
		return m.size<<30 | m.op
	case m.size < 4:
		return 1<<26 | m.size<<30 | m.op
	}
	return 1<<26 | 2<<22 | m.op
}

const (
	store        = 0
	load         = 1 << 22
	loadSigned   = 2 << 22
	loadSigned32 = 3 << 22 // to 32 bits
)

// inHart moves between a register and the hart, at a multiple of the size.
func (a *assembler) inHart(m access, r register, offset uint32) { a.atDistance(m, r, hart, offset) }

// atDistance moves between a register and memory, at a multiple of the size from an address.
func (a *assembler) atDistance(m access, r, from register, distance uint32) {
	a.word(0x39000000 | m.bits() | distance>>m.size<<10 | uint32(from)<<5 | uint32(r))
}

// setPlace is place = the address of linear memory + the lower 32 bits of a register.
func (a *assembler) setPlace(place, at register) {
	a.word(0x8b204000 | uint32(at)<<16 | uint32(memory)<<5 | uint32(place))
}

// inMemory moves between a register and linear memory, at the lower 32 bits of another one.
func (a *assembler) inMemory(m access, r, at register) {
	a.word(0x38204800 | m.bits() | uint32(at)<<16 | uint32(memory)<<5 | uint32(r))
}

// Conditions, by their number in the encoding.
const (
	equal    = 0
	notEqual = 1
	notBelow = 2
	below    = 3
	above    = 8
	notLess  = 10
	less     = 11
	greater  = 12
)

// label is a place in the code, which may not be known yet.
type label struct {
	at    int // -1: not yet
	users []int
}

func (a *assembler) newLabel() *label { return &label{at: -1} }

func (a *assembler) bind(l *label) {
	l.at, a.isGuests = a.here(), false
	for _, u := range l.users {
		w := binary.LittleEndian.Uint32(a.code[u:])
		binary.LittleEndian.PutUint32(a.code[u:], w|distance(w, l.at-u))
	}
	l.users = nil
}

// distance is the field of a jump.
func distance(jump uint32, bytes int) uint32 {
	if jump>>26&^(1<<5) == 5 { // b, bl
		return uint32(bytes>>2) & (1<<26 - 1)
	}
	return uint32(bytes>>2) & (1<<19 - 1) << 5
}

func (a *assembler) reference(jump uint32, l *label) {
	if l.at >= 0 {
		jump |= distance(jump, l.at-a.here())
	} else {
		l.users = append(l.users, a.here())
	}
	a.word(jump)
}

func (a *assembler) jump(l *label) { a.reference(0x14000000, l) }

func (a *assembler) jumpIf(condition byte, l *label) { a.reference(0x54000000|uint32(condition), l) }

// call calls a routine. Meanwhile target has where ret returns to the machine.
func (a *assembler) call(l *label) {
	a.move(target, link)
	a.reference(0x94000000, l)
	a.move(link, target)
}

func (a *assembler) ret() { a.word(0xd65f03c0) }
