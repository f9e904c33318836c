package jit

// Operands of an operation on the wasm stack.

func registers(ops ...byte) *emitter {
	return pure(usesRegisters, func(g *generator, i *instruction) {
		g.x(i.Rs1)
		g.x(i.Rs2)
		g.op(ops...)
	})
}

func immediate(ops ...byte) *emitter {
	return pure(usesImmediate, func(g *generator, i *instruction) { g.x(i.Rs1).i64(i.Imm).op(ops...) })
}

// words is an operation on the lower halves, whose result is extended with its sign.
func words(op byte) *emitter {
	return pure(usesRegisters, func(g *generator, i *instruction) {
		g.x(i.Rs1).op(opWrap)
		g.x(i.Rs2).op(opWrap, op, opExtendS)
	})
}

func wordImmediate(op byte) *emitter {
	return pure(usesImmediate, func(g *generator, i *instruction) {
		g.x(i.Rs1).op(opWrap).i32(int32(i.Imm)).op(op, opExtendS)
	})
}

func integerEmitters() map[string]*emitter {
	return map[string]*emitter{
		"lui":   pure(usesUpper, func(g *generator, i *instruction) { g.i64(i.Imm) }),
		"auipc": pure(usesUpper, func(g *generator, i *instruction) { g.address(i.at).i64(i.Imm).op(opI64Add) }),
		"addi":  pure(usesImmediate, addImmediate),
		"slti":  immediate(opI64LtS, opExtendU),
		"sltiu": immediate(opI64LtU, opExtendU),
		"xori":  immediate(opI64Xor),
		"ori":   immediate(opI64Or),
		"andi":  immediate(opI64And),
		"slli":  immediate(opI64Shl),
		"srli":  immediate(opI64ShrU),
		"srai":  immediate(opI64ShrS),
		"add":   registers(opI64Add),
		"sub":   registers(opI64Sub),
		"sll":   registers(opI64Shl),
		"slt":   registers(opI64LtS, opExtendU),
		"sltu":  registers(opI64LtU, opExtendU),
		"xor":   registers(opI64Xor),
		"srl":   registers(opI64ShrU),
		"sra":   registers(opI64ShrS),
		"or":    registers(opI64Or),
		"and":   registers(opI64And),
		"addiw": wordImmediate(opI32Add),
		"slliw": wordImmediate(opI32Shl),
		"srliw": wordImmediate(opI32ShrU),
		"sraiw": wordImmediate(opI32ShrS),
		"addw":  words(opI32Add),
		"subw":  words(opI32Sub),
		"sllw":  words(opI32Shl),
		"srlw":  words(opI32ShrU),
		"sraw":  words(opI32ShrS),
		"fence": {emit: func(_ *generator, _ *instruction, s state) state { return s }},
	}
}

func addImmediate(g *generator, i *instruction) {
	switch {
	case i.Rs1 == 0:
		g.i64(i.Imm)
	case i.Imm == 0:
		g.x(i.Rs1)
	default:
		g.x(i.Rs1).i64(i.Imm).op(opI64Add)
	}
}

func multiplyEmitters() map[string]*emitter {
	return map[string]*emitter{
		"mul":    registers(opI64Mul),
		"mulw":   words(opI32Mul),
		"mulhu":  pure(usesRegisters, (*generator).highUnsigned),
		"mulh":   pure(usesRegisters, func(g *generator, i *instruction) { g.high(i, true) }),
		"mulhsu": pure(usesRegisters, func(g *generator, i *instruction) { g.high(i, false) }),
		"div":    divideLong.emitter(true, false),
		"divu":   divideLong.emitter(false, false),
		"rem":    divideLong.emitter(true, true),
		"remu":   divideLong.emitter(false, true),
		"divw":   divideWord.emitter(true, false),
		"divuw":  divideWord.emitter(false, false),
		"remw":   divideWord.emitter(true, true),
		"remuw":  divideWord.emitter(false, true),
	}
}

// highUnsigned pushes the upper half of the product, from the products of the halves.
func (g *generator) highUnsigned(i *instruction) {
	low := func(r uint8) { g.x(r).i64(0xffffffff).op(opI64And) }
	high := func(r uint8) { g.x(r).i64(32).op(opI64ShrU) }
	high(i.Rs1)
	low(i.Rs2)
	g.op(opI64Mul)
	low(i.Rs1)
	low(i.Rs2)
	g.op(opI64Mul).i64(32).op(opI64ShrU, opI64Add).set(localA) // middle
	low(i.Rs1)
	high(i.Rs2)
	g.op(opI64Mul).get(localA).i64(0xffffffff).op(opI64And, opI64Add).set(localB) // other
	high(i.Rs1)
	high(i.Rs2)
	g.op(opI64Mul).get(localA).i64(32).op(opI64ShrU, opI64Add).get(localB).i64(32).op(opI64ShrU, opI64Add)
}

// high corrects the unsigned product for a negative first operand, and for a negative second one when that is signed.
func (g *generator) high(i *instruction, both bool) {
	g.highUnsigned(i)
	correct := func(sign, other uint8) { g.x(sign).i64(63).op(opI64ShrS); g.x(other).op(opI64And, opI64Sub) }
	correct(i.Rs1, i.Rs2)
	if both {
		correct(i.Rs2, i.Rs1)
	}
}

// division is the arithmetic of one width.
type division struct {
	kind                    byte
	isZero, equal, sub, mul byte
	signed, unsigned        byte // operations
	operand                 func(g *generator, r uint8) *code
	constant                func(g *generator, v int64) *code
	result                  []byte // what makes it a register's value
}

var (
	divideLong = division{
		typeI64, opI64Eqz, opI64Eq, opI64Sub, opI64Mul, opI64DivS, opI64DivU,
		func(g *generator, r uint8) *code { return g.x(r) },
		func(g *generator, v int64) *code { return g.i64(v) }, nil,
	}
	divideWord = division{
		typeI32, opI32Eqz, opI32Eq, opI32Sub, opI32Mul, opI32DivS, opI32DivU,
		func(g *generator, r uint8) *code { return g.x(r).op(opWrap) },
		func(g *generator, v int64) *code { return g.i32(int32(v)) }, []byte{opExtendS},
	}
)

// emitter has no traps: dividing by zero gives all ones, or the dividend as the remainder; the most negative number by -1
// gives itself, and zero. The remainder is a - (a/b)*b, for wazero's own is wrong on arm64 when registers are short.
func (d division) emitter(signed, remainder bool) *emitter {
	return pure(usesRegisters, func(g *generator, i *instruction) {
		a, b := func() *code { return d.operand(g, i.Rs1) }, func() *code { return d.operand(g, i.Rs2) }
		b().op(d.isZero).begin(d.kind)
		if remainder {
			a()
		} else {
			d.constant(g, -1)
		}
		g.otherwise()
		op := d.unsigned
		if signed {
			op = d.signed
			b()
			d.constant(g, -1).op(d.equal).begin(d.kind)
			d.constant(g, 0)
			if !remainder {
				a().op(d.sub)
			}
			g.otherwise()
		}
		if remainder {
			a()
		}
		a()
		b().op(op)
		if remainder {
			b().op(d.mul, d.sub)
		}
		if signed {
			g.end()
		}
		g.end().op(d.result...)
	})
}
