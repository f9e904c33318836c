package amd64

import "agentvm/internal/machine/native/blocks"

// sv39 are the page tables of riscv64: translate of src/riscv64/mmu.c.
type sv39 struct{ *walk }

func (w sv39) root() (bit uint8) {
	w.hart(false, opLoad, rcx, w.layout.Supervisor.Privilege)
	w.immediate(false, immediateCmp, rcx, blocks.PrivilegeS)
	w.jumpIf(above, w.fail)
	w.hart(true, opLoad, rdx, w.layout.Walk.SATP)
	w.move(rcx, rdx)
	w.shift(true, shiftRight, rcx, 60)
	w.immediate(false, immediateCmp, rcx, blocks.SATPSv39)
	w.jumpIf(notEqual, w.fail)
	w.canonical(39)
	w.shift(true, shiftLeft, rdx, 20)
	w.shift(true, shiftRight, rdx, 8)
	return 30
}

func (w sv39) pointer(other *label) {
	w.move32(rcx, rdx)
	w.immediate(false, immediateAnd, rcx, 255&^blocks.EntryG)
	w.immediate(false, immediateCmp, rcx, blocks.EntryV)
	w.jumpIf(notEqual, other)
	w.number()
}

func (w sv39) number() {
	w.move(rcx, rdx)
	w.shift(true, shiftRight, rcx, blocks.EntryReserved)
	w.jumpIf(notEqual, w.fail)
	w.shift(true, shiftRight, rdx, blocks.EntryNumber)
	w.shift(true, shiftLeft, rdx, 12)
}

func (w sv39) leaf() {
	inUserMode, ofUser, permitted := w.newLabel(), w.newLabel(), w.newLabel()
	w.hart(false, opLoad, rcx, w.layout.Supervisor.Privilege)
	w.immediate(false, immediateCmp, rcx, 0)
	w.jumpIf(equal, inUserMode)
	w.move32(rcx, rdx)
	w.immediate(false, immediateAnd, rcx, blocks.EntryU)
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

func (w sv39) large() {
	w.hart(false, opLoad, rcx, w.layout.Supervisor.Privilege)
	w.immediate(false, immediateCmp, rcx, blocks.PrivilegeS)
	w.jumpIf(notEqual, w.fail)
	w.permits(blocks.EntryG)
}

// noteUserEntry notes that the kernel reaches a user's page, as far as setStatus is able to forget it.
func (w sv39) noteUserEntry() {
	first, noted := w.newLabel(), w.newLabel()
	s := &w.layout.Supervisor
	w.hart(false, opLoad, rcx, w.layout.MStatus)
	w.immediate(false, immediateAnd, rcx, blocks.StatusSUM)
	w.jumpIf(equal, w.fail)
	w.keep(1, rdx)
	w.index(rcx, rax)
	w.shift(false, shiftRight, rcx, 4)
	w.hart(true, opLoad, rdx, s.UserEntries)
	w.immediate(true, immediateCmp, rdx, 1)
	w.jumpIf(above, w.fail)
	w.jumpIf(notEqual, first)
	w.hart(false, opLoad16, rdx, s.UserEntry)
	w.pair(false, opCmp, rcx, rdx)
	w.jumpIf(notEqual, w.fail)
	w.jump(noted)
	w.bind(first)
	w.bytes(0x66)
	w.hart(false, opMove, rcx, s.UserEntry)
	w.constant(rdx, 1)
	w.hart(true, opMove, rdx, s.UserEntries)
	w.bind(noted)
	w.kept(rdx, 1)
}

// permits fails when not all of the bits are set that the access needs with another one, U or G. Of these, U must not be set without being asked for.
func (w sv39) permits(other int32) {
	want := blocks.EntryV | blocks.EntryR | blocks.EntryA | other
	if w.isStore() {
		want |= blocks.EntryW | blocks.EntryD
	}
	w.has(want|blocks.EntryU, want)
}
