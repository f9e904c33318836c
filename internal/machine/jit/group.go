package jit

import "maps"

// Accesses by one register to places near each other, such as those of a stack frame, share a look at the TLB: the first
// makes sure that all of them are in one page, and the others add their distance. They may be in blocks that follow each
// other without a join. Nothing between them can change the TLB, and what may be written may be read.
// When they are not in one page, the interpreter executes them. Where that turns out to happen (Page.Single), there is no group: the
// stack of a program may begin anywhere.

// group is such accesses. It ends where the register changes.
type group struct {
	leader  *instruction
	lo, end int64 // offsets from the register: the first byte, and behind the last
	members int
	single  bool // one of them looks by itself, and so do all
	local   int  // i32: where the byte at lo is in linear memory
}

func (p *group) formed() bool { return p.members > 1 && !p.single }

// groupSpan is how many bytes a group may cover: the larger, the more groups lie across two pages.
const groupSpan = 128

// groupKey: reads and writes have tables of their own.
type groupKey struct {
	base  uint8
	write bool
}

// accesses are the sizes of loads and stores.
var accesses = map[string]struct {
	size  int64
	write bool
}{
	"lb": {1, false}, "lh": {2, false}, "lw": {4, false}, "ld": {8, false}, "lbu": {1, false}, "lhu": {2, false},
	"lwu": {4, false}, "flw": {4, false}, "fld": {8, false}, "sb": {1, true}, "sh": {2, true}, "sw": {4, true},
	"sd": {8, true}, "fsw": {4, true}, "fsd": {8, true},
}

// findGroups notes the group of each access that shares one.
func (g *generator) findGroups() {
	f := &groupFinder{behind: map[*block]map[groupKey]*group{}, member: map[*instruction]*group{}}
	for _, b := range g.graph.ordered {
		f.visit(b)
	}
	for i, group := range f.member {
		group.single = group.single || hasBit(g.pages[pageOf(i.at)].Single, i.at)
	}
	for _, group := range f.all {
		if group.formed() {
			group.local = localRegisters + g.used + g.hosts
			g.hosts++
		}
	}
	g.groups = map[*instruction]*group{}
	for i, group := range f.member {
		if group.formed() {
			g.groups[i] = group
		}
	}
}

// groupFinder goes over the blocks in their order.
type groupFinder struct {
	behind map[*block]map[groupKey]*group // those that continue behind a block
	all    []*group
	member map[*instruction]*group
}

func (f *groupFinder) visit(b *block) {
	open := map[groupKey]*group{}
	if !b.merge && !b.header && len(b.predecessors) == 1 {
		maps.Copy(open, f.behind[b.predecessors[0]])
	}
	for k := range b.body {
		i := &b.body[k]
		if a, ok := accesses[i.name]; ok {
			f.join(open, i, a.size, a.write)
		}
		if emitters()[i.name].changesTLB {
			clear(open)
		}
		if emitters()[i.name].usage.rd {
			delete(open, groupKey{i.Rd, false})
			delete(open, groupKey{i.Rd, true})
		}
	}
	if b.last != nil && b.last.usage().rd {
		delete(open, groupKey{b.last.Rd, false})
		delete(open, groupKey{b.last.Rd, true})
	}
	f.behind[b] = open
}

// join puts an access into a group, a new one if need be.
func (f *groupFinder) join(open map[groupKey]*group, i *instruction, size int64, write bool) {
	for _, key := range []groupKey{{i.Rs1, true}, {i.Rs1, write}} {
		if open[key].add(i, size) {
			f.member[i] = open[key]
			return
		}
	}
	p := &group{leader: i, lo: i.Imm, end: i.Imm + size, members: 1}
	f.all = append(f.all, p)
	open[groupKey{i.Rs1, write}], f.member[i] = p, p
}

// add takes an access into the group, unless that would get too wide.
func (p *group) add(i *instruction, size int64) bool {
	if p == nil {
		return false
	}
	lo, end := min(p.lo, i.Imm), max(p.end, i.Imm+size)
	if end-lo > groupSpan {
		return false
	}
	p.lo, p.end = lo, end
	p.members++
	return true
}

// place makes sure that an access hits, and pushes the address to which its instruction adds the offset that is returned.
func (g *generator) place(i *instruction, s state, table uint32, size int64) func() uint32 {
	group := g.groups[i]
	if group == nil {
		g.probe(i, i.Imm, table, size)
		g.when()
		g.leave(i.at, s)
		g.close()
		return func() uint32 {
			g.host()
			return 0
		}
	}
	if group.leader == i {
		g.probe(i, group.lo, table, group.end-group.lo)
		g.when()
		g.leave(i.at, s)
		g.close()
		g.host().tee(group.local)
		g.memory(opI64Load8U, uint32(group.end-group.lo-1)).op(opDrop) // wazero then checks for no member that it is in the memory
	}
	return func() uint32 {
		g.get(group.local)
		return uint32(i.Imm - group.lo)
	}
}
