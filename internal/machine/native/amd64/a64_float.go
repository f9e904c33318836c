package amd64

import (
	"strings"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

// a64Float translates scalar floating point: what moves numbers, and of arithmetic what the host does alike, see float.go. A single has zeros above it.
func a64Float(row *a64.Instruction) a64Emitter {
	name, kind, _ := strings.Cut(row.Name, ".")
	switch row.Format {
	case a64.FormatFP1:
		switch name {
		case "fmov", "fabs", "fneg":
			return (*a64Translator).floatSign
		case "fsqrt":
			return func(t *a64Translator, w a64.Word) {
				t.roundable()
				t.operate(precisionOf(w), floatSquareRoot, w.Rn())
				t.result(w.Rd(), precisionOf(w), false)
			}
		case "fcvt":
			return convertFloat(kind)
		}
	case a64.FormatFP2:
		op, ok := map[string]byte{"fadd": floatAdd, "fsub": floatSubtract, "fmul": floatMultiply, "fdiv": floatDivide}[name]
		if ok {
			return func(t *a64Translator, w a64.Word) {
				t.roundable()
				t.operate(precisionOf(w), floatMove, w.Rn())
				t.operate(precisionOf(w), op, w.Rm())
				t.result(w.Rd(), precisionOf(w), op == floatMultiply || op == floatDivide)
			}
		}
		if strings.HasPrefix(name, "fmax") || strings.HasPrefix(name, "fmin") {
			return func(t *a64Translator, w a64.Word) { t.largerFloat(name[2] == 'a', w) }
		}
	case a64.FormatFP3:
		op := map[string]byte{"fmadd": fusedAdd, "fmsub": fusedNegatedAdd, "fnmadd": fusedNegatedSubtract, "fnmsub": fusedSubtract}[name]
		return func(t *a64Translator, w a64.Word) {
			t.roundable()
			t.operate(precisionOf(w), floatMove, w.Rn())
			t.hartFloat(precisionOf(w), false, floatMove, xmm1, t.vectorAt(w.Ra()))
			t.fused(precisionOf(w), op, t.vectorAt(w.Rm()))
			t.result(w.Rd(), precisionOf(w), true)
		}
	case a64.FormatFPC:
		return (*a64Translator).compareFloats
	case a64.FormatFPSEL:
		return (*a64Translator).selectFloat
	case a64.FormatFPI:
		return func(t *a64Translator, w a64.Word) {
			t.floatOn()
			t.constant64(rax, floatImmediate(uint8(w.Field(13, 8)), w.Bit(22)))
			t.setFloat(w.Rd())
		}
	case a64.FormatFPINT:
		switch name {
		case "fmov":
			return moveFloat(kind)
		case "scvtf", "ucvtf":
			return func(t *a64Translator, w a64.Word) { t.fromInteger(w, name == "ucvtf") }
		case "fcvtzs", "fcvtzu":
			return func(t *a64Translator, w a64.Word) { t.toInteger(w, name == "fcvtzu") }
		}
	}
	return nil
}

func precisionOf(w a64.Word) byte {
	if w.Bit(22) {
		return double
	}
	return single
}

// operate is an operation of xmm0 and a register of the guest.
func (t *a64Translator) operate(precision, op byte, r uint8) {
	t.hartFloat(precision, false, op, 0, t.vectorAt(r))
}

// setFloat sets a vector register to rax.
func (t *a64Translator) setFloat(r uint8) { t.setHalves(r, false) }

// roundable leaves when FPCR says anything but rounding to nearest.
func (t *a64Translator) roundable() {
	t.floatOn()
	if t.roundsToNearest {
		return
	}
	t.roundsToNearest = true
	t.hart(false, opLoad, rax, t.layout.ARM64.FPCR)
	t.immediate(false, immediateCmp, rax, 0)
	t.jumpIf(notEqual, t.miss())
}

// result sets a register to xmm0, unless that is infinite or no number, or with mayBeTiny may be a result that was too small to be normal.
func (t *a64Translator) result(rd uint8, precision byte, mayBeTiny bool) {
	t.finite(precision, mayBeTiny)
	t.setFloat(rd)
}

// floatSign is FMOV, FABS and FNEG.
func (t *a64Translator) floatSign(w a64.Word) {
	t.floatOn()
	wide := w.Bit(22)
	t.hart(wide, opLoad, rax, t.vectorAt(w.Rn()))
	switch w.Field(15, 2) {
	case 1: // FABS
		t.shift(wide, shiftLeft, rax, 1)
		t.shift(wide, shiftRight, rax, 1)
	case 2: // FNEG
		t.constant(rcx, 1)
		t.shift(wide, rotateRight, rcx, 1)
		t.pair(wide, opXor, rcx, rax)
	}
	t.setFloat(w.Rd())
}

// convertFloat is FCVT between singles and doubles.
func convertFloat(kind string) a64Emitter {
	switch kind {
	case "s.d": // the names of the table have the source first
		return func(t *a64Translator, w a64.Word) {
			t.roundable()
			t.operate(single, floatWiden, w.Rn())
			t.result(w.Rd(), double, false)
		}
	case "d.s":
		return func(t *a64Translator, w a64.Word) {
			t.roundable()
			t.operate(double, floatWiden, w.Rn())
			t.result(w.Rd(), single, true)
		}
	}
	return nil
}

// compareFloats is FCMP. Its flags are those of a subtraction: of 0 and 1 when less, 1 and 0 when greater, and of zeros when equal.
func (t *a64Translator) compareFloats(w a64.Word) {
	t.roundable() // numbers that are flushed to zero are compared as zero
	precision := precisionOf(w)
	if w.Bit(3) { // with zero, which xmm0 is made: both exchange places
		t.vectors(vectorXor, xmm0, xmm0)
		t.hartFloat(precision, false, floatCompare, 0, t.vectorAt(w.Rn()))
	} else {
		t.operate(precision, floatMove, w.Rn())
		t.hartFloat(precision, false, floatCompare, 0, t.vectorAt(w.Rm()))
	}
	t.jumpIf(unordered, t.miss())
	first, second := t.layout.ARM64.FlagA, t.layout.ARM64.FlagB
	if w.Bit(3) {
		first, second = second, first
	}
	t.set(above)
	t.hart(true, opMove, rax, first)
	t.set(below)
	t.hart(true, opMove, rax, second)
	t.setFlags(blocks.FlagsSub64)
}

func (t *a64Translator) selectFloat(w a64.Word) {
	wide, c := w.Bit(22), byte(w.Field(12, 4))
	t.floatOn()
	if c >= 14 {
		t.hart(wide, opLoad, rax, t.vectorAt(w.Rn()))
		t.setFloat(w.Rd())
		return
	}
	t.hart(wide, opLoad, rdx, t.vectorAt(w.Rm()))
	t.hart(wide, opLoad, rcx, t.vectorAt(w.Rn()))
	t.moveIf(true, t.condition(c), rdx, rcx)
	t.move(rax, rdx)
	t.setFloat(w.Rd())
}

// moveFloat is FMOV between the register files.
func moveFloat(kind string) a64Emitter {
	switch kind {
	case "w.s", "x.d", "x.v1":
		return func(t *a64Translator, w a64.Word) {
			t.floatOn()
			at := t.vectorAt(w.Rn())
			if kind == "x.v1" {
				at += 8
			}
			to := t.target(blocks.ZeroOf(w.Rd()))
			t.hart(w.Wide(), opLoad, to, at)
			t.setGuest(blocks.ZeroOf(w.Rd()), to)
		}
	case "s.w", "d.x":
		return func(t *a64Translator, w a64.Word) {
			t.floatOn()
			t.move32Or64(w.Wide(), rax, blocks.ZeroOf(w.Rn()))
			t.setFloat(w.Rd())
		}
	}
	return func(t *a64Translator, w a64.Word) { // to the upper half
		t.floatOn()
		t.hart(true, opMove, t.value(blocks.ZeroOf(w.Rn()), rax), t.vectorAt(w.Rd())+8)
	}
}

func (t *a64Translator) fromInteger(w a64.Word, unsigned bool) {
	t.roundable()
	wide := w.Wide()
	t.move32Or64(wide, rax, blocks.ZeroOf(w.Rn()))
	if unsigned {
		if wide { // the host's integers have a sign
			t.immediate(true, immediateCmp, rax, 0)
			t.jumpIf(less, t.miss())
		}
		wide = true
	}
	t.convert(precisionOf(w), wide, rax)
	t.moveFloat(w.Bit(22), rax)
	t.setFloat(w.Rd())
}

const invalidOperation = 1 // FPSR.IOC

// toInteger is FCVTZS and FCVTZU. What does not fit the latter is the interpreter's.
func (t *a64Translator) toInteger(w a64.Word, unsigned bool) {
	t.roundable()
	wide := w.Wide()
	if unsigned { // the host would say inexact of some that do not fit
		fraction, bias := uint8(23), int32(127)
		if w.Bit(22) {
			fraction, bias = 52, 1023
		}
		integer := int32(32)
		if wide {
			integer = 63
		}
		t.hart(w.Bit(22), opLoad, rax, t.vectorAt(w.Rn()))
		t.shift(w.Bit(22), shiftRight, rax, fraction) // the exponent, and the sign above it
		t.immediate(false, immediateCmp, rax, bias+integer)
		t.jumpIf(notBelow, t.miss())
	}
	t.hartFloat(precisionOf(w), wide || unsigned, floatTruncate, rax, t.vectorAt(w.Rn()))
	if !unsigned {
		fits := t.newLabel()
		t.immediate(wide, immediateCmp, rax, 1)
		t.jumpIf(notOverflow, fits) // the smallest number stands for what does not fit
		t.tooLarge(integerOf{t.vectorAt(w.Rn()), precisionOf(w), wide, t.layout.ARM64.FPSR, invalidOperation})
		if !wide {
			t.move32(rax, rax)
		}
		t.bind(fits)
	}
	t.setGuest(blocks.ZeroOf(w.Rd()), rax)
}
