package amd64

import (
	"math/bits"
	"strings"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

// Vector registers of the host, of which nothing is kept from one instruction to the next.
const (
	xmm0 register = 0
	xmm2 register = 2
	xmm3 register = 3
	xmm4 register = 4
	xmm5 register = 5
)

// Orders of words for shuffle: of both halves one.
const lowerHalf, upperHalf = 0x44, 0xee

// vectorAt is the place of a vector register of the guest.
func (t *a64Translator) vectorAt(r uint8) uint32 { return t.layout.F + 16*uint32(r) }

// setVector sets a vector register to xmm0, or to its lower half and zeros.
func (t *a64Translator) setVector(r uint8, full bool) {
	t.vector(vectorStore, xmm0, t.vectorAt(r))
	if !full {
		t.hartSet(t.vectorAt(r)+8, 0)
	}
}

// setHalves sets a vector register to rax in both halves, or with zeros above.
func (t *a64Translator) setHalves(r uint8, full bool) {
	t.hart(true, opMove, rax, t.vectorAt(r))
	if full {
		t.hart(true, opMove, rax, t.vectorAt(r)+8)
	} else {
		t.hartSet(t.vectorAt(r)+8, 0)
	}
}

// Opcodes of the host by the size of elements: 1, 2, 4 and 8 bytes; 0: there is none.
type bySize [4]int

var (
	addSizes      = bySize{0xfc, 0xfd, 0xfe, 0xd4}
	subtractSizes = bySize{0xf8, 0xf9, 0xfa, 0xfb}
	equalSizes    = bySize{0x74, 0x75, 0x76, 0x3829}
	greaterSizes  = bySize{0x64, 0x65, 0x66, 0}
	maxSigned     = bySize{0x383c, 0xee, 0x383d, 0}
	maxUnsigned   = bySize{0xde, 0x383e, 0x383f, 0}
	minSigned     = bySize{0x3838, 0xea, 0x3839, 0}
	minUnsigned   = bySize{0xda, 0x383a, 0x383b, 0}
	lowerSizes    = bySize{0x60, 0x61, 0x62, 0x6c} // interleave
	upperSizes    = bySize{0x68, 0x69, 0x6a, 0x6d}
)

// plainVectors are operations that the host has, on both operands in order.
var plainVectors = map[string]bySize{
	"add.v": addSizes, "sub.v": subtractSizes, "cmeq.v": equalSizes, "cmgt.v": greaterSizes, "smax.v": maxSigned, "umax.v": maxUnsigned,
	"smin.v": minSigned, "umin.v": minUnsigned, "mul.v": {0, 0xd5, 0x3840, 0},
	"urhadd.v": {0xe0, 0xe3, 0, 0},
}

// logicVectors do not depend on the size of elements.
var logicVectors = map[string]int{"and.v": vectorAnd, "orr.v": vectorOr, "eor.v": vectorXor}

// a64SIMD chooses what translates a row of the group; the size of elements is a part of most words.
func a64SIMD(row *a64.Instruction) a64Chooser {
	if op, ok := logicVectors[row.Name]; ok {
		return always(func(t *a64Translator, w a64.Word) {
			t.floatOn()
			t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
			t.vector(op, xmm0, t.vectorAt(w.Rm()))
			t.setVector(w.Rd(), w.Bit(30))
		})
	}
	if ops, ok := plainVectors[row.Name]; ok {
		return func(w a64.Word) a64Emitter {
			op := ops[w.Field(22, 2)]
			if op == 0 {
				return nil
			}
			return func(t *a64Translator, w a64.Word) {
				t.floatOn()
				t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
				t.vector(op, xmm0, t.vectorAt(w.Rm()))
				t.setVector(w.Rd(), w.Bit(30))
			}
		}
	}
	if ops, ok := acrossVectors[row.Name]; ok {
		return always(func(t *a64Translator, w a64.Word) { t.across(ops, w) })
	}
	if name, isScalar := strings.CutSuffix(row.Name, ".s"); isScalar && scalarComparisons[name] != 0 {
		return always(func(t *a64Translator, w a64.Word) {
			t.compareScalars(scalarComparisons[name], strings.HasSuffix(name, "0"), w)
		})
	}
	switch row.Name {
	case "cnt.v":
		return always((*a64Translator).countOnes)
	case "uaddlp.v":
		return always((*a64Translator).addNeighbours)
	case "bic.v", "orn.v", "bsl.v", "bit.v", "bif.v":
		return always(func(t *a64Translator, w a64.Word) { t.logicVector(row.Name, w) })
	case "cmge.v":
		return ordered(maxSigned, false)
	case "cmhs.v":
		return ordered(maxUnsigned, false)
	case "cmhi.v":
		return ordered(maxUnsigned, true)
	case "cmtst.v":
		return func(w a64.Word) a64Emitter {
			return func(t *a64Translator, w a64.Word) {
				t.floatOn()
				t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
				t.vector(vectorAnd, xmm0, t.vectorAt(w.Rm()))
				t.vectors(vectorXor, xmm1, xmm1)
				t.vectors(equalSizes[w.Field(22, 2)], xmm0, xmm1)
				t.invertVector()
				t.setVector(w.Rd(), w.Bit(30))
			}
		}
	case "cmeq0.v", "cmgt0.v", "cmlt0.v", "cmge0.v", "cmle0.v":
		return compareZero(row.Name)
	case "umaxp.v", "uminp.v", "addp.v":
		return pairwise(row.Name)
	case "addp.s":
		return always(func(t *a64Translator, w a64.Word) {
			t.floatOn()
			t.hart(true, opLoad, rax, t.vectorAt(w.Rn()))
			t.hart(true, opAddTo, rax, t.vectorAt(w.Rn())+8)
			t.setHalves(w.Rd(), false)
		})
	case "not.v":
		return always(func(t *a64Translator, w a64.Word) {
			t.floatOn()
			t.vectors(vectorEqual32, xmm0, xmm0)
			t.vector(vectorXor, xmm0, t.vectorAt(w.Rn()))
			t.setVector(w.Rd(), w.Bit(30))
		})
	case "neg.v":
		return func(w a64.Word) a64Emitter {
			return func(t *a64Translator, w a64.Word) {
				t.floatOn()
				t.vectors(vectorXor, xmm0, xmm0)
				t.vector(subtractSizes[w.Field(22, 2)], xmm0, t.vectorAt(w.Rn()))
				t.setVector(w.Rd(), w.Bit(30))
			}
		}
	case "abs.v":
		return func(w a64.Word) a64Emitter {
			size := int(w.Field(22, 2))
			if size == 3 {
				return nil
			}
			return func(t *a64Translator, w a64.Word) {
				t.floatOn()
				t.vector(0x381c+size, xmm0, t.vectorAt(w.Rn()))
				t.setVector(w.Rd(), w.Bit(30))
			}
		}
	case "dup.r", "dup.e", "dup.s", "umov.w", "umov.x", "smov.w", "smov.x", "ins.r", "ins.e":
		return always(func(t *a64Translator, w a64.Word) { t.copyElement(row.Name, w) })
	case "uzp1", "uzp2":
		return always(func(t *a64Translator, w a64.Word) { t.unzip(w, row.Name == "uzp2") })
	case "trn1", "trn2":
		return always(func(t *a64Translator, w a64.Word) { t.transpose(w, row.Name == "trn2") })
	case "zip1", "zip2":
		return always(func(t *a64Translator, w a64.Word) { t.interleave(w, row.Name == "zip2") })
	case "tbl1", "tbl2", "tbl3", "tbl4":
		return always(func(t *a64Translator, w a64.Word) { t.lookUpBytes(w) })
	case "sshl.v", "ushl.v":
		return func(w a64.Word) a64Emitter {
			if w.Field(22, 2) != 0 {
				return nil
			}
			return (*a64Translator).shiftBytes
		}
	case "ext":
		return always((*a64Translator).extractVector)
	case "xtn.v":
		return func(w a64.Word) a64Emitter {
			size := w.Field(22, 2)
			return func(t *a64Translator, w a64.Word) { t.narrow(w, size, 0) }
		}
	case "shrn.v":
		return func(w a64.Word) a64Emitter {
			size, amount := shiftOf(w)
			return func(t *a64Translator, w a64.Word) { t.narrow(w, size, uint8(16<<size-amount)) }
		}
	case "ushll.v", "sshll.v":
		return always(func(t *a64Translator, w a64.Word) { t.widen(w, row.Name == "sshll.v") })
	case "shl.v", "ushr.v", "sshr.v":
		return func(w a64.Word) a64Emitter {
			if size, _ := shiftOf(w); size == 0 && row.Name == "sshr.v" {
				return nil
			}
			return func(t *a64Translator, w a64.Word) { t.shiftVector(row.Name, w) }
		}
	case "shl.s", "ushr.s", "sshr.s":
		return always(func(t *a64Translator, w a64.Word) { t.shiftScalar(row.Name, w) })
	case "movi.s", "movi.h", "movi.msl", "mvni.s", "mvni.h", "mvni.msl", "movi.b", "movi.d", "orr.vi.s", "orr.vi.h", "bic.vi.s", "bic.vi.h", "fmov.v.s", "fmov.v.d":
		return always(func(t *a64Translator, w a64.Word) { t.immediateVector(row.Name, w) })
	}
	return nil
}

func always(e a64Emitter) a64Chooser { return func(a64.Word) a64Emitter { return e } }

// invertVector inverts xmm0. It changes xmm1.
func (t *a64Translator) invertVector() {
	t.vectors(vectorEqual32, xmm1, xmm1)
	t.vectors(vectorXor, xmm0, xmm1)
}

func (t *a64Translator) logicVector(name string, w a64.Word) {
	rd, rn, rm := t.vectorAt(w.Rd()), t.vectorAt(w.Rn()), t.vectorAt(w.Rm())
	t.floatOn()
	switch name {
	case "bic.v":
		t.vector(vectorLoad, xmm0, rm)
		t.vector(vectorAndNot, xmm0, rn)
	case "orn.v":
		t.vectors(vectorEqual32, xmm0, xmm0)
		t.vector(vectorXor, xmm0, rm)
		t.vector(vectorOr, xmm0, rn)
	default: // a, where the mask is set, and b elsewhere: b ^ (a ^ b) & mask
		a, b, mask := rn, rm, rd
		if name != "bsl.v" {
			b, mask = rd, rm
		}
		t.vector(vectorLoad, xmm0, a)
		t.vector(vectorXor, xmm0, b)
		if name == "bif.v" {
			t.vector(vectorLoad, xmm1, mask)
			t.vectors(vectorAndNot, xmm1, xmm0)
			t.vectors(vectorLoad, xmm0, xmm1)
		} else {
			t.vector(vectorAnd, xmm0, mask)
		}
		t.vector(vectorXor, xmm0, b)
	}
	t.setVector(w.Rd(), w.Bit(30))
}

// ordered has comparisons by the larger of both: a >= b where that is a, and when inverted, a > b where it is not b.
func ordered(largest bySize, inverted bool) a64Chooser {
	return func(w a64.Word) a64Emitter {
		size := w.Field(22, 2)
		if largest[size] == 0 {
			return nil
		}
		return func(t *a64Translator, w a64.Word) {
			t.floatOn()
			t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
			t.vector(largest[size], xmm0, t.vectorAt(w.Rm()))
			if inverted {
				t.vector(equalSizes[size], xmm0, t.vectorAt(w.Rm()))
				t.invertVector()
			} else {
				t.vector(equalSizes[size], xmm0, t.vectorAt(w.Rn()))
			}
			t.setVector(w.Rd(), w.Bit(30))
		}
	}
}

func compareZero(name string) a64Chooser {
	return func(w a64.Word) a64Emitter {
		size := w.Field(22, 2)
		if name != "cmeq0.v" && greaterSizes[size] == 0 {
			return nil
		}
		return func(t *a64Translator, w a64.Word) {
			at := t.vectorAt(w.Rn())
			t.floatOn()
			switch name {
			case "cmeq0.v":
				t.vectors(vectorXor, xmm0, xmm0)
				t.vector(equalSizes[size], xmm0, at)
			case "cmlt0.v", "cmge0.v":
				t.vectors(vectorXor, xmm0, xmm0)
				t.vector(greaterSizes[size], xmm0, at)
			default:
				t.vectors(vectorXor, xmm1, xmm1)
				t.vector(vectorLoad, xmm0, at)
				t.vectors(greaterSizes[size], xmm0, xmm1)
			}
			if name == "cmge0.v" || name == "cmle0.v" {
				t.invertVector()
			}
			t.setVector(w.Rd(), w.Bit(30))
		}
	}
}

// pairwise has operations on neighbours, of whole vectors of bytes.
func pairwise(name string) a64Chooser {
	op := map[string]int{"umaxp.v": maxUnsigned[0], "uminp.v": minUnsigned[0], "addp.v": addSizes[0]}[name]
	return func(w a64.Word) a64Emitter {
		if w.Field(22, 2) != 0 || !w.Bit(30) {
			return nil
		}
		return func(t *a64Translator, w a64.Word) {
			t.floatOn()
			for x, r := range []uint8{w.Rn(), w.Rm()} {
				x := register(x)
				t.vector(vectorLoad, x, t.vectorAt(r))
				t.vector(vectorLoad, xmm2, t.vectorAt(r))
				t.vectorShift(vectorShift16, vectorShiftRight, xmm2, 8)
				t.vectors(op, x, xmm2)
				t.vectorShift(vectorShift16, vectorShiftLeft, x, 8)
				t.vectorShift(vectorShift16, vectorShiftRight, x, 8)
			}
			t.vectors(vectorPackBytes, xmm0, xmm1)
			t.setVector(w.Rd(), true)
		}
	}
}

// element takes the size of an element and its number out of the field imm5.
func element(w a64.Word) (size uint8, index uint32) {
	field := w.Field(16, 5)
	log := bits.TrailingZeros32(field)
	return 1 << log, field >> (log + 1)
}

// copyElement has DUP, INS, UMOV and SMOV.
func (t *a64Translator) copyElement(name string, w a64.Word) {
	size, index := element(w)
	at := func(r uint8, index uint32) uint32 { return t.vectorAt(r) + index*uint32(size) }
	put := func(at uint32) {
		how := storeOf(size)
		if size == 2 {
			t.bytes(0x66)
		}
		t.hart(how.wide, how.op, rax, at)
	}
	t.floatOn()
	switch name {
	case "dup.r":
		t.copyOf(blocks.ZeroOf(w.Rn()), rax)
		t.broadcast(size)
		t.setHalves(w.Rd(), w.Bit(30))
	case "ins.r":
		t.copyOf(blocks.ZeroOf(w.Rn()), rax)
		put(at(w.Rd(), index))
	case "umov.w", "umov.x":
		op, wide := loadOf(size, 0)
		t.hart(wide, op, rax, at(w.Rn(), index))
		t.setGuest(blocks.ZeroOf(w.Rd()), rax)
	case "smov.w", "smov.x":
		signed := uint8(32)
		if w.Bit(30) {
			signed = 64
		}
		op, wide := loadOf(size, signed)
		t.hart(wide, op, rax, at(w.Rn(), index))
		t.setGuest(blocks.ZeroOf(w.Rd()), rax)
	case "ins.e":
		op, wide := loadOf(size, 0)
		t.hart(wide, op, rax, at(w.Rn(), w.Field(11, 4)>>bits.TrailingZeros8(size)))
		put(at(w.Rd(), index))
	default: // dup.e and dup.s
		op, wide := loadOf(size, 0)
		t.hart(wide, op, rax, at(w.Rn(), index))
		if name == "dup.e" {
			t.broadcast(size)
			t.setHalves(w.Rd(), w.Bit(30))
		} else {
			t.setHalves(w.Rd(), false)
		}
	}
}

// broadcast fills rax with its lowest bytes.
func (t *a64Translator) broadcast(size uint8) {
	switch size {
	case 8:
		return
	case 4:
		t.move32(rax, rax)
		t.move(rcx, rax)
		t.shift(true, shiftLeft, rcx, 32)
		t.pair(true, opOr, rcx, rax)
		return
	case 2:
		t.immediate(false, immediateAnd, rax, 0xffff)
		t.constant64(rcx, 0x0001000100010001)
	default:
		t.immediate(false, immediateAnd, rax, 0xff)
		t.constant64(rcx, 0x0101010101010101)
	}
	t.pair(true, opImul, rax, rcx)
}

// lookUpBytes is TBL: each byte is that of a table of one to four registers, at the place that another says, or zero. The host looks in one register,
// and gives zero where the place has its highest bit set: so 0x70 is added, and stays 0xff when that is too much.
func (t *a64Translator) lookUpBytes(w a64.Word) {
	const shuffle, absolute, addUnsigned = 0x3800, 0x381c, 0xdc
	sixteens, limit, places := xmm2, xmm3, xmm4
	t.floatOn()
	t.vectors(vectorEqual32, sixteens, sixteens)
	t.vectors(absolute, sixteens, sixteens) // bytes of 1
	t.vectors(vectorLoad, limit, sixteens)
	t.vectorShift(vectorShift16, vectorShiftLeft, limit, 3)
	t.vectors(subtractSizes[0], limit, sixteens)
	t.vectorShift(vectorShift16, vectorShiftLeft, limit, 4)
	t.vectorShift(vectorShift16, vectorShiftLeft, sixteens, 4)
	t.vector(vectorLoad, places, t.vectorAt(w.Rm()))
	t.vectors(vectorXor, xmm0, xmm0)
	for i := uint8(0); i <= uint8(w.Field(13, 2)); i++ {
		if i > 0 {
			t.vectors(subtractSizes[0], places, sixteens)
		}
		t.vectors(vectorLoad, xmm5, places)
		t.vectors(addUnsigned, xmm5, limit)
		t.vector(vectorLoad, xmm1, t.vectorAt((w.Rn()+i)&31))
		t.vectors(shuffle, xmm1, xmm5)
		t.vectors(vectorOr, xmm0, xmm1)
	}
	t.setVector(w.Rd(), w.Bit(30))
}

// shiftBytes is SSHL and USHL of bytes, to the left and by less than 8: each is multiplied by a power of two.
func (t *a64Translator) shiftBytes(w a64.Word) {
	const shuffle, multiply = 0x3800, 0xd5
	powers, upper := xmm2, xmm3
	t.floatOn()
	t.hart(true, opLoad, rax, t.vectorAt(w.Rm()))
	if w.Bit(30) {
		t.hart(true, opOrTo, rax, t.vectorAt(w.Rm())+8)
	}
	t.constant64(rcx, 0xf8f8f8f8f8f8f8f8)
	t.pair(true, opAnd, rcx, rax)
	t.jumpIf(notEqual, t.miss())
	t.constant64(rax, 0x8040201008040201)
	t.hart(true, opMove, rax, t.layout.Walk.Scratch)
	t.vector(vectorLoadLow, powers, t.layout.Walk.Scratch)
	t.vector(shuffle, powers, t.vectorAt(w.Rm()))
	t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
	t.vectors(vectorLoad, upper, xmm0)
	t.vectors(multiply, xmm0, powers) // the lower byte of each word
	t.vectorShift(vectorShift16, vectorShiftLeft, xmm0, 8)
	t.vectorShift(vectorShift16, vectorShiftRight, xmm0, 8)
	t.vectorShift(vectorShift16, vectorShiftRight, upper, 8)
	t.vectorShift(vectorShift16, vectorShiftRight, powers, 8)
	t.vectors(multiply, upper, powers)
	t.vectorShift(vectorShift16, vectorShiftLeft, upper, 8)
	t.vectors(vectorOr, xmm0, upper)
	t.setVector(w.Rd(), w.Bit(30))
}

func (t *a64Translator) interleave(w a64.Word, upper bool) {
	size, full := w.Field(22, 2), w.Bit(30)
	op := lowerSizes[size]
	if upper && full {
		op = upperSizes[size]
	}
	t.floatOn()
	t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
	t.vector(op, xmm0, t.vectorAt(w.Rm()))
	if upper && !full {
		t.shuffle(xmm0, xmm0, upperHalf)
	}
	t.setVector(w.Rd(), full)
}

// unzip takes every second lane of both operands: they are narrowed, and so small that nothing saturates.
func (t *a64Translator) unzip(w a64.Word, odd bool) {
	size := w.Field(22, 2)
	t.floatOn()
	t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
	if w.Bit(30) {
		t.vector(vectorLoad, xmm1, t.vectorAt(w.Rm()))
	} else {
		t.vector(lowerSizes[3], xmm0, t.vectorAt(w.Rm()))
		t.vectors(vectorLoad, xmm1, xmm0)
	}
	for _, x := range []register{xmm0, xmm1} {
		switch {
		case size == 2 && odd:
			t.shuffle(x, x, 0xdd)
		case size == 2:
			t.shuffle(x, x, 0x88)
		case size == 1 && !odd:
			t.vectorShift(vectorShift32, vectorShiftLeft, x, 16)
			fallthrough
		case size == 1:
			t.vectorShift(vectorShift32, vectorShiftArithm, x, 16)
		case size == 0 && !odd:
			t.vectorShift(vectorShift16, vectorShiftLeft, x, 8)
			fallthrough
		case size == 0:
			t.vectorShift(vectorShift16, vectorShiftRight, x, 8)
		}
	}
	op := [4]int{vectorPackBytes, vectorPackWords, lowerSizes[3], lowerSizes[3]}[size]
	if size == 3 && odd {
		op = upperSizes[3]
	}
	t.vectors(op, xmm0, xmm1)
	t.setVector(w.Rd(), w.Bit(30))
}

// transpose has every second lane of both operands, next to each other.
func (t *a64Translator) transpose(w a64.Word, odd bool) {
	size := w.Field(22, 2)
	t.floatOn()
	t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
	t.vector(vectorLoad, xmm1, t.vectorAt(w.Rm()))
	switch shifts, n := vectorShift16+int(size), uint8(8)<<size; {
	case size == 3 && odd:
		t.vectors(upperSizes[3], xmm0, xmm1)
	case size == 3:
		t.vectors(lowerSizes[3], xmm0, xmm1)
	default:
		if odd {
			t.vectorShift(shifts, vectorShiftRight, xmm1, n)
		} else {
			t.vectorShift(shifts, vectorShiftLeft, xmm0, n)
		}
		t.vectorShift(shifts, vectorShiftRight, xmm0, n)
		t.vectorShift(shifts, vectorShiftLeft, xmm1, n)
		t.vectors(vectorOr, xmm0, xmm1)
	}
	t.setVector(w.Rd(), w.Bit(30))
}

// extractVector is EXT.
func (t *a64Translator) extractVector(w a64.Word) {
	low := uint8(w.Field(11, 4))
	t.floatOn()
	if w.Bit(30) {
		t.vector(vectorLoad, xmm0, t.vectorAt(w.Rm()))
		t.vector(vectorAlign, xmm0, t.vectorAt(w.Rn()))
		t.bytes(low)
		t.setVector(w.Rd(), true)
		return
	}
	t.hart(true, opLoad, rax, t.vectorAt(w.Rn()))
	if low != 0 {
		t.hart(true, opLoad, rcx, t.vectorAt(w.Rm()))
		t.shift(true, shiftRight, rax, 8*low)
		t.shift(true, shiftLeft, rcx, 64-8*low)
		t.pair(true, opOr, rcx, rax)
	}
	t.setHalves(w.Rd(), false)
}

// narrow halves the size of elements that were shifted to the right; size is that of the result.
func (t *a64Translator) narrow(w a64.Word, size uint32, amount uint8) {
	t.floatOn()
	t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
	switch size {
	case 0:
		t.vectorShift(vectorShift16, vectorShiftLeft, xmm0, 8-amount)
		t.vectorShift(vectorShift16, vectorShiftRight, xmm0, 8)
		t.vectors(vectorPackBytes, xmm0, xmm0)
	case 1: // packing keeps the lower half of what has its sign above it
		t.vectorShift(vectorShift32, vectorShiftLeft, xmm0, 16-amount)
		t.vectorShift(vectorShift32, vectorShiftArithm, xmm0, 16)
		t.vectors(vectorPackWords, xmm0, xmm0)
	default:
		t.vectorShift(vectorShift64, vectorShiftRight, xmm0, amount)
		t.shuffle(xmm0, xmm0, 0x88) // the even words
	}
	if w.Bit(30) { // to the upper half
		t.vector(vectorStoreLow, xmm0, t.vectorAt(w.Rd())+8)
		return
	}
	t.vector(vectorStoreLow, xmm0, t.vectorAt(w.Rd()))
	t.hartSet(t.vectorAt(w.Rd())+8, 0)
}

// shiftOf takes the size of elements, its logarithm, and the fields immh:immb out of a word.
func shiftOf(w a64.Word) (size uint32, value uint32) {
	value = w.Field(16, 7)
	return uint32(bits.Len32(value>>3) - 1), value
}

// widen doubles the size of elements and shifts them to the left.
func (t *a64Translator) widen(w a64.Word, isSigned bool) {
	size, value := shiftOf(w)
	amount := uint8(value - 8<<size)
	op := [3]int{0x3830, 0x3833, 0x3835}[size]
	if isSigned {
		op = [3]int{0x3820, 0x3823, 0x3825}[size]
	}
	from := t.vectorAt(w.Rn())
	if w.Bit(30) {
		from += 8
	}
	t.floatOn()
	t.vector(op, xmm0, from)
	if amount != 0 {
		t.vectorShift(vectorShift16+int(size), vectorShiftLeft, xmm0, amount)
	}
	t.setVector(w.Rd(), true)
}

// amountOf is how far a shift goes.
func amountOf(name string, w a64.Word) (size uint32, amount uint8) {
	size, value := shiftOf(w)
	if name == "shl.v" || name == "shl.s" {
		return size, uint8(value - 8<<size)
	}
	return size, uint8(16<<size - value)
}

func (t *a64Translator) shiftVector(name string, w a64.Word) {
	size, amount := amountOf(name, w)
	t.floatOn()
	if size == 0 || size == 3 && name == "sshr.v" {
		t.shiftHalves(name, w, size, amount)
		return
	}
	kind := map[string]byte{"shl.v": vectorShiftLeft, "ushr.v": vectorShiftRight, "sshr.v": vectorShiftArithm}[name]
	t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
	t.vectorShift(vectorShift16+int(size)-1, kind, xmm0, amount)
	t.setVector(w.Rd(), w.Bit(30))
}

// shiftHalves shifts where the host has no instruction: bytes, and 64 bits with a sign.
func (t *a64Translator) shiftHalves(name string, w a64.Word, size uint32, amount uint8) {
	for half := uint32(0); half < 2; half++ {
		if half == 1 && !w.Bit(30) {
			t.hartSet(t.vectorAt(w.Rd())+8, 0)
			return
		}
		t.hart(true, opLoad, rax, t.vectorAt(w.Rn())+8*half)
		each := func(b int) uint64 { return uint64(b) * 0x0101010101010101 }
		switch {
		case size == 3:
			t.shift(true, shiftArithmetic, rax, min(amount, 63))
		case name == "shl.v":
			t.constant64(rcx, each(0xff>>amount))
			t.pair(true, opAnd, rcx, rax)
			t.shift(true, shiftLeft, rax, amount)
		default:
			if amount == 8 {
				t.constant(rax, 0)
				break
			}
			t.constant64(rcx, each(0xff<<amount&0xff))
			t.pair(true, opAnd, rcx, rax)
			t.shift(true, shiftRight, rax, amount)
		}
		t.hart(true, opMove, rax, t.vectorAt(w.Rd())+8*half)
	}
}

// shiftScalar shifts 64 bits.
func (t *a64Translator) shiftScalar(name string, w a64.Word) {
	_, amount := amountOf(name, w)
	t.floatOn()
	t.hart(true, opLoad, rax, t.vectorAt(w.Rn()))
	switch {
	case name == "shl.s":
		t.shift(true, shiftLeft, rax, amount)
	case name == "sshr.s":
		t.shift(true, shiftArithmetic, rax, min(amount, 63))
	case amount == 64:
		t.constant(rax, 0)
	default:
		t.shift(true, shiftRight, rax, amount)
	}
	t.setHalves(w.Rd(), false)
}

// vectorImmediate is the immediate operand of a vector instruction, for 64 bits (C2.2.3, AdvSIMDExpandImm).
func vectorImmediate(name string, w a64.Word) uint64 {
	v := uint64(w.Field(16, 3)<<5 | w.Field(5, 5))
	mode := w.Field(12, 4)
	switch name {
	case "movi.b":
		return v * 0x0101010101010101
	case "movi.d":
		var all uint64
		for i := range 8 {
			if v>>i&1 != 0 {
				all |= 0xff << (8 * i)
			}
		}
		return all
	case "fmov.v.s":
		low := uint64(floatImmediate(uint8(v), false))
		return low<<32 | low
	case "fmov.v.d":
		return floatImmediate(uint8(v), true)
	case "movi.msl", "mvni.msl":
		if mode&1 != 0 {
			v = v<<16 | 0xffff
		} else {
			v = v<<8 | 0xff
		}
	case "movi.h", "mvni.h", "orr.vi.h", "bic.vi.h":
		v <<= mode >> 1 & 1 * 8
		v |= v << 16
	default:
		v <<= mode >> 1 & 3 * 8
	}
	return v<<32 | v
}

// floatImmediate is the number that FMOV has in 8 bits (VFPExpandImm).
func floatImmediate(v uint8, isDouble bool) uint64 {
	sign, fraction := uint64(v>>7), uint64(v&15)
	exponent := uint64(v >> 4 & 3)
	if isDouble {
		if v>>6&1 != 0 {
			exponent |= 0x3fc
		} else {
			exponent |= 0x400
		}
		return sign<<63 | exponent<<52 | fraction<<48
	}
	if v>>6&1 != 0 {
		exponent |= 0x7c
	} else {
		exponent |= 0x80
	}
	return sign<<31 | exponent<<23 | fraction<<19
}

func (t *a64Translator) immediateVector(name string, w a64.Word) {
	value, full := vectorImmediate(name, w), w.Bit(30) || name == "fmov.v.d"
	t.floatOn()
	switch name {
	case "orr.vi.s", "orr.vi.h", "bic.vi.s", "bic.vi.h":
		op := opOrTo
		if name[0] == 'b' {
			op, value = opAndTo, ^value
		}
		t.constant64(rcx, value)
		for half := uint32(0); half < 2; half++ {
			if half == 1 && !full {
				t.hartSet(t.vectorAt(w.Rd())+8, 0)
				return
			}
			t.move(rax, rcx)
			t.hart(true, op, rax, t.vectorAt(w.Rd())+8*half)
			t.hart(true, opMove, rax, t.vectorAt(w.Rd())+8*half)
		}
		return
	case "mvni.s", "mvni.h", "mvni.msl":
		value = ^value
	}
	if name == "movi.d" {
		full = w.Bit(30)
	}
	if int64(value) == int64(int32(value)) {
		t.hartSet(t.vectorAt(w.Rd()), int32(value))
		if !full {
			value = 0
		}
		t.hartSet(t.vectorAt(w.Rd())+8, int32(value))
		return
	}
	t.constant64(rax, value)
	t.setHalves(w.Rd(), full)
}
