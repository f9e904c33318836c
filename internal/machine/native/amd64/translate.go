package amd64

import (
	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/riscv"
)

// Guest registers that are in registers of the host.
var inHost = [33]register{2: rbx, 8: rbp, 10: rsi, 11: rdi, 12: r8, 13: r9, 14: r10, 15: r11}

// translator makes the code of one page.
type translator struct {
	page[riscv.Decoded]
	facts
}

// facts are what code before an instruction, in its block, has looked at.
type facts struct {
	floatIsOn, floatIsDirty, roundsToNearest bool
	isSupervisor                             bool // the privilege is S
}

// Translate makes the code of a page. It is false when none of the entries is an instruction that can be translated.
func Translate(l *Layout, p Page) (Translation, bool) {
	t := &translator{page: page[riscv.Decoded]{pageCode: pageCode{layout: l, inHost: &inHost, slot: 2}}}
	t.guest = t
	t.Blocks = blocks.RISCV(p, func(d *riscv.Decoded) bool {
		return emitters()[d.Name] != nil && rounds(d) && blocks.HasRegister(d) && (l.Host.Fused || !isFused(d))
	})
	return t.translate()
}

func (t *translator) touches(d *riscv.Decoded) blocks.Access { return blocks.AccessRISCV(d) }
func (t *translator) known() any                             { return t.facts }
func (t *translator) assume(known any)                       { t.facts, _ = known.(facts) }
func (t *translator) tables(w *walk) pageTables              { return sv39{w} }

func (t *translator) instruction(d *riscv.Decoded, s *blocks.Step) (jumps bool) {
	if t.at+d.Size > PageSize {
		t.checkSecond()
	}
	switch s.Flow {
	case blocks.FlowBranch:
		t.branch(d)
	case blocks.FlowJump:
		t.link(d)
		t.goTo(s.Target)
		return true
	case blocks.FlowIndirect:
		t.indirect(d)
		return true
	default:
		emitters()[d.Name](t, d)
	}
	return false
}

// checkSecond leaves when the next page has another second half of the current instruction, or is not known to be code.
func (t *translator) checkSecond() {
	t.hart(true, opLoad, rax, t.layout.PC)
	t.immediate(true, immediateAdd, rax, PageSize)
	t.index(rcx, rax)
	t.indexed(true, opCmpTo, rax, tlb, rcx, t.layout.Code+t.layout.Tag)
	t.jumpIf(notEqual, t.miss())
	t.indexed(false, opLoad, rcx, tlb, rcx, t.layout.Code+t.layout.Addend)
	t.indexed(false, opLoad, rcx, memory, rcx, t.layout.Frame)
	t.shift(false, shiftLeft, rcx, 12)
	t.lea(false, rcx, rcx, int32(t.layout.RAM))
	t.indexed(false, opLoad16, rax, memory, rcx, 0)
	t.immediate(false, immediateCmp, rax, int32(t.Second))
	t.jumpIf(notEqual, t.miss())
}

var conditions = map[string]byte{"beq": equal, "bne": notEqual, "blt": less, "bge": notLess, "bltu": below, "bgeu": notBelow}

func (t *translator) branch(d *riscv.Decoded) {
	condition := conditions[d.Name]
	t.compare(d.Rs1, d.Rs2)
	t.jumpIf(condition, t.place(t.at+int(d.Imm)))
}

func (t *translator) compare(a, b uint8) {
	first := t.value(a, rax)
	if b == 0 {
		t.immediate(true, immediateCmp, first, 0)
		return
	}
	t.pair(true, opCmp, t.value(b, rcx), first)
}

// link sets rd to the address behind the instruction.
func (t *translator) link(d *riscv.Decoded) {
	if d.Rd == 0 {
		return
	}
	to := t.target(d.Rd)
	t.hart(true, opLoad, to, t.layout.PC)
	t.immediate(true, immediateAdd, to, int32(t.at+d.Size))
	t.setGuest(d.Rd, to)
}

func (t *translator) indirect(d *riscv.Decoded) {
	t.address(rdx, d.Rs1, d.Imm)
	t.link(d)
	t.immediate(true, immediateAnd, rdx, -2)
	t.move(rax, rdx)
	t.jumpFar()
}

// address is rs1 + a distance of 12 bits.
func (t *translator) address(to register, rs1 uint8, distance int64) {
	if r := inHost[rs1]; r != 0 {
		t.lea(true, to, r, int32(distance))
		return
	}
	t.copyOf(rs1, to)
	if distance != 0 {
		t.immediate(true, immediateAdd, to, int32(distance))
	}
}
