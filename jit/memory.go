package jit

// access is what a load or store moves.
type access struct {
	size int64
	op   byte
	sign byte // loads: extends the value that the helper gives, which is zero-extended; 0 is nothing to do
}

func memoryEmitters() map[string]*emitter {
	loads := map[string]access{
		"lb":  {1, opI64Load8S, opI64Extend8S},
		"lh":  {2, opI64Load16S, opI64Extend16S},
		"lw":  {4, opI64Load32S, opI64Extend32S},
		"ld":  {8, opI64Load, 0},
		"lbu": {1, opI64Load8U, 0},
		"lhu": {2, opI64Load16U, 0},
		"lwu": {4, opI64Load32U, 0},
	}
	stores := map[string]access{
		"sb": {1, opI64Store8, 0}, "sh": {2, opI64Store16, 0}, "sw": {4, opI64Store32, 0}, "sd": {8, opI64Store, 0},
	}
	all := map[string]*emitter{}
	for name, a := range loads {
		all[name] = &emitter{usesImmediate, func(g *generator, i *instruction, s state) state {
			g.load(i, s, a, func() { g.setX(i.Rd) })
			return s
		}}
	}
	for name, a := range stores {
		all[name] = &emitter{usesPair, func(g *generator, i *instruction, s state) state {
			g.store(i, s, a, func() { g.x(i.Rs2) })
			return s
		}}
	}
	return all
}

// lookup finds the entry for rs1+imm in the TLB's table at an offset: the virtual address is then in localVA, the entry's
// address in localEA, its addend in localHost. The addend is read before the tag, so that its check of bounds covers both.
func (g *generator) lookup(i *instruction, table uint32) {
	l := g.layout
	g.x(i.Rs1)
	if i.Imm != 0 {
		g.i64(i.Imm).op(opI64Add)
	}
	g.tee(localVA)
	shift, mask := 12-log2(l.EntrySize), int32((l.Entries-1)*l.EntrySize)
	g.i64(int64(shift)).op(opI64ShrU, opWrap).i32(mask).op(opI32And).get(localTLB).op(opI32Add).tee(localEA)
	g.memory(opI32Load, table+l.Addend).set(localHost)
}

// probe also pushes whether the entry is another page's, for an access of size bytes.
func (g *generator) probe(i *instruction, table uint32, size int64) {
	g.lookup(i, table)
	g.get(localVA)
	if size > 1 {
		g.i64(size - 1).op(opI64Add)
	}
	g.i64(-PageSize).op(opI64And)
	g.get(localEA).memory(opI64Load, table+g.layout.Tag).op(opI64Ne)
}

func log2(v uint32) uint32 {
	n := uint32(0)
	for 1<<n < v {
		n++
	}
	return n
}

// host pushes the address in linear memory of an access that hit.
func (g *generator) host() *code { return g.get(localVA).op(opWrap).get(localHost).op(opI32Add) }

// load writes a load; set pops its value. A miss calls the machine, whose answer is a status: 0 all is well, 1 an
// exception is pending, 2 the value is there, but the machine wants to look at something before the next instruction.
func (g *generator) load(i *instruction, s state, a access, set func()) {
	g.probe(i, g.layout.Read, a.size)
	g.when()
	g.tellBudget(s)
	g.get(localVA).i32(int32(a.size)).call(importLoad).tee(localStatus)
	g.when()
	g.fault(i, s)
	g.loaded(a)
	set()
	g.leaveBehind(i, s)
	g.close()
	g.loaded(a)
	set()
	g.otherwise()
	g.host().memory(a.op, 0)
	set()
	g.close()
}

// loaded pushes what the helper loaded.
func (g *generator) loaded(a access) {
	g.i32(0).memory(opI64Load, g.layout.Value)
	if a.sign != 0 {
		g.op(a.sign)
	}
}

// store writes a store of what value pushes.
func (g *generator) store(i *instruction, s state, a access, value func()) {
	g.probe(i, g.layout.Write, a.size)
	g.when()
	g.tellBudget(s)
	g.get(localVA)
	value()
	g.i32(int32(a.size)).call(importStore).tee(localStatus)
	g.when()
	g.fault(i, s)
	g.leaveBehind(i, s)
	g.close()
	g.otherwise()
	g.host()
	value()
	g.memory(a.op, 0)
	g.close()
}

// tellBudget tells the machine what is left behind this instruction, for clocks that count instructions.
func (g *generator) tellBudget(s state) {
	g.get(localHart).get(localBudget).i64(int64(s.pending+1)).op(opI64Sub).memory(opI64Store, g.layout.Budget)
}

// fault leaves when the status is that of an exception.
func (g *generator) fault(i *instruction, s state) {
	g.get(localStatus).i32(1).op(opI32Eq)
	g.when()
	g.leave(i.at, s)
	g.close()
}

// leaveBehind leaves after the instruction.
func (g *generator) leaveBehind(i *instruction, s state) {
	s.pending++
	g.leave(i.next(), s)
}
