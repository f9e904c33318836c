package amd64

import "agentvm/internal/machine/native/blocks"

// vmsa are the page tables of arm64 (DDI 0487, chapter D8), as Linux has them: four levels of 4 KiB for both halves of 48 bits. See translate of
// src/arm64/mmu.c.
type vmsa struct{ *walk }

func (w vmsa) root() (bit uint8) {
	a := &w.layout.ARM64
	lower := w.newLabel()
	w.hart(false, opLoad, rcx, a.SCTLR)
	w.immediate(false, immediateAnd, rcx, blocks.SCTLRM)
	w.jumpIf(equal, w.fail)
	w.hart(false, opLoad, rcx, a.TCR)
	w.immediate(false, immediateAnd, rcx, blocks.TCRSizes|blocks.TCRDisabled)
	w.immediate(false, immediateCmp, rcx, blocks.TCR48)
	w.jumpIf(notEqual, w.fail)
	w.hart(false, opLoad, rcx, a.TCR+4)
	w.immediate(false, immediateAnd, rcx, blocks.TCRMemory)
	w.immediate(false, immediateCmp, rcx, blocks.TCRMemory40)
	w.jumpIf(notEqual, w.fail)
	w.canonical(48) // so it has no tag
	w.hart(true, opLoad, rdx, a.TTBR0)
	w.immediate(true, immediateCmp, rax, 0)
	w.jumpIf(notLess, lower)
	w.hart(true, opLoad, rdx, a.TTBR1)
	w.bind(lower)
	w.move32(rcx, rdx)
	w.immediate(false, immediateAnd, rcx, PageSize-2) // the lowest bit is CnP
	w.jumpIf(notEqual, w.fail)
	w.number()
	return 39
}

func (w vmsa) pointer(other *label) {
	w.move32(rcx, rdx)
	w.immediate(false, immediateAnd, rcx, blocks.DescriptorTable)
	w.immediate(false, immediateCmp, rcx, blocks.DescriptorTable)
	w.jumpIf(notEqual, other)
	w.move(rcx, rdx)
	w.shift(true, shiftRight, rcx, blocks.DescriptorTableAP)
	w.immediate(false, immediateAnd, rcx, 3)
	w.jumpIf(notEqual, w.fail)
	w.number()
}

// number takes bits 47 to 12 of a descriptor or of TTBR.
func (w vmsa) number() {
	w.shift(true, shiftLeft, rdx, 16)
	w.shift(true, shiftRight, rdx, 28)
	w.shift(true, shiftLeft, rdx, 12)
}

// leaf fails for a page of EL0 at EL1, whose use depends on PAN, and one of EL1 that is of an address space.
func (w vmsa) leaf() {
	user, permitted := w.newLabel(), w.newLabel()
	w.hart(false, opLoad, rcx, w.layout.ARM64.EL)
	w.immediate(false, immediateCmp, rcx, 0)
	w.jumpIf(equal, user)
	w.permits(blocks.DescriptorTable, blocks.DescriptorNotGlobal, 0)
	w.jump(permitted)
	w.bind(user)
	w.permits(blocks.DescriptorTable, 0, blocks.DescriptorUser)
	w.bind(permitted)
	w.number()
}

func (w vmsa) large() {
	w.hart(false, opLoad, rcx, w.layout.ARM64.EL)
	w.immediate(false, immediateCmp, rcx, 1)
	w.jumpIf(notEqual, w.fail)
	w.permits(blocks.DescriptorValid, blocks.DescriptorNotGlobal, 0)
}

// permits fails when the descriptor has another type, one of some bits, or not another, or a bit of it forbids the access.
func (w vmsa) permits(kind, without, with int32) {
	want := kind | blocks.DescriptorAF | with
	mask := want | blocks.DescriptorTable | blocks.DescriptorUser | without
	if w.isStore() {
		mask |= blocks.DescriptorReadOnly
	}
	w.has(mask, want)
}
