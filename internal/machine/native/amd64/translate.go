package amd64

import (
	"slices"

	"agentvm/internal/machine/riscv"
)

// Guest registers that are in registers of the host.
var inHost = [32]register{2: rbx, 8: rbp, 10: rsi, 11: rdi, 12: r8, 13: r9, 14: r10, 15: r11}

// maxBlock is how many instructions are executed at most between two looks at the budget.
const maxBlock = 64

// translator makes the code of one page.
type translator struct {
	assembler
	layout   *Layout
	page     Page
	decoded  [PageSize / 2]riscv.Decoded // by halfword; Size 0: not translated
	leader   [PageSize / 2]bool
	labels   [PageSize / 2]*label
	exits    []exit
	dispatch *label

	at      int // the instruction that is translated
	unspent int // instructions of its block from it on, which the budget has paid for
}

// exit is code that stands behind all else.
type exit struct {
	from    *label
	offset  int // of the next instruction, from the page's start
	unspent int
	chain   bool // continues in another page, when that is translated
}

// Translate makes the code of a page. It is false when none of the entries is an instruction that can be translated.
func Translate(l *Layout, p Page) (Translation, bool) {
	t := &translator{layout: l, page: p}
	t.dispatch = t.newLabel()
	t.discover()
	var out Translation
	for i := range t.decoded { // instructions may overlap, so that a block's end may be anywhere
		for at := i; at < len(t.decoded) && t.labels[at] != nil && t.labels[at].at < 0; {
			out.Entries = append(out.Entries, Entry{2 * at, t.here()})
			at = t.block(at, &out)
		}
	}
	if len(out.Entries) == 0 {
		return Translation{}, false
	}
	slices.SortFunc(out.Entries, func(a, b Entry) int { return a.Offset - b.Offset })
	t.leave()
	out.Code = t.code
	return out, true
}

// discover finds what the entries reach in the page, and then what else was executed there: code that only other pages lead to.
func (t *translator) discover() {
	t.reach(slices.Clone(t.page.Entries))
	if t.page.Seen != nil {
		for at := 0; at < PageSize; at += 2 {
			if t.seen(at) && t.decoded[at/2].Size == 0 {
				t.reach([]uint16{uint16(at)})
			}
		}
	}
	for i := range t.labels {
		if t.leader[i] && t.decoded[i].Size != 0 {
			t.labels[i] = t.newLabel()
		}
	}
}

// reach finds what places lead to.
func (t *translator) reach(work []uint16) {
	for len(work) > 0 {
		at := int(work[len(work)-1])
		work = work[:len(work)-1]
		lead := func(to int) {
			if to >= 0 && to < PageSize {
				work = append(work, uint16(to))
			}
		}
		for first := true; at < PageSize && t.seen(at); first = false {
			if first {
				t.leader[at/2] = true
			}
			if t.decoded[at/2].Size != 0 {
				break
			}
			d, ok := t.decode(at)
			if !ok {
				break
			}
			next := at + d.Size
			flow := flowOf(&d)
			if flow == flowLeave {
				lead(next) // where the interpreter is done
				break
			}
			t.decoded[at/2] = d
			switch flow {
			case flowBranch:
				lead(at + int(d.Imm))
				lead(next)
			case flowJump:
				lead(at + int(d.Imm))
			}
			if (flow == flowJump || flow == flowIndirect) && d.Rd != 0 {
				lead(next) // where the call returns to
			}
			if flow != flowNext {
				break
			}
			at = next
		}
	}
}

// decode reads an instruction of the page, or one that begins in its last halfword.
func (t *translator) decode(at int) (riscv.Decoded, bool) {
	if at == PageSize-2 && t.page.Code[at]&3 == 3 {
		return riscv.Decode([]byte{t.page.Code[at], t.page.Code[at+1], byte(t.page.Second), byte(t.page.Second >> 8)}, 0)
	}
	return riscv.Decode(t.page.Code, at)
}

func (t *translator) seen(at int) bool {
	return t.page.Seen == nil || t.page.Seen[at/16]>>(at/2%8)&1 != 0
}

// flow says where control goes after an instruction.
type flow int

const (
	flowNext flow = iota
	flowBranch
	flowJump
	flowIndirect
	flowLeave // the interpreter executes it
)

func flowOf(d *riscv.Decoded) flow {
	switch d.Name {
	case "beq", "bne", "blt", "bge", "bltu", "bgeu":
		return flowBranch
	case "jal":
		return flowJump
	case "jalr":
		return flowIndirect
	}
	if emitters[d.Name] == nil {
		return flowLeave
	}
	return flowNext
}

// block translates from a leader to the next one or a jump, and gives the halfword to continue at.
func (t *translator) block(first int, out *Translation) int {
	count, end := 0, first
	for {
		d := &t.decoded[end]
		count++
		end += d.Size / 2
		if flowOf(d) != flowNext || end >= len(t.decoded) || t.decoded[end].Size == 0 || t.leader[end] {
			break
		}
		if count == maxBlock {
			t.leader[end], t.labels[end] = true, t.newLabel()
			break
		}
	}
	out.Instructions += count
	t.bind(t.labels[first])
	t.immediate(true, immediateSub, budget, int32(count))
	t.jumpIf(less, t.exit(2*first, count, false))
	t.unspent = count
	jumps := false
	for i := first; i < end; {
		d := &t.decoded[i]
		t.at = 2 * i
		if t.at+d.Size > PageSize {
			t.checkSecond()
		}
		switch flowOf(d) {
		case flowBranch:
			t.branch(d)
		case flowJump:
			t.link(d)
			t.goTo(t.at + int(d.Imm))
			jumps = true
		case flowIndirect:
			t.indirect(d)
			jumps = true
		default:
			emitters[d.Name](t, d)
		}
		t.unspent--
		i += d.Size / 2
	}
	if !jumps && (end >= len(t.decoded) || t.decoded[end].Size == 0 || t.labels[end].at >= 0) {
		t.goTo(2 * end)
	}
	return end
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
	t.immediate(false, immediateCmp, rax, int32(t.page.Second))
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
			t.jump(t.dispatch)
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
	t.bind(t.dispatch)
	out := t.newLabel()
	t.hart(true, opMove, rax, t.layout.PC)
	t.index(rcx, rax)
	t.move(rdx, rax)
	t.immediate(true, immediateAnd, rdx, -PageSize)
	t.indexed(true, opCmpTo, rdx, tlb, rcx, t.layout.Code+t.layout.Tag)
	t.jumpIf(notEqual, out)
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
	t.hart(true, opMove, rdx, t.layout.PC)
	t.bytes(rex(false, 0, rcx, entries), 0xff, 0x24, low(rcx)<<3|low(entries)) // jmp [entries + rcx]
	t.bind(out)
	t.ret()
}

// index makes the offset of a TLB entry from a virtual address.
func (t *translator) index(to, va register) {
	t.move32(to, va)
	t.shift(false, shiftRight, to, 8)
	t.immediate(false, immediateAnd, to, int32((t.layout.Entries-1)*t.layout.EntrySize))
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
	t.hart(true, opLoad, scratch, t.layout.X+8*uint32(r))
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
	}
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
	t.jump(t.dispatch)
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
