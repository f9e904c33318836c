package arm64

import (
	"strings"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

// Arm64 guests. Most instructions are translated to themselves, with other general registers. The vector registers are the guest's own, and FPCR is (see
// enter_arm64.s): what they make of numbers is what the guest's processor would, to the bit. The host's flags are the guest's wherever assembler.isGuests
// says so, and the hart has them as operands all the time, as the interpreter keeps them.

// a64InHost has the registers that compiled programs name most often.
var a64InHost = [33]register{
	0: 4, 1: 5, 2: 7, 3: 9, 4: 10, 5: 11, 8: 12, 19: 13, 20: 14, 21: 15, 22: 16, 23: 19, 29: 20, 30: 21, blocks.StackA64: 22,
}

// a64Instruction is a decoded one.
type a64Instruction struct {
	blocks.A64
	emit a64Emitter // nil: it is a branch, or the interpreter executes it
}

type a64Emitter func(t *a64Translator, w a64.Word)

type a64Translator struct {
	pageCode
	*blocks.Blocks[a64Instruction]
	a64Facts
}

// a64Facts are what is known in a block, of code before an instruction.
type a64Facts struct {
	flagsAreKnown  bool
	flags          int32 // if known, their kind
	stackIsAligned bool
	vectorsAreOn   bool
	zeroes         bool // EL0 may zero blocks
	isKernel       bool // the exception level is 1
}

func (t *a64Translator) known() any { return t.a64Facts }

func (t *a64Translator) know(k any) { t.a64Facts, _ = k.(a64Facts) }

func (t *a64Translator) tables(w *walk) pageTables { return vmsa{w} }

// TranslateA64 makes the code of a page of arm64 code. It is false when none of the entries is an instruction that can be translated.
func TranslateA64(l *blocks.Layout, p blocks.Page) (blocks.Translation, bool) {
	t := &a64Translator{pageCode: pageCode{layout: l, inHost: &a64InHost, zero: blocks.ZeroA64, stack: blocks.StackA64, alignment: 16, slot: 1, instructionAlign: 2}}
	t.guest = t
	t.Blocks = blocks.Discover(p, func(p *blocks.Page, at int) (a64Instruction, blocks.Step) {
		d, s := blocks.DecodeA64(p, at)
		i := a64Instruction{A64: d}
		if d.Row != nil && s.Flow == blocks.FlowLeave && a64HasFor(d.Row, l.Host) && !(l.Harts && d.Shared()) {
			if i.emit = a64Choose(&d); i.emit != nil {
				s.Flow = blocks.FlowNext
			}
		}
		return i, s
	})
	return (&page[a64Instruction]{&t.pageCode, t.Blocks, func(i *a64Instruction) blocks.Access { return i.Access() }}).translate()
}

// a64HasFor says whether the host has what a row's translation needs.
func a64HasFor(row *a64.Instruction, host blocks.Host) bool {
	switch {
	case row.Extension == "CRC32":
		return host.CRC
	case row.Extension == "RDM":
		return host.RDM
	case row.Extension == "DotProd":
		return host.DotProduct
	case row.Group != "crypto":
		return true
	case row.Name == "pmull.q":
		return host.Carryless
	case strings.HasPrefix(row.Name, "aes"):
		return host.AES
	}
	return host.SHA
}

func (t *a64Translator) instruction(i int) (jumps bool) {
	d, s := &t.Decoded[i], &t.Steps[i]
	switch s.Flow {
	case blocks.FlowBranch:
		t.jumpIf(t.branch(d), t.place(s.Target))
		return false
	case blocks.FlowJump:
		t.link(s.Returns)
		t.jump(t.place(s.Target))
		return true
	case blocks.FlowIndirect:
		t.copyOf(blocks.ZeroOf(d.Word.Rn()), x0)
		t.link(s.Returns)
		t.jumpFar()
		return true
	}
	d.emit(t, d.Word)
	return false
}

// link sets X30 to the address behind a call.
func (t *a64Translator) link(calls bool) {
	if !calls {
		return
	}
	const lr = 30
	t.inPage(a64InHost[lr], int64(t.at)+4)
}

// inPage makes an address at a distance from the page's.
func (t *a64Translator) inPage(to register, distance int64) {
	t.inHart(access{size: 3, op: load}, to, t.inHartAt(t.layout.PC))
	t.add(to, to, distance)
}

// branch gives the condition of a branch, of which the host's flags are.
func (t *a64Translator) branch(d *a64Instruction) byte {
	w := d.Word
	if d.Row.Format == a64.FormatBC {
		t.loadFlags()
		return byte(w.Field(0, 4))
	}
	r := t.value(blocks.ZeroOf(w.Rd()), x0)
	if d.Row.Format == a64.FormatTB {
		bit := w.Field(31, 1)<<5 | w.Field(19, 5)
		t.test(r, bit, bit+1)
	} else {
		t.three(w.Wide(), opSubs, zero, r, zero)
	}
	if w.Bit(24) {
		return notEqual
	}
	return equal
}
