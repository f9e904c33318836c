package arm64

import (
	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/riscv"
)

// translator makes the code of one page of RISC-V code.
type translator struct {
	pageCode
	*blocks.Blocks[riscv.Decoded]
	facts
}

// facts are what code before an instruction, in its block, has looked at: only what the interpreter executes changes it.
type facts struct {
	floatIsOn, floatIsDirty bool
	isSupervisor            bool // the privilege is S
}

func (t *translator) known() any { return t.facts }

func (t *translator) know(k any) { t.facts, _ = k.(facts) }

func (t *translator) tables(w *walk) pageTables { return sv39{w} }

// Translate makes the code of a page of RISC-V code. It is false when none of the entries is an instruction that can be translated.
func Translate(l *blocks.Layout, p blocks.Page) (blocks.Translation, bool) {
	t := &translator{
		pageCode: pageCode{layout: l, inHost: &inHost, stack: 2, alignment: 8, slot: 2},
		Blocks:   blocks.RISCV(p, func(d *riscv.Decoded) bool { return emitters()[d.Name] != nil && blocks.HasRegister(d) }),
	}
	t.guest = t
	return (&page[riscv.Decoded]{&t.pageCode, t.Blocks, blocks.AccessRISCV}).translate()
}

func (t *translator) instruction(i int) (jumps bool) {
	d := &t.Decoded[i]
	if t.at+d.Size > blocks.PageSize {
		t.checkSecond()
	}
	switch t.Steps[i].Flow {
	case blocks.FlowBranch:
		t.compare(true, t.value(d.Rs1, x0), t.value(d.Rs2, x2))
		t.jumpIf(conditions[d.Name], t.place(t.at+int(d.Imm)))
		return false
	case blocks.FlowJump:
		t.link(d)
		t.jump(t.place(t.at + int(d.Imm)))
		return true
	case blocks.FlowIndirect:
		t.address(x2, d.Rs1, d.Imm)
		t.link(d)
		t.mask(x0, x2, 1, 64)
		t.jumpFar()
		return true
	}
	emitters()[d.Name](t, d)
	return false
}

var conditions = map[string]byte{"beq": equal, "bne": notEqual, "blt": less, "bge": notLess, "bltu": below, "bgeu": notBelow}

// checkSecond leaves when the next page has another second half of the current instruction, or is not known to be code.
func (t *translator) checkSecond() {
	t.inHart(access{size: 3, op: load}, x0, t.layout.PC-t.layout.X)
	t.add(x0, x0, blocks.PageSize)
	t.found(t.layout.Code, x0, x0, 0, t.miss())
	t.constant(x2, int64(t.layout.Frame))
	t.three(true, opAdd, x2, x2, x1)
	t.inMemory(access{size: 2, op: load}, x2, x2)
	t.shiftLeft(x2, x2, 12)
	t.add(x2, x2, int64(t.layout.RAM))
	t.inMemory(access{size: 1, op: load}, x2, x2)
	t.constant(x0, int64(t.Second))
	t.compare(true, x2, x0)
	t.jumpIf(notEqual, t.miss())
}

// link sets rd to the address behind the instruction.
func (t *translator) link(d *riscv.Decoded) {
	if d.Rd == 0 {
		return
	}
	to := t.result(d.Rd)
	t.inHart(access{size: 3, op: load}, to, t.layout.PC-t.layout.X)
	t.add(to, to, int64(t.at+d.Size))
	t.setGuest(d.Rd, to)
}
