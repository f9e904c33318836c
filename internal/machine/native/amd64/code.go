package amd64

import (
	"slices"

	"agentvm/internal/machine/native/blocks"
)

// pageCode is the code of one page, of whichever guest, and how it looks at the TLB and leaves for other pages.
type pageCode struct {
	assembler
	layout   *Layout
	inHost   *[33]register // of guest registers; those that are not there have zero
	zero     uint8         // the guest register that is zero
	align    int32         // bits of an address that must be zero for the processor to jump there
	slot     uint8         // the shift from an offset in a page of code to one in its decoded slots
	labels   [PageSize / 2]*label
	exits    []exit
	detours  []detour
	walks    map[walkKey]*label // the routines
	across   bool               // loads may be in two pages, see across.go
	spill    *label             // nil: not called
	dispatch *label

	at      int // the instruction that is translated
	unspent int // instructions of its block from it on, which the budget has paid for

	end      int                   // of the block that is translated, a halfword
	groups   map[int]*blocks.Group // of the block
	copied   *blockCopy            // nil: the block has no copy
	copies   []*blockCopy
	snapshot func() any // what the guest's translator knows
}

// exit is code that stands behind all else.
type exit struct {
	from    *label
	offset  int // of the next instruction, from the page's start
	unspent int
	chain   bool // continues in another page, when that is translated
}

// exit is a label of code that leaves the translation for an offset from the page's start.
func (t *pageCode) exit(offset, unspent int, chain bool) *label {
	for i := range t.exits { // the last ones are often the same
		if e := &t.exits[len(t.exits)-1-i]; i < 4 && e.offset == offset && e.unspent == unspent && e.chain == chain {
			return e.from
		} else if i >= 4 {
			break
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
	inside := offset >= 0 && offset < PageSize
	if inside && t.labels[offset/2] != nil {
		return t.labels[offset/2]
	}
	return t.exit(offset, 0, !inside)
}

func (t *pageCode) goTo(offset int) { t.jump(t.place(offset)) }

// leave writes the exits, and the way to other pages.
func (t *pageCode) leave() {
	for _, e := range t.exits {
		t.bind(e.from)
		if e.chain {
			t.hart(true, opLoad, rax, t.layout.PC)
			t.immediate(true, immediateAdd, rax, int32(e.offset))
			t.jumpFar()
			continue
		}
		if e.unspent != 0 {
			t.immediate(true, immediateAdd, budget, int32(e.unspent))
		}
		if e.offset != 0 {
			t.hartAdd(t.layout.PC, int32(e.offset))
		}
		t.ret()
	}
	t.writeDispatch()
}

// jumpFar continues at the address in rax, which is of any page: where a jump to it was noted, at once.
func (t *pageCode) jumpFar() {
	t.jumpIndex(rcx)
	t.indexed(true, opCmpTo, rax, tlb, rcx, t.layout.Jumps)
	t.jumpIf(notEqual, t.dispatch)
	t.indexed(true, opLoad, rcx, tlb, rcx, t.layout.Jumps+8)
	t.tlbWord(true, opXorTo, rcx, t.layout.Generation)
	t.immediate(true, immediateCmp, rcx, MaxEntries*16)
	t.jumpIf(notBelow, t.dispatch) // of another generation
	t.immediate(false, immediateAnd, rcx, (MaxEntries-1)*16)
	t.immediate(true, immediateAnd, rax, -PageSize)
	t.hart(true, opMove, rax, t.layout.PC)
	t.enter(rcx)
}

// enter jumps to the entry at an offset in the table.
func (t *pageCode) enter(offset register) {
	t.bytes(rex(false, 0, offset, entries), 0xff, 0x24, low(offset)<<3|low(entries)) // jmp [entries + offset]
}

// jumpIndex makes the offset in the cache of jumps from the address in rax.
func (t *pageCode) jumpIndex(to register) {
	t.move32(to, rax)
	t.shift(false, shiftLeft, to, 3)
	t.immediate(false, immediateAnd, to, (blocks.MaxJumps-1)*16)
}

// writeDispatch writes where jumps go that were not noted: to the entry that the decoded slot at the address in rax is, or out.
func (t *pageCode) writeDispatch() {
	t.bind(t.dispatch)
	out, other := t.newLabel(), t.newLabel()
	t.hart(true, opMove, rax, t.layout.PC)
	if t.align != 0 {
		t.move32(rcx, rax)
		t.immediate(false, immediateAnd, rcx, t.align)
		t.jumpIf(notEqual, out)
	}
	t.index(rcx, rax)
	t.move(rdx, rax)
	t.immediate(true, immediateAnd, rdx, -PageSize)
	t.indexed(true, opCmpTo, rdx, tlb, rcx, t.layout.Code+t.layout.Tag)
	t.jumpIf(notEqual, other)
	t.enterPage(out)
	t.bind(other) // the page's second place
	t.otherPlace(rcx)
	t.indexed(true, opCmpTo, rdx, tlb, rcx, t.layout.Code+t.layout.Tag)
	t.jumpIf(notEqual, out)
	t.enterPage(out)
	t.bind(out)
	t.ret()
}

// enterPage continues at the address in rax, and notes the jump, when its decoded slot is an entry. The page's TLB entry is at rcx.
func (t *pageCode) enterPage(out *label) {
	t.indexed(false, opLoad, rcx, tlb, rcx, t.layout.Code+t.layout.Addend)
	t.immediate(false, immediateAnd, rax, PageSize-1)
	t.shift(false, shiftLeft, rax, t.slot)
	t.pair(false, opAdd, rax, rcx)
	t.indexed(true, opLoad, rax, memory, rcx, 0)
	t.move32(rcx, rax)
	t.shift(false, shiftRight, rcx, 8)
	t.immediate(false, immediateAnd, rcx, MaxEntries-1)
	t.shift(false, shiftLeft, rcx, 4)
	t.indexed(true, opCmpTo, rax, entries, rcx, 8)
	t.jumpIf(notEqual, out)
	t.hart(true, opLoad, rax, t.layout.PC) // which is noted
	t.hart(true, opMove, rdx, t.layout.PC)
	t.jumpIndex(rdx)
	t.indexed(true, opMove, rax, tlb, rdx, t.layout.Jumps)
	t.move32(rax, rcx)
	t.tlbWord(true, opXorTo, rax, t.layout.Generation)
	t.indexed(true, opMove, rax, tlb, rdx, t.layout.Jumps+8)
	t.enter(rcx)
}

// index makes the offset of a TLB entry from a virtual address.
func (t *pageCode) index(to, va register) {
	t.move32(to, va)
	t.shift(false, shiftRight, to, 8)
	t.maskEntry(to)
}

// otherPlace makes the offset of a TLB entry that of the page's other one.
func (t *pageCode) otherPlace(r register) {
	t.immediate(false, immediateXor, r, int32(t.layout.Other*t.layout.EntrySize))
	t.maskEntry(r)
}

// maskEntry bounds the offset of a TLB entry, which the verifier forgets where jumps lead.
func (t *pageCode) maskEntry(r register) {
	t.immediate(false, immediateAnd, r, int32((t.layout.Entries-1)*t.layout.EntrySize))
}

// value gives the register that has a guest register's value, or loads it into scratch.
func (t *pageCode) value(r uint8, scratch register) register {
	switch {
	case r == t.zero:
		t.constant(scratch, 0)
		return scratch
	case t.inHost[r] != 0:
		return t.inHost[r]
	}
	if at := slices.Index(t.holds[:], r); at >= 0 {
		t.move(scratch, register(at))
	} else {
		t.hart(true, opLoad, scratch, t.layout.X+8*uint32(r))
	}
	t.hold(scratch, r)
	return scratch
}

// target is where to compute the value of a guest register: not in its own place when that is an operand that is still needed.
func (t *pageCode) target(r uint8, needed ...uint8) register {
	if t.inHost[r] == 0 || slices.Contains(needed, r) {
		return rax
	}
	return t.inHost[r]
}

// copyOf puts a guest register's value into a register.
func (t *pageCode) copyOf(r uint8, to register) { t.move(to, t.value(r, to)) }

// set makes a register's value that of a guest register.
func (t *pageCode) setGuest(r uint8, from register) {
	switch {
	case r == t.zero:
	case t.inHost[r] != 0:
		t.move(t.inHost[r], from)
	default:
		t.hart(true, opMove, from, t.layout.X+8*uint32(r))
		t.forget(r)
		t.hold(from, r)
	}
}

// operation is to op= a guest register's value.
func (t *pageCode) operation(wide bool, op int, to register, r uint8) {
	if r != t.zero && t.inHost[r] == 0 && !slices.Contains(t.holds[:], r) {
		t.hart(wide, op, to, t.layout.X+8*uint32(r))
		return
	}
	from := t.value(r, rcx)
	t.pair(wide, op, to, from)
}

func (t *pageCode) store(a access, from, at register, distance uint32) {
	if a.size == 2 {
		t.bytes(0x66)
	}
	t.indexed(a.wide, a.op, from, memory, at, distance)
}

// lookUp makes the address in linear memory of the virtual address in rax, for an access within a page. Otherwise it continues at miss.
func (t *pageCode) lookUp(table uint32, size int32, miss *label) {
	t.index(rcx, rax)
	t.lea(true, rdx, rax, size-1)
	t.immediate(true, immediateAnd, rdx, -PageSize)
	detour, back := t.detour(walkKey{table, t.across && table == t.layout.Read}, miss)
	t.detours[len(t.detours)-1].within = true
	t.found(table, detour)
	t.bind(back)
	t.indexed(false, opAddTo, rax, tlb, rcx, table+t.layout.Addend)
}

// found continues at miss when the TLB's entry is not that of the page in rdx.
func (t *pageCode) found(table uint32, miss *label) {
	t.indexed(true, opCmpTo, rdx, tlb, rcx, table+t.layout.Tag)
	t.jumpIf(notEqual, miss)
}

// detour gives the label of the detour of a look-up in a table of the TLB. back is to be bound behind the jump to it.
func (t *pageCode) detour(to walkKey, miss *label) (from, back *label) {
	d := detour{from: t.newLabel(), back: t.newLabel(), to: to, miss: miss}
	t.detours = append(t.detours, d)
	return d.from, d.back
}

// writeDetours writes the detours of what was written before. The routine has the address in rax, which it keeps, and the page of the access's last byte in rdx. With equal it
// gives the offset of the page's entry in rcx.
func (t *pageCode) writeDetours() {
	for _, d := range t.detours {
		if t.walks[d.to] == nil {
			t.walks[d.to] = t.newLabel()
		}
		t.bind(d.from)
		if d.within && d.to.across {
			t.move(rcx, rax)
			t.immediate(true, immediateAnd, rcx, -PageSize)
			t.pair(true, opCmp, rcx, rdx)
			t.jumpIf(notEqual, d.miss)
		}
		t.call(t.walks[d.to])
		t.jumpIf(notEqual, d.miss)
		t.maskEntry(rcx)
		if d.store != nil {
			t.storeAcross(d.to.table, d.store)
		}
		t.jump(d.back)
	}
	t.detours = nil
}

// writeWalks writes the routines, which end the code.
func (t *pageCode) writeWalks(tables func(*walk) pageTables) {
	for _, table := range []uint32{t.layout.Read, t.layout.Write} {
		for _, across := range []bool{false, true} {
			if l := t.walks[walkKey{table, across}]; l != nil {
				t.bind(l)
				w := &walk{pageCode: t, table: table, fail: t.newLabel()}
				w.write(tables(w), across)
			}
		}
	}
	if t.spill != nil {
		t.writeSpill()
	}
}

// cheaperFirst exchanges the operands of an operation when the second one's value is at hand in rax.
func (t *pageCode) cheaperFirst(rs1, rs2 uint8) (first, second uint8) {
	if rs2 != t.zero && t.holds[rax] == rs2 {
		return rs2, rs1
	}
	return rs1, rs2
}
