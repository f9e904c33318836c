package arm64

import (
	"math/bits"
	"slices"

	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/riscv"
)

// translator makes the code of one page.
type translator struct {
	assembler
	*blocks.Blocks[riscv.Decoded]
	layout   *blocks.Layout
	labels   [blocks.PageSize / 2]*label
	exits    []exit
	detours  []detour
	walks    map[uint32]*label // the routines, by the table of the TLB
	dispatch *label

	at      int                   // the instruction that is translated
	end     int                   // of its block, a halfword
	groups  map[int]*blocks.Group // of its block
	placed  placed
	copied  *blockCopy // nil: its block has no copy
	copies  []*blockCopy
	unspent int // instructions of its block from it on, which the budget has paid for

	facts
}

// facts are what code before an instruction, in its block, has looked at: only what the interpreter executes changes it.
type facts struct {
	floatIsOn, floatIsDirty bool
	isSupervisor            bool // the privilege is S
}

// exit is code that stands behind all else.
type exit struct {
	from    *label
	offset  int // of the next instruction, from the page's start
	unspent int
	chain   bool // continues in another page, when that is translated
}

// Translate makes the code of a page. It is false when none of the entries is an instruction that can be translated.
func Translate(l *blocks.Layout, p blocks.Page) (blocks.Translation, bool) {
	t := &translator{layout: l, walks: map[uint32]*label{}, Blocks: blocks.RISCV(p, func(d *riscv.Decoded) bool { return emitters()[d.Name] != nil && blocks.HasRegister(d) })}
	t.dispatch = t.newLabel()
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
	if p.Places {
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
func (t *translator) block(first int, out *blocks.Translation) int {
	count, end := t.Block(first)
	if end < len(t.labels) && t.Leader[end] && t.Steps[end].Size != 0 && t.labels[end] == nil {
		t.labels[end] = t.newLabel()
	}
	out.Instructions += count
	start := t.here()
	t.bind(t.labels[first])
	t.immediate(immediateSubs, budget, budget, uint32(count))
	t.jumpIf(less, t.exit(2*first, count, false))
	t.unspent, t.end, t.facts = count, end, facts{}
	t.groups, t.placed, t.copied = t.Groups(first, end, blocks.AccessRISCV), placed{}, nil
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
func (t *translator) instructions(first, end int, before func(int)) {
	jumps := false
	for i := first; i < end; {
		d := &t.Decoded[i]
		t.at = 2 * i
		before(i)
		if t.at+d.Size > blocks.PageSize {
			t.checkSecond()
		}
		switch t.Steps[i].Flow {
		case blocks.FlowBranch:
			t.compare(true, t.value(d.Rs1, x0), t.value(d.Rs2, x2))
			t.jumpIf(conditions[d.Name], t.place(t.at+int(d.Imm)))
		case blocks.FlowJump:
			t.link(d)
			t.jump(t.place(t.at + int(d.Imm)))
			jumps = true
		case blocks.FlowIndirect:
			t.address(x2, d.Rs1, d.Imm)
			t.link(d)
			t.mask(x0, x2, 1, 64)
			t.jumpFar()
			jumps = true
		default:
			emitters()[d.Name](t, d)
		}
		t.unspent--
		i += d.Size / 2
	}
	if !jumps && (end >= len(t.Decoded) || t.Steps[end].Size == 0 || t.labels[end].at >= 0) {
		t.jump(t.place(2 * end))
	}
}

var conditions = map[string]byte{"beq": equal, "bne": notEqual, "blt": less, "bge": notLess, "bltu": below, "bgeu": notBelow}

// checkSecond leaves when the next page has another second half of the current instruction, or is not known to be code.
func (t *translator) checkSecond() {
	t.inHart(access{3, load}, x0, t.layout.PC-t.layout.X)
	t.add(x0, x0, blocks.PageSize)
	t.found(t.layout.Code, x0, x0, 0, t.miss())
	t.constant(x2, int64(t.layout.Frame))
	t.three(true, opAdd, x2, x2, x1)
	t.inMemory(access{2, load}, x2, x2)
	t.shiftLeft(x2, x2, 12)
	t.add(x2, x2, int64(t.layout.RAM))
	t.inMemory(access{1, load}, x2, x2)
	t.constant(x0, int64(t.Second))
	t.compare(true, x2, x0)
	t.jumpIf(notEqual, t.miss())
}

// found looks up a page in a table of the TLB, by an address within it, and jumps when it is not there: at its first place, whose number is
// changed by other. It puts the entry's addend into x1, and uses x3.
func (t *translator) found(table uint32, va, page register, other uint32, out *label) {
	t.hasTag(table, va, page, other, out)
	t.addend()
}

// hasTag makes x1 the address in linear memory of an entry, and jumps when that is not the page's. It uses x3.
func (t *translator) hasTag(table uint32, va, page register, other uint32, out *label) {
	t.entryOf(va, table, other)
	t.inMemory(access{3, load}, x3, x1)
	t.compare(true, x3, page)
	t.jumpIf(notEqual, out)
}

// addend loads that of the entry at x1.
func (t *translator) addend() {
	t.add(x1, x1, int64(t.layout.Addend)-int64(t.layout.Tag))
	t.inMemory(access{2, load}, x1, x1)
}

// entryOf makes x1 the address in linear memory of an address's entry in a table of the TLB, which begins with the tag; tables are at multiples of
// 4 KiB. It uses x3 when the number of the entry is changed.
func (t *translator) entryOf(va register, table, other uint32) {
	t.index(va)
	if other != 0 {
		t.constant(x3, int64(other))
		t.three(true, opXor, x1, x1, x3)
	}
	t.addShifted(x1, tlb, x1, 4) // an entry has 16 bytes
	t.add(x1, x1, int64(table+t.layout.Tag))
}

// index makes x1 the number of an address's first entry.
func (t *translator) index(va register) {
	t.field(field, x1, va, 12, 12+uint32(bits.Len32(t.layout.Entries-1))-1)
}

// exit is a label of code that leaves the translation for an offset from the page's start.
func (t *translator) exit(offset, unspent int, chain bool) *label {
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
func (t *translator) miss() *label { return t.exit(t.at, t.unspent, false) }

// place is a label of the code for an offset from the page's start, all of the block being executed.
func (t *translator) place(offset int) *label {
	inside := offset >= 0 && offset < blocks.PageSize
	if inside && t.labels[offset/2] != nil {
		return t.labels[offset/2]
	}
	return t.exit(offset, 0, !inside)
}

// leave writes the exits, and the way to other pages by their decoded slots.
func (t *translator) leave() {
	pc := t.layout.PC - t.layout.X
	for _, e := range t.exits {
		t.bind(e.from)
		if e.chain {
			t.inHart(access{3, load}, x0, pc)
			t.add(x0, x0, int64(e.offset))
			t.jumpFar()
			continue
		}
		if e.unspent != 0 {
			t.immediate(immediateAdd, budget, budget, uint32(e.unspent))
		}
		if e.offset != 0 {
			t.inHart(access{3, load}, x0, pc)
			t.add(x0, x0, int64(e.offset))
			t.inHart(access{3, store}, x0, pc)
		}
		t.ret()
	}
	t.writeDispatch()
}

// jumpFar continues at the address in x0, which is of any page: where a jump to it was noted, at once.
func (t *translator) jumpFar() {
	t.noted(x0)
	generation, at := t.jumpOffsets()
	t.atDistance(access{3, load}, x1, placeOfOther, at)
	t.atDistance(access{3, load}, x2, placeOfOther, at+8)
	t.atDistance(access{3, load}, x3, placeOfSP, generation)
	t.compare(true, x1, x0)
	t.jumpIf(notEqual, t.dispatch)
	t.three(true, opXor, x1, x2, x3)
	t.immediate(immediateSubs|shiftedBy12, zero, x1, blocks.MaxEntries*16>>12)
	t.jumpIf(notBelow, t.dispatch) // of another generation
	t.mask(x2, x0, 12, 64)
	t.inHart(access{3, store}, x2, t.layout.PC-t.layout.X)
	t.entry(x1, x1)
	t.enter()
}

// noted makes the places of what jumpOffsets has: of the generation, and of the jump to an address. It uses x1 and x2.
func (t *translator) noted(address register) {
	t.field(field, x1, address, 1, 10)
	t.add(x2, tlb, int64(t.layout.Generation&^0xfff))
	t.setPlace(placeOfSP, x2)
	t.addShifted(x1, x2, x1, 4)
	t.setPlace(placeOfOther, x1)
}

var _ = [1]struct{}{}[blocks.MaxJumps-1<<10] // as many as noted looks at

// jumpOffsets gives the distances of the generation and of a jump from the places that noted makes.
func (t *translator) jumpOffsets() (generation, jump uint32) {
	from := t.layout.Generation &^ 0xfff
	return t.layout.Generation - from, t.layout.Jumps - from
}

// entry loads the address of the entry at an offset in the table, and its slot into a register. The lowest bits of the offset, and those above it, are
// cleared.
func (t *translator) entry(offset, slot register) {
	t.mask(offset, offset, 4, 4+18)
	t.three(true, opAdd, target, entries, offset)
	t.word(0xa9400000 | uint32(slot)<<10 | uint32(target)<<5 | uint32(target)) // ldp target, slot, [target]
}

// enter continues at the entry that was loaded.
func (t *translator) enter() { t.word(0xd61f0000 | uint32(target)<<5) } // br target

// writeDispatch writes where jumps go that were not noted: to the entry that the decoded slot at the address in x0 is, which is noted then, or out.
func (t *translator) writeDispatch() {
	pc := t.layout.PC - t.layout.X
	t.bind(t.dispatch)
	out := t.newLabel()
	t.inHart(access{3, store}, x0, pc)
	t.mask(x2, x0, 12, 64)
	other, found := t.newLabel(), t.newLabel()
	t.found(t.layout.Code, x0, x2, 0, other)
	t.jump(found)
	t.bind(other) // the page's second place
	t.found(t.layout.Code, x0, x2, t.layout.Other, out)
	t.bind(found)
	t.field(field, x3, x0, 64-2, 11) // a decoded slot has 8 bytes for each halfword
	t.three(true, opAdd, x1, x1, x3)
	t.inMemory(access{3, load}, x0, x1)
	t.shiftRight(x3, x0, 8-4) // an entry has 16 bytes
	t.entry(x3, x1)
	t.compare(true, x1, x0)
	t.jumpIf(notEqual, out)
	t.inHart(access{3, load}, x0, pc) // which is noted
	t.inHart(access{3, store}, x2, pc)
	t.noted(x0)
	generation, at := t.jumpOffsets()
	t.atDistance(access{3, store}, x0, placeOfOther, at)
	t.atDistance(access{3, load}, x0, placeOfSP, generation)
	t.three(true, opXor, x0, x0, x3)
	t.atDistance(access{3, store}, x0, placeOfOther, at+8)
	t.enter()
	t.bind(out)
	t.ret()
}

var _ = [1]struct{}{}[blocks.MaxEntries-1<<18] // as many as leave looks at

// value gives the register that has a guest register's value, or loads it into scratch. Zero is a register that immediate forms do not have.
func (t *translator) value(r uint8, scratch register) register {
	switch {
	case r == 0:
		return zero
	case inHost[r] != 0:
		return inHost[r]
	}
	t.inHart(access{3, load}, scratch, 8*uint32(r))
	return scratch
}

// copyOf puts a guest register's value into a register.
func (t *translator) copyOf(r uint8, to register) { t.move(to, t.value(r, to)) }

// setGuest makes a register's value that of a guest register.
func (t *translator) setGuest(r uint8, from register) {
	switch {
	case r == 0:
	case inHost[r] != 0:
		t.move(inHost[r], from)
	default:
		t.inHart(access{3, store}, from, 8*uint32(r))
	}
}

// result is where to compute the value of rd.
func result(rd uint8) register {
	if inHost[rd] == 0 {
		return x0
	}
	return inHost[rd]
}

// link sets rd to the address behind the instruction.
func (t *translator) link(d *riscv.Decoded) {
	if d.Rd == 0 {
		return
	}
	to := result(d.Rd)
	t.inHart(access{3, load}, to, t.layout.PC-t.layout.X)
	t.add(to, to, int64(t.at+d.Size))
	t.setGuest(d.Rd, to)
}

// address is rs1 + a distance of 12 bits.
func (t *translator) address(to register, rs1 uint8, distance int64) {
	if rs1 == 0 {
		t.constant(to, distance)
		return
	}
	t.add(to, t.value(rs1, to), distance)
}
