package blocks

// access is what a load or store of plain memory touches.
type access struct {
	size  int64 // in bytes
	store bool
}

var accesses = map[string]access{
	"lb": {size: 1}, "lbu": {size: 1}, "lh": {size: 2}, "lhu": {size: 2}, "lw": {size: 4}, "lwu": {size: 4}, "ld": {size: 8}, "flw": {size: 4}, "fld": {size: 8},
	"sb": {1, true}, "sh": {2, true}, "sw": {4, true}, "sd": {8, true}, "fsw": {4, true}, "fsd": {8, true},
}

// Group is accesses of a block by the same value of a base register that are likely to be in one page: their place is looked up once.
type Group struct {
	First    int   // the halfword of its first access
	Low, End int64 // distances of its first byte, and of the byte behind its last, from the base register's value
	Store    bool  // at least one stores

	members int
}

// maxGroup bounds End - Low. The farther apart accesses are, the more often a page ends between them.
const maxGroup = 512

// Groups finds the groups of a block, of two accesses or more, by the halfwords of their accesses; nil when it has no access.
func (b *Blocks) Groups(first, end int) map[int]*Group {
	var groups map[int]*Group
	var open [32]*Group // by base register
	for i := first; i < end; i += b.Decoded[i].Size / 2 {
		d := &b.Decoded[i]
		a, moves := accesses[d.Name]
		if !moves {
			open[d.Rd] = nil // or the floating-point register of that number, which does no harm
			continue
		}
		if d.Rs1 != 0 && 2*i+d.Size <= PageSize {
			g := open[d.Rs1]
			if g == nil || max(g.End, d.Imm+a.size)-min(g.Low, d.Imm) > maxGroup {
				g = &Group{First: i, Low: d.Imm, End: d.Imm + a.size}
				open[d.Rs1] = g
			}
			g.Low, g.End, g.Store = min(g.Low, d.Imm), max(g.End, d.Imm+a.size), g.Store || a.store
			g.members++
			if groups == nil {
				groups = map[int]*Group{}
			}
			groups[i] = g
		}
		if !a.store {
			open[d.Rd] = nil
		}
	}
	for i, g := range groups {
		if g.members < 2 {
			delete(groups, i)
		}
	}
	return groups
}
