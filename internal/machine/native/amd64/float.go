package amd64

import (
	"strings"

	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/riscv"
)

// floatEmitters has what moves bits of the floating-point registers, which are in the hart, and arithmetic. All of it but stores and comparisons
// marks the unit changed: where it is not yet, or is off, the interpreter looks after it.
func floatEmitters() map[string]emitter {
	all := map[string]emitter{}
	for suffix, a := range map[string]access{"w": {4, opMove, false}, "d": {8, opMove, true}} {
		isSingle := a.size == 4
		all["fl"+suffix] = func(t *translator, d *riscv.Decoded) {
			t.floatOn(true)
			at, distance := t.locate(d, t.layout.Read, a.size)
			t.indexed(a.wide, opLoad, rax, memory, at, distance)
			t.setFloat(d.Rd, isSingle)
		}
		all["fs"+suffix] = func(t *translator, d *riscv.Decoded) {
			t.floatOn(false)
			at, distance := t.locate(d, t.layout.Write, a.size)
			t.float(rdx, d.Rs2)
			t.store(a, rdx, at, distance)
		}
		all["fmv."+suffix+".x"] = func(t *translator, d *riscv.Decoded) {
			t.floatOn(true)
			from := t.value(d.Rs1, rax)
			if isSingle {
				t.move32(rax, from)
			} else {
				t.move(rax, from)
			}
			t.setFloat(d.Rd, isSingle)
		}
		all["fmv.x."+suffix] = func(t *translator, d *riscv.Decoded) {
			t.floatOn(true)
			t.float(rax, d.Rs1)
			if isSingle {
				t.pair(true, opSignExtendWord, rax, rax)
			}
			t.setGuest(d.Rd, rax)
		}
	}
	for name, sign := range map[string]sign{"fsgnj": {exchange: true}, "fsgnjn": {exchange: true, negate: true}, "fsgnjx": {}} {
		all[name+".d"] = func(t *translator, d *riscv.Decoded) { t.changeSign(d, sign, true) }
		all[name+".s"] = func(t *translator, d *riscv.Decoded) { t.changeSign(d, sign, false) }
	}
	addArithmetic(all)
	return all
}

// sign says what is done with the sign of rs2: it replaces that of rs1 or is combined with it, and is the opposite one.
type sign struct{ exchange, negate bool }

// changeSign flips the sign of rs1 where that makes it the wanted one. A register whose upper half says that it has no single is the
// interpreter's.
func (t *translator) changeSign(d *riscv.Decoded, s sign, isDouble bool) {
	t.floatOn(true)
	t.float(rax, d.Rs1)
	t.float(rcx, d.Rs2)
	bits := uint8(63)
	if !isDouble {
		bits = 31
		for _, r := range []register{rax, rcx} {
			t.move(rdx, r)
			t.shift(true, shiftArithmetic, rdx, 32)
			t.immediate(true, immediateCmp, rdx, -1)
			t.jumpIf(notEqual, t.miss())
		}
	}
	if s.exchange {
		t.pair(true, opXor, rax, rcx)
	}
	if s.negate {
		t.immediate(true, immediateXor, rcx, -1)
	}
	t.shift(isDouble, shiftRight, rcx, bits)
	t.shift(isDouble, shiftLeft, rcx, bits)
	t.pair(true, opXor, rcx, rax)
	t.setFloat(d.Rd, false)
}

// floatOn leaves when the unit is off, or would have to be marked changed.
func (t *translator) floatOn(changes bool) {
	if t.floatIsDirty || t.floatIsOn && !changes {
		return
	}
	t.floatIsOn, t.floatIsDirty = true, changes
	t.hart(false, opLoad, rax, t.layout.MStatus)
	t.immediate(false, immediateAnd, rax, blocks.FloatStates)
	if changes {
		t.immediate(false, immediateCmp, rax, blocks.FloatStates)
		t.jumpIf(notEqual, t.miss())
		return
	}
	t.immediate(false, immediateCmp, rax, 0)
	t.jumpIf(equal, t.miss())
}

// float loads a floating-point register.
func (t *translator) float(to register, r uint8) { t.hart(true, opLoad, to, t.layout.F+8*uint32(r)) }

// setFloat sets one to rax. A single has ones above it; rcx is overwritten.
func (t *translator) setFloat(r uint8, isSingle bool) {
	if isSingle {
		t.constant(rcx, -1)
		t.shift(true, shiftLeft, rcx, 32)
		t.pair(true, opOr, rcx, rax)
	}
	t.hart(true, opMove, rax, t.layout.F+8*uint32(r))
}

// isFused says whether an instruction needs FMA of the host.
func isFused(d *riscv.Decoded) bool {
	return strings.HasPrefix(d.Name, "fmadd") || strings.HasPrefix(d.Name, "fmsub") || strings.HasPrefix(d.Name, "fnm")
}

// xmm1 has what fused operations add.
const xmm1 register = 1

// Arithmetic is the host's, on xmm0, where both processors give the same: finite results, rounded to nearest, that are not as small as to be
// less precise. Otherwise the interpreter does all of it again. What is inexact stays in MXCSR, from where the bridge takes it when the code is
// left, for no translated instruction reads fflags.

// Rounding modes, as in the instruction.
const (
	toNearest  = 0
	towardZero = 1
	dynamic    = 7
)

// rounds says whether the host can round as an instruction wants it.
func rounds(d *riscv.Decoded) bool {
	switch _, toInteger := integerConversions[d.Name]; {
	case !arithmetic[d.Name], d.RM == toNearest, d.RM == dynamic:
		return true
	default:
		return toInteger && d.RM == towardZero
	}
}

// integerConversions are those of a floating-point number to a signed integer. Where unsigned ones do not fit, the host says inexact.
var integerConversions = map[string]struct {
	precision byte
	wide      bool
}{"fcvt.w.d": {double, false}, "fcvt.l.d": {double, true}, "fcvt.w.s": {single, false}, "fcvt.l.s": {single, true}}

// arithmetic has the instructions with a rounding mode.
var arithmetic = map[string]bool{}

func addArithmetic(all map[string]emitter) {
	add := func(name string, e emitter) { all[name], arithmetic[name] = e, true }
	for suffix, precision := range map[string]byte{".s": single, ".d": double} {
		for name, op := range map[string]byte{"fadd": floatAdd, "fsub": floatSubtract, "fmul": floatMultiply, "fdiv": floatDivide} {
			add(name+suffix, func(t *translator, d *riscv.Decoded) {
				t.roundable(d)
				t.boxed(precision, d.Rs1, d.Rs2)
				t.floatOperation(precision, floatMove, d.Rs1)
				t.floatOperation(precision, op, d.Rs2)
				t.result(d.Rd, precision, op == floatMultiply || op == floatDivide)
			})
		}
		add("fsqrt"+suffix, func(t *translator, d *riscv.Decoded) {
			t.roundable(d)
			t.boxed(precision, d.Rs1)
			t.floatOperation(precision, floatSquareRoot, d.Rs1)
			t.result(d.Rd, precision, false)
		})
		for name, op := range map[string]byte{"fmadd": fusedAdd, "fmsub": fusedSubtract, "fnmsub": fusedNegatedAdd, "fnmadd": fusedNegatedSubtract} {
			add(name+suffix, func(t *translator, d *riscv.Decoded) {
				t.roundable(d)
				t.boxed(precision, d.Rs1, d.Rs2, d.Rs3)
				t.floatOperation(precision, floatMove, d.Rs1)
				t.hartFloat(precision, false, floatMove, xmm1, t.layout.F+8*uint32(d.Rs3))
				t.fused(precision, op, t.layout.F+8*uint32(d.Rs2))
				t.result(d.Rd, precision, true)
			})
		}
		for name, condition := range map[string]byte{"feq": equal, "flt": below, "fle": belowOrEqual} {
			all[name+suffix] = func(t *translator, d *riscv.Decoded) {
				t.floatOn(false)
				t.boxed(precision, d.Rs1, d.Rs2)
				t.floatOperation(precision, floatMove, d.Rs1)
				t.floatOperation(precision, floatCompare, d.Rs2)
				t.jumpIf(unordered, t.miss())
				t.set(condition)
				t.setGuest(d.Rd, rax)
			}
		}
		for name, wide := range map[string]bool{".w": false, ".l": true, ".wu": true} {
			add("fcvt"+suffix+name, func(t *translator, d *riscv.Decoded) {
				t.roundable(d)
				from := t.value(d.Rs1, rax)
				if name == ".wu" {
					t.move32(rax, from)
					from = rax
				}
				t.convert(precision, wide, from)
				t.moveFloat(precision == double, rax)
				t.setFloat(d.Rd, precision == single)
			})
		}
	}
	for name, c := range integerConversions {
		add(name, func(t *translator, d *riscv.Decoded) {
			op := byte(floatToInteger)
			if d.RM == towardZero {
				t.floatOn(true)
				op = floatTruncate
			} else {
				t.roundable(d)
			}
			t.boxed(c.precision, d.Rs1)
			t.hartFloat(c.precision, c.wide, op, rax, t.layout.F+8*uint32(d.Rs1))
			fits := t.newLabel()
			t.immediate(c.wide, immediateCmp, rax, 1)
			t.jumpIf(notOverflow, fits) // the smallest number stands for what does not fit
			t.tooLarge(integerOf{t.layout.F + 8*uint32(d.Rs1), c.precision, c.wide, t.layout.Flags, 16})
			t.bind(fits)
			if !c.wide {
				t.pair(true, opSignExtendWord, rax, rax)
			}
			t.setGuest(d.Rd, rax)
		})
	}
	add("fcvt.d.s", func(t *translator, d *riscv.Decoded) {
		t.roundable(d)
		t.boxed(single, d.Rs1)
		t.floatOperation(single, floatWiden, d.Rs1)
		t.result(d.Rd, double, false)
	})
	add("fcvt.s.d", func(t *translator, d *riscv.Decoded) {
		t.roundable(d)
		t.floatOperation(double, floatWiden, d.Rs1)
		t.result(d.Rd, single, true)
	})
}

// integerOf is a conversion of a number in memory to an integer with a sign.
type integerOf struct {
	at        uint32
	precision byte
	wide      bool
	flags     uint32 // where the guest's are, and what is set there of a number that does not fit
	invalid   int32
}

// tooLarge makes rax the integer for a number that is beyond all of them, the nearest one, and raises the flag (The RISC-V ISA Manual, "F",
// conversions; Arm's FPToFixed). It leaves for what is no number, and for what may be the smallest integer itself.
func (t *pageCode) tooLarge(c integerOf) {
	isDouble := c.precision == double
	fraction, exponents, bias, bits := uint8(23), int32(0xff), int32(127), int32(32)
	if isDouble {
		fraction, exponents, bias = 52, 0x7ff, 1023
	}
	if c.wide {
		bits = 64
	}
	t.hart(isDouble, opLoad, rax, c.at)
	t.move(rcx, rax)
	t.shift(isDouble, shiftRight, rcx, fraction)
	t.immediate(false, immediateAnd, rcx, exponents)
	t.immediate(false, immediateCmp, rcx, exponents)
	t.jumpIf(equal, t.miss())
	if !isDouble {
		t.pair(true, opSignExtendWord, rax, rax)
	}
	t.shift(true, shiftArithmetic, rax, 63)
	t.pair(false, opAdd, rax, rcx) // below zero there is one more integer
	t.immediate(false, immediateCmp, rcx, bias+bits-1)
	t.jumpIf(less, t.miss())
	t.constant(rcx, -1)
	t.shift(true, shiftRight, rcx, uint8(65-bits))
	t.pair(true, opXor, rcx, rax)
	t.hart(false, opLoad, rcx, c.flags)
	t.immediate(false, immediateOr, rcx, c.invalid)
	t.hart(false, opMove, rcx, c.flags)
}

// roundable leaves when the unit is not on and changed, or a dynamic rounding mode is not to nearest.
func (t *translator) roundable(d *riscv.Decoded) {
	t.floatOn(true)
	if d.RM != dynamic || t.roundsToNearest {
		return
	}
	t.roundsToNearest = true
	t.hart(false, opLoad, rax, t.layout.RoundingMode)
	t.immediate(false, immediateCmp, rax, toNearest)
	t.jumpIf(notEqual, t.miss())
}

// boxed leaves when one of the registers has no single.
func (t *translator) boxed(precision byte, registers ...uint8) {
	if precision == double {
		return
	}
	for _, r := range registers {
		t.hart(false, opLoad, rax, t.layout.F+8*uint32(r)+4)
		t.immediate(false, immediateCmp, rax, -1)
		t.jumpIf(notEqual, t.miss())
	}
}

// floatOperation is one on xmm0 and a register of the guest.
func (t *translator) floatOperation(precision, op byte, r uint8) {
	t.hartFloat(precision, false, op, 0, t.layout.F+8*uint32(r))
}

// result sets rd to xmm0, and leaves when that is infinite or no number. mayBeTiny: also when the exact result may be below the normal numbers.
func (t *translator) result(rd uint8, precision byte, mayBeTiny bool) {
	t.finite(precision, mayBeTiny)
	t.setFloat(rd, precision == single)
}

// finite makes rax the bits of xmm0, and leaves when that is infinite or no number, or mayBeTiny and may be a result below the normal numbers.
func (t *pageCode) finite(precision byte, mayBeTiny bool) {
	bits, all := uint8(52), int32(0x7ff)
	if precision == single {
		bits, all = 23, 0xff
	}
	t.moveFloat(precision == double, rax)
	t.move(rcx, rax)
	t.shift(precision == double, shiftRight, rcx, bits)
	t.immediate(false, immediateAnd, rcx, all)
	if mayBeTiny { // the smallest normal number may be what is rounded up to it
		t.immediate(false, immediateSub, rcx, 2)
		all -= 2
	}
	t.immediate(false, immediateCmp, rcx, all)
	t.jumpIf(notBelow, t.miss())
}
