package amd64

import (
	"encoding/binary"
	"slices"
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
	pageCode
	*blocks.Blocks[a64Instruction]
	a64Facts
	flagsAt int // where the host's flags are those of the comparison before; -1: nowhere
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
	t := &a64Translator{pageCode: pageCode{layout: l, inHost: &a64InHost, zero: zeroA64, align: 3, slot: 1}, flagsAt: -1}
	t.snapshot = func() any { return t.a64Facts }
	t.Blocks = blocks.Discover(p, func(p *Page, at int) (a64Instruction, blocks.Step) { return decodeA64(p, at, l.Host) })
	t.dispatch = t.newLabel()
	count := 0
	for i := range t.labels {
		if t.Steps[i].Size == 0 {
			continue
		}
		count++
		if t.Leader[i] {
			t.labels[i] = t.newLabel()
		}
	}
	t.code = make([]byte, 0, bytesEach*count+bytesBesides)
	var out Translation
	for i := range t.Steps {
		for at := i; at < len(t.Steps) && t.labels[at] != nil && t.labels[at].at < 0; {
			out.Entries = append(out.Entries, Entry{Offset: 2 * at, At: t.here()})
			at = t.block(at, &out)
		}
	}
	if len(out.Entries) == 0 {
		return Translation{}, false
	}
	slices.SortFunc(out.Entries, func(a, b Entry) int { return a.Offset - b.Offset })
	if p.Places {
		out.Places = append(out.Places, Entry{Offset: PageSize, At: t.here()})
	}
	t.writeCopies(func(c *blockCopy) {
		t.a64Facts = c.facts.(a64Facts)
		t.instructions(c.first, c.end, func(i int) {
			if l := c.from[i]; l != nil {
				t.bind(l)
				t.flagsAt = -1
			}
		})
	})
	t.leave()
	out.Code = t.code
	return out, true
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
	case row.Format == a64.FormatFP3:
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

// block translates from a leader to the next one or a jump, and gives the halfword to continue at.
func (t *a64Translator) block(first int, out *Translation) int {
	count, end := t.Block(first)
	if end < len(t.labels) && t.Leader[end] && t.Steps[end].Size != 0 && t.labels[end] == nil {
		t.labels[end] = t.newLabel()
	}
	out.Instructions += count
	start := t.here()
	t.bind(t.labels[first])
	t.immediate(true, immediateSub, budget, int32(count))
	t.jumpIf(less, t.exit(2*first, count, false))
	t.unspent, t.end = count, end
	t.a64Facts, t.flagsAt = a64Facts{}, -1
	t.groups, t.copied = t.Groups(first, end, accessA64), nil
	t.instructions(first, end, func(i int) {
		if !t.Places {
			return
		}
		if i > first {
			start = t.here()
		}
		out.Places = append(out.Places, Entry{Offset: 2 * i, At: start})
	})
	return end
}

// instructions translates some of a block, to its end. It calls before with the halfword of each before its code begins.
func (t *a64Translator) instructions(first, end int, before func(int)) {
	jumps := false
	for i := first; i < end; i += 2 {
		d := &t.Decoded[i]
		t.at = 2 * i
		before(i)
		switch s := &t.Steps[i]; s.Flow {
		case blocks.FlowBranch:
			t.jumpIf(t.branch(d), t.place(s.Target))
		case blocks.FlowJump:
			t.link(s.Returns)
			t.goTo(s.Target)
			jumps = true
		case blocks.FlowIndirect:
			t.copyOf(zr(d.word.rn()), rdx)
			t.link(s.Returns)
			t.move(rax, rdx)
			t.jumpFar()
			jumps = true
		default:
			d.emit(t, d.word)
		}
		t.unspent--
	}
	if !jumps && (end >= len(t.Steps) || t.Steps[end].Size == 0 || t.labels[end].at >= 0) {
		t.goTo(2 * end)
	}
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
