package jit

// Rounding modes in an instruction.
const (
	roundNearest = 0
	roundZero    = 1
	roundDynamic = 7
)

// format is single or double precision.
type format struct {
	double        bool
	fraction      int64 // bits
	exponents     int64 // the exponent of infinities and NaNs
	equal, less   byte
	lessOrEqual   byte
	signBit, rest int64
}

var (
	single     = format{false, 23, 0xff, opF32Eq, opF32Lt, opF32Le, 1 << 31, 1<<31 - 1}
	doubleForm = format{true, 52, 0x7ff, opF64Eq, opF64Lt, opF64Le, -1 << 63, 1<<63 - 1}
)

var floatAttempts = map[string]attempt{
	"fadd.s":    arithmetic(single, opF32Add, 0),
	"fsub.s":    arithmetic(single, opF32Sub, 0),
	"fmul.s":    arithmetic(single, opF32Mul, 2),
	"fdiv.s":    arithmetic(single, opF32Div, 2),
	"fsqrt.s":   arithmetic(single, opF32Sqrt, 2),
	"fadd.d":    arithmetic(doubleForm, opF64Add, 0),
	"fsub.d":    arithmetic(doubleForm, opF64Sub, 0),
	"fmul.d":    arithmetic(doubleForm, opF64Mul, 2),
	"fdiv.d":    arithmetic(doubleForm, opF64Div, 2),
	"fsqrt.d":   arithmetic(doubleForm, opF64Sqrt, 2),
	"feq.s":     comparison(single, single.equal),
	"flt.s":     comparison(single, single.less),
	"fle.s":     comparison(single, single.lessOrEqual),
	"feq.d":     comparison(doubleForm, doubleForm.equal),
	"flt.d":     comparison(doubleForm, doubleForm.less),
	"fle.d":     comparison(doubleForm, doubleForm.lessOrEqual),
	"fsgnj.d":   always(func(g *generator, i *instruction) { g.signFrom(i, func() {}) }),
	"fsgnjn.d":  always(func(g *generator, i *instruction) { g.signFrom(i, func() { g.i64(-1).op(opI64Xor) }) }),
	"fsgnjx.d":  always(func(g *generator, i *instruction) { g.signFrom(i, func() { g.f(i.Rs1).op(opI64Xor) }) }),
	"fmv.x.d":   always(func(g *generator, i *instruction) { g.f(i.Rs1) }),
	"fmv.d.x":   always(func(g *generator, i *instruction) { g.x(i.Rs1) }),
	"fmv.x.w":   always(func(g *generator, i *instruction) { g.f(i.Rs1).op(opI64Extend32S) }),
	"fmv.w.x":   always(func(g *generator, i *instruction) { g.x(i.Rs1).i64(box).op(opI64Or) }),
	"fcvt.d.w":  exactInteger(func(g *generator, i *instruction) { g.x(i.Rs1).op(opI64Extend32S, opF64ConvertI64S, opI64FromF64) }),
	"fcvt.d.wu": exactInteger(func(g *generator, i *instruction) { g.low32(i.Rs1).op(opF64ConvertI64S, opI64FromF64) }),
	"fcvt.d.l":  longToDouble,
	"fcvt.w.d":  toInteger(1<<31, opTruncateToI32, opExtendS),
	"fcvt.l.d":  toInteger(1<<63, opTruncateToI64),
	"fcvt.d.s":  widen,
	"fcvt.s.d":  narrow,
}

const (
	opPrefix        = 0xfc
	opTruncateToI32 = 0x02 // i32.trunc_sat_f64_s, behind the prefix
	opTruncateToI64 = 0x06 // i64.trunc_sat_f64_s
	opF64Const      = 0x44
	opF64Gt         = 0x64
)

// always is a way that never fails.
func always(push func(g *generator, i *instruction)) attempt {
	return func(g *generator, i *instruction) func() {
		return func() {
			push(g, i)
			g.set(localA).i32(1)
		}
	}
}

// value pushes a register as a number of the format. For singles it must be known that it holds one.
func (g *generator) value(f format, r uint8) {
	if f.double {
		g.f(r).op(opF64FromI64)
	} else {
		g.f(r).op(opWrap, opF32FromI32)
	}
}

// boxed pushes whether a register holds a number of the format.
func (g *generator) boxed(f format, r uint8) *code {
	if f.double {
		return g.i32(1)
	}
	return g.f(r).i64(box).op(opI64GeU)
}

// exactAlready pushes whether the guest rounds as the host does, and inexact results tell it nothing new. False: it does
// not, by the instruction's rounding mode.
func (g *generator) exactAlready(i *instruction) {
	const inexact = 1
	g.get(localHart).memory(opI32Load, g.layout.FFlags).i32(inexact).op(opI32And)
	if i.RM == roundDynamic {
		g.get(localHart).memory(opI32Load, g.layout.FRM).op(opI32Eqz, opI32And)
	}
}

// arithmetic takes results whose exponent is at least `least` and not that of infinities.
func arithmetic(f format, op byte, least int64) attempt {
	unary := op == opF32Sqrt || op == opF64Sqrt
	return func(g *generator, i *instruction) func() {
		if i.RM != roundNearest && i.RM != roundDynamic {
			return nil
		}
		return func() {
			g.exactAlready(i)
			g.boxed(f, i.Rs1).op(opI32And)
			if !unary {
				g.boxed(f, i.Rs2).op(opI32And)
			}
			g.begin(typeI32)
			g.value(f, i.Rs1)
			if !unary {
				g.value(f, i.Rs2)
			}
			g.op(op)
			g.result(f)
			g.inRange(f, least)
			g.otherwise().i32(0).end()
		}
	}
}

// result pops a number and puts its bits into localA, as a register holds them.
func (g *generator) result(f format) {
	if f.double {
		g.op(opI64FromF64).set(localA)
	} else {
		g.op(opI32FromF32, opExtendU).i64(box).op(opI64Or).set(localA)
	}
}

// inRange pushes whether the exponent of localA is at least `least` and not that of infinities and NaNs.
func (g *generator) inRange(f format, least int64) {
	g.get(localA).i64(f.fraction).op(opI64ShrU).i64(f.exponents).op(opI64And)
	if least != 0 {
		g.i64(least).op(opI64Sub)
	}
	g.i64(f.exponents - least).op(opI64LtU)
}

func comparison(f format, op byte) attempt {
	return func(g *generator, i *instruction) func() {
		return func() {
			g.value(f, i.Rs1)
			g.value(f, i.Rs2)
			g.op(op, opExtendU).set(localA)
			g.boxed(f, i.Rs1)
			g.boxed(f, i.Rs2).op(opI32And)
			for _, r := range []uint8{i.Rs1, i.Rs2} { // a NaN differs from itself
				g.value(f, r)
				g.value(f, r)
				g.op(f.equal, opI32And)
			}
		}
	}
}

// signFrom pushes the double rs1 with the sign of rs2, which change alters before.
func (g *generator) signFrom(i *instruction, change func()) {
	g.f(i.Rs1).i64(doubleForm.rest).op(opI64And)
	g.f(i.Rs2)
	change()
	g.i64(doubleForm.signBit).op(opI64And, opI64Or)
}

// exactInteger is a conversion that never rounds. Its rounding mode must be valid all the same: a dynamic one may not be.
func exactInteger(push func(g *generator, i *instruction)) attempt {
	return func(g *generator, i *instruction) func() {
		if i.RM == roundDynamic {
			return nil
		}
		return always(push)(g, i)
	}
}

// longToDouble converts what has at most 53 bits.
func longToDouble(g *generator, i *instruction) func() {
	if i.RM == roundDynamic {
		return nil
	}
	return func() {
		g.x(i.Rs1).op(opF64ConvertI64S, opI64FromF64).set(localA)
		g.x(i.Rs1).i64(1 << 53).op(opI64Add).i64(1 << 54).op(opI64LtU)
	}
}

// toInteger truncates what is between -limit and limit, both excluded.
func toInteger(limit float64, truncate byte, extend ...byte) attempt {
	return func(g *generator, i *instruction) func() {
		if i.RM != roundZero {
			return nil
		}
		return func() {
			g.value(doubleForm, i.Rs1)
			g.op(opPrefix, truncate).op(extend...).set(localA)
			g.exactAlready(i)
			g.value(doubleForm, i.Rs1)
			g.f64(-limit).op(opF64Gt, opI32And)
			g.value(doubleForm, i.Rs1)
			g.f64(limit).op(opF64Lt, opI32And)
		}
	}
}

// widen converts a single to a double: exact except for infinities and NaNs, which are left to the machine.
func widen(g *generator, i *instruction) func() {
	if i.RM == roundDynamic {
		return nil
	}
	return func() {
		g.value(single, i.Rs1)
		g.op(opF64PromoteF32)
		g.result(doubleForm)
		g.inRange(doubleForm, 0)
		g.boxed(single, i.Rs1).op(opI32And)
	}
}

// narrow rounds a double to a single.
func narrow(g *generator, i *instruction) func() {
	if i.RM != roundNearest && i.RM != roundDynamic {
		return nil
	}
	return func() {
		g.value(doubleForm, i.Rs1)
		g.op(opF32DemoteF64)
		g.result(single)
		g.inRange(single, 2)
		g.exactAlready(i)
		g.op(opI32And)
	}
}
