package amd64

import (
	"agentvm/internal/machine/a64"
)

// What combines lanes of a vector, and counts.

// acrossVectors has what combines all lanes, two at a time.
var acrossVectors = map[string]bySize{"addv": addSizes, "smaxv": maxSigned, "umaxv": maxUnsigned, "sminv": minSigned, "uminv": minUnsigned}

// across combines all lanes of a register, or of its lower half. What is above the lowest lane meanwhile is nothing.
func (t *a64Translator) across(ops bySize, w a64.Word) {
	size := w.Field(22, 2)
	op := ops[size]
	t.floatOn()
	t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
	half := func(order byte) {
		t.shuffle(xmm1, xmm0, order)
		t.vectors(op, xmm0, xmm1)
	}
	if w.Bit(30) {
		half(upperHalf)
	}
	half(0x55) // the second word
	for n := uint8(16); n >= 8<<size && size < 2; n /= 2 {
		t.vectors(vectorLoad, xmm1, xmm0)
		t.vectorShift(vectorShift32, vectorShiftRight, xmm1, n)
		t.vectors(op, xmm0, xmm1)
	}
	t.moveFloat(false, rax)
	if size < 2 {
		t.immediate(false, immediateAnd, rax, 1<<(8<<size)-1)
	}
	t.setHalves(w.Rd(), false)
}

// countOnes is CNT: the ones of each half of a byte are looked up.
func (t *a64Translator) countOnes(w a64.Word) {
	const shuffle, absolute = 0x3800, 0x381c
	low, counts, ones, mask := xmm1, xmm2, xmm3, xmm4
	t.floatOn()
	t.vectors(vectorEqual32, ones, ones)
	t.vectors(absolute, ones, ones) // bytes of 1
	t.vectors(vectorLoad, mask, ones)
	t.vectorShift(vectorShift16, vectorShiftLeft, mask, 4)
	t.vectors(subtractSizes[0], mask, ones) // of 15
	t.constant64(rax, 0x0302020102010100)
	t.hart(true, opMove, rax, t.layout.Walk.Scratch)
	t.vector(vectorLoadLow, counts, t.layout.Walk.Scratch)
	t.vectors(addSizes[0], ones, counts) // with the highest bit
	t.vectors(lowerSizes[3], counts, ones)
	t.vector(vectorLoad, low, t.vectorAt(w.Rn()))
	t.vectors(vectorLoad, xmm5, low)
	t.vectorShift(vectorShift16, vectorShiftRight, xmm5, 4)
	t.vectors(vectorAnd, low, mask)
	t.vectors(vectorAnd, xmm5, mask)
	t.vectors(vectorLoad, xmm0, counts)
	t.vectors(shuffle, xmm0, low)
	t.vectors(shuffle, counts, xmm5)
	t.vectors(addSizes[0], xmm0, counts)
	t.setVector(w.Rd(), w.Bit(30))
}

// addNeighbours is UADDLP.
func (t *a64Translator) addNeighbours(w a64.Word) {
	size := w.Field(22, 2)
	shifts, n := vectorShift16+int(size), uint8(8)<<size
	t.floatOn()
	t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
	t.vectors(vectorLoad, xmm1, xmm0)
	t.vectorShift(shifts, vectorShiftLeft, xmm0, n)
	t.vectorShift(shifts, vectorShiftRight, xmm0, n)
	t.vectorShift(shifts, vectorShiftRight, xmm1, n)
	t.vectors(addSizes[size+1], xmm0, xmm1)
	t.setVector(w.Rd(), w.Bit(30))
}

// scalarComparisons are those of 64 bits, and with the operand zero.
var scalarComparisons = map[string]byte{
	"cmeq": equal, "cmge": notLess, "cmgt": greater, "cmhi": above, "cmhs": notBelow, "cmeq0": equal, "cmge0": notLess, "cmgt0": greater, "cmle0": lessOrEqual, "cmlt0": less,
}

func (t *a64Translator) compareScalars(condition byte, withZero bool, w a64.Word) {
	t.floatOn()
	t.hart(true, opLoad, rax, t.vectorAt(w.Rn()))
	if withZero {
		t.immediate(true, immediateCmp, rax, 0)
	} else {
		t.hart(true, opCmpTo, rax, t.vectorAt(w.Rm()))
	}
	t.set(condition)
	t.unary(true, unaryNegate, rax)
	t.setHalves(w.Rd(), false)
}
