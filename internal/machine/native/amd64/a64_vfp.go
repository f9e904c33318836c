package amd64

import (
	"strings"

	"agentvm/internal/machine/a64"
)

// a64VectorFloat translates floating point on the lanes of vectors where the host gives the same: see float.go. When that is uncertain of one lane,
// the interpreter does all.
func a64VectorFloat(row *a64.Instruction) a64Emitter {
	name, kind, _ := strings.Cut(row.Name, ".")
	switch kind {
	case "v", "e":
	case "s":
		if name == "faddp" {
			return (*a64Translator).addPair
		}
		return nil
	default:
		return nil
	}
	if op, ok := map[string]byte{"fadd": floatAdd, "fsub": floatSubtract, "fmul": floatMultiply, "fdiv": floatDivide, "fabd": floatSubtract}[name]; ok {
		return func(t *a64Translator, w a64.Word) {
			t.roundable()
			t.lanes(xmm0, w.Rn(), w)
			t.secondLanes(xmm2, row, w)
			t.packed(precisionOf(w), op, xmm0, xmm2)
			switch op {
			case floatMultiply:
				t.certain(w, xmm2)
			case floatDivide:
				t.certain(w, xmm1)
			default:
				t.certain(w, 0)
			}
			if name == "fabd" {
				t.withoutSigns(w)
			}
			t.setVector(w.Rd(), w.Bit(30))
		}
	}
	switch name {
	case "fmla", "fmls":
		op := byte(fusedAdd)
		if name == "fmls" {
			op = fusedNegatedAdd
		}
		return func(t *a64Translator, w a64.Word) {
			t.roundable()
			t.lanes(xmm0, w.Rn(), w)
			t.lanes(xmm1, w.Rd(), w)
			t.secondLanes(xmm2, row, w)
			t.fusedPacked(precisionOf(w), op)
			t.certain(w, xmm2)
			t.setVector(w.Rd(), w.Bit(30))
		}
	case "fsqrt":
		return func(t *a64Translator, w a64.Word) {
			t.roundable()
			t.lanes(xmm1, w.Rn(), w)
			t.packed(precisionOf(w), floatSquareRoot, xmm0, xmm1)
			t.certain(w, 0)
			t.setVector(w.Rd(), w.Bit(30))
		}
	case "fneg", "fabs":
		return func(t *a64Translator, w a64.Word) {
			t.floatOn()
			t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
			if name == "fabs" {
				t.withoutSigns(w)
			} else {
				t.vectors(vectorEqual32, xmm1, xmm1)
				t.vectorShift(shiftsOf(w), vectorShiftLeft, xmm1, widthOf(w)-1)
				t.vectors(vectorXor, xmm0, xmm1)
			}
			t.setVector(w.Rd(), w.Bit(30))
		}
	case "fcmeq", "fcmge", "fcmgt", "fcmeq0", "fcmge0", "fcmgt0", "fcmle0", "fcmlt0":
		return func(t *a64Translator, w a64.Word) { t.compareLanes(name, w) }
	case "fmax", "fmin", "fmaxnm", "fminnm":
		return func(t *a64Translator, w a64.Word) { t.largerLanes(strings.HasPrefix(name, "fmax"), w) }
	}
	return nil
}

// widthOf is the size of a lane in bits, shiftsOf the host's shifts of such.
func widthOf(w a64.Word) uint8 {
	if w.Bit(22) {
		return 64
	}
	return 32
}

func shiftsOf(w a64.Word) int {
	if w.Bit(22) {
		return vectorShift64
	}
	return vectorShift32
}

// lanes loads a register; of half a vector both halves are the lower one, so that no lane has anything else.
func (t *a64Translator) lanes(x register, r uint8, w a64.Word) {
	t.vector(vectorLoad, x, t.vectorAt(r))
	if !w.Bit(30) {
		t.shuffle(x, x, lowerHalf)
	}
}

func (t *a64Translator) shuffle(x, y register, order byte) {
	t.vectors(vectorShuffle, x, y)
	t.bytes(order)
}

// secondLanes loads the second operand, or in all lanes its element.
func (t *a64Translator) secondLanes(x register, row *a64.Instruction, w a64.Word) {
	if row.Format != a64.FormatVX {
		t.lanes(x, w.Rm(), w)
		return
	}
	t.vector(vectorLoad, x, t.vectorAt(w.Rm()))
	index, order := byte(w.Field(11, 1)), byte(lowerHalf)
	if w.Bit(22) {
		order += index * (upperHalf - lowerHalf)
	} else {
		order = (index<<1 | byte(w.Field(21, 1))) * 0x55
	}
	t.shuffle(x, x, order)
}

// withoutSigns clears those of xmm0's lanes.
func (t *a64Translator) withoutSigns(w a64.Word) {
	t.vectorShift(shiftsOf(w), vectorShiftLeft, xmm0, 1)
	t.vectorShift(shiftsOf(w), vectorShiftRight, xmm0, 1)
}

// certain leaves when a lane of xmm0 is infinite or no number, or may be a result that was too small to be normal. That cannot be where there is no
// factor, or one is zero: factor is the second one, xmm1 when only the first one counts, or 0. The first is rn. It changes the other registers.
func (t *a64Translator) certain(w a64.Word, factor register) {
	shifts, exponent := shiftsOf(w), uint8(24) // how far down the exponent comes, when the sign has gone
	if w.Bit(22) {
		exponent = 53
	}
	const exponents, bound, uncertain = xmm3, xmm4, xmm5
	t.vectors(vectorLoad, exponents, xmm0)
	t.vectorShift(shifts, vectorShiftLeft, exponents, 1)
	t.vectorShift(shifts, vectorShiftRight, exponents, exponent)
	t.vectors(vectorEqual32, bound, bound) // the largest of numbers
	t.vectorShift(shifts, vectorShiftRight, bound, exponent+1)
	t.vectorShift(shifts, vectorShiftLeft, bound, 1)
	t.vectors(vectorLoad, uncertain, exponents)
	t.vectors(greaterSizes[2], uncertain, bound)
	if factor != 0 {
		t.vectors(vectorEqual32, bound, bound) // 2: the smallest normal number may be what is rounded up to it
		t.vectorShift(shifts, vectorShiftRight, bound, widthOf(w)-1)
		t.vectorShift(shifts, vectorShiftLeft, bound, 1)
		t.vectors(greaterSizes[2], bound, exponents)
		equal := equalSizes[2]
		if w.Bit(22) {
			equal = equalSizes[3]
		}
		zero := exponents
		t.vectors(vectorXor, zero, zero)
		t.lanes(xmm1, w.Rn(), w)
		t.vectorShift(shifts, vectorShiftLeft, xmm1, 1)
		t.vectors(equal, xmm1, zero)
		if factor != xmm1 {
			t.vectorShift(shifts, vectorShiftLeft, factor, 1)
			t.vectors(equal, factor, zero)
			t.vectors(vectorOr, xmm1, factor)
		}
		t.vectors(vectorAndNot, xmm1, bound)
		t.vectors(vectorOr, uncertain, xmm1)
	}
	t.leaveIfAny(uncertain)
}

// leaveIfAny leaves when a vector register has a sign.
func (t *a64Translator) leaveIfAny(x register) {
	t.signsOf(rax, x)
	t.pair(false, opTest, rax, rax)
	t.jumpIf(notEqual, t.miss())
}

// Comparisons of SSE.
const (
	packedEqual, packedLess, packedNotGreater, packedUnordered = 0, 1, 2, 3
)

// compareLanes has FCMEQ, FCMGE and FCMGT, and those with zero. What cannot be compared is the interpreter's.
func (t *a64Translator) compareLanes(name string, w a64.Word) {
	precision, a, b := precisionOf(w), xmm0, xmm2 // a is compared with b
	t.roundable()
	t.lanes(xmm0, w.Rn(), w)
	if strings.HasSuffix(name, "0") {
		t.vectors(vectorXor, xmm2, xmm2)
	} else {
		t.lanes(xmm2, w.Rm(), w)
	}
	t.vectors(vectorLoad, xmm3, xmm0)
	t.comparePacked(precision, xmm3, xmm2, packedUnordered)
	t.leaveIfAny(xmm3)
	how := byte(packedEqual)
	switch name[3:5] {
	case "gt", "lt":
		how = packedLess
	case "ge", "le":
		how = packedNotGreater
	}
	if name[3] == 'g' {
		a, b = b, a
	}
	t.comparePacked(precision, a, b, how)
	if a != xmm0 {
		t.vectors(vectorLoad, xmm0, a)
	}
	t.setVector(w.Rd(), w.Bit(30))
}

// largerLanes has FMAX and FMIN, and those for numbers.
func (t *a64Translator) largerLanes(larger bool, w a64.Word) {
	t.roundable()
	t.lanes(xmm0, w.Rn(), w)
	t.lanes(xmm1, w.Rm(), w)
	t.larger(larger, precisionOf(w))
	t.setVector(w.Rd(), w.Bit(30))
}

// largerFloat has the same of one number.
func (t *a64Translator) largerFloat(larger bool, w a64.Word) {
	t.roundable()
	t.operate(precisionOf(w), floatMove, w.Rn())
	t.hartFloat(precisionOf(w), false, floatMove, xmm1, t.vectorAt(w.Rm()))
	t.larger(larger, precisionOf(w))
	t.moveFloat(w.Bit(22), rax)
	t.setFloat(w.Rd())
}

// larger makes xmm0's numbers the larger or smaller ones of both, xmm0 and xmm1. Of zeros the host gives the second: where the other way round it gives
// another, that has the other sign.
func (t *a64Translator) larger(larger bool, precision byte) {
	op, combine := byte(floatMinimum), vectorOr
	if larger {
		op, combine = floatMaximum, vectorAnd
	}
	t.vectors(vectorLoad, xmm2, xmm0)
	t.comparePacked(precision, xmm2, xmm1, packedUnordered)
	t.leaveIfAny(xmm2)
	t.vectors(vectorLoad, xmm2, xmm1)
	t.packed(precision, op, xmm2, xmm0)
	t.packed(precision, op, xmm0, xmm1)
	t.vectors(combine, xmm0, xmm2)
}

// addPair is FADDP of the two numbers of a register.
func (t *a64Translator) addPair(w a64.Word) {
	t.roundable()
	t.operate(precisionOf(w), floatMove, w.Rn())
	t.hartFloat(precisionOf(w), false, floatAdd, 0, t.vectorAt(w.Rn())+uint32(widthOf(w)/8))
	t.result(w.Rd(), precisionOf(w), false)
}
