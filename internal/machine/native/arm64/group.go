package arm64

import "agentvm/internal/machine/native/blocks"

// Accesses of a block by the same base register are looked up together (blocks.Group): the first finds where all are, if that is one page, and the
// others are at a distance from there. Where it is not, the rest of the block is executed from a second copy of it, which stands behind the code and
// looks each access up by itself.

// placed has the groups whose places are in registers: one of accesses by sp, which most blocks use beside another base, and one of others. A group
// whose register was taken by another is looked up again.
type placed struct{ bySP, byOther *blocks.Group }

// blockCopy is the second copy of a block, from the first access of its first group on.
type blockCopy struct {
	first, end int            // halfwords
	from       map[int]*label // by the halfword of an access, where the copy continues for the block
	unspent    int
	known      any // by the guest's translator
}

// operand is where a load or store goes: at a distance from a place, or, without a place, to the address in linear memory that is in x0.
type operand struct {
	place    register // x0: none
	distance uint32
}

// transfer moves between a register and memory.
func (t *pageCode) transfer(m access, r register, o operand) {
	if o.place == x0 {
		t.inMemory(m, r, x0)
		return
	}
	t.atDistance(m, r, o.place, o.distance)
}

// located finds what an access of some bytes by a base register and an offset accesses, in parts of a size.
func (t *pageCode) located(base uint8, offset, bytes int64, table uint32, m access) operand {
	g := t.groups[t.at/2]
	if g != nil {
		origin := g.Low &^ (t.alignment - 1) // so that what is aligned in the guest, where base registers mostly are, is a multiple of its size from there
		if distance := offset - origin; distance%(1<<m.size) == 0 {
			return operand{t.placeOf(base, g, origin), uint32(distance)}
		}
	}
	t.address(x0, base, offset)
	t.lookUp(table, bytes, t.miss())
	return operand{}
}

// placeOf gives the register with the place of a group's origin. It continues in the copy of the block when its last byte is in another page, or the
// TLB does not have the page.
func (t *pageCode) placeOf(base uint8, g *blocks.Group, origin int64) register {
	place, has := placeOfOther, &t.placed.byOther
	if base == t.stack {
		place, has = placeOfSP, &t.placed.bySP
	}
	if *has == g {
		return place
	}
	table := t.layout.Read
	if g.Store {
		table = t.layout.Write
	}
	t.address(x0, base, origin)
	t.lookUp(table, g.End-origin, t.away())
	t.setPlace(place, x0)
	*has = g
	return place
}

// away is where the copy of the current block has the current instruction.
func (t *pageCode) away() *label {
	at := t.at / 2
	if t.copied == nil {
		t.copied = &blockCopy{at, t.end, map[int]*label{}, t.unspent, t.guest.known()}
		t.copies = append(t.copies, t.copied)
	}
	l := t.newLabel()
	t.copied.from[at] = l
	return l
}
