package amd64

import (
	"slices"

	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/riscv"
)

// Guest registers that are in registers of the host.
var inHost = [32]register{2: rbx, 8: rbp, 10: rsi, 11: rdi, 12: r8, 13: r9, 14: r10, 15: r11}

// translator makes the code of one page.
type translator struct {
	assembler
	*blocks.Blocks
	layout   *Layout
	labels   [PageSize / 2]*label
	exits    []exit
	detours  []detour
	walks    map[uint32]*label // the routines, by the table of the TLB
	dispatch *label

	at      int                   // the instruction that is translated
	end     int                   // of its block, a halfword
	groups  map[int]*blocks.Group // of its block
	copied  *blockCopy            // nil: its block has no copy
	copies  []*blockCopy
	unspent int // instructions of its block from it on, which the budget has paid for

	facts
}

// facts are what code before an instruction, in its block, has looked at.
type facts struct {
	floatIsOn, floatIsDirty, roundsToNearest bool
	isSupervisor                             bool // the privilege is S
}

// exit is code that stands behind all else.
type exit struct {
	from    *label
	offset  int // of the next instruction, from the page's start
	unspent int
	chain   bool // continues in another page, when that is translated
}

// Room for code: about what an instruction of the guest takes, and what a page has besides.
const bytesEach, bytesBesides = 64, 2048

// Translate makes the code of a page. It is false when none of the entries is an instruction that can be translated.
func Translate(l *Layout, p Page) (Translation, bool) {
	t := &translator{layout: l, walks: map[uint32]*label{}}
	t.Blocks = blocks.Discover(p, func(d *riscv.Decoded) bool {
		return emitters[d.Name] != nil && rounds(d) && blocks.HasRegister(d) && (l.Fused || !isFused(d))
	})
	t.dispatch = t.newLabel()
	count := 0
	for i := range t.labels {
		if t.Decoded[i].Size == 0 {
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
	t.writeCopies()
	t.writeDetours()
	t.leave()
	t.writeWalks()
	out.Code = t.code
	return out, true
}

// block translates from a leader to the next one or a jump, and gives the halfword to continue at.
func (t *translator) block(first int, out *Translation) int {
	count, end := t.Block(first)
	if end < len(t.labels) && t.Leader[end] && t.Decoded[end].Size != 0 && t.labels[end] == nil {
		t.labels[end] = t.newLabel()
	}
	out.Instructions += count
	start := t.here()
	t.bind(t.labels[first])
	t.immediate(true, immediateSub, budget, int32(count))
	t.jumpIf(less, t.exit(2*first, count, false))
	t.unspent, t.end = count, end
	t.facts = facts{}
	t.groups, t.copied = t.Groups(first, end), nil
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
		switch t.Flow(d) {
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
			emitters[d.Name](t, d)
		}
		t.unspent--
		i += d.Size / 2
	}
	if !jumps && (end >= len(t.Decoded) || t.Decoded[end].Size == 0 || t.labels[end].at >= 0) {
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

// exit is a label of code that leaves the translation for an offset from the page's start.
func (t *translator) exit(offset, unspent int, chain bool) *label {
	for i := range t.exits { // the last ones are often the same
		if e := &t.exits[len(t.exits)-1-i]; i < 4 && e.offset == offset && e.unspent == unspent && e.chain == chain {
			return e.from
		} else if i >= 4 {
			break
		}
	}
	l := t.newLabel()
	t.exits = append(t.exits, exit{l, offset, unspent, chain})
	return l
}

// miss is where the current instruction is left to the interpreter.
func (t *translator) miss() *label { return t.exit(t.at, t.unspent, false) }

// place is a label of the code for an offset from the page's start, all of the block being executed.
func (t *translator) place(offset int) *label {
	inside := offset >= 0 && offset < PageSize
	if inside && t.labels[offset/2] != nil {
		return t.labels[offset/2]
	}
	return t.exit(offset, 0, !inside)
}

func (t *translator) goTo(offset int) { t.jump(t.place(offset)) }

// leave writes the exits, and the way to other pages.
func (t *translator) leave() {
	for _, e := range t.exits {
		t.bind(e.from)
		if e.chain {
			t.hart(true, opLoad, rax, t.layout.PC)
			t.immediate(true, immediateAdd, rax, int32(e.offset))
			t.jumpFar()
			continue
		}
		if e.unspent != 0 {
			t.immediate(true, immediateAdd, budget, int32(e.unspent))
		}
		if e.offset != 0 {
			t.hartAdd(t.layout.PC, int32(e.offset))
		}
		t.ret()
	}
	t.writeDispatch()
}

// jumpFar continues at the address in rax, which is of any page: where a jump to it was noted, at once.
func (t *translator) jumpFar() {
	t.jumpIndex(rcx)
	t.indexed(true, opCmpTo, rax, tlb, rcx, t.layout.Jumps)
	t.jumpIf(notEqual, t.dispatch)
	t.indexed(true, opLoad, rcx, tlb, rcx, t.layout.Jumps+8)
	t.tlbWord(true, opXorTo, rcx, t.layout.Generation)
	t.immediate(true, immediateCmp, rcx, MaxEntries*16)
	t.jumpIf(notBelow, t.dispatch) // of another generation
	t.immediate(false, immediateAnd, rcx, (MaxEntries-1)*16)
	t.immediate(true, immediateAnd, rax, -PageSize)
	t.hart(true, opMove, rax, t.layout.PC)
	t.enter(rcx)
}

// enter jumps to the entry at an offset in the table.
func (t *translator) enter(offset register) {
	t.bytes(rex(false, 0, offset, entries), 0xff, 0x24, low(offset)<<3|low(entries)) // jmp [entries + offset]
}

// jumpIndex makes the offset in the cache of jumps from the address in rax.
func (t *translator) jumpIndex(to register) {
	t.move32(to, rax)
	t.shift(false, shiftLeft, to, 3)
	t.immediate(false, immediateAnd, to, (blocks.MaxJumps-1)*16)
}

// writeDispatch writes where jumps go that were not noted: to the entry that the decoded slot at the address in rax is, or out.
func (t *translator) writeDispatch() {
	t.bind(t.dispatch)
	out, other := t.newLabel(), t.newLabel()
	t.hart(true, opMove, rax, t.layout.PC)
	t.index(rcx, rax)
	t.move(rdx, rax)
	t.immediate(true, immediateAnd, rdx, -PageSize)
	t.indexed(true, opCmpTo, rdx, tlb, rcx, t.layout.Code+t.layout.Tag)
	t.jumpIf(notEqual, other)
	t.enterPage(out)
	t.bind(other) // the page's second place
	t.otherPlace(rcx)
	t.indexed(true, opCmpTo, rdx, tlb, rcx, t.layout.Code+t.layout.Tag)
	t.jumpIf(notEqual, out)
	t.enterPage(out)
	t.bind(out)
	t.ret()
}

// enterPage continues at the address in rax, and notes the jump, when its decoded slot is an entry. The page's TLB entry is at rcx.
func (t *translator) enterPage(out *label) {
	t.indexed(false, opLoad, rcx, tlb, rcx, t.layout.Code+t.layout.Addend)
	t.immediate(false, immediateAnd, rax, PageSize-1)
	t.shift(false, shiftLeft, rax, 2) // a decoded slot has 8 bytes for each halfword
	t.pair(false, opAdd, rax, rcx)
	t.indexed(true, opLoad, rax, memory, rcx, 0)
	t.move32(rcx, rax)
	t.shift(false, shiftRight, rcx, 8)
	t.immediate(false, immediateAnd, rcx, MaxEntries-1)
	t.shift(false, shiftLeft, rcx, 4)
	t.indexed(true, opCmpTo, rax, entries, rcx, 8)
	t.jumpIf(notEqual, out)
	t.hart(true, opLoad, rax, t.layout.PC) // which is noted
	t.hart(true, opMove, rdx, t.layout.PC)
	t.jumpIndex(rdx)
	t.indexed(true, opMove, rax, tlb, rdx, t.layout.Jumps)
	t.move32(rax, rcx)
	t.tlbWord(true, opXorTo, rax, t.layout.Generation)
	t.indexed(true, opMove, rax, tlb, rdx, t.layout.Jumps+8)
	t.enter(rcx)
}

// index makes the offset of a TLB entry from a virtual address.
func (t *translator) index(to, va register) {
	t.move32(to, va)
	t.shift(false, shiftRight, to, 8)
	t.maskEntry(to)
}

// otherPlace makes the offset of a TLB entry that of the page's other one.
func (t *translator) otherPlace(r register) {
	t.immediate(false, immediateXor, r, int32(t.layout.Other*t.layout.EntrySize))
	t.maskEntry(r)
}

// maskEntry bounds the offset of a TLB entry, which the verifier forgets where jumps lead.
func (t *translator) maskEntry(r register) {
	t.immediate(false, immediateAnd, r, int32((t.layout.Entries-1)*t.layout.EntrySize))
}

// value gives the register that has a guest register's value, or loads it into scratch.
func (t *translator) value(r uint8, scratch register) register {
	switch {
	case r == 0:
		t.constant(scratch, 0)
		return scratch
	case inHost[r] != 0:
		return inHost[r]
	}
	if at := slices.Index(t.holds[:], r); at >= 0 {
		t.move(scratch, register(at))
	} else {
		t.hart(true, opLoad, scratch, t.layout.X+8*uint32(r))
	}
	t.hold(scratch, r)
	return scratch
}

// copyOf puts a guest register's value into a register.
func (t *translator) copyOf(r uint8, to register) { t.move(to, t.value(r, to)) }

// set makes a register's value that of a guest register.
func (t *translator) setGuest(r uint8, from register) {
	switch {
	case r == 0:
	case inHost[r] != 0:
		t.move(inHost[r], from)
	default:
		t.hart(true, opMove, from, t.layout.X+8*uint32(r))
		t.forget(r)
		t.hold(from, r)
	}
}

// operation is to op= a guest register's value.
func (t *translator) operation(wide bool, op int, to register, r uint8) {
	if r != 0 && inHost[r] == 0 && !slices.Contains(t.holds[:], r) {
		t.hart(wide, op, to, t.layout.X+8*uint32(r))
		return
	}
	from := t.value(r, rcx)
	t.pair(wide, op, to, from)
}

// cheaperFirst exchanges the operands of an operation when the second one's value is at hand in rax.
func (t *translator) cheaperFirst(rs1, rs2 uint8) (first, second uint8) {
	if rs2 != 0 && t.holds[rax] == rs2 {
		return rs2, rs1
	}
	return rs1, rs2
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
