package arm64

import (
	"math/bits"
	"slices"

	"agentvm/internal/machine/native/blocks"
)

// pageCode is the code of one page, of whichever guest, and how it looks at the TLB and leaves for other pages.
type pageCode struct {
	assembler
	guest            guest
	layout           *blocks.Layout
	inHost           *[33]register // of guest registers; those that are not there have zero
	zero             uint8         // the guest register that reads as zero
	stack            uint8         // and its stack pointer
	alignment        int64         // by so many bytes base registers are mostly aligned
	instructionAlign uint32        // how many of the lowest bits of an address must be zero for the processor to jump there
	slot             uint32        // the shift from an offset in a page of code to one in its decoded slots
	labels           [blocks.PageSize / 2]*label
	exits            []exit
	detours          []detour
	walks            map[uint32]*label // the routines, by the table of the TLB
	dispatch         *label

	at      int                   // the instruction that is translated
	end     int                   // of its block, a halfword
	groups  map[int]*blocks.Group // of its block
	placed  placed
	copied  *blockCopy // nil: its block has no copy
	copies  []*blockCopy
	unspent int // instructions of its block from it on, which the budget has paid for
}

// exit is code that stands behind all else.
type exit struct {
	from    *label
	offset  int // of the next instruction, from the page's start
	unspent int
	chain   bool // continues in another page, when that is translated
}

// guest translates instructions one by one.
type guest interface {
	// instruction writes the code of the one at a halfword. It says whether control never comes to what is behind it.
	instruction(i int) (jumps bool)
	// known is what code before an instruction, in its block, has looked at; know sets it: nil is nothing.
	known() any
	know(any)
	// tables are the guest's page tables.
	tables(w *walk) pageTables
}

// page is a page of a guest's code, with what its instructions do to memory.
type page[I any] struct {
	*pageCode
	*blocks.Blocks[I]
	access func(*I) blocks.Access
}

// translate makes the code of the page. It is false when none of the entries is an instruction that can be translated.
func (t *page[I]) translate() (blocks.Translation, bool) {
	t.dispatch, t.walks = t.newLabel(), map[uint32]*label{}
	for i := range t.labels {
		if t.Leader[i] && t.Steps[i].Size != 0 {
			t.labels[i] = t.newLabel()
		}
	}
	var out blocks.Translation
	for i := range t.Decoded { // instructions may overlap, so that a block's end may be anywhere
		for at := i; at < len(t.Decoded) && t.labels[at] != nil && t.labels[at].at < 0; {
			out.Entries = append(out.Entries, blocks.Entry{Offset: 2 * at, At: t.here()})
			at = t.block(at, &out)
		}
	}
	if len(out.Entries) == 0 {
		return blocks.Translation{}, false
	}
	slices.SortFunc(out.Entries, func(a, b blocks.Entry) int { return a.Offset - b.Offset })
	if t.Places {
		out.Places = append(out.Places, blocks.Entry{Offset: blocks.PageSize, At: t.here()})
	}
	t.writeDetours() // before the copies, where some of them lead
	t.writeCopies()
	t.writeDetours()
	t.leave()
	t.writeWalks()
	out.Code = t.code
	return out, true
}

// block translates from a leader to the next one or a jump, and gives the halfword to continue at.
func (t *page[I]) block(first int, out *blocks.Translation) int {
	count, end := t.Block(first)
	if end < len(t.labels) && t.Leader[end] && t.Steps[end].Size != 0 && t.labels[end] == nil {
		t.labels[end] = t.newLabel()
	}
	out.Instructions += count
	start := t.here()
	t.bind(t.labels[first])
	t.immediate(immediateSubs, budget, budget, uint32(count))
	t.jumpIf(less, t.exit(2*first, count, false))
	t.unspent, t.end = count, end
	t.guest.know(nil)
	t.groups, t.placed, t.copied = t.Groups(first, end, t.access), placed{}, nil
	t.instructions(first, end, func(i int) {
		if !t.Places {
			return
		}
		if i > first {
			start = t.here()
		}
		out.Places = append(out.Places, blocks.Entry{Offset: 2 * i, At: start})
	})
	return end
}

// instructions translates some of a block, to its end. It calls before with the halfword of each before its code begins.
func (t *page[I]) instructions(first, end int, before func(int)) {
	jumps := false
	for i := first; i < end; {
		t.at = 2 * i
		before(i)
		jumps = t.guest.instruction(i)
		t.unspent--
		i += t.Steps[i].Size / 2
	}
	if !jumps && (end >= len(t.Decoded) || t.Steps[end].Size == 0 || t.labels[end].at >= 0) {
		t.jump(t.place(2 * end))
	}
}

// writeCopies writes the copies of blocks. Each has, where a block comes to it, looked at the same as the block.
func (t *page[I]) writeCopies() {
	t.groups = nil
	for _, c := range t.copies {
		t.unspent = c.unspent
		t.guest.know(c.known)
		t.instructions(c.first, c.end, func(i int) {
			if l := c.from[i]; l != nil {
				t.bind(l)
			}
		})
	}
}

// found looks up a page in a table of the TLB, by an address within it, and jumps when it is not there: at its first place, whose number is
// changed by other. It puts the entry's addend into x1, and uses x3.
func (t *pageCode) found(table uint32, va, page register, other uint32, out *label) {
	t.hasTag(table, va, page, other, out)
	t.addend()
}

// hasTag makes x1 the address in linear memory of an entry, and jumps when that is not the page's. It uses x3.
func (t *pageCode) hasTag(table uint32, va, page register, other uint32, out *label) {
	t.entryOf(va, table, other)
	t.inMemory(access{size: 3, op: load}, x3, x1)
	t.compare(true, x3, page)
	t.jumpIf(notEqual, out)
}

// addend loads that of the entry at x1.
func (t *pageCode) addend() {
	t.add(x1, x1, int64(t.layout.Addend)-int64(t.layout.Tag))
	t.inMemory(access{size: 2, op: load}, x1, x1)
}

// entryOf makes x1 the address in linear memory of an address's entry in a table of the TLB, which begins with the tag; tables are at multiples of
// 4 KiB. It uses x3 when the number of the entry is changed.
func (t *pageCode) entryOf(va register, table, other uint32) {
	t.index(va)
	if other != 0 {
		t.constant(x3, int64(other))
		t.three(true, opXor, x1, x1, x3)
	}
	t.addShifted(x1, tlb, x1, 4) // an entry has 16 bytes
	t.add(x1, x1, int64(table+t.layout.Tag))
}

// index makes x1 the number of an address's first entry.
func (t *pageCode) index(va register) {
	t.field(field, x1, va, 12, 12+uint32(bits.Len32(t.layout.Entries-1))-1)
}

// exit is a label of code that leaves the translation for an offset from the page's start.
func (t *pageCode) exit(offset, unspent int, chain bool) *label {
	for i := range min(4, len(t.exits)) { // the last ones are often the same
		if e := &t.exits[len(t.exits)-1-i]; e.offset == offset && e.unspent == unspent && e.chain == chain {
			return e.from
		}
	}
	l := t.newLabel()
	t.exits = append(t.exits, exit{l, offset, unspent, chain})
	return l
}

// miss is where the current instruction is left to the interpreter.
func (t *pageCode) miss() *label { return t.exit(t.at, t.unspent, false) }

// place is a label of the code for an offset from the page's start, all of the block being executed.
func (t *pageCode) place(offset int) *label {
	inside := offset >= 0 && offset < blocks.PageSize
	if inside && t.labels[offset/2] != nil {
		return t.labels[offset/2]
	}
	return t.exit(offset, 0, !inside)
}

// leave writes the exits, and the way to other pages by their decoded slots.
func (t *pageCode) leave() {
	pc := t.layout.PC - t.layout.X
	for _, e := range t.exits {
		t.bind(e.from)
		if e.chain {
			t.inHart(access{size: 3, op: load}, x0, pc)
			t.add(x0, x0, int64(e.offset))
			t.jumpFar()
			continue
		}
		if e.unspent != 0 {
			t.immediate(immediateAdd, budget, budget, uint32(e.unspent))
		}
		if e.offset != 0 {
			t.inHart(access{size: 3, op: load}, x0, pc)
			t.add(x0, x0, int64(e.offset))
			t.inHart(access{size: 3, op: store}, x0, pc)
		}
		t.ret()
	}
	t.writeDispatch()
}

// jumpFar continues at the address in x0, which is of any page: where a jump to it was noted, at once.
func (t *pageCode) jumpFar() {
	t.noted(x0)
	generation, at := t.jumpOffsets()
	t.atDistance(access{size: 3, op: load}, x1, placeOfOther, at)
	t.atDistance(access{size: 3, op: load}, x2, placeOfOther, at+8)
	t.atDistance(access{size: 3, op: load}, x3, placeOfSP, generation)
	t.compare(true, x1, x0)
	t.jumpIf(notEqual, t.dispatch)
	t.three(true, opXor, x1, x2, x3)
	t.immediate(immediateSubs|shiftedBy12, zero, x1, blocks.MaxEntries*16>>12)
	t.jumpIf(notBelow, t.dispatch) // of another generation
	t.mask(x2, x0, 12, 64)
	t.inHart(access{size: 3, op: store}, x2, t.layout.PC-t.layout.X)
	t.entry(x1, x1)
	t.enter()
}

// noted makes the places of what jumpOffsets has: of the generation, and of the jump to an address. It uses x1 and x2.
func (t *pageCode) noted(address register) {
	t.field(field, x1, address, 1, 10)
	t.add(x2, tlb, int64(t.layout.Generation&^0xfff))
	t.setPlace(placeOfSP, x2)
	t.addShifted(x1, x2, x1, 4)
	t.setPlace(placeOfOther, x1)
}

var _ = [1]struct{}{}[blocks.MaxJumps-1<<10] // as many as noted looks at

// jumpOffsets gives the distances of the generation and of a jump from the places that noted makes.
func (t *pageCode) jumpOffsets() (generation, jump uint32) {
	from := t.layout.Generation &^ 0xfff
	return t.layout.Generation - from, t.layout.Jumps - from
}

// entry loads the address of the entry at an offset in the table, and its slot into a register. The lowest bits of the offset, and those above it, are
// cleared.
func (t *pageCode) entry(offset, slot register) {
	t.mask(offset, offset, 4, 4+18)
	t.three(true, opAdd, target, entries, offset)
	t.word(0xa9400000 | uint32(slot)<<10 | uint32(target)<<5 | uint32(target)) // ldp target, slot, [target]
}

// enter continues at the entry that was loaded.
func (t *pageCode) enter() { t.word(0xd61f0000 | uint32(target)<<5) } // br target

// writeDispatch writes where jumps go that were not noted: to the entry that the decoded slot at the address in x0 is, which is noted then, or out.
func (t *pageCode) writeDispatch() {
	pc := t.layout.PC - t.layout.X
	t.bind(t.dispatch)
	out := t.newLabel()
	t.inHart(access{size: 3, op: store}, x0, pc)
	if t.instructionAlign != 0 {
		t.test(x0, 0, t.instructionAlign)
		t.jumpIf(notEqual, out)
	}
	t.mask(x2, x0, 12, 64)
	other, found := t.newLabel(), t.newLabel()
	t.found(t.layout.Code, x0, x2, 0, other)
	t.jump(found)
	t.bind(other) // the page's second place
	t.found(t.layout.Code, x0, x2, t.layout.Other, out)
	t.bind(found)
	t.field(field, x3, x0, 64-t.slot, 11) // decoded slots have 8 bytes
	t.three(true, opAdd, x1, x1, x3)
	t.inMemory(access{size: 3, op: load}, x0, x1)
	t.shiftRight(x3, x0, 8-4) // an entry has 16 bytes
	t.entry(x3, x1)
	t.compare(true, x1, x0)
	t.jumpIf(notEqual, out)
	t.inHart(access{size: 3, op: load}, x0, pc) // which is noted
	t.inHart(access{size: 3, op: store}, x2, pc)
	t.noted(x0)
	generation, at := t.jumpOffsets()
	t.atDistance(access{size: 3, op: store}, x0, placeOfOther, at)
	t.atDistance(access{size: 3, op: load}, x0, placeOfSP, generation)
	t.three(true, opXor, x0, x0, x3)
	t.atDistance(access{size: 3, op: store}, x0, placeOfOther, at+8)
	t.enter()
	t.bind(out)
	t.ret()
}

var _ = [1]struct{}{}[blocks.MaxEntries-1<<18] // as many as leave looks at

// value gives the register that has a guest register's value, or loads it into scratch. Zero is a register that immediate forms do not have.
func (t *pageCode) value(r uint8, scratch register) register {
	switch {
	case r == t.zero:
		return zero
	case t.inHost[r] != 0:
		return t.inHost[r]
	}
	t.inHart(access{size: 3, op: load}, scratch, 8*uint32(r))
	return scratch
}

// copyOf puts a guest register's value into a register.
func (t *pageCode) copyOf(r uint8, to register) { t.move(to, t.value(r, to)) }

// setGuest makes a register's value that of a guest register.
func (t *pageCode) setGuest(r uint8, from register) {
	switch {
	case r == t.zero:
	case t.inHost[r] != 0:
		t.move(t.inHost[r], from)
	default:
		t.inHart(access{size: 3, op: store}, from, 8*uint32(r))
	}
}

// lookUp makes the address in linear memory of the virtual address in x0, for an access within a page. Otherwise it continues at miss.
func (t *pageCode) lookUp(table uint32, size int64, miss *label) {
	last := x0
	if size > 1 {
		last = x2
		t.add(last, x0, size-1)
	}
	t.mask(x2, last, 12, 64)
	detour, back := t.detour(table, miss)
	t.hasTag(table, x0, x2, 0, detour)
	t.bind(back)
	t.addend()
	t.three(true, opAdd, x0, x0, x1)
}

// result is where to compute the value of a guest register.
func (t *pageCode) result(r uint8) register {
	if t.inHost[r] == 0 {
		return x0
	}
	return t.inHost[r]
}

// address is a guest register + a distance, of 12 bits when the register is zero.
func (t *pageCode) address(to register, base uint8, distance int64) {
	if base == t.zero {
		t.constant(to, distance)
		return
	}
	t.add(to, t.value(base, to), distance)
}
