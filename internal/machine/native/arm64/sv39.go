package arm64

import "agentvm/internal/machine/native/blocks"

// sv39 are the page tables of riscv64: translate of src/riscv64/mmu.c.
type sv39 struct{ *walk }

func (w sv39) root() (bit uint32) {
	w.loadHart(2, x1, w.layout.Supervisor.Privilege)
	w.compareWith(x1, blocks.PrivilegeS)
	w.jumpIf(above, w.fail)
	w.loadHart(3, x2, w.layout.Walk.SATP)
	w.shiftRight(x1, x2, 60)
	w.failUnless(blocks.SATPSv39)
	w.canonical(39)
	w.field(field, x2, x2, 64-12, 43)
	return 30
}

func (w sv39) pointer(other *label) {
	w.constant(x1, 255&^blocks.EntryG)
	w.three(true, opAnd, x1, x2, x1)
	w.compareWith(x1, blocks.EntryV)
	w.jumpIf(notEqual, other)
	w.number()
}

func (w sv39) number() {
	w.shiftRight(x1, x2, blocks.EntryReserved)
	w.failUnless(0)
	w.shiftRight(x2, x2, blocks.EntryNumber)
	w.shiftLeft(x2, x2, 12)
}

func (w sv39) leaf() {
	inUserMode, ofUser, permitted := w.newLabel(), w.newLabel(), w.newLabel()
	w.loadHart(2, x1, w.layout.Supervisor.Privilege)
	w.compareWith(x1, 0)
	w.jumpIf(equal, inUserMode)
	w.bit(x1, x2, blocks.EntryU)
	w.jumpIf(notEqual, ofUser)
	w.permits(blocks.EntryG)
	w.jump(permitted)
	w.bind(ofUser)
	w.noteUserEntry()
	w.bind(inUserMode)
	w.permits(blocks.EntryU)
	w.bind(permitted)
	w.number()
}

// noteUserEntry notes that the kernel reaches a user's page, as far as setStatus is able to forget it.
func (w sv39) noteUserEntry() {
	first, noted := w.newLabel(), w.newLabel()
	s := &w.layout.Supervisor
	w.loadHart(2, x1, w.layout.MStatus)
	w.bit(x1, x1, blocks.StatusSUM)
	w.jumpIf(equal, w.fail)
	w.index(x0)
	w.loadHart(3, x3, s.UserEntries)
	w.compareWith(x3, 1)
	w.jumpIf(above, w.fail)
	w.jumpIf(notEqual, first)
	w.loadHart(1, x3, s.UserEntry)
	w.compare(true, x1, x3)
	w.jumpIf(notEqual, w.fail)
	w.jump(noted)
	w.bind(first)
	w.inHart(access{size: 1, op: store}, x1, w.inHartAt(s.UserEntry))
	w.constant(x1, 1)
	w.inHart(access{size: 3, op: store}, x1, w.inHartAt(s.UserEntries))
	w.bind(noted)
}

func (w sv39) large() {
	w.loadHart(2, x1, w.layout.Supervisor.Privilege)
	w.failUnless(blocks.PrivilegeS)
	w.permits(blocks.EntryG)
	w.number()
}

// permits fails when not all of the bits are set that the access needs with another one, U or G. Of these, U must not be set without being asked for.
func (w sv39) permits(other int64) {
	want := blocks.EntryV | blocks.EntryR | blocks.EntryA | other
	if w.isStore() {
		want |= blocks.EntryW | blocks.EntryD
	}
	w.has(want|blocks.EntryU, want)
}
