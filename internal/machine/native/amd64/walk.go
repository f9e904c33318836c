package amd64

import "agentvm/internal/machine/native/blocks"

// Where the first place of the TLB does not have the page of an access, a routine of the translation's own looks at the second one, and then walks
// the page tables and fills the first: what mmu.c does, in the cases that are frequent and change nothing else. All others, exceptions among
// them, are the interpreter's: the instruction is left to it.

// detour is code behind all else that a miss takes.
type detour struct {
	from, back *label // where it begins, and the look-up's last instruction, to which it returns; or what is behind the store
	to         walkKey
	miss       *label // when the routine did not find the page
	within     bool   // the access must be within a page
	store      func() // what it stores itself; nil: nothing
}

// walkKey names a routine: for a table of the TLB, and accesses that may be in two pages.
type walkKey struct {
	table  uint32
	across bool
}

// walk is the routine of a table.
type walk struct {
	*pageCode
	table uint32
	fail  *label
}

// pageTables are a guest's, as far as the routine goes through them: the address is in rax, a table's or an entry in rdx, and rcx is free. What
// concerns more than the TLB, or may be an exception, fails.
type pageTables interface {
	// root makes rdx the physical address of the first table, and gives the lowest bit of an address's number in it.
	root() (bit uint8)
	// pointer continues at other when the entry is not a pointer to a table, and makes rdx the table's address.
	pointer(other *label)
	// leaf fails when the entry does not permit the access, or a bit of it would have to be set.
	leaf()
	// large is leaf for an entry of the second lowest level, and a page of the kernel's.
	large()
	// number makes the entry in rdx the address that it has.
	number()
}

func (w *walk) write(g pageTables, across bool) {
	tables, have, inTwo := w.newLabel(), w.newLabel(), w.fail
	if across {
		inTwo = w.newLabel()
	}
	w.keep(0, rax)
	w.move(rcx, rax)
	w.immediate(true, immediateAnd, rcx, -PageSize)
	w.pair(true, opCmp, rcx, rdx)
	w.jumpIf(notEqual, inTwo)
	w.index(rcx, rax)
	w.otherPlace(rcx)
	w.indexed(true, opCmpTo, rdx, tlb, rcx, w.table+w.layout.Tag)
	w.jumpIf(notEqual, tables)
	w.ret()
	w.bind(tables)
	w.hartAdd(w.layout.Walk.SlowLeft, -blocks.WalkCharge)
	w.jumpIf(less, w.fail)
	for bit := g.root(); bit > blocks.Superpage; bit -= 9 {
		w.entry(bit)
		g.pointer(w.fail)
	}
	w.entry(blocks.Superpage)
	large := w.newLabel()
	g.pointer(large)
	w.entry(12)
	g.leaf()
	w.jump(have)
	w.bind(large)
	w.superpage(g)
	w.bind(have) // rdx is the page's physical address
	w.immediate(true, immediateAdd, rdx, -blocks.RAMBase)
	w.inRAM()
	if w.isStore() {
		w.storable()
	}
	w.fill()
	if across {
		w.bind(inTwo)
		w.across()
	}
	w.bind(w.fail)
	w.constant(rcx, 1)
	w.pair(true, opTest, rcx, rcx)
	w.ret()
}

func (w *walk) isStore() bool { return w.table == w.layout.Write }

// keep and kept use the words for native code alone.
func (w *walk) keep(word uint32, r register) { w.hart(true, opMove, r, w.layout.Walk.Scratch+8*word) }
func (w *walk) kept(r register, word uint32) { w.hart(true, opLoad, r, w.layout.Walk.Scratch+8*word) }

// entry loads the entry for the address in rax, whose number is from a bit on, of the table at rdx.
func (w *walk) entry(bit uint8) {
	w.immediate(true, immediateAdd, rdx, -blocks.RAMBase)
	w.inRAM()
	w.move(rcx, rax)
	w.shift(true, shiftRight, rcx, bit-3)
	w.immediate(false, immediateAnd, rcx, 511*8)
	w.pair(false, opAdd, rcx, rdx)
	w.immediate(false, immediateAdd, rdx, int32(w.layout.RAM))
	w.indexed(true, opLoad, rdx, memory, rdx, 0)
}

// inRAM fails when the page at an offset in rdx is none of RAM.
func (w *walk) inRAM() {
	w.hart(true, opCmpTo, rdx, w.layout.Walk.RAMBytes)
	w.jumpIf(notBelow, w.fail)
}

// superpage is for an entry of the second level. The kernel's alone are of such a size, and it must be known that there are some.
func (w *walk) superpage(g pageTables) {
	w.immediate(true, immediateCmp, rax, 0)
	w.jumpIf(notLess, w.fail)
	w.hart(true, opLoad, rcx, w.layout.Walk.LargestShift+8)
	w.immediate(true, immediateCmp, rcx, blocks.Superpage)
	w.jumpIf(below, w.fail)
	g.large()
	g.number()
	w.move32(rcx, rdx)
	w.immediate(false, immediateAnd, rcx, 1<<blocks.Superpage-1)
	w.jumpIf(notEqual, w.fail)
	w.move32(rcx, rax)
	w.immediate(false, immediateAnd, rcx, 1<<blocks.Superpage-PageSize)
	w.pair(true, opAdd, rcx, rdx)
}

// canonical fails when the address has other bits above its lowest ones than their sign.
func (w *walk) canonical(bits uint8) {
	w.move(rcx, rax)
	w.shift(true, shiftLeft, rcx, 64-bits)
	w.shift(true, shiftArithmetic, rcx, 64-bits)
	w.pair(true, opCmp, rcx, rax)
	w.jumpIf(notEqual, w.fail)
}

// has fails when the entry does not have a value under a mask.
func (w *walk) has(mask, value int32) {
	w.move32(rcx, rdx)
	w.immediate(false, immediateAnd, rcx, mask)
	w.immediate(false, immediateCmp, rcx, value)
	w.jumpIf(notEqual, w.fail)
}

// storable fails when the page at an offset in RAM, in rdx, is code, or a store to it is to be noted.
func (w *walk) storable() {
	w.move32(rcx, rdx)
	w.shift(false, shiftRight, rcx, 11) // two bytes for each page
	w.immediate(false, immediateAdd, rcx, int32(w.layout.Walk.CodeIndex))
	w.indexed(false, opLoad16, rcx, memory, rcx, 0)
	w.immediate(false, immediateCmp, rcx, 0)
	w.jumpIf(notEqual, w.fail)
	w.move32(rcx, rdx)
	w.immediate(false, immediateAdd, rcx, int32(w.layout.RAM))
	w.shift(false, shiftRight, rcx, 12)
	w.immediate(false, immediateAdd, rcx, int32(w.layout.Walk.Dirty))
	w.indexed(false, opLoad8, rcx, memory, rcx, 0)
	w.immediate(false, immediateCmp, rcx, 0)
	w.jumpIf(equal, w.fail)
}

// fill makes the entry at the first place that of the page at an offset in RAM, in rdx, and returns. What was there moves to its other place.
func (w *walk) fill() {
	free, occupied, moved := w.newLabel(), w.newLabel(), w.newLabel()
	w.keep(1, rdx)
	w.index(rcx, rax)
	w.indexed(true, opLoad, rdx, tlb, rcx, w.table+w.layout.Tag)
	w.immediate(true, immediateCmp, rdx, -1)
	w.jumpIf(equal, free)
	w.move32(rax, rcx)
	w.otherPlace(rax)
	w.indexed(true, opLoad, rdx, tlb, rax, w.table+w.layout.Tag)
	w.immediate(true, immediateCmp, rdx, -1)
	w.jumpIf(notEqual, occupied)
	w.note(rax)
	w.bind(occupied)
	w.maskEntry(rax)
	w.maskEntry(rcx)
	for half := uint32(0); half < w.layout.EntrySize; half += 8 {
		w.indexed(true, opLoad, rdx, tlb, rcx, w.table+half)
		w.indexed(true, opMove, rdx, tlb, rax, w.table+half)
	}
	w.jump(moved)
	w.bind(free)
	w.note(rcx)
	w.bind(moved)
	w.maskEntry(rcx)
	w.kept(rdx, 1)
	w.shift(false, shiftRight, rdx, 12)
	w.indexed(false, opMove, rdx, tlb, rcx, w.table+w.layout.Walk.EntryFrame)
	w.kept(rdx, 1)
	w.immediate(false, immediateAdd, rdx, int32(w.layout.RAM))
	w.kept(rax, 0)
	w.immediate(true, immediateAnd, rax, -PageSize)
	w.indexed(true, opMove, rax, tlb, rcx, w.table+w.layout.Tag)
	w.pair(false, opSub, rax, rdx)
	w.indexed(false, opMove, rdx, tlb, rcx, w.table+w.layout.Addend)
	w.kept(rax, 0)
	w.pair(true, opCmp, rax, rax)
	w.ret()
}

// note notes that the entry at an offset was filled, as long as there is room.
func (w *walk) note(offset register) {
	full := w.newLabel()
	w.tlbWord(false, opLoad, rdx, w.layout.Walk.Filled)
	w.immediate(false, immediateCmp, rdx, int32(w.layout.Walk.MaxNoted))
	w.jumpIf(above, full)
	w.immediate(false, immediateAnd, rdx, int32(w.layout.Walk.MaxNoted-1)) // as it is, or of a list that does not count any more
	w.shift(false, shiftLeft, rdx, 1)
	w.keep(2, offset)
	w.shift(false, shiftRight, offset, 4)
	w.immediate(false, immediateAdd, offset, int32((w.table-w.layout.Read)/w.layout.EntrySize))
	w.bytes(0x66)
	w.indexed(false, opMove, offset, tlb, rdx, w.layout.Walk.Noted)
	w.kept(offset, 2)
	w.tlbWord(false, opLoad, rdx, w.layout.Walk.Filled)
	w.immediate(false, immediateAdd, rdx, 1)
	w.tlbWord(false, opMove, rdx, w.layout.Walk.Filled)
	w.bind(full)
}
