package arm64

import "agentvm/internal/machine/native/blocks"

// vmsa are the page tables of arm64 (DDI 0487, chapter D8), as Linux has them: four levels of 4 KiB for both halves of 48 bits. See translate of
// src/arm64/mmu.c.
type vmsa struct{ *walk }

func (w vmsa) root() (bit uint32) {
	a := &w.layout.ARM64
	lower := w.newLabel()
	w.loadHart(3, x1, a.SCTLR)
	w.bit(x1, x1, blocks.SCTLRM)
	w.jumpIf(equal, w.fail)
	w.loadHart(3, x3, a.TCR)
	w.constant(x1, blocks.TCRSizes|blocks.TCRDisabled|blocks.TCRMemory<<32)
	w.three(true, opAnd, x3, x3, x1)
	w.constant(x1, blocks.TCR48|blocks.TCRMemory40<<32)
	w.compare(true, x3, x1)
	w.jumpIf(notEqual, w.fail)
	w.canonical(48) // so it has no tag
	w.loadHart(3, x2, a.TTBR0)
	w.compareWith(x0, 0)
	w.jumpIf(notLess, lower)
	w.loadHart(3, x2, a.TTBR1)
	w.bind(lower)
	w.mask(x1, x2, 1, 12) // the lowest bit is CnP
	w.failUnless(0)
	w.number()
	return 39
}

func (w vmsa) pointer(other *label) {
	w.mask(x1, x2, 0, 2)
	w.compareWith(x1, blocks.DescriptorTable)
	w.jumpIf(notEqual, other)
	w.field(field, x1, x2, blocks.DescriptorTableAP, blocks.DescriptorTableAP+1)
	w.failUnless(0)
	w.number()
}

// number takes bits 47 to 12 of a descriptor or of TTBR.
func (w vmsa) number() { w.mask(x2, x2, 12, 48) }

// leaf fails for a page of EL0 at EL1, whose use depends on PAN, and one of EL1 that is of an address space.
func (w vmsa) leaf() {
	user, permitted := w.newLabel(), w.newLabel()
	w.loadHart(2, x1, w.layout.ARM64.EL)
	w.compareWith(x1, 0)
	w.jumpIf(equal, user)
	w.permits(blocks.DescriptorTable, blocks.DescriptorNotGlobal, 0)
	w.jump(permitted)
	w.bind(user)
	w.permits(blocks.DescriptorTable, 0, blocks.DescriptorUser)
	w.bind(permitted)
	w.number()
}

func (w vmsa) large() {
	w.loadHart(2, x1, w.layout.ARM64.EL)
	w.failUnless(1)
	w.permits(blocks.DescriptorValid, blocks.DescriptorNotGlobal, 0)
	w.number()
}

// permits fails when the descriptor has another type, one of some bits, or not another, or a bit of it forbids the access.
func (w vmsa) permits(kind, without, with int64) {
	want := kind | blocks.DescriptorAF | with
	mask := want | blocks.DescriptorTable | blocks.DescriptorUser | without
	if w.isStore() {
		mask |= blocks.DescriptorReadOnly
	}
	w.has(mask, want)
}
