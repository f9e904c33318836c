package jit

// Zba and Zbb, without orc.b and rev8, for which WebAssembly has nothing.

// low32 pushes a register's lower half, extended with zeros.
func (g *generator) low32(r uint8) *code { return g.x(r).i64(0xffffffff).op(opI64And) }

func shiftAdd(shift int64, word bool) *emitter {
	return pure(usesRegisters, func(g *generator, i *instruction) {
		if word {
			g.low32(i.Rs1)
		} else {
			g.x(i.Rs1)
		}
		g.i64(shift).op(opI64Shl)
		g.x(i.Rs2).op(opI64Add)
	})
}

func inverted(op byte) *emitter {
	return pure(usesRegisters, func(g *generator, i *instruction) {
		g.x(i.Rs1)
		g.x(i.Rs2).i64(-1).op(opI64Xor, op)
	})
}

func unary(ops ...byte) *emitter {
	return pure(usesImmediate, func(g *generator, i *instruction) { g.x(i.Rs1).op(ops...) })
}

// choose picks the first operand when the comparison holds.
func choose(compare byte) *emitter {
	return pure(usesRegisters, func(g *generator, i *instruction) {
		g.x(i.Rs1)
		g.x(i.Rs2)
		g.x(i.Rs1)
		g.x(i.Rs2).op(compare, opSelect)
	})
}

func bitEmitters() map[string]*emitter {
	return map[string]*emitter{
		"add.uw":    shiftAdd(0, true),
		"sh1add":    shiftAdd(1, false),
		"sh2add":    shiftAdd(2, false),
		"sh3add":    shiftAdd(3, false),
		"sh1add.uw": shiftAdd(1, true),
		"sh2add.uw": shiftAdd(2, true),
		"sh3add.uw": shiftAdd(3, true),
		"slli.uw":   pure(usesImmediate, func(g *generator, i *instruction) { g.low32(i.Rs1).i64(i.Imm).op(opI64Shl) }),
		"andn":      inverted(opI64And),
		"orn":       inverted(opI64Or),
		"xnor":      inverted(opI64Xor),
		"clz":       unary(opI64Clz),
		"ctz":       unary(opI64Ctz),
		"cpop":      unary(opI64Popcnt),
		"clzw":      unary(opWrap, opI32Clz, opExtendU),
		"ctzw":      unary(opWrap, opI32Ctz, opExtendU),
		"cpopw":     unary(opWrap, opI32Popcnt, opExtendU),
		"sext.b":    unary(opI64Extend8S),
		"sext.h":    unary(opI64Extend16S),
		"zext.h":    pure(usesImmediate, func(g *generator, i *instruction) { g.x(i.Rs1).i64(0xffff).op(opI64And) }),
		"min":       choose(opI64LtS),
		"minu":      choose(opI64LtU),
		"max":       choose(opI64GtS),
		"maxu":      choose(opI64GtU),
		"rol":       registers(opI64Rotl),
		"ror":       registers(opI64Rotr),
		"rori":      immediate(opI64Rotr),
		"rolw":      words(opI32Rotl),
		"rorw":      words(opI32Rotr),
		"roriw":     wordImmediate(opI32Rotr),
	}
}
