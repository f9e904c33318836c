package amd64

import (
	"encoding/binary"
	"math"
)

// register is a 64-bit register of the host, by its number in encodings.
type register uint8

const (
	rax register = iota
	rcx
	rdx
	rbx
	rsp
	rbp
	rsi
	rdi
	r8
	r9
	r10
	r11
	r12
	r13
	r14
	r15
)

// Registers with a meaning everywhere, see the package's comment.
const (
	memory  = r15
	entries = r14
	budget  = r13
	tlb     = r12
)

// assembler writes instructions. Only the forms that translations need are here; package verify has the same list, of its own.
type assembler struct {
	code      []byte
	labelRoom []label        // for new ones
	holds     [rdx + 1]uint8 // the guest register, in the hart, of which rax, rcx and rdx have the value; 0: none
	flagsAt   int            // where the host's flags are those of the guest's last comparison; 0: nowhere
}

// hold notes that a register has the value of a guest register.
func (a *assembler) hold(r register, guest uint8) {
	if r <= rdx {
		a.holds[r] = guest
	}
}

// forget notes that no register has the value of a guest register any more.
func (a *assembler) forget(guest uint8) {
	for at, held := range a.holds {
		if held == guest {
			a.holds[at] = 0
		}
	}
}

// overwrite notes that an instruction changes a register.
func (a *assembler) overwrite(r register) {
	a.hold(r, 0)
}

func (a *assembler) bytes(b ...byte) { a.code = append(a.code, b...) }
func (a *assembler) word(v int32)    { a.code = binary.LittleEndian.AppendUint32(a.code, uint32(v)) }
func (a *assembler) here() int       { return len(a.code) }
func high(r register) byte           { return byte(r) >> 3 }
func low(r register) byte            { return byte(r) & 7 }
func rex(w bool, r, x, b register) byte {
	prefix := byte(0x40) | high(r)<<2 | high(x)<<1 | high(b)
	if w {
		prefix |= 8
	}
	return prefix
}

// prefix writes a REX prefix where the instruction needs one, which operations on bytes of rbp, rsi and rdi always do.
func (a *assembler) prefix(wide bool, r, b register) {
	if p := rex(wide, r, 0, b); p != 0x40 {
		a.bytes(p)
	}
}

// Operations on two registers or a register and memory: the opcode whose destination is the r/m operand. Two bytes when above 0xff.
const (
	opAdd            = 0x01
	opOr             = 0x09
	opAnd            = 0x21
	opSub            = 0x29
	opXor            = 0x31
	opCmp            = 0x39
	opTest           = 0x85
	opMove           = 0x89
	opMove8          = 0x88
	opLoad           = 0x8b // of these on, the register is the destination
	opAddTo          = 0x03
	opOrTo           = 0x0b
	opAndTo          = 0x23
	opSubTo          = 0x2b
	opXorTo          = 0x33
	opCmpTo          = 0x3b
	opSignExtendWord = 0x63
	opLea            = 0x8d
	opImul           = 0x0faf
	opScanForward    = 0x0fbc // of zero: no particular value, and equal
	opScanReverse    = 0x0fbd
	opLoad8          = 0x0fb6
	opLoad16         = 0x0fb7
	opLoad8Signed    = 0x0fbe
	opLoad16Signed   = 0x0fbf
	opExchange       = 0x0fb1 // cmpxchg
	opExchange8      = 0x0fb0
)

func (a *assembler) opcode(op int) {
	if op > 0xff {
		a.bytes(byte(op >> 8))
	}
	a.bytes(byte(op))
}

// pair is an operation on two registers: reg and rm as in the encoding. wide: 64 bits.
func (a *assembler) pair(wide bool, op int, reg, rm register) {
	a.prefix(wide, reg, rm)
	a.opcode(op)
	a.bytes(0xc0 | low(reg)<<3 | low(rm))
	switch {
	case op == opCmp || op == opTest:
	case fromMemory(op):
		a.overwrite(reg)
	default:
		a.overwrite(rm)
	}
}

// fromMemory says whether the destination is reg.
func fromMemory(op int) bool {
	return op&^0x38 == opAddTo && op != opCmpTo || op == opLoad || op == opSignExtendWord || op > 0xff
}

func (a *assembler) move(to, from register) {
	if to != from {
		a.pair(true, opMove, from, to)
	}
}

// move32 makes the upper half zero.
func (a *assembler) move32(to, from register) { a.pair(false, opMove, from, to) }

// hart is an operation on a constant place in linear memory.
func (a *assembler) hart(wide bool, op int, reg register, at uint32) {
	a.bytes(rex(wide, reg, 0, memory))
	a.opcode(op)
	a.bytes(0x80 | low(reg)<<3 | low(memory))
	a.word(int32(at))
	if fromMemory(op) {
		a.overwrite(reg)
	}
}

// tlbWord is an operation on a register and a word of the TLB.
func (a *assembler) tlbWord(wide bool, op int, reg register, distance uint32) {
	a.bytes(rex(wide, reg, 0, tlb))
	a.opcode(op)
	a.bytes(0x84|low(reg)<<3, 0x24) // r12 as base needs a second byte, with no index
	a.word(int32(distance))
	a.overwrite(reg)
}

// indexed is an operation on [base + index] with one of the fixed bases, or [base + index + distance].
func (a *assembler) indexed(wide bool, op int, reg, base, index register, distance uint32) {
	a.bytes(rex(wide, reg, index, base))
	a.opcode(op)
	if fromMemory(op) {
		a.overwrite(reg)
	}
	switch {
	case distance == 0 && low(base) != 5:
		a.bytes(0x04|low(reg)<<3, low(index)<<3|low(base))
	case distance <= math.MaxInt8:
		a.bytes(0x44|low(reg)<<3, low(index)<<3|low(base), byte(distance))
	default:
		a.bytes(0x84|low(reg)<<3, low(index)<<3|low(base))
		a.word(int32(distance))
	}
}

// lea is to = from + distance, with all 64 bits, or the lower 32 extended with zeros.
func (a *assembler) lea(wide bool, to, from register, distance int32) {
	a.prefix(wide, to, from)
	a.bytes(opLea)
	a.overwrite(to)
	sib := func() {
		if low(from) == 4 {
			a.bytes(0x24)
		}
	}
	if distance == int32(int8(distance)) {
		a.bytes(0x40 | low(to)<<3 | low(from))
		sib()
		a.bytes(byte(distance))
		return
	}
	a.bytes(0x80 | low(to)<<3 | low(from))
	sib()
	a.word(distance)
}

// Operations with an immediate operand: the number in the encoding.
const (
	immediateAdd = 0
	immediateOr  = 1
	immediateAnd = 4
	immediateSub = 5
	immediateXor = 6
	immediateCmp = 7
)

func (a *assembler) immediate(wide bool, op byte, to register, value int32) {
	if op != immediateCmp {
		a.overwrite(to)
	}
	if value == int32(int8(value)) {
		a.prefix(wide, 0, to)
		a.bytes(0x83, 0xc0|op<<3|low(to), byte(value))
		return
	}
	a.prefix(wide, 0, to)
	a.bytes(0x81, 0xc0|op<<3|low(to))
	a.word(value)
}

// hartAdd adds to a place in linear memory.
func (a *assembler) hartAdd(at uint32, value int32) {
	a.bytes(rex(true, 0, 0, memory), 0x81, 0x80|low(memory))
	a.word(int32(at))
	a.word(value)
}

// hartSet sets a place in linear memory, of 64 bits.
func (a *assembler) hartSet(at uint32, value int32) {
	a.bytes(rex(true, 0, 0, memory), 0xc7, 0x80|low(memory))
	a.word(int32(at))
	a.word(value)
}

// constant sets a register, to a value that 32 bits have.
func (a *assembler) constant(to register, value int32) {
	switch {
	case value == 0:
		a.pair(false, opXor, to, to)
		return
	case value > 0: // the upper half becomes zero
		a.prefix(false, 0, to)
		a.bytes(0xb8 | low(to))
	default:
		a.bytes(rex(true, 0, 0, to), 0xc7, 0xc0|low(to))
	}
	a.word(value)
	a.overwrite(to)
}

// Shifts and operations of one operand: the number in the encoding.
const (
	rotateLeft      = 0
	rotateRight     = 1
	shiftLeft       = 4
	shiftRight      = 5
	shiftArithmetic = 7

	unaryNot            = 2
	unaryNegate         = 3
	unaryMultiply       = 4
	unaryMultiplySigned = 5
	unaryDivide         = 6
	unaryDivideSigned   = 7
)

func (a *assembler) shift(wide bool, op byte, r register, by uint8) {
	a.prefix(wide, 0, r)
	a.bytes(0xc1, 0xc0|op<<3|low(r), by)
	a.overwrite(r)
}

// shiftCL shifts by the lowest bits of rcx.
func (a *assembler) shiftCL(wide bool, op byte, r register) {
	a.prefix(wide, 0, r)
	a.bytes(0xd3, 0xc0|op<<3|low(r))
	a.overwrite(r)
}

func (a *assembler) unary(wide bool, op byte, r register) {
	a.prefix(wide, 0, r)
	a.bytes(0xf7, 0xc0|op<<3|low(r))
	a.overwrite(r)
	if op >= unaryMultiply {
		a.overwrite(rax)
		a.overwrite(rdx)
	}
}

// signIntoRDX is cqo or cdq.
func (a *assembler) signIntoRDX(wide bool) {
	a.bytes(rex(wide, 0, 0, 0), 0x99)
	a.overwrite(rdx)
}

// swapBytes reverses the bytes of rax.
func (a *assembler) swapBytes() {
	a.bytes(0x48, 0x0f, 0xc8)
	a.overwrite(rax)
}

// Operations of the floating-point unit on xmm0: the opcode behind 0x0f.
const (
	floatMove       = 0x10
	floatConvert    = 0x2a // from a register
	floatToInteger  = 0x2d // to a register, as MXCSR rounds: to nearest, ties to even
	floatTruncate   = 0x2c // to a register
	floatCompare    = 0x2e // with xmm0
	floatSquareRoot = 0x51
	floatAdd        = 0x58
	floatMultiply   = 0x59
	floatWiden      = 0x5a // a single to a double, and with double's prefix the other way
	floatSubtract   = 0x5c
	floatMinimum    = 0x5d
	floatDivide     = 0x5e
	floatMaximum    = 0x5f

	floatComparePacked = 0xc2

	double, single = 0xf2, 0xf3 // prefixes
)

// hartFloat is an operation on xmm0, or a register, and a place in linear memory.
func (a *assembler) hartFloat(precision byte, wide bool, op byte, reg register, at uint32) {
	if op != floatCompare {
		a.bytes(precision)
	} else if precision == double {
		a.bytes(0x66)
	}
	a.bytes(rex(wide, reg, 0, memory), 0x0f, op, 0x80|low(reg)<<3|low(memory))
	a.word(int32(at))
	if op == floatToInteger || op == floatTruncate {
		a.overwrite(reg)
	}
}

// Operations on vectors of 16 bytes: the opcode behind 0x0f, two bytes when above 0xff.
const (
	vectorLoad        = 0x6f
	vectorStore       = 0x7f
	vectorLoadLow     = 0x7e // 8 bytes, zeros above; with the prefix of single
	vectorStoreLow    = 0xd6
	vectorShuffle     = 0x70 // of words of 32 bits, with an immediate
	vectorShift16     = 0x71 // these three with an immediate
	vectorShift32     = 0x72
	vectorShift64     = 0x73
	vectorAnd         = 0xdb
	vectorAndNot      = 0xdf
	vectorOr          = 0xeb
	vectorXor         = 0xef
	vectorEqual32     = 0x76
	vectorPackBytes   = 0x67 // words with a sign, to bytes without
	vectorPackWords   = 0x6b // 32 bits to 16, with signs
	vectorAlign       = 0x3a0f
	vectorShiftLeft   = 6 // numbers of shifts
	vectorShiftRight  = 2
	vectorShiftArithm = 4
)

// vector is an operation on a vector register and 16 bytes of linear memory, aligned to as many, or 8 for the operations on the lower half.
func (a *assembler) vector(op int, x register, at uint32) {
	prefix := byte(0x66)
	if op == vectorLoadLow {
		prefix = single
	}
	a.bytes(prefix, rex(false, x, 0, memory), 0x0f)
	a.opcode(op)
	a.bytes(0x80 | low(x)<<3 | low(memory))
	a.word(int32(at))
}

// vectors is an operation on two vector registers.
func (a *assembler) vectors(op int, x, y register) {
	a.bytes(0x66, rex(false, x, 0, y), 0x0f)
	a.opcode(op)
	a.bytes(0xc0 | low(x)<<3 | low(y))
}

// packed is an operation on all numbers of two vector registers, with the opcodes of those on one.
func (a *assembler) packed(precision, op byte, x, y register) {
	if precision == double {
		a.bytes(0x66)
	}
	a.bytes(rex(false, x, 0, y), 0x0f, op, 0xc0|low(x)<<3|low(y))
}

// comparePacked is packed with a comparison, which makes ones of bits where it holds.
func (a *assembler) comparePacked(precision byte, x, y register, how byte) {
	a.packed(precision, floatComparePacked, x, y)
	a.bytes(how)
}

// signsOf makes a register the signs of a vector register's bytes.
func (a *assembler) signsOf(to, x register) {
	a.bytes(0x66, rex(false, to, 0, x), 0x0f, 0xd7, 0xc0|low(to)<<3|low(x))
	a.overwrite(to)
}

// fusedPacked makes xmm0, and the numbers of xmm0 times those of xmm2, or with the opposite sign, plus those of xmm1.
func (a *assembler) fusedPacked(precision, op byte) {
	second := byte(vexXMM1)
	if precision == double {
		second |= vexDouble
	}
	a.bytes(vex, vexMapRegisters, second, op&^1, 0xc2)
}

// vectorShift shifts the elements of a vector register.
func (a *assembler) vectorShift(op int, kind byte, x register, by uint8) {
	a.bytes(0x66, rex(false, 0, 0, x), 0x0f, byte(op), 0xc0|kind<<3|low(x), by)
}

// Fused operations: xmm0 times a place in memory, negated or not, and xmm1 added or subtracted.
const (
	fusedAdd                  = 0x99
	fusedSubtract             = 0x9b
	fusedNegatedAdd           = 0x9d
	fusedNegatedSubtract      = 0x9f
	vex, vexMap, vexXMM1      = 0xc4, 0xc2, 0x71 // 0f 38, with r15 as the base; 66, xmm1 the second operand
	vexMapRegisters           = 0xe2
	vexDouble            byte = 0x80
)

// fused is a fused operation (FMA3: vfmadd132sd and its kin).
func (a *assembler) fused(precision, op byte, at uint32) {
	second := byte(vexXMM1)
	if precision == double {
		second |= vexDouble
	}
	a.bytes(vex, vexMap, second, op, 0x80|low(memory))
	a.word(int32(at))
}

// convert makes xmm0 the number that a register has, of 64 bits or 32 with a sign.
func (a *assembler) convert(precision byte, wide bool, from register) {
	a.bytes(precision, rex(wide, 0, 0, from), 0x0f, floatConvert, 0xc0|low(from))
}

// moveFloat copies xmm0 to a register: 64 bits, or 32 extended with zeros.
func (a *assembler) moveFloat(wide bool, to register) {
	a.bytes(0x66, rex(wide, 0, 0, to), 0x0f, 0x7e, 0xc0|low(to))
	a.overwrite(to)
}

// Conditions, by their number in the encoding.
const (
	overflow     = 0
	notOverflow  = 1
	below        = 2
	notBelow     = 3
	equal        = 4
	notEqual     = 5
	belowOrEqual = 6
	above        = 7
	negative     = 8
	notNegative  = 9
	unordered    = 10
	less         = 12
	notLess      = 13
	lessOrEqual  = 14
	greater      = 15
)

// set makes al 0 or 1 and extends it.
func (a *assembler) set(condition byte) {
	a.bytes(0x40, 0x0f, 0x90|condition, 0xc0)
	a.pair(false, opLoad8, rax, rax)
}

func (a *assembler) moveIf(wide bool, condition byte, to, from register) {
	a.bytes(rex(wide, to, 0, from), 0x0f, 0x40|condition, 0xc0|low(to)<<3|low(from))
	a.overwrite(to)
}

// label is a place in the code, which may not be known yet. Until then each reference to it has, where the distance will be, the place of the one
// before it.
type label struct {
	at   int // -1: not yet
	last int // place of the last reference; 0: there is none
}

// labelRoom is for how many labels memory is taken at once.
const labelRoom = 256

func (a *assembler) newLabel() *label {
	if len(a.labelRoom) == 0 {
		a.labelRoom = make([]label, labelRoom)
	}
	l := &a.labelRoom[0]
	a.labelRoom = a.labelRoom[1:]
	l.at = -1
	return l
}

func (a *assembler) bind(l *label) {
	l.at = a.here()
	a.holds, a.flagsAt = [rdx + 1]uint8{}, 0
	for u := l.last; u != 0; {
		place := a.code[u : u+4]
		before := int(binary.LittleEndian.Uint32(place))
		binary.LittleEndian.PutUint32(place, uint32(int32(l.at-u-4)))
		u = before
	}
}

func (a *assembler) reference(l *label) {
	if l.at >= 0 {
		a.word(int32(l.at - a.here() - 4))
		return
	}
	before := l.last
	l.last = a.here()
	a.word(int32(before))
}

func (a *assembler) jump(l *label) { a.bytes(0xe9); a.reference(l) }

func (a *assembler) jumpIf(condition byte, l *label) { a.bytes(0x0f, 0x80|condition); a.reference(l) }

func (a *assembler) call(l *label) { a.bytes(0xe8); a.reference(l) }

func (a *assembler) ret() { a.bytes(0xc3) }
