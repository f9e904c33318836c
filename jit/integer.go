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
		"div":    divide(opI64DivS, false),
		"divu":   divide(opI64DivU, false),
		"rem":    divide(opI64DivS, true),
		"remu":   divide(opI64DivU, true),
		"divw":   divideWord(opI32DivS, false),
		"divuw":  divideWord(opI32DivU, false),
		"remw":   divideWord(opI32DivS, true),
		"remuw":  divideWord(opI32DivU, true),
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

// divide has no traps: dividing by zero gives all ones, or the dividend as the remainder; the most negative number by -1
// gives itself, and zero. The remainder is a - (a/b)*b, for wazero's own is wrong on arm64 when registers are short.
func divide(op byte, remainder bool) *emitter {
	return pure(usesRegisters, func(g *generator, i *instruction) {
		a, b := func() *code { return g.x(i.Rs1) }, func() *code { return g.x(i.Rs2) }
		b().op(opI64Eqz).begin(typeI64)
		if remainder {
			a()
		} else {
			g.i64(-1)
		}
		g.otherwise()
		signed := op == opI64DivS
		if signed {
			b().i64(-1).op(opI64Eq).begin(typeI64)
			g.i64(0)
			if !remainder {
				a().op(opI64Sub)
			}
			g.otherwise()
		}
		if remainder {
			a()
		}
		a()
		b().op(op)
		if remainder {
			b().op(opI64Mul, opI64Sub)
		}
		if signed {
			g.end()
		}
		g.end()
	})
}

func divideWord(op byte, remainder bool) *emitter {
	return pure(usesRegisters, func(g *generator, i *instruction) {
		a, b := func() *code { return g.x(i.Rs1).op(opWrap) }, func() *code { return g.x(i.Rs2).op(opWrap) }
		b().op(opI32Eqz).begin(typeI32)
		if remainder {
			a()
		} else {
			g.i32(-1)
		}
		g.otherwise()
		signed := op == opI32DivS
		if signed {
			b().i32(-1).op(opI32Eq).begin(typeI32)
			g.i32(0)
			if !remainder {
				a().op(opI32Sub)
			}
			g.otherwise()
		}
		if remainder {
			a()
		}
		a()
		b().op(op)
		if remainder {
			b().op(opI32Mul, opI32Sub)
		}
		if signed {
			g.end()
		}
		g.end().op(opExtendS)
	})
}
