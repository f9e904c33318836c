package amd64

import (
	"slices"

	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/riscv"
)

// Guest registers that are in registers of the host.
var inHost = [33]register{2: rbx, 8: rbp, 10: rsi, 11: rdi, 12: r8, 13: r9, 14: r10, 15: r11}

// translator makes the code of one page.
type translator struct {
	pageCode
	*blocks.Blocks[riscv.Decoded]

	facts
}

// facts are what code before an instruction, in its block, has looked at.
type facts struct {
	floatIsOn, floatIsDirty, roundsToNearest bool
	isSupervisor                             bool // the privilege is S
}

// Room for code: about what an instruction of the guest takes, and what a page has besides.
const bytesEach, bytesBesides = 64, 2048

// Translate makes the code of a page. It is false when none of the entries is an instruction that can be translated.
func Translate(l *Layout, p Page) (Translation, bool) {
	t := &translator{pageCode: pageCode{layout: l, inHost: &inHost, slot: 2, walks: map[uint32]*label{}}}
	t.snapshot = func() any { return t.facts }
	t.Blocks = blocks.RISCV(p, func(d *riscv.Decoded) bool {
		return emitters()[d.Name] != nil && rounds(d) && blocks.HasRegister(d) && (l.Host.Fused || !isFused(d))
	})
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
	for i := range t.Decoded { // instructions may overlap, so that a block's end may be anywhere
		for at := i; at < len(t.Decoded) && t.labels[at] != nil && t.labels[at].at < 0; {
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
	t.writeDetours() // before the copies, where some of them lead
	t.writeCopies(func(c *blockCopy) {
		t.facts = c.facts.(facts)
		t.instructions(c.first, c.end, func(i int) {
			if l := c.from[i]; l != nil {
				t.bind(l)
			}
		})
	})
	t.writeDetours()
	t.leave()
	t.writeWalks()
	out.Code = t.code
	return out, true
}

// block translates from a leader to the next one or a jump, and gives the halfword to continue at.
func (t *translator) block(first int, out *Translation) int {
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
	t.facts = facts{}
	t.groups, t.copied = t.Groups(first, end, blocks.AccessRISCV), nil
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
func (t *translator) instructions(first, end int, before func(int)) {
	jumps := false
	for i := first; i < end; {
		d := &t.Decoded[i]
		t.at = 2 * i
		before(i)
		if t.at+d.Size > PageSize {
			t.checkSecond()
		}
		switch t.Steps[i].Flow {
		case blocks.FlowBranch:
			t.branch(d)
		case blocks.FlowJump:
			t.link(d)
			t.goTo(t.at + int(d.Imm))
			jumps = true
		case blocks.FlowIndirect:
			t.indirect(d)
			jumps = true
		default:
			emitters()[d.Name](t, d)
		}
		t.unspent--
		i += d.Size / 2
	}
	if !jumps && (end >= len(t.Decoded) || t.Steps[end].Size == 0 || t.labels[end].at >= 0) {
		t.goTo(2 * end)
	}
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

// target is where to compute the value of rd: not in its own register when that is an operand that is still needed.
func target(rd uint8, needed ...uint8) register {
	if inHost[rd] == 0 || slices.Contains(needed, rd) {
		return rax
	}
	return inHost[rd]
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
	to := target(d.Rd)
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
