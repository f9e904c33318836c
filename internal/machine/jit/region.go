package jit

import "slices"

// Parameters and locals of a region's function. The type `region` of internal/machine/src/jit.c has the parameters.
const (
	localHart  = iota // i32: address of the hart
	localTLB          // i32: address of the TLBs of the privilege level
	localPage         // i64: virtual address of the page that is executed
	localSelf         // i64: what a decoded slot of this region holds, except for the entry's number in bits 8 to 31
	localEntry        // i32: index of the entry
	localPC           // i64: where the interpreter continues
	localBudget
	localVA
	localA // scratch
	localB
	localC
	localD
	localEA // i32: address of a TLB entry
	localStatus
	localHost
	localRegisters
)

var locals = []localGroup{{localEA - localPC, typeI64}, {localRegisters - localEA, typeI32}}

// Functions and types of a module.
const (
	importFloat = iota
	functionRegion
	functionGet
)

// label is what a branch can lead to.
type label struct {
	kind labelKind
	to   *block
}

type labelKind int

const (
	labelBehind labelKind = iota // behind a block: where `to` starts
	labelLoop                    // the start of a loop at `to`
	labelIf                      // nothing
	labelExit                    // the epilogue; from a loop with registers of its own, by way of where these are stored
	labelChain                   // where localPC is looked up in this region, before the epilogue
)

// state is what is known at a place, beyond what the locals hold.
type state struct {
	pending   int  // instructions that the budget does not know of
	float     bool // mstatus.FS is dirty
	registers regalloc
}

// generator writes the function of one region.
type generator struct {
	code
	layout   *Layout
	pages    []Page
	graph    *graph
	labels   []label
	register [32]int // local of each integer register in use
	used     int     // integer registers in use
	now      regalloc
	groups   map[*instruction]*group
	hosts    int // locals of groups
}

// generate writes the body of the region's function.
func (g *generator) generate() {
	g.findRegisters()
	g.findGroups()
	g.get(localHart).memory(opI64Load, g.layout.Budget).set(localBudget) // wazero then needs no check of bounds for the registers, which are below
	g.block()
	g.push(labelExit, nil)
	g.tree(g.graph.root, state{})
	g.pop()
	g.end()
	g.epilogue()
}

// touchHart loads from behind the hart's registers. wazero then omits the bounds checks of the accesses that follow, up to the next
// loop: to wazero a local has a new value in each loop. It also removes the load itself, whose value is not used.
func (g *generator) touchHart() {
	g.get(localHart).memory(opI64Load, g.layout.Budget).op(opDrop)
}

func (g *generator) epilogue() {
	g.get(localHart).get(localBudget).memory(opI64Store, g.layout.Budget)
	g.get(localHart).get(localPC).memory(opI64Store, g.layout.PC)
}

func (g *generator) push(kind labelKind, to *block) { g.labels = append(g.labels, label{kind, to}) }
func (g *generator) pop()                           { g.labels = g.labels[:len(g.labels)-1] }

// depth counts the labels from the innermost to the one that is meant.
func (g *generator) depth(kind labelKind, to *block) int {
	for i := len(g.labels) - 1; i >= 0; i-- {
		if g.labels[i] == (label{kind, to}) {
			return len(g.labels) - 1 - i
		}
	}
	panic("jit: a branch to a block that is not in scope") // the graph's structure rules it out
}

// when opens an `if`, close closes it.
func (g *generator) when() {
	g.begin(typeVoid)
	g.push(labelIf, nil)
}

func (g *generator) close() {
	g.pop()
	g.end()
}

// tree writes a block and all that it dominates, as in Ramsey's "Beyond Relooper": what several edges lead to stands
// behind a wasm block that those edges leave.
func (g *generator) tree(b *block, s state) {
	if b == g.graph.root && g.graph.again {
		g.rootLoop()
		return
	}
	behind := b.behind()
	if !b.header {
		g.nest(b, behind, s)
		return
	}
	s = g.flush(s)
	s.registers = g.enterLoop(b, s.registers)
	g.loop()
	g.push(labelLoop, b)
	if b.loop == nil {
		s.registers.hart = b
		g.touchHart()
	}
	g.nest(b, behind, s)
	g.pop()
	g.end().op(opUnreachable)
	g.closeLoop(b)
}

// behind are the children that several edges lead to.
func (b *block) behind() (all []*block) {
	for _, c := range b.children {
		if c.merge {
			all = append(all, c)
		}
	}
	return all
}

// rootLoop is the region of which some code comes back to the root.
//
//	loop $root
//	  block $chain
//	    the entries by localEntry, and all the rest
//	  end
//	  when localPC is an entry of this region: localEntry and localPage, br $root
//	end
func (g *generator) rootLoop() {
	root := g.graph.root
	g.loop()
	g.push(labelLoop, root)
	g.touchHart()
	g.block()
	g.push(labelChain, nil)
	g.nest(root, root.behind(), state{registers: regalloc{hart: root}})
	g.pop()
	g.end()
	g.chain()
	g.pop()
	g.end()
}

// chain looks localPC up as the machine does when it jumps: by the code TLB and the decoded slot there, which says when it is
// an entry of this region. So whatever ends a mapping or a translation for the machine ends it here.
func (g *generator) chain() {
	l := g.layout
	g.get(localPC).i64(-PageSize).op(opI64And).set(localA)
	shift, mask := 12-log2(l.EntrySize), int32((l.Entries-1)*l.EntrySize)
	g.get(localPC).i64(int64(shift)).op(opI64ShrU, opWrap).i32(mask).op(opI32And).get(localTLB).op(opI32Add).tee(localEA)
	g.memory(opI32Load, l.Code+l.Addend).set(localHost)
	g.get(localEA).memory(opI64Load, l.Code+l.Tag).get(localA).op(opI64Eq)
	g.when()
	g.get(localPC).op(opWrap).i32(PageSize - 1).op(opI32And).i32(int32(l.SlotSize / 2)).op(opI32Mul)
	g.get(localHost).op(opI32Add).memory(opI64Load, 0).get(localSelf).op(opI64Xor).tee(localB)
	g.i64(^0xffffff00).op(opI64And, opI64Eqz)
	g.when()
	g.get(localA).set(localPage)
	g.get(localB).i64(8).op(opI64ShrU, opWrap).set(localEntry)
	g.br(g.depth(labelLoop, g.graph.root))
	g.close()
	g.close()
}

// nest opens a wasm block for each of behind; the children are in order, so that the last is outermost.
func (g *generator) nest(b *block, behind []*block, s state) {
	if len(behind) == 0 {
		g.contents(b, s)
		return
	}
	last := behind[len(behind)-1]
	g.block()
	g.push(labelBehind, last)
	g.nest(b, behind[:len(behind)-1], s)
	g.pop()
	g.end()
	g.tree(last, state{registers: g.meet(last)})
}

// meet is what is known behind a block.
func (g *generator) meet(b *block) regalloc {
	r := mergeState(b)
	if slices.ContainsFunc(b.harts, func(h *block) bool { return h != b.harts[0] }) {
		r.hart = b
		g.touchHart()
		return r
	}
	if len(b.harts) > 0 {
		r.hart = b.harts[0]
	}
	g.get(localHart).set(localHart) // so that wazero takes it for the value of before wherever it is used below
	return r
}

func (g *generator) contents(b *block, s state) {
	if b.choices != nil {
		g.dispatch(b, s)
		return
	}
	g.now = s.registers
	if b.check {
		s = g.flush(s)
		g.get(localBudget).i64(int64(b.need)).op(opI64LtS)
		g.when()
		g.leave(b.at, s)
		g.close()
	}
	for i := range b.body {
		g.need(&b.body[i])
		s = g.emit(&b.body[i], s)
		s.pending++
	}
	g.finish(b, s)
}

// dispatch goes to the entry whose number is in localEntry.
func (g *generator) dispatch(b *block, s state) {
	g.now = s.registers
	if len(b.choices) == 1 {
		g.follow(b.choices[0].to, s)
		return
	}
	if b.first != nil {
		g.get(localEntry).i32(int32(b.first.entry)).op(opI32Eq)
		g.when()
		g.branch(b.first)
		g.close()
	}
	g.choose(slices.DeleteFunc(slices.Clone(b.choices), func(c choice) bool { return c.to == b.first }))
}

// choose finds an entry by halves: indirect branches, which br_table would be, are slow where the processor may not
// predict them.
func (g *generator) choose(choices []choice) {
	if !slices.ContainsFunc(choices, func(c choice) bool { return c.to != choices[0].to }) {
		g.branch(choices[0].to)
		return
	}
	half := len(choices) / 2
	g.get(localEntry).i32(int32(choices[half].entry)).op(opI32LtU)
	g.when()
	g.choose(choices[:half])
	g.close()
	g.choose(choices[half:])
}

// finish writes how a block ends.
func (g *generator) finish(b *block, s state) {
	if b.last == nil {
		s.registers = g.now
		g.edge(b, 0, b.next, s)
		return
	}
	i := b.last
	s.pending++
	g.need(i)
	switch i.flow() {
	case flowBranch:
		g.save()
		s.registers = g.now
		g.condition(i)
		g.when()
		g.edge(b, 0, i.at+int(i.Imm), s)
		g.otherwise()
		g.edge(b, 1, i.next(), s)
		g.close()
		g.op(opUnreachable)
	case flowJump:
		g.link(i)
		s.registers = g.now
		g.edge(b, 0, i.at+int(i.Imm), s)
	case flowIndirect:
		g.indirect(i, s)
	}
}

// edge goes to another block, or leaves when there is none, in another page maybe for one of the region's.
func (g *generator) edge(from *block, successor, at int, s state) {
	g.now = s.registers
	to := from.successors[successor]
	switch {
	case to != nil:
		if entry := from.selects[successor]; entry >= 0 {
			g.i32(int32(entry)).set(localEntry)
		}
		g.follow(to, s)
	case g.graph.again && g.graph.pages > 1 && !inPage(at):
		g.flush(s)
		g.address(at).set(localPC)
		g.saveAll()
		g.br(g.depth(labelChain, nil))
	default:
		g.leave(at, s)
	}
}

// follow goes to a block of the region.
func (g *generator) follow(to *block, s state) {
	if g.now.loop != nil && to.loop != g.now.loop {
		g.saveAll()
	}
	switch {
	case g.inLoop(to):
		g.flush(s)
		g.save()
		g.br(g.depth(labelLoop, to))
	case to.merge:
		g.flush(s)
		g.save()
		g.branch(to)
	default:
		s.registers = g.now
		g.tree(to, s)
	}
}

// inLoop tells whether the loop at a block is open here: then the edge to it is a backward one.
func (g *generator) inLoop(to *block) bool { return slices.Contains(g.labels, label{labelLoop, to}) }

// branch goes to a block that several edges lead to.
func (g *generator) branch(to *block) {
	to.harts = append(to.harts, g.now.hart)
	g.br(g.depth(labelBehind, to))
}

// flush takes the pending instructions from the budget.
func (g *generator) flush(s state) state {
	if s.pending != 0 {
		g.get(localBudget).i64(int64(s.pending)).op(opI64Sub).set(localBudget)
	}
	return state{registers: s.registers}
}

// address pushes the virtual address of a place.
func (g *generator) address(at int) *code {
	return g.get(localPage).i64(int64(offset(at))).op(opI64Add)
}

// leave goes to the epilogue; the interpreter continues at a place.
func (g *generator) leave(at int, s state) {
	g.flush(s)
	g.address(at).set(localPC)
	if g.now.loop == nil {
		g.stores(g.now.dirty)
	}
	g.br(g.depth(labelExit, g.now.loop))
}

func (g *generator) link(i *instruction) {
	if i.Rd != 0 {
		g.address(i.next())
		g.setX(i.Rd)
	}
}

func (g *generator) condition(i *instruction) {
	conditions := map[string]byte{
		"beq": opI64Eq, "bne": opI64Ne, "blt": opI64LtS, "bge": opI64GeS, "bltu": opI64LtU, "bgeu": opI64GeU,
	}
	g.x(i.Rs1)
	g.x(i.Rs2)
	g.op(conditions[i.name])
}

// indirect is jalr. Its target may be an entry of this region.
func (g *generator) indirect(i *instruction, s state) {
	g.x(i.Rs1).i64(i.Imm).op(opI64Add).i64(^1).op(opI64And).set(localPC)
	g.link(i)
	g.flush(s)
	g.saveAll()
	if g.graph.again && g.graph.publish > 1 {
		g.br(g.depth(labelChain, nil))
		return
	}
	g.br(g.depth(labelExit, nil))
}
