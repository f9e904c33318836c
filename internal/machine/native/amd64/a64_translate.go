package amd64

import (
	"strings"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

// a64InHost has the registers that compiled programs name most often.
var a64InHost = [33]register{0: rbx, 1: rbp, 2: rsi, 3: rdi, 19: r8, 20: r9, 21: r10, blocks.StackA64: r11}

// a64Instruction is a decoded one.
type a64Instruction struct {
	blocks.A64
	emit a64Emitter // nil: it is a branch, or the interpreter executes it
}

type a64Translator struct {
	page[a64Instruction]
	a64Facts
}

// a64Facts are what is known in a block, of code before an instruction.
type a64Facts struct {
	flags           a64Flags
	stackIsAligned  bool
	floatIsOn       bool
	roundsToNearest bool
	zeroes          bool // EL0 may zero blocks
	isKernel        bool // the exception level is 1
}

// TranslateA64 makes the code of a page of arm64 code. It is false when none of the entries is an instruction that can be translated.
func TranslateA64(l *Layout, p Page) (Translation, bool) {
	t := &a64Translator{page: page[a64Instruction]{pageCode: pageCode{layout: l, inHost: &a64InHost, zero: blocks.ZeroA64, align: 3, slot: 1, across: true}}}
	t.guest = t
	t.Blocks = blocks.Discover(p, func(p *Page, at int) (a64Instruction, blocks.Step) { return decodeA64(p, at, l) })
	return t.translate()
}

func (t *a64Translator) touches(d *a64Instruction) blocks.Access { return d.Access() }
func (t *a64Translator) known() any                              { return t.a64Facts }
func (t *a64Translator) assume(known any)                        { t.a64Facts, _ = known.(a64Facts) }
func (t *a64Translator) tables(w *walk) pageTables               { return vmsa{w} }

func (t *a64Translator) instruction(d *a64Instruction, s *blocks.Step) (jumps bool) {
	switch s.Flow {
	case blocks.FlowBranch:
		t.jumpIf(t.branch(d), t.place(s.Target))
	case blocks.FlowJump:
		t.link(s.Returns)
		t.goTo(s.Target)
		return true
	case blocks.FlowIndirect:
		t.copyOf(blocks.ZeroOf(d.Word.Rn()), rdx)
		t.link(s.Returns)
		t.move(rax, rdx)
		t.jumpFar()
		return true
	default:
		d.emit(t, d.Word)
	}
	return false
}

func decodeA64(p *Page, at int, l *Layout) (a64Instruction, blocks.Step) {
	d, s := blocks.DecodeA64(p, at)
	i := a64Instruction{A64: d}
	if d.Row == nil || s.Flow != blocks.FlowLeave {
		return i, s
	}
	if l.Harts && d.Shared() {
		i.emit = a64Shared(d.Row, d.Word)
	} else if choose := a64Emitters()[d.Row]; choose != nil {
		i.emit = choose(d.Word)
	}
	if i.emit != nil && hasFor(d.Row, l.Host) {
		s.Flow = blocks.FlowNext
	}
	return i, s
}

// hasFor says whether the host has what a row's translation needs.
func hasFor(row *a64.Instruction, host blocks.Host) bool {
	switch {
	case row.Format == a64.FormatFP3, strings.HasPrefix(row.Name, "fmla."), strings.HasPrefix(row.Name, "fmls."):
		return host.Fused
	case row.Group != "crypto":
		return true
	case row.Name == "pmull.q":
		return host.Carryless
	case strings.HasPrefix(row.Name, "aes"):
		return host.AES
	}
	return host.SHA
}

// link sets X30 to the address behind a call.
func (t *a64Translator) link(calls bool) {
	if !calls {
		return
	}
	const lr = 30
	t.address(rax, int64(t.at)+4)
	t.setGuest(lr, rax)
}

// address makes an address at a distance from the page's.
func (t *a64Translator) address(to register, distance int64) {
	t.hart(true, opLoad, to, t.layout.PC)
	for distance != 0 {
		part := max(min(distance, 1<<30), -1<<30)
		t.immediate(true, immediateAdd, to, int32(part))
		distance -= part
	}
}

// branch gives the host's condition of a branch, of which its flags are.
func (t *a64Translator) branch(d *a64Instruction) byte {
	w := d.Word
	if d.Row.Format == a64.FormatBC {
		return t.condition(byte(w.Field(0, 4)))
	}
	not := w.Bit(24)
	r := blocks.ZeroOf(w.Rd())
	if d.Row.Format == a64.FormatCB {
		t.immediate(w.Wide(), immediateCmp, t.value(r, rax), 0)
	} else {
		bit := uint8(w.Field(31, 1)<<5 | w.Field(19, 5))
		t.copyOf(r, rax)
		if bit >= 32 {
			t.shift(true, shiftRight, rax, 32)
		}
		t.immediate(false, immediateAnd, rax, int32(uint32(1)<<(bit&31)))
	}
	if not {
		return notEqual
	}
	return equal
}
