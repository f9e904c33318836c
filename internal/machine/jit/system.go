package jit

import "agentvm/internal/machine/riscv"

// CSR instructions are the machine's own, which is called with the instruction's word, as for floating point. What they may change beyond
// their registers is where the TLB's entries lead, which floating-point state there is, and whether an interrupt is due: the machine
// then says that the region must be left.

// Outcomes of the machine's function: enum outcome of internal/machine/src/jit.c.
const (
	outcomeException = 1 // before the instruction
	// 2: behind it
)

func systemEmitters() map[string]*emitter {
	all := map[string]*emitter{}
	for i := range riscv.Table {
		row := &riscv.Table[i]
		if row.Format == riscv.FormatCSR || row.Format == riscv.FormatCSRI {
			uses := usage{rd: true, rs1: row.Format == riscv.FormatCSR}
			emit := func(g *generator, i *instruction, s state) state { return g.system(i, s, uses) }
			all[row.Name] = &emitter{usage: uses, leaves: true, emit: emit, changesTLB: true}
		}
	}
	return all
}

// system has the machine execute a CSR instruction. Counters and time depend on the budget.
func (g *generator) system(i *instruction, s state, uses usage) state {
	if uses.rs1 && i.Rs1 != 0 {
		g.get(localHart)
		g.x(i.Rs1).memory(opI64Store, g.layout.X+8*uint32(i.Rs1))
	}
	g.get(localHart).get(localBudget)
	if s.pending != 0 {
		g.i64(int64(s.pending)).op(opI64Sub)
	}
	g.memory(opI64Store, g.layout.Budget)
	g.i32(int32(i.word)).call(importFloat).tee(localStatus).i32(outcomeException).op(opI32Eq)
	g.when()
	g.leave(i.at, s)
	g.close()
	if i.Rd != 0 {
		g.get(localHart).memory(opI64Load, g.layout.X+8*uint32(i.Rd))
		g.setX(i.Rd)
	}
	s.float = false
	behind := s
	behind.pending++
	g.get(localStatus)
	g.when()
	g.leave(i.next(), behind)
	g.close()
	return s
}
