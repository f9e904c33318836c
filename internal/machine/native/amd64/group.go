package amd64

import "agentvm/internal/machine/native/blocks"

// Accesses of a block by the same base register are looked up together (blocks.Group): the first finds where all are, if that is one page, and the
// others are operands at a distance from there. Where it is not, the rest of the block is executed from a second copy of it, which stands behind
// the code and looks each access up by itself.

// heldPlace is what a register holds that has a group's place, beside the numbers of guest registers: at most one group of each base register is
// in use.
const heldPlace = 64

// blockCopy is the second copy of a block, from the first access of its first group on.
type blockCopy struct {
	first, end int            // halfwords
	from       map[int]*label // by the first access of each group, where the copy continues for the block
	unspent    int
	facts      any // what the guest's translator knows there
}

// located gives the register with an address in linear memory, and the distance from there, of an access of a group. base makes the address at a
// distance from a guest register.
func (t *pageCode) located(r uint8, g *blocks.Group, offset int64, base func(to register, r uint8, distance int64)) (at register, distance uint32) {
	held := heldPlace + r
	place := t.layout.Places + 8*uint32(r)
	distance = uint32(offset - g.Low)
	if g.First == t.at/2 {
		table := t.layout.Read
		if g.Store {
			table = t.layout.Write
		}
		base(rax, r, g.Low)
		t.lookUp(table, int32(g.End-g.Low), t.away(g.First))
		t.hart(false, opMove, rax, place)
		t.forget(held)
		t.hold(rax, held)
		return rax, distance
	}
	for r, h := range t.holds {
		if h == held {
			return register(r), distance
		}
	}
	t.hart(false, opLoad, rax, place)
	t.hold(rax, held)
	return rax, distance
}

// away is where the copy of the current block begins for a group.
func (t *pageCode) away(first int) *label {
	if t.copied == nil {
		t.copies = append(t.copies, &blockCopy{first, t.end, map[int]*label{}, t.unspent, t.snapshot()})
		t.copied = t.copies[len(t.copies)-1]
	}
	l := t.newLabel()
	t.copied.from[first] = l
	return l
}

// writeCopies writes the copies of blocks. Each has, where a block comes to it, looked at the same as the block.
func (t *pageCode) writeCopies(write func(*blockCopy)) {
	t.groups = nil
	for _, c := range t.copies {
		t.unspent = c.unspent
		write(c)
	}
}
