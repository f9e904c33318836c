package amd64

import (
	"encoding/binary"
	"strings"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

// Arm64 guests. Their registers have the numbers that instructions have; the last one is SP, and zeroA64 is XZR.
const (
	spA64   = 31
	zeroA64 = 32
)

// a64InHost has the registers that compiled programs name most often.
var a64InHost = [33]register{0: rbx, 1: rbp, 2: rsi, 3: rdi, 19: r8, 20: r9, 21: r10, spA64: r11}

// a64Word is an instruction word.
type a64Word uint32

func (w a64Word) field(low, width uint) uint32 { return uint32(w) >> low & (1<<width - 1) }
func (w a64Word) bit(n uint) bool              { return w>>n&1 != 0 }

// signed is a field with a sign.
func (w a64Word) signed(low, width uint) int64 {
	return int64(uint64(w)<<(64-low-width)) >> (64 - width)
}
func (w a64Word) wide() bool { return w.bit(31) }

// Registers of the usual fields. Number 31 is XZR in those with zr.
func (w a64Word) rd() uint8 { return uint8(w.field(0, 5)) }
func (w a64Word) rn() uint8 { return uint8(w.field(5, 5)) }
func (w a64Word) ra() uint8 { return uint8(w.field(10, 5)) }
func (w a64Word) rm() uint8 { return uint8(w.field(16, 5)) }

func zr(r uint8) uint8 {
	if r == 31 {
		return zeroA64
	}
	return r
}

// a64Instruction is a decoded one.
type a64Instruction struct {
	row  *a64.Instruction
	word a64Word
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
	t := &a64Translator{page: page[a64Instruction]{pageCode: pageCode{layout: l, inHost: &a64InHost, zero: zeroA64, align: 3, slot: 1, across: true}}}
	t.guest = t
	t.Blocks = blocks.Discover(p, func(p *Page, at int) (a64Instruction, blocks.Step) { return decodeA64(p, at, l.Host) })
	return t.translate()
}

func (t *a64Translator) touches(d *a64Instruction) blocks.Access { return accessA64(d) }
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
		t.copyOf(zr(d.word.rn()), rdx)
		t.link(s.Returns)
		t.move(rax, rdx)
		t.jumpFar()
		return true
	default:
		d.emit(t, d.word)
	}
	return false
}

func decodeA64(p *Page, at int, host blocks.Host) (a64Instruction, blocks.Step) {
	if at&3 != 0 {
		return a64Instruction{}, blocks.Step{}
	}
	word := binary.LittleEndian.Uint32(p.Code[at:])
	d := a64Instruction{row: a64.Lookup(word), word: a64Word(word)}
	s := blocks.Step{Size: 4, Flow: blocks.FlowLeave}
	if d.row == nil {
		return d, s
	}
	switch d.row.Format {
	case a64.FormatB26:
		s.Flow, s.Target, s.Returns = blocks.FlowJump, at+int(d.word.signed(0, 26))*4, d.word.bit(31)
	case a64.FormatBC, a64.FormatCB:
		s.Flow, s.Target = blocks.FlowBranch, at+int(d.word.signed(5, 19))*4
		if d.row.Format == a64.FormatBC && d.word.field(0, 4) >= 14 { // always
			s.Flow = blocks.FlowJump
		}
	case a64.FormatTB:
		s.Flow, s.Target = blocks.FlowBranch, at+int(d.word.signed(5, 14))*4
	case a64.FormatBR:
		s.Flow, s.Returns = blocks.FlowIndirect, d.row.Name == "blr"
	default:
		if choose := a64Emitters()[d.row]; choose != nil {
			d.emit = choose(d.word)
		}
		if d.emit != nil && hasFor(d.row, host) {
			s.Flow = blocks.FlowNext
		}
	}
	return d, s
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
	w := d.word
	if d.row.Format == a64.FormatBC {
		return t.condition(byte(w.field(0, 4)))
	}
	not := w.bit(24)
	r := zr(w.rd())
	if d.row.Format == a64.FormatCB {
		t.immediate(w.wide(), immediateCmp, t.value(r, rax), 0)
	} else {
		bit := uint8(w.field(31, 1)<<5 | w.field(19, 5))
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
