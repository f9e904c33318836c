package arm64

import (
	"math/bits"

	"agentvm/internal/machine/native/blocks"
)

// Where the first place of the TLB does not have the page of an access, a routine of the translation's own looks at the second one, and then walks
// the page tables and fills the first: what src/riscv64/mmu.c does, in the cases that are frequent and change nothing else. All others, exceptions among
// them, are the interpreter's: the instruction is left to it.

// detour is code behind all else that a miss takes.
type detour struct {
	from, back *label // where it begins, and what is behind the jump to it, to which it returns
	table      uint32
	miss       *label // when the routine did not find the page
}

// detour gives the label of the detour of a look-up in a table of the TLB. back is to be bound behind the jump to it.
func (t *pageCode) detour(table uint32, miss *label) (from, back *label) {
	d := detour{t.newLabel(), t.newLabel(), table, miss}
	t.detours = append(t.detours, d)
	return d.from, d.back
}

// writeDetours writes the detours of what was written before. The routine has the address in x0, which it keeps, and the page of the access's last
// byte in x2. With equal it gives the address in linear memory of the page's entry in x1.
func (t *pageCode) writeDetours() {
	for _, d := range t.detours {
		if t.walks[d.table] == nil {
			t.walks[d.table] = t.newLabel()
		}
		t.bind(d.from)
		t.call(t.walks[d.table])
		t.jumpIf(notEqual, d.miss)
		t.jump(d.back)
	}
	t.detours = nil
}

// pageTables are a guest's, as far as the routine goes through them: the address is in x0, a table's or an entry in x2, and x1 and x3 are free. What
// concerns more than the TLB, or may be an exception, fails.
type pageTables interface {
	// root makes x2 the physical address of the first table, and gives the lowest bit of an address's number in it.
	root() (bit uint32)
	// pointer continues at other when the entry is not a pointer to a table, and makes x2 the table's address.
	pointer(other *label)
	// leaf makes the entry in x2 the address that it has. It fails when it does not permit the access, or a bit of it would have to be set.
	leaf()
	// large is leaf for an entry of the second lowest level, and a page of the kernel's.
	large()
}

// writeWalks writes the routines, which end the code.
func (t *pageCode) writeWalks() {
	for _, table := range []uint32{t.layout.Read, t.layout.Write} {
		if l := t.walks[table]; l != nil {
			t.bind(l)
			w := &walk{pageCode: t, table: table, fail: t.newLabel()}
			w.write(t.guest.tables(w))
		}
	}
}

// walk is the routine of a table.
type walk struct {
	*pageCode
	table uint32
	fail  *label
}

func (w *walk) write(g pageTables) {
	tables, have := w.newLabel(), w.newLabel()
	w.mask(x1, x0, 12, 64)
	w.compare(true, x1, x2)
	w.jumpIf(notEqual, w.fail) // the access is in two pages
	w.entryOf(x0, w.table, w.layout.Other)
	w.inMemory(access{size: 3, op: load}, x3, x1)
	w.compare(true, x3, x2)
	w.jumpIf(notEqual, tables)
	w.ret()
	w.bind(tables)
	w.loadHart(3, x1, w.layout.Walk.SlowLeft)
	w.immediate(immediateSubs, x1, x1, blocks.WalkCharge)
	w.inHart(access{size: 3, op: store}, x1, w.inHartAt(w.layout.Walk.SlowLeft))
	w.jumpIf(less, w.fail)
	for bit := g.root(); bit > blocks.Superpage; bit -= 9 {
		w.tableEntry(bit)
		g.pointer(w.fail)
	}
	w.tableEntry(blocks.Superpage)
	large := w.newLabel()
	g.pointer(large)
	w.tableEntry(12)
	g.leaf()
	w.jump(have)
	w.bind(large)
	w.superpage(g)
	w.bind(have) // x2 is the page's physical address
	w.inRAM()
	if w.isStore() {
		w.storable()
	}
	w.fill()
	w.bind(w.fail)
	w.constant(x1, 1)
	w.compareWith(x1, 0)
	w.ret()
}

func (w *walk) isStore() bool { return w.table == w.layout.Write }

// loadHart loads a word of the hart by its address.
func (w *walk) loadHart(size uint32, to register, address uint32) {
	w.inHart(access{size: size, op: load}, to, w.inHartAt(address))
}

// failUnless fails unless x1 has a value.
func (w *walk) failUnless(value int64) {
	w.compareWith(x1, value)
	w.jumpIf(notEqual, w.fail)
}

// tableEntry loads the entry for the address in x0, whose number is from a bit on, of the table at x2.
func (w *walk) tableEntry(bit uint32) {
	w.inRAM()
	w.field(field, x1, x0, bit, bit+8)
	w.addShifted(x2, x2, x1, 3)
	w.constant(x1, int64(w.layout.RAM))
	w.three(true, opAdd, x2, x2, x1)
	w.inMemory(access{size: 3, op: load}, x2, x2)
}

// inRAM makes the physical address in x2 the offset in RAM, and fails when it is none.
func (w *walk) inRAM() {
	w.constant(x1, blocks.RAMBase)
	w.three(true, opSub, x2, x2, x1)
	w.constant(x1, int64(w.layout.Walk.RAMBytes))
	w.inMemory(access{size: 3, op: load}, x1, x1)
	w.compare(true, x2, x1)
	w.jumpIf(notBelow, w.fail)
}

// superpage is for an entry of the second level. The kernel's alone are of such a size, and it must be known that there are some.
func (w *walk) superpage(g pageTables) {
	w.compareWith(x0, 0)
	w.jumpIf(notLess, w.fail)
	w.loadHart(3, x1, w.layout.Walk.LargestShift+8)
	w.compareWith(x1, blocks.Superpage)
	w.jumpIf(below, w.fail)
	g.large()
	w.mask(x1, x2, 0, blocks.Superpage)
	w.failUnless(0)
	w.mask(x1, x0, 12, blocks.Superpage)
	w.three(true, opAdd, x2, x2, x1)
}

// canonical fails when the address has other bits above its lowest ones than their sign.
func (w *walk) canonical(bits uint32) {
	w.field(fieldSigned, x1, x0, 0, bits-1)
	w.compare(true, x1, x0)
	w.jumpIf(notEqual, w.fail)
}

// has fails when the entry does not have a value under a mask.
func (w *walk) has(mask, value int64) {
	w.constant(x1, mask)
	w.three(true, opAnd, x1, x2, x1)
	w.failUnless(value)
}

// storable fails when the page at an offset in RAM, in x2, is code, or a store to it is to be noted.
func (w *walk) storable() {
	w.shiftRight(x1, x2, 11) // two bytes for each page
	w.constant(x3, int64(w.layout.Walk.CodeIndex))
	w.three(true, opAdd, x1, x1, x3)
	w.inMemory(access{size: 1, op: load}, x1, x1)
	w.failUnless(0)
	w.constant(x1, int64(w.layout.RAM))
	w.three(true, opAdd, x1, x1, x2)
	w.shiftRight(x1, x1, 12)
	w.constant(x3, int64(w.layout.Walk.Dirty))
	w.three(true, opAdd, x1, x1, x3)
	w.inMemory(access{size: 0, op: load}, x1, x1)
	w.compareWith(x1, 0)
	w.jumpIf(equal, w.fail)
}

// fill makes the entry at the first place that of the page at an offset in RAM, in x2, and returns. What was there moves to its other place.
func (w *walk) fill() {
	free, occupied, moved := w.newLabel(), w.newLabel(), w.newLabel()
	word := access{size: 3, op: load}
	w.constant(x1, int64(w.layout.Walk.Scratch))
	w.inMemory(access{size: 3, op: store}, x2, x1)
	w.entryOf(x0, w.table, 0)
	w.inMemory(word, x2, x1)
	w.move(x3, x1)
	w.compareWith(x2, -1)
	w.jumpIf(equal, free)
	w.entryOf(x0, w.table, w.layout.Other)
	w.inMemory(word, x2, x1)
	w.move(x3, x1)
	w.compareWith(x2, -1)
	w.jumpIf(notEqual, occupied)
	w.note()
	w.bind(occupied)
	w.entryOf(x0, w.table, 0)
	for half := uint32(0); half < w.layout.EntrySize; half += 8 {
		w.inMemory(word, x2, x1)
		w.inMemory(access{size: 3, op: store}, x2, x3)
		w.add(x1, x1, 8)
		w.add(x3, x3, 8)
	}
	w.jump(moved)
	w.bind(free)
	w.note()
	w.bind(moved)
	w.constant(x1, int64(w.layout.Walk.Scratch))
	w.inMemory(word, x2, x1)
	w.entryOf(x0, w.table, 0)
	tag := int64(w.layout.Tag)
	w.add(x1, x1, int64(w.layout.Walk.EntryFrame)-tag)
	w.shiftRight(x3, x2, 12)
	w.inMemory(access{size: 2, op: store}, x3, x1)
	w.add(x1, x1, int64(w.layout.Addend)-int64(w.layout.Walk.EntryFrame))
	w.constant(x3, int64(w.layout.RAM))
	w.three(true, opAdd, x2, x2, x3)
	w.mask(x3, x0, 12, 64)
	w.three(true, opSub, x2, x2, x3)
	w.inMemory(access{size: 2, op: store}, x2, x1)
	w.add(x1, x1, tag-int64(w.layout.Addend))
	w.inMemory(access{size: 3, op: store}, x3, x1)
	w.compare(true, x1, x1)
	w.ret()
}

// note notes that the entry at x3 was filled, as long as there is room. It uses x1 and x2.
func (w *walk) note() {
	full := w.newLabel()
	w.add(x1, tlb, int64(w.layout.Walk.Filled))
	w.inMemory(access{size: 2, op: load}, x2, x1)
	w.compareWith(x2, int64(w.layout.Walk.MaxNoted))
	w.jumpIf(above, full)
	w.add(x2, x2, 1)
	w.inMemory(access{size: 2, op: store}, x2, x1)
	w.add(x2, x2, -1)
	w.mask(x2, x2, 0, uint32(bits.Len32(w.layout.Walk.MaxNoted-1))) // as it is, or of a list that does not count any more
	w.add(x1, tlb, int64(w.layout.Walk.Noted))
	w.addShifted(x1, x1, x2, 1)
	w.three(true, opSub, x2, x3, tlb)
	w.shiftRight(x2, x2, 4) // an entry has 16 bytes
	w.inMemory(access{size: 1, op: store}, x2, x1)
	w.bind(full)
}
