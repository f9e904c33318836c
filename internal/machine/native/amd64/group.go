package amd64

import (
	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/riscv"
)

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
	facts
}

// located gives the register with an address in linear memory, and the distance from there, of what a load or store accesses.
func (t *translator) located(d *riscv.Decoded, table uint32, size int32) (at register, distance uint32) {
	g := t.groups[t.at/2]
	if g == nil {
		t.address(rax, d.Rs1, d.Imm)
		t.lookUp(table, size, t.miss())
		return rax, 0
	}
	held := heldPlace + d.Rs1
	place := t.layout.Places + 8*uint32(d.Rs1)
	distance = uint32(d.Imm - g.Low)
	if g.First == t.at/2 {
		t.locate(d.Rs1, g)
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

// locate makes the address in linear memory of a group's first byte, and continues in the copy of the block when its last is in another page, or
// the TLB does not have the page.
func (t *translator) locate(base uint8, g *blocks.Group) {
	table := t.layout.Read
	if g.Store {
		table = t.layout.Write
	}
	t.address(rax, base, g.Low)
	t.lookUp(table, int32(g.End-g.Low), t.away(g.First))
}

// away is where the copy of the current block begins for a group.
func (t *translator) away(first int) *label {
	if t.copied == nil {
		t.copies = append(t.copies, &blockCopy{first, t.end, map[int]*label{}, t.unspent, t.facts})
		t.copied = t.copies[len(t.copies)-1]
	}
	l := t.newLabel()
	t.copied.from[first] = l
	return l
}

// writeCopies writes the copies of blocks. Each has, where a block comes to it, looked at the same as the block.
func (t *translator) writeCopies() {
	t.groups = nil
	for _, c := range t.copies {
		t.unspent, t.facts = c.unspent, c.facts
		t.instructions(c.first, c.end, func(i int) {
			if l := c.from[i]; l != nil {
				t.bind(l)
			}
		})
	}
}
