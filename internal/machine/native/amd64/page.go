package amd64

import (
	"slices"

	"agentvm/internal/machine/native/blocks"
)

// page is the translation of a page, of whichever guest. I is a decoded instruction.
type page[I any] struct {
	pageCode
	*blocks.Blocks[I]
	guest guest[I]
}

// guest is what a guest's translator has of its own.
type guest[I any] interface {
	// instruction translates one. It is true when control does not run on behind it.
	instruction(d *I, s *blocks.Step) (jumps bool)
	// touches says what one does to memory by a register and a constant.
	touches(d *I) blocks.Access
	// known is what code before an instruction, in its block, has looked at.
	known() any
	// assume makes that what is known; of nil, nothing is.
	assume(known any)
	// tables are the guest's page tables.
	tables(w *walk) pageTables
}

// Room for code: about what an instruction of the guest takes, and what a page has besides.
const bytesEach, bytesBesides = 64, 2048

// translate makes the code. It is false when none of the entries is an instruction that can be translated.
func (t *page[I]) translate() (Translation, bool) {
	t.snapshot, t.walks, t.dispatch = t.guest.known, map[walkKey]*label{}, t.newLabel()
	count := 0
	for i := range t.labels {
		if t.Steps[i].Size == 0 {
			continue
		}
		count++
		if t.Leader[i] {
			t.labels[i] = t.newLabel()
		}
	}
	t.code = make([]byte, 0, bytesEach*count+bytesBesides)
	var out Translation
	for i := range t.Steps { // instructions may overlap, so that a block's end may be anywhere
		for at := i; at < len(t.Steps) && t.labels[at] != nil && t.labels[at].at < 0; {
			out.Entries = append(out.Entries, Entry{Offset: 2 * at, At: t.here()})
			at = t.block(at, &out)
		}
	}
	if len(out.Entries) == 0 {
		return Translation{}, false
	}
	slices.SortFunc(out.Entries, func(a, b Entry) int { return a.Offset - b.Offset })
	if t.Places {
		out.Places = append(out.Places, Entry{Offset: PageSize, At: t.here()})
	}
	t.writeDetours() // before the copies, where some of them lead
	t.writeCopies(func(c *blockCopy) {
		t.guest.assume(c.facts)
		t.instructions(c.first, c.end, func(i int) {
			if l := c.from[i]; l != nil {
				t.bind(l)
			}
		})
	})
	t.writeDetours()
	t.leave()
	t.writeWalks(t.guest.tables)
	out.Code = t.code
	return out, true
}

// block translates from a leader to the next one or a jump, and gives the halfword to continue at.
func (t *page[I]) block(first int, out *Translation) int {
	count, end := t.Block(first)
	if end < len(t.labels) && t.Leader[end] && t.Steps[end].Size != 0 && t.labels[end] == nil {
		t.labels[end] = t.newLabel()
	}
	out.Instructions += count
	start := t.here()
	t.bind(t.labels[first])
	t.immediate(true, immediateSub, budget, int32(count))
	t.jumpIf(less, t.exit(2*first, count, false))
	t.unspent, t.end = count, end
	t.guest.assume(nil)
	t.groups, t.copied = t.Groups(first, end, t.guest.touches), nil
	t.instructions(first, end, func(i int) {
		if !t.Places {
			return
		}
		if i > first {
			start = t.here()
		}
		out.Places = append(out.Places, Entry{Offset: 2 * i, At: start})
	})
	return end
}

// instructions translates some of a block, to its end. It calls before with the halfword of each before its code begins.
func (t *page[I]) instructions(first, end int, before func(int)) {
	jumps := false
	for i := first; i < end; {
		s := &t.Steps[i]
		t.at = 2 * i
		before(i)
		jumps = t.guest.instruction(&t.Decoded[i], s)
		t.unspent--
		i += s.Size / 2
	}
	if !jumps && (end >= len(t.Steps) || t.Steps[end].Size == 0 || t.labels[end].at >= 0) {
		t.goTo(2 * end)
	}
}
