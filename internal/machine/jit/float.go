package jit

import "agentvm/internal/machine/riscv"

// Floating point. The registers stay in the hart. The host's arithmetic serves where it provably gives the same bits and
// the same flags; all else is the machine's own, which is called with the instruction's word.
//
// The host rounds to nearest, ties to even, and tells no flags. Its result is taken when the guest rounds so, too, when
// the flag "inexact" is set already, and when the result cannot have raised another flag:
//
//	add, sub           finite: there was no overflow and no NaN; results too small to be normal are exact
//	mul, div, sqrt     normal, and at least twice the smallest normal number: neither overflow nor underflow, no NaN,
//	                   no division by zero
//	compare            no operand is a NaN
//	float to integer   towards zero and in range
//	integer to float   exact
//	single to double   not NaN or infinite: exact

const (
	box         = -1 << 32 // the upper half of a register that holds a single
	floatStates = 3 << 13  // mstatus.FS; all ones is dirty
)

func floatEmitters() map[string]*emitter {
	all := map[string]*emitter{}
	for i := range riscv.Table {
		row := &riscv.Table[i]
		if (row.Extension == "F" || row.Extension == "D") && row.Format != riscv.FormatFL && row.Format != riscv.FormatFS {
			all[row.Name] = floatEmitter(row)
		}
	}
	loads := map[string]access{"flw": {4, opI64Load32U}, "fld": {8, opI64Load}}
	for name, a := range loads {
		all[name] = &emitter{usage: usage{rs1: true}, leaves: true, emit: func(g *generator, i *instruction, s state) state {
			s = g.needFloat(i, s)
			g.load(i, s, a, func() {
				if a.size == 4 {
					g.i64(box).op(opI64Or)
				}
				g.setF(i.Rd)
			})
			return s
		}}
	}
	stores := map[string]access{"fsw": {4, opI64Store32}, "fsd": {8, opI64Store}}
	for name, a := range stores {
		all[name] = &emitter{usage: usage{rs1: true}, leaves: true, emit: func(g *generator, i *instruction, s state) state {
			g.needFloatOn(i, s)
			g.store(i, s, a, func() { g.f(i.Rs2) })
			return s
		}}
	}
	return all
}

// f pushes a floating-point register.
func (g *generator) f(r uint8) *code {
	return g.get(localHart).memory(opI64Load, g.layout.F+8*uint32(r))
}

// setF pops into a floating-point register.
func (g *generator) setF(r uint8) {
	g.set(localA).get(localHart).get(localA).memory(opI64Store, g.layout.F+8*uint32(r))
}

// needFloat leaves before the instruction unless the unit is on and marked dirty: the interpreter marks it.
func (g *generator) needFloat(i *instruction, s state) state {
	if !s.float {
		g.get(localHart).memory(opI64Load, g.layout.MStatus).i64(floatStates).op(opI64And).i64(floatStates).op(opI64Ne)
		g.when()
		g.leave(i.at, s)
		g.close()
		s.float = true
	}
	return s
}

// needFloatOn leaves unless the unit is on, which suffices for stores.
func (g *generator) needFloatOn(i *instruction, s state) {
	if !s.float {
		g.get(localHart).memory(opI64Load, g.layout.MStatus).i64(floatStates).op(opI64And, opI64Eqz)
		g.when()
		g.leave(i.at, s)
		g.close()
	}
}

// floatUsage: some move between the two kinds of registers.
func floatUsage(row *riscv.Instruction) usage {
	switch row.Format {
	case riscv.FormatFXM, riscv.FormatFX, riscv.FormatFXC:
		return usage{rd: true}
	case riscv.FormatXFM, riscv.FormatXF:
		return usage{rs1: true}
	}
	return usage{}
}

// attempt is a fast way: it leaves on the stack whether it has succeeded, and the bits of the result in localA. It is nil
// when there is none for these operands.
type attempt func(g *generator, i *instruction) func()

func floatEmitter(row *riscv.Instruction) *emitter {
	uses, fast := floatUsage(row), floatAttempts[row.Name]
	return &emitter{usage: uses, leaves: true, emit: func(g *generator, i *instruction, s state) state {
		s = g.needFloat(i, s)
		var try func()
		if fast != nil {
			try = fast(g, i)
		}
		if try == nil {
			g.machineFloat(i, s, uses)
			return s
		}
		try()
		before := g.now
		g.when()
		g.get(localA)
		if uses.rd {
			g.setX(i.Rd)
		} else {
			g.setF(i.Rd)
		}
		g.otherwise()
		g.now = before
		g.machineFloat(i, s, uses)
		g.close()
		return s
	}}
}

// machineFloat has the machine execute the instruction on the hart's registers.
func (g *generator) machineFloat(i *instruction, s state, uses usage) {
	if uses.rs1 && i.Rs1 != 0 {
		g.get(localHart)
		g.x(i.Rs1).memory(opI64Store, g.layout.X+8*uint32(i.Rs1))
	}
	g.i32(int32(i.word)).call(importFloat)
	g.when()
	g.leave(i.at, s)
	g.close()
	if uses.rd && i.Rd != 0 {
		g.get(localHart).memory(opI64Load, g.layout.X+8*uint32(i.Rd))
		g.setX(i.Rd)
	}
}
