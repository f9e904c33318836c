package jit

// access is what a load or store moves.
type access struct {
	size int64
	op   byte
}

func memoryEmitters() map[string]*emitter {
	loads := map[string]access{
		"lb":  {1, opI64Load8S},
		"lh":  {2, opI64Load16S},
		"lw":  {4, opI64Load32S},
		"ld":  {8, opI64Load},
		"lbu": {1, opI64Load8U},
		"lhu": {2, opI64Load16U},
		"lwu": {4, opI64Load32U},
	}
	stores := map[string]access{
		"sb": {1, opI64Store8}, "sh": {2, opI64Store16}, "sw": {4, opI64Store32}, "sd": {8, opI64Store},
	}
	all := map[string]*emitter{}
	for name, a := range loads {
		all[name] = &emitter{usage: usesImmediate, leaves: true, emit: func(g *generator, i *instruction, s state) state {
			g.load(i, s, a, func() { g.setX(i.Rd) })
			return s
		}}
	}
	for name, a := range stores {
		all[name] = &emitter{usage: usesPair, leaves: true, emit: func(g *generator, i *instruction, s state) state {
			g.store(i, s, a, func() { g.x(i.Rs2) })
			return s
		}}
	}
	return all
}

// lookup finds the entry for rs1+offset in the TLB's table at an offset: the virtual address is then in localVA, the entry's
// address in localEA, its addend in localHost. The addend is read before the tag, so that its check of bounds covers both.
func (g *generator) lookup(i *instruction, offset int64, table uint32) {
	l := g.layout
	g.x(i.Rs1)
	if offset != 0 {
		g.i64(offset).op(opI64Add)
	}
	g.tee(localVA)
	shift, mask := 12-log2(l.EntrySize), int32((l.Entries-1)*l.EntrySize)
	g.i64(int64(shift)).op(opI64ShrU, opWrap).i32(mask).op(opI32And).get(localTLB).op(opI32Add).tee(localEA)
	g.memory(opI32Load, table+l.Addend).set(localHost)
}

// probe also pushes whether the entry is another page's, for an access of size bytes.
func (g *generator) probe(i *instruction, offset int64, table uint32, size int64) {
	g.lookup(i, offset, table)
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

// load writes a load; set pops its value. What misses the TLB is left to the interpreter: misses are rare, and a call from
// here would cost all that is executed around it, for wazero then keeps registers in memory.
func (g *generator) load(i *instruction, s state, a access, set func()) {
	push := g.place(i, s, g.layout.Read, a.size)
	g.memory(a.op, push())
	set()
}

// store writes a store of what value pushes.
func (g *generator) store(i *instruction, s state, a access, value func()) {
	push := g.place(i, s, g.layout.Write, a.size)
	offset := push()
	value()
	g.memory(a.op, offset)
}
