package jit

import "strings"

// atomicEmitters has LR, SC and the AMOs. One hart and no device stores between instructions, so that a plain read and
// write is atomic. What misses the TLB or is misaligned is the interpreter's.
func atomicEmitters() map[string]*emitter {
	combine := map[string]func(g *generator, i *instruction, signed bool){
		"amoswap": func(g *generator, i *instruction, _ bool) { g.x(i.Rs2) },
		"amoadd":  func(g *generator, i *instruction, _ bool) { g.get(localA); g.x(i.Rs2).op(opI64Add) },
		"amoxor":  func(g *generator, i *instruction, _ bool) { g.get(localA); g.x(i.Rs2).op(opI64Xor) },
		"amoand":  func(g *generator, i *instruction, _ bool) { g.get(localA); g.x(i.Rs2).op(opI64And) },
		"amoor":   func(g *generator, i *instruction, _ bool) { g.get(localA); g.x(i.Rs2).op(opI64Or) },
		"amomin":  chooseStored(opI64LtS, opI64Extend32S),
		"amomax":  chooseStored(opI64GtS, opI64Extend32S),
		"amominu": chooseStored(opI64LtU, 0),
		"amomaxu": chooseStored(opI64GtU, 0),
	}
	all := map[string]*emitter{}
	for _, a := range []struct {
		suffix      string
		size        int64
		load, store byte
	}{{".w", 4, opI64Load32S, opI64Store32}, {".d", 8, opI64Load, opI64Store}} {
		for name, value := range combine {
			all[name+a.suffix] = &emitter{usage: usesRegisters, leaves: true, emit: func(g *generator, i *instruction, s state) state {
				g.aligned(i, s, g.layout.Write, a.size)
				g.host().memory(a.load, 0).set(localA)
				g.host()
				value(g, i, strings.HasSuffix(i.name, ".w"))
				g.memory(a.store, 0).get(localA)
				g.setX(i.Rd)
				return s
			}}
		}
		all["lr"+a.suffix] = &emitter{usage: usesImmediate, leaves: true, emit: func(g *generator, i *instruction, s state) state {
			g.aligned(i, s, g.layout.Read, a.size)
			g.host().memory(a.load, 0).set(localA)
			g.get(localHart).get(localVA).memory(opI64Store, g.layout.Reservation)
			g.get(localHart).get(localA).memory(opI64Store, g.layout.Reserved)
			g.get(localA)
			g.setX(i.Rd)
			return s
		}}
		all["sc"+a.suffix] = &emitter{usage: usesRegisters, leaves: true, emit: func(g *generator, i *instruction, s state) state {
			g.aligned(i, s, g.layout.Write, a.size)
			g.get(localHart).memory(opI64Load, g.layout.Reservation).get(localVA).op(opI64Eq)
			g.get(localHart).memory(opI64Load, g.layout.Reserved)
			g.host().memory(a.load, 0).op(opI64Eq, opI32And).tee(localStatus)
			g.when()
			g.host()
			g.x(i.Rs2).memory(a.store, 0)
			g.close()
			g.get(localHart).i64(-1).memory(opI64Store, g.layout.Reservation)
			g.get(localStatus).op(opI32Eqz, opExtendU)
			g.setX(i.Rd)
			return s
		}}
	}
	return all
}

// aligned looks up rs1 in a TLB table and leaves before the instruction when it misses, or is not a multiple of size: the
// tag has zeros there.
func (g *generator) aligned(i *instruction, s state, table uint32, size int64) {
	g.lookup(i, 0, table)
	g.get(localVA).i64(-PageSize|(size-1)).op(opI64And).get(localEA).memory(opI64Load, table+g.layout.Tag).op(opI64Ne)
	g.when()
	g.leave(i.at, s)
	g.close()
}

// chooseStored pushes the stored value, which is in localA, when the comparison with rs2 holds, otherwise rs2. Words are
// compared as words: both extended by the operation, or with zeros.
func chooseStored(compare, extend byte) func(g *generator, i *instruction, word bool) {
	return func(g *generator, i *instruction, word bool) {
		comparable := func() {
			switch {
			case word && extend != 0:
				g.op(extend)
			case word:
				g.i64(0xffffffff).op(opI64And)
			}
		}
		g.get(localA)
		g.x(i.Rs2)
		g.get(localA)
		comparable()
		g.x(i.Rs2)
		comparable()
		g.op(compare, opSelect)
	}
}
