package amd64

import (
	"sync"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

type a64Emitter func(t *a64Translator, w a64.Word)

// a64Chooser gives what translates a word of a row, nil: the interpreter executes it.
type a64Chooser func(w a64.Word) a64Emitter

// a64Emitters has the rows that are translated, all or some of their words. Branches are not among them.
// It is made for the first page.
var a64Emitters = sync.OnceValue(allA64Emitters)

func allA64Emitters() map[*a64.Instruction]a64Chooser {
	all := map[*a64.Instruction]a64Chooser{}
	for i := range a64.Table {
		row := &a64.Table[i]
		if row.Group == "simd" {
			if choose := a64SIMD(row); choose != nil {
				all[row] = choose
			}
		} else if row.Group == "vfp" {
			if e := a64VectorFloat(row); e != nil {
				all[row] = always(e)
			}
		} else if row.Group == "system" {
			all[row] = func(w a64.Word) a64Emitter { return a64System(row, w) }
		} else if e := a64EmitterOf(row); e != nil {
			all[row] = func(a64.Word) a64Emitter { return e }
		}
	}
	return all
}

func a64EmitterOf(row *a64.Instruction) a64Emitter {
	switch row.Group {
	case "branch":
		if row.Format == a64.FormatADR {
			return (*a64Translator).addressOf
		}
	case "nop":
		return func(*a64Translator, a64.Word) {}
	case "alu":
		return a64ALU(row)
	case "memory", "vmemory":
		return a64Memory(row)
	case "structure":
		return a64Structure(row)
	case "exclusive":
		return a64Exclusive(row)
	case "atomic":
		return a64Atomic(row)
	case "fp":
		return a64Float(row)
	case "crypto":
		return a64Crypto(row)
	}
	return nil
}

func a64ALU(row *a64.Instruction) a64Emitter {
	switch row.Format {
	case a64.FormatADDI:
		return (*a64Translator).addImmediate
	case a64.FormatLOGI:
		return (*a64Translator).logicImmediate
	case a64.FormatMOVW:
		return (*a64Translator).moveWide
	case a64.FormatBFM:
		return (*a64Translator).bitField
	case a64.FormatEXTR:
		return (*a64Translator).extract
	case a64.FormatSHIFT:
		return (*a64Translator).shiftedRegister
	case a64.FormatEXT:
		return (*a64Translator).extendedRegister
	case a64.FormatCC:
		return (*a64Translator).conditionalCompare
	case a64.FormatCSEL:
		return (*a64Translator).conditionalSelect
	case a64.FormatR2:
		return a64OneSource(row.Name)
	case a64.FormatR3:
		return a64TwoSources(row.Name)
	case a64.FormatR4:
		return (*a64Translator).multiplyAdd
	}
	return nil
}

// setStack notes what is known of SP when an instruction with an immediate operand writes it.
func (t *a64Translator) setStack(rd, rn uint8, distance int64) {
	if rd == blocks.StackA64 {
		t.stackIsAligned = t.stackIsAligned && rn == blocks.StackA64 && distance&15 == 0
	}
}

// addressOf is ADR and ADRP.
func (t *a64Translator) addressOf(w a64.Word) {
	distance := w.Signed(5, 19)<<2 | int64(w.Field(29, 2))
	if w.Bit(31) {
		distance <<= 12
	} else {
		distance += int64(t.at)
	}
	to := t.target(blocks.ZeroOf(w.Rd()))
	t.address(to, distance)
	t.setGuest(blocks.ZeroOf(w.Rd()), to)
}

func (t *a64Translator) addImmediate(w a64.Word) {
	value := int32(w.Field(10, 12))
	if w.Bit(22) {
		value <<= 12
	}
	subtracts := w.Bit(30)
	if w.Bit(29) {
		kind := blocks.SizedFlags(w.Wide())
		if !subtracts { // the flags of a + b are those of a - (-b), and of a alone when b is zero
			if value == 0 {
				kind = blocks.FlagsLogic
			}
			value = -value
		}
		t.compareImmediate(w, kind, value)
		return
	}
	if subtracts {
		value = -value
	}
	rd, rn := w.Rd(), w.Rn()
	t.setStack(rd, rn, int64(value))
	to := t.target(rd)
	switch from := t.inHost[rn]; {
	case from != 0 && from == to && w.Wide():
		if value != 0 {
			t.immediate(true, immediateAdd, to, value)
		}
	case from != 0:
		t.lea(w.Wide(), to, from, value)
	default:
		t.copyOf(rn, to)
		if value != 0 || !w.Wide() {
			t.immediate(w.Wide(), immediateAdd, to, value)
		}
	}
	t.setGuest(rd, to)
}

// compareImmediate is SUBS with an immediate operand, and CMP, when rd is XZR.
func (t *a64Translator) compareImmediate(w a64.Word, kind, value int32) {
	wide, rn, rd := w.Wide(), w.Rn(), blocks.ZeroOf(w.Rd())
	a := t.inHost[rn]
	if !wide || a == 0 || rd != blocks.ZeroA64 {
		t.extended(rax, rn, wide)
		a = rax
	}
	t.hart(true, opMove, a, t.layout.ARM64.FlagA)
	t.hartSet(t.layout.ARM64.FlagB, value)
	t.setFlags(kind)
	if rd == blocks.ZeroA64 {
		t.immediate(wide, immediateCmp, a, value)
	} else {
		t.immediate(wide, immediateSub, rax, value)
		t.setGuest(rd, rax)
	}
	t.keepFlags() // with a zero, also those of a logical operation
}

// a64LogicalImmediate gives the mask of a logical instruction (C3.4.2, DecodeBitMasks); the table has none of those that are reserved.
func a64LogicalImmediate(w a64.Word) uint64 {
	rotation, ones, size := w.Field(16, 6), w.Field(10, 6), uint32(64)
	if !w.Bit(22) {
		for size = 32; size > 1 && ones&size != 0; {
			size /= 2
		}
	}
	ones &= size - 1
	rotation &= size - 1
	all := ^uint64(0) >> (64 - size)
	element := uint64(1)<<(ones+1) - 1
	if ones == 63 {
		element = ^uint64(0)
	}
	element = (element>>rotation | element<<(size-rotation)) & all
	for ; size < 64; size *= 2 {
		element |= element << size
	}
	if !w.Wide() {
		element = uint64(uint32(element))
	}
	return element
}

// constant64 sets a register to any value.
func (t *a64Translator) constant64(to register, v uint64) {
	switch {
	case int64(v) == int64(int32(v)):
		t.constant(to, int32(v))
	case v <= 1<<32-1: // the lower half, extended with zeros
		t.constant(to, int32(v))
		t.move32(to, to)
	default:
		t.constant(to, int32(v>>32))
		for _, part := range []uint64{v >> 16 & 0xffff, v & 0xffff} {
			t.shift(true, shiftLeft, to, 16)
			if part != 0 {
				t.immediate(true, immediateOr, to, int32(part))
			}
		}
	}
}

var logicOperations = [4]struct {
	immediate byte
	to, pair  int
}{{immediateAnd, opAndTo, opAnd}, {immediateOr, opOrTo, opOr}, {immediateXor, opXorTo, opXor}, {immediateAnd, opAndTo, opAnd}}

func (t *a64Translator) logicImmediate(w a64.Word) {
	kind, wide, mask := w.Field(29, 2), w.Wide(), a64LogicalImmediate(w)
	rn, rd := blocks.ZeroOf(w.Rn()), w.Rd()
	if kind == 3 {
		rd = blocks.ZeroOf(rd)
	}
	if rd == blocks.StackA64 {
		t.stackIsAligned = false
	}
	op := logicOperations[kind]
	short := !wide || int64(mask) == int64(int32(mask))
	if kind == 3 {
		t.copyOf(rn, rax)
		if short {
			t.immediate(wide, op.immediate, rax, int32(mask))
		} else {
			t.constant64(rcx, mask)
			t.pair(true, opAnd, rcx, rax)
		}
		t.logicFlags(wide, rd)
		return
	}
	if kind == 1 && rn == blocks.ZeroA64 { // MOV
		to := t.target(rd)
		t.constant64(to, mask)
		t.setGuest(rd, to)
		return
	}
	to := t.target(rd)
	if !short {
		t.constant64(rcx, mask)
		t.copyOf(rn, to)
		t.pair(true, op.pair, rcx, to)
		t.setGuest(rd, to)
		return
	}
	t.copyOf(rn, to)
	t.immediate(wide, op.immediate, to, int32(mask))
	t.setGuest(rd, to)
}

// logicFlags gives a register what is in rax, and the flags of it.
func (t *a64Translator) logicFlags(wide bool, rd uint8) {
	if rd != blocks.ZeroA64 {
		t.setGuest(rd, rax)
	}
	if !wide {
		t.pair(true, opSignExtendWord, rax, rax)
	}
	t.hart(true, opMove, rax, t.layout.ARM64.FlagA)
	t.hartSet(t.layout.ARM64.FlagB, 0)
	t.setFlags(blocks.FlagsLogic)
	t.pair(true, opTest, rax, rax)
	t.keepFlags()
}

func (t *a64Translator) moveWide(w a64.Word) {
	shift := uint8(w.Field(21, 2) * 16)
	value, rd := uint64(w.Field(5, 16))<<shift, blocks.ZeroOf(w.Rd())
	to := t.target(rd)
	switch w.Field(29, 2) {
	case 0:
		value = ^value
		if !w.Wide() {
			value = uint64(uint32(value))
		}
		t.constant64(to, value)
	case 2:
		t.constant64(to, value)
	default: // MOVK: the part comes to the right, and goes back
		t.copyOf(rd, to)
		if !w.Wide() {
			t.move32(to, to)
		}
		if shift != 0 {
			t.shift(w.Wide(), rotateRight, to, shift)
		}
		t.immediate(w.Wide(), immediateAnd, to, -1<<16)
		if part := int32(w.Field(5, 16)); part != 0 {
			t.immediate(w.Wide(), immediateOr, to, part)
		}
		if shift != 0 {
			t.shift(w.Wide(), rotateLeft, to, shift)
		}
	}
	t.setGuest(rd, to)
}

// bitField is SBFM, BFM and UBFM: up to the top, then down to their place.
func (t *a64Translator) bitField(w a64.Word) {
	wide, top := w.Wide(), uint8(31)
	if wide {
		top = 63
	}
	r, s, kind := uint8(w.Field(16, 6)), uint8(w.Field(10, 6)), w.Field(29, 2)
	rn, rd := blocks.ZeroOf(w.Rn()), blocks.ZeroOf(w.Rd())
	up, down := top-s, r-s-1
	if s >= r {
		down = top - s + r
	}
	if kind == 1 {
		t.insert(w, up, down, top)
		return
	}
	to := t.target(rd)
	switch {
	case kind == 0 && r == 0 && s == 31 && wide: // SXTW
		t.pair(true, opSignExtendWord, to, t.value(rn, rax))
		t.setGuest(rd, to)
		return
	case kind == 2 && r == 0 && s == 31:
		t.move32(to, t.value(rn, rax))
		t.setGuest(rd, to)
		return
	case kind == 2 && s >= r && s-r < 31: // some bits
		t.move32Or64(wide, to, rn)
		if r != 0 {
			t.shift(wide, shiftRight, to, r)
		}
		if s != top {
			t.immediate(false, immediateAnd, to, int32(1)<<(s-r+1)-1)
		}
		t.setGuest(rd, to)
		return
	}
	t.move32Or64(wide, to, rn)
	if up != 0 {
		t.shift(wide, shiftLeft, to, up)
	}
	switch {
	case down == 0:
	case kind == 0:
		t.shift(wide, shiftArithmetic, to, down)
	default:
		t.shift(wide, shiftRight, to, down)
	}
	t.setGuest(rd, to)
}

// insert is BFM.
func (t *a64Translator) insert(w a64.Word, up, down, top uint8) {
	wide, size := w.Wide(), top+1
	r, s := uint8(w.Field(16, 6)), uint8(w.Field(10, 6))
	rd := blocks.ZeroOf(w.Rd())
	width, at := s+1, size-r // of the bits, and where they go
	if s >= r {
		width, at = s-r+1, 0
	}
	t.move32Or64(wide, rax, blocks.ZeroOf(w.Rn()))
	if up != 0 {
		t.shift(wide, shiftLeft, rax, up)
	}
	if down != 0 {
		t.shift(wide, shiftRight, rax, down)
	}
	if width < size { // the rest is the destination's
		t.copyOf(rd, rcx)
		if at&top != 0 {
			t.shift(wide, rotateRight, rcx, at)
		}
		t.shift(wide, shiftRight, rcx, width)
		t.shift(wide, shiftLeft, rcx, width)
		if at&top != 0 {
			t.shift(wide, rotateLeft, rcx, at)
		}
		t.pair(wide, opOr, rcx, rax)
	}
	t.setGuest(rd, rax)
}

func (t *a64Translator) extract(w a64.Word) {
	wide, low, size := w.Wide(), uint8(w.Field(10, 6)), uint8(32)
	if wide {
		size = 64
	}
	rn, rm, rd := blocks.ZeroOf(w.Rn()), blocks.ZeroOf(w.Rm()), blocks.ZeroOf(w.Rd())
	t.move32Or64(wide, rax, rm)
	switch {
	case low == 0:
	case rn == rm:
		t.shift(wide, rotateRight, rax, low)
	default:
		t.shift(wide, shiftRight, rax, low)
		t.copyOf(rn, rcx)
		t.shift(wide, shiftLeft, rcx, size-low)
		t.pair(wide, opOr, rcx, rax)
	}
	t.setGuest(rd, rax)
}

var a64Shifts = [4]byte{shiftLeft, shiftRight, shiftArithmetic, rotateRight}

func (t *a64Translator) shiftedRegister(w a64.Word) {
	wide, isLogic := w.Wide(), !w.Bit(24)
	kind, amount, inverts := w.Field(22, 2), uint8(w.Field(10, 6)), isLogic && w.Bit(21)
	rn, rm, rd := blocks.ZeroOf(w.Rn()), blocks.ZeroOf(w.Rm()), blocks.ZeroOf(w.Rd())
	plain := amount == 0 && !inverts
	if isLogic && w.Field(29, 2) == 1 && plain && rn == blocks.ZeroA64 { // MOV
		if from := t.inHost[rm]; from != 0 && wide {
			t.setGuest(rd, from)
			return
		}
		to := t.target(rd)
		t.move32Or64(wide, to, rm)
		t.setGuest(rd, to)
		return
	}
	if !plain {
		t.copyOf(rm, rcx)
		if amount != 0 {
			t.shift(wide, a64Shifts[kind], rcx, amount)
		}
		if inverts {
			t.immediate(true, immediateXor, rcx, -1)
		}
	}
	if isLogic {
		t.logic(w, rd, rn, rm, plain)
		return
	}
	t.addOrSubtract(w, rd, rn, rm, plain)
}

// combine is an operation whose second operand is a register, when that is plain, or in rcx.
func (t *a64Translator) combine(wide bool, op int, to register, rm uint8, plain bool) {
	if plain {
		t.operation(wide, op, to, rm)
		return
	}
	t.pair(wide, op, to, rcx)
}

func (t *a64Translator) logic(w a64.Word, rd, rn, rm uint8, plain bool) {
	wide, kind := w.Wide(), w.Field(29, 2)
	op := logicOperations[kind].to
	if kind == 3 {
		t.copyOf(rn, rax)
		t.combine(wide, op, rax, rm, plain)
		t.logicFlags(wide, rd)
		return
	}
	to := t.target(rd, rm)
	t.copyOf(rn, to)
	t.combine(wide, op, to, rm, plain)
	t.setGuest(rd, to)
}

// addOrSubtract has its second operand in rm, when that is plain, or in rcx.
func (t *a64Translator) addOrSubtract(w a64.Word, rd, rn, rm uint8, plain bool) {
	wide, subtracts := w.Wide(), w.Bit(30)
	if !w.Bit(29) {
		op := opAddTo
		if subtracts {
			op = opSubTo
		}
		to := t.target(rd, rm)
		t.copyOf(rn, to)
		t.combine(wide, op, to, rm, plain)
		t.setGuest(rd, to)
		return
	}
	b := rcx
	switch {
	case !plain && !wide:
		t.pair(true, opSignExtendWord, rcx, rcx)
	case !plain:
	case wide && t.inHost[rm] != 0 && subtracts:
		b = t.inHost[rm]
	default:
		t.extended(rcx, rm, wide)
	}
	if !subtracts {
		t.addFlags(rd, rn, wide)
		return
	}
	a := t.inHost[rn]
	if !wide || a == 0 || rd != blocks.ZeroA64 {
		t.extended(rax, rn, wide)
		a = rax
	}
	t.subtractFlags(wide, a, b)
	if rd == blocks.ZeroA64 {
		t.pair(wide, opCmp, b, a)
	} else {
		t.pair(wide, opSub, b, rax)
		t.setGuest(rd, rax)
	}
	t.keepFlags()
}

// addFlags is ADDS of a register and what is in rcx, with its sign when only the lower half counts: a - (-b), and of a alone when b is zero.
func (t *a64Translator) addFlags(rd, rn uint8, wide bool) {
	t.unary(wide, unaryNegate, rcx)
	t.jumpIf(overflow, t.miss()) // there is no -b
	t.set(equal)
	t.move(rdx, rax)
	if wide {
		t.shift(false, shiftLeft, rdx, 1) // blocks.FlagsSub64 or blocks.FlagsLogic
	} else {
		t.immediate(false, immediateAdd, rdx, blocks.FlagsSub32) // or blocks.FlagsLogic
		t.pair(true, opSignExtendWord, rcx, rcx)
	}
	t.extended(rax, rn, wide)
	t.hart(true, opMove, rax, t.layout.ARM64.FlagA)
	t.hart(true, opMove, rcx, t.layout.ARM64.FlagB)
	t.hart(true, opMove, rdx, t.layout.ARM64.Flags)
	t.flags, t.flagsAt = a64Flags{kind: blocks.FlagsLogic, looked: true}, 0
	if rd != blocks.ZeroA64 {
		t.pair(wide, opSub, rcx, rax)
		t.setGuest(rd, rax)
	}
}

func (t *a64Translator) extendedRegister(w a64.Word) {
	rm, rn, rd := blocks.ZeroOf(w.Rm()), w.Rn(), w.Rd()
	if w.Bit(29) {
		rd = blocks.ZeroOf(rd)
	}
	if rd == blocks.StackA64 {
		t.stackIsAligned = false
	}
	t.extend(rcx, rm, w.Field(13, 3))
	if shift := uint8(w.Field(10, 3)); shift != 0 {
		t.shift(true, shiftLeft, rcx, shift)
	}
	t.addOrSubtract(w, rd, rn, blocks.ZeroA64, false)
}

// extend loads a register as `option` says (B.ExtendReg).
func (t *a64Translator) extend(to register, r uint8, option uint32) {
	switch option {
	case 2:
		t.move32(to, t.value(r, to))
	case 6:
		t.pair(true, opSignExtendWord, to, t.value(r, to))
	case 3, 7:
		t.copyOf(r, to)
	case 0:
		t.copyOf(r, to)
		t.immediate(false, immediateAnd, to, 0xff)
	case 1:
		t.copyOf(r, to)
		t.immediate(false, immediateAnd, to, 0xffff)
	default:
		unused := uint8(56)
		if option == 5 {
			unused = 48
		}
		t.copyOf(r, to)
		t.shift(true, shiftLeft, to, unused)
		t.shift(true, shiftArithmetic, to, unused)
	}
}

func a64OneSource(name string) a64Emitter {
	switch name {
	case "rev.x":
		return func(t *a64Translator, w a64.Word) {
			t.copyOf(blocks.ZeroOf(w.Rn()), rax)
			t.swapBytes()
			t.setGuest(blocks.ZeroOf(w.Rd()), rax)
		}
	case "rev.w", "rev32.x":
		return func(t *a64Translator, w a64.Word) {
			t.copyOf(blocks.ZeroOf(w.Rn()), rax)
			t.swapBytes()
			if w.Wide() {
				t.shift(true, rotateRight, rax, 32)
			} else {
				t.shift(true, shiftRight, rax, 32)
			}
			t.setGuest(blocks.ZeroOf(w.Rd()), rax)
		}
	case "rev16.w":
		return func(t *a64Translator, w a64.Word) {
			t.copyOf(blocks.ZeroOf(w.Rn()), rax)
			t.swapBytes()
			t.shift(true, shiftRight, rax, 32)
			t.shift(false, rotateRight, rax, 16)
			t.setGuest(blocks.ZeroOf(w.Rd()), rax)
		}
	case "clz.w", "clz.x":
		return func(t *a64Translator, w a64.Word) {
			t.move32Or64(w.Wide(), rax, blocks.ZeroOf(w.Rn()))
			t.leadingZeros(w.Wide())
			t.setGuest(blocks.ZeroOf(w.Rd()), rax)
		}
	case "cls.w", "cls.x": // how many bits below the sign equal it
		return func(t *a64Translator, w a64.Word) {
			t.extended(rax, blocks.ZeroOf(w.Rn()), w.Wide())
			t.move(rcx, rax)
			t.shift(true, shiftLeft, rcx, 1)
			t.pair(true, opXor, rcx, rax)
			t.immediate(true, immediateOr, rax, 1)
			if !w.Wide() {
				t.move32(rax, rax)
			}
			t.leadingZeros(w.Wide())
			t.setGuest(blocks.ZeroOf(w.Rd()), rax)
		}
	case "rbit.w", "rbit.x":
		return func(t *a64Translator, w a64.Word) {
			t.copyOf(blocks.ZeroOf(w.Rn()), rax)
			for i, mask := range []uint64{0x5555555555555555, 0x3333333333333333, 0x0f0f0f0f0f0f0f0f} {
				t.constant64(rcx, mask)
				t.move(rdx, rax)
				t.shift(true, shiftRight, rdx, 1<<i)
				t.pair(true, opAnd, rcx, rdx)
				t.pair(true, opAnd, rcx, rax)
				t.shift(true, shiftLeft, rax, 1<<i)
				t.pair(true, opOr, rdx, rax)
			}
			t.swapBytes()
			if !w.Wide() {
				t.shift(true, shiftRight, rax, 32)
			}
			t.setGuest(blocks.ZeroOf(w.Rd()), rax)
		}
	}
	return nil
}

// leadingZeros counts those of rax, which has zeros above 32 bits when it is not wide.
func (t *a64Translator) leadingZeros(wide bool) {
	size := int32(32)
	if wide {
		size = 64
	}
	zero, done := t.newLabel(), t.newLabel()
	t.pair(true, opScanReverse, rax, rax)
	t.jumpIf(equal, zero)
	t.immediate(true, immediateXor, rax, size-1)
	t.jump(done)
	t.bind(zero)
	t.constant(rax, size)
	t.bind(done)
}

func a64TwoSources(name string) a64Emitter {
	switch name {
	case "udiv.w", "udiv.x", "sdiv.w", "sdiv.x":
		return (*a64Translator).divide
	case "smulh", "umulh":
		op := byte(unaryMultiply)
		if name == "smulh" {
			op = unaryMultiplySigned
		}
		return func(t *a64Translator, w a64.Word) {
			t.copyOf(blocks.ZeroOf(w.Rn()), rax)
			t.copyOf(blocks.ZeroOf(w.Rm()), rcx)
			t.unary(true, op, rcx)
			t.setGuest(blocks.ZeroOf(w.Rd()), rdx)
		}
	case "lslv.w", "lslv.x", "lsrv.w", "lsrv.x", "asrv.w", "asrv.x", "rorv.w", "rorv.x":
		return func(t *a64Translator, w a64.Word) {
			t.copyOf(blocks.ZeroOf(w.Rm()), rcx)
			t.move32Or64(w.Wide(), rax, blocks.ZeroOf(w.Rn()))
			t.shiftCL(w.Wide(), a64Shifts[w.Field(10, 2)], rax)
			if !w.Wide() {
				t.move32(rax, rax) // by zero nothing is written
			}
			t.setGuest(blocks.ZeroOf(w.Rd()), rax)
		}
	case "adc.w", "adc.x", "sbc.w", "sbc.x":
		return (*a64Translator).withCarry
	case "adcs.w", "adcs.x", "sbcs.w", "sbcs.x":
		return (*a64Translator).withCarryAndFlags
	}
	return nil
}

// withCarry is ADC and SBC without flags.
func (t *a64Translator) withCarry(w a64.Word) {
	wide := w.Wide()
	t.set(t.condition(2)) // C
	t.move(rdx, rax)
	t.copyOf(blocks.ZeroOf(w.Rm()), rcx)
	if w.Bit(30) {
		t.immediate(true, immediateXor, rcx, -1)
	}
	t.copyOf(blocks.ZeroOf(w.Rn()), rax)
	t.pair(wide, opAdd, rcx, rax)
	t.pair(wide, opAdd, rdx, rax)
	t.setGuest(blocks.ZeroOf(w.Rd()), rax)
}

// withCarryAndFlags is ADCS and SBCS: with a carry the difference of a and ~b, without one their sum.
func (t *a64Translator) withCarryAndFlags(w a64.Word) {
	wide, subtracts := w.Wide(), w.Bit(30)
	rn, rm, rd := blocks.ZeroOf(w.Rn()), blocks.ZeroOf(w.Rm()), blocks.ZeroOf(w.Rd())
	sum, done := t.newLabel(), t.newLabel()
	second := func(inverted bool) {
		t.extended(rcx, rm, wide)
		if inverted {
			t.immediate(true, immediateXor, rcx, -1)
		}
	}
	t.jumpIf(t.condition(2)^1, sum)
	second(!subtracts)
	t.extended(rax, rn, wide)
	t.subtractFlags(wide, rax, rcx)
	t.pair(wide, opSub, rcx, rax)
	t.setGuest(rd, rax)
	t.jump(done)
	t.bind(sum)
	second(subtracts)
	t.addFlags(rd, rn, wide)
	t.bind(done)
}

// divide never traps: dividing by zero gives zero, the smallest number by -1 itself.
func (t *a64Translator) divide(w a64.Word) {
	wide, isSigned := w.Wide(), w.Bit(10)
	done, zero, negate := t.newLabel(), t.newLabel(), t.newLabel()
	t.move32Or64(wide, rax, blocks.ZeroOf(w.Rn()))
	t.copyOf(blocks.ZeroOf(w.Rm()), rcx)
	t.pair(wide, opTest, rcx, rcx)
	t.jumpIf(equal, zero)
	if isSigned {
		t.immediate(wide, immediateCmp, rcx, -1)
		t.jumpIf(equal, negate)
		t.signIntoRDX(wide)
		t.unary(wide, unaryDivideSigned, rcx)
	} else {
		t.constant(rdx, 0)
		t.unary(wide, unaryDivide, rcx)
	}
	t.jump(done)
	if isSigned {
		t.bind(negate)
		t.unary(wide, unaryNegate, rax)
		t.jump(done)
	}
	t.bind(zero)
	t.constant(rax, 0)
	t.bind(done)
	t.setGuest(blocks.ZeroOf(w.Rd()), rax)
}

// multiplyAdd is MADD, MSUB and those whose factors have 32 bits.
func (t *a64Translator) multiplyAdd(w a64.Word) {
	wide, subtracts := w.Wide(), w.Bit(15)
	rn, rm, ra, rd := blocks.ZeroOf(w.Rn()), blocks.ZeroOf(w.Rm()), blocks.ZeroOf(w.Ra()), blocks.ZeroOf(w.Rd())
	switch w.Field(21, 3) {
	case 1:
		t.extended(rax, rn, false)
		t.extended(rcx, rm, false)
		t.pair(true, opImul, rax, rcx)
	case 5:
		t.move32(rax, t.value(rn, rax))
		t.move32(rcx, t.value(rm, rcx))
		t.pair(true, opImul, rax, rcx)
	default:
		t.copyOf(rn, rax)
		t.operation(wide, opImul, rax, rm)
	}
	switch {
	case ra == blocks.ZeroA64 && subtracts:
		t.unary(wide, unaryNegate, rax)
	case ra == blocks.ZeroA64:
	case subtracts:
		t.copyOf(ra, rdx)
		t.pair(wide, opSub, rax, rdx)
		t.setGuest(rd, rdx)
		return
	default:
		t.operation(wide, opAddTo, rax, ra)
	}
	t.setGuest(rd, rax)
}
