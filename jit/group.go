package jit

// Accesses by one register to places near each other, such as those of a stack frame, share a look at the TLB: the first
// makes sure that all of them are in one page, and the others add their distance. Nothing between them can change the TLB.
// When they are not in one page, the interpreter executes them.

// group is such accesses. It ends where the register changes.
type group struct {
	leader  *instruction
	lo, end int64 // offsets from the register: the first byte, and behind the last
	members int
	local   int // i32: where the byte at lo is in linear memory
}

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

// findGroups notes the group of each access of a block that shares one.
func (g *generator) findGroups(b *block) {
	open := map[groupKey]*group{}
	var all []*group
	member := map[*instruction]*group{}
	for k := range b.body {
		i := &b.body[k]
		if a, ok := accesses[i.name]; ok {
			key := groupKey{i.Rs1, a.write}
			if !open[key].add(i, a.size) {
				open[key] = &group{leader: i, lo: i.Imm, end: i.Imm + a.size, members: 1}
				all = append(all, open[key])
			}
			member[i] = open[key]
		}
		if emitters[i.name].usage.rd {
			delete(open, groupKey{i.Rd, false})
			delete(open, groupKey{i.Rd, true})
		}
	}
	for _, group := range all {
		if group.members > 1 {
			group.local = localRegisters + g.used + g.hosts
			g.hosts++
		}
	}
	for i, group := range member {
		if group.members > 1 {
			g.groups[i] = group
		}
	}
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
		g.host().set(group.local)
	}
	return func() uint32 {
		g.get(group.local)
		return uint32(i.Imm - group.lo)
	}
}
