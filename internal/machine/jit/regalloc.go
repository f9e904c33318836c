package jit

// Where the guest's integer registers are.
//
//	in a loop        in locals: those that the loop uses are loaded where it is entered, and those that it writes are stored
//	                 where it is left
//	everywhere else  in the hart; a local has the value from its first use in a run of blocks without a join on
//
// So entering and leaving a region costs nothing for registers that are not used on the way, and wazero has few values that
// live for long, which is what its time for a function depends on.

// registerSet has a bit for each register.
type registerSet uint32

func (s registerSet) has(r uint8) bool { return s>>r&1 != 0 }

// regalloc says, for a place in the code, where the values of registers are.
type regalloc struct {
	loop  *block      // whose registers are in locals
	valid registerSet // those of which the local has the value
	dirty registerSet // of these, outside of loops: the hart does not have it yet
	hart  *block      // where localHart got the value that wazero knows, see touchHart
}

// loopLimit is how many instructions a loop may have whose registers are in locals: the longer it is, the fewer of them
// are used each time.
const loopLimit = 400

// findLoops gives each block the outermost loop it is in, unless that is too long, and each of these its registers.
func (g *graph) findLoops() {
	for _, head := range g.ordered[1:] {
		if !head.header || head.loop != nil {
			continue
		}
		body, cost := head.naturalLoop()
		if cost > loopLimit {
			continue
		}
		for _, b := range body {
			b.loop = head
			uses, writes := b.registers()
			head.uses |= uses
			head.writes |= writes
		}
	}
}

// naturalLoop is what leads back to the head without passing it, and its instructions.
func (b *block) naturalLoop() (body []*block, cost int) {
	seen := map[*block]bool{b: true}
	body = []*block{b}
	for _, p := range b.predecessors {
		if backward(p, b) && !seen[p] {
			seen[p] = true
			body = append(body, p)
		}
	}
	for k := 0; k < len(body); k++ {
		cost += body[k].cost()
		if k == 0 {
			continue // the head: what is before it is outside
		}
		for _, p := range body[k].predecessors {
			if !seen[p] {
				seen[p] = true
				body = append(body, p)
			}
		}
	}
	return body, cost
}

// registers of a block's instructions.
func (b *block) registers() (uses, writes registerSet) {
	note := func(i *instruction) {
		u := i.usage()
		if u.rs1 {
			uses |= 1 << i.Rs1
		}
		if u.rs2 {
			uses |= 1 << i.Rs2
		}
		if u.rd {
			writes |= 1 << i.Rd
		}
	}
	for i := range b.body {
		note(&b.body[i])
	}
	if b.last != nil {
		note(b.last)
	}
	return (uses | writes) &^ 1, writes &^ 1
}

// findRegisters gives a local to each register that the region uses.
func (g *generator) findRegisters() {
	var uses registerSet
	for _, b := range g.graph.ordered {
		u, _ := b.registers()
		uses |= u
	}
	for r := range uint8(32) {
		if uses.has(r) {
			g.register[r] = localRegisters + g.used
			g.used++
		}
	}
}

// x pushes an integer register, which is valid, see need.
func (g *generator) x(r uint8) *code {
	if r == 0 {
		return g.i64(0)
	}
	return g.get(g.register[r])
}

// setX pops into an integer register.
func (g *generator) setX(r uint8) {
	if r == 0 {
		g.op(opDrop)
		return
	}
	g.set(g.register[r])
	g.now.valid |= 1 << r
	if g.now.loop == nil {
		g.now.dirty |= 1 << r
	}
}

// need has the operands of an instruction in locals, and the hart up to date when the instruction may be where the region is
// left. It comes before all code of the instruction, of which some may not be executed.
func (g *generator) need(i *instruction) {
	u := i.usage()
	var wanted registerSet
	if u.rs1 {
		wanted |= 1 << i.Rs1
	}
	if u.rs2 {
		wanted |= 1 << i.Rs2
	}
	g.loads(wanted &^ 1 &^ g.now.valid)
	if i.flow() == flowNext && emitters()[i.name].leaves && (g.groups[i] == nil || g.groups[i].leader == i) {
		g.save()
	}
}

// loads has some registers in locals, the highest first.
func (g *generator) loads(s registerSet) {
	for r := uint8(31); r > 0; r-- {
		if s.has(r) {
			g.get(localHart).memory(opI64Load, g.layout.X+8*uint32(r)).set(g.register[r])
		}
	}
	g.now.valid |= s
}

// stores has the hart know some registers.
func (g *generator) stores(s registerSet) {
	for r := uint8(31); r > 0; r-- {
		if s.has(r) {
			g.get(localHart).get(g.register[r]).memory(opI64Store, g.layout.X+8*uint32(r))
		}
	}
}

// save stores to the hart all registers that it does not have yet, except those of the loop.
func (g *generator) save() {
	g.stores(g.now.dirty)
	g.now.dirty = 0
}

// saveAll stores to the hart all registers that it does not have yet. It is used where a loop is left.
func (g *generator) saveAll() {
	g.save()
	if g.now.loop != nil {
		g.touchHart()
		g.now.hart = g.now.loop
		g.stores(g.now.loop.writes)
		g.now.loop = nil
	}
}

// mergeState returns what holds at a block that several edges lead to, whichever edge was taken.
func mergeState(b *block) regalloc {
	if b.loop == nil || b.loop == b {
		return regalloc{}
	}
	return regalloc{loop: b.loop, valid: b.loop.uses}
}

// enterLoop comes before a loop. One with registers of its own stands in a block that is left to store them:
//
//	load the registers
//	block $exit of the loop
//	  loop
//	    ...
//	  end
//	end
//	store the registers, br $exit
func (g *generator) enterLoop(b *block, before regalloc) regalloc {
	g.now = before
	g.save()
	if b.loop != b {
		return mergeState(b)
	}
	g.loads(b.uses &^ g.now.valid)
	g.block()
	g.push(labelExit, b)
	return regalloc{loop: b, valid: b.uses, hart: before.hart}
}

// closeLoop comes behind a loop.
func (g *generator) closeLoop(b *block) {
	if b.loop != b {
		return
	}
	g.pop()
	g.end()
	g.touchHart()
	g.stores(b.writes)
	g.br(g.depth(labelExit, nil))
}
