package blocks

import "math/bits"

// Access is what an instruction does to memory and registers.
type Access struct {
	Base   uint8  // the register with the place
	Low    int64  // distance of the first byte from there
	Size   int64  // bytes, 0: it is none of plain memory by a register and a constant
	Store  bool   // it writes them
	Writes uint32 // the registers that the instruction writes, a bit each
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

// Groups finds the groups of a block, of two accesses or more, by the halfwords of their accesses; nil when it has no access. An instruction across
// two pages is in none.
func (b *Blocks[I]) Groups(first, end int, access func(*I) Access) map[int]*Group {
	var groups map[int]*Group
	var open [32]*Group // by base register
	for i := first; i < end; i += b.Steps[i].Size / 2 {
		a := access(&b.Decoded[i])
		if a.Size != 0 && 2*i+b.Steps[i].Size <= PageSize {
			g := open[a.Base]
			if g == nil || max(g.End, a.Low+a.Size)-min(g.Low, a.Low) > maxGroup {
				g = &Group{First: i, Low: a.Low, End: a.Low + a.Size}
				open[a.Base] = g
			}
			g.Low, g.End, g.Store = min(g.Low, a.Low), max(g.End, a.Low+a.Size), g.Store || a.Store
			g.members++
			if groups == nil {
				groups = map[int]*Group{}
			}
			groups[i] = g
		}
		for w := a.Writes; w != 0; w &= w - 1 {
			open[bits.TrailingZeros32(w)] = nil
		}
	}
	for i, g := range groups {
		if g.members < 2 {
			delete(groups, i)
		}
	}
	return groups
}
