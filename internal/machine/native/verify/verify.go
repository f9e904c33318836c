// Package verify proves of native code for amd64, from its bytes alone, that it cannot do anything but compute and read and write a
// machine's linear memory. It shares nothing with the translator that made the code, which it does not trust.
//
// On entry xmm0 to xmm5 are zero, MXCSR masks all exceptions, and memory (r15) is the address of linear memory, a multiple of 16, of which Reach bytes and the guard behind it are the machine's or inaccessible;
// tlb (r12) is memory and up to 4 GiB; entries (r14) is a table of TableEntries times 16 bytes, the first 8 of them an address of verified
// code. What is proven of code that is accepted:
//
//   - Every byte that is executed belongs to an instruction of the list in decode.go. None of them is privileged, calls the system, or uses
//     the stack other than by call and ret, and none raises an exception but by the accesses below. Of the vector registers there are
//     xmm0 to xmm5 alone.
//   - memory, tlb, entries and rsp are never written, and never copied to where the guest could read them.
//   - Reads and writes are of [memory + x] with x below 4 GiB + 64 KiB, or of [tlb + x] with x below 256 KiB, all of which is below Reach; besides
//     there are comparisons with the second halves of entries. What the TLB has is no more trusted than what the rest of linear memory has.
//   - Jumps lead to instructions of the same code, to the address of an entry of the table, or back to whoever entered it.
//   - Routines are the code's end, from the first place on that is called. They are reached by calls alone, call nothing, neither jump to what
//     is not a routine nor to entries, and leave the budget alone. So the stack has one more word in them, the place behind the call, to
//     which their ret leads.
//   - It ends: every way back, and every entry, takes from the budget and leaves when that is below zero; what is given back to the budget is
//     given back on the way out. Ways back in routines do not exist. Others that do not look at the budget end detours: straight code that is
//     reached by jumps alone, all of them from before the place where it ends.
//
// What is known of registers is known along straight code only; wherever a jump may lead, nothing is, but of rcx where only detours end: there it
// is what is known before that place, and the detour's end must prove as much.
package verify

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"
)

const (
	// Reach is what code may touch from the start of linear memory on, in bytes: tlb may be 4 GiB from it, and its operands reach 256 KiB.
	Reach = 4<<30 + 512<<10
	// TableEntries is the size of the table of entries.
	TableEntries = 1 << 18

	maxDistance = 64 << 10  // behind an index in linear memory
	maxTLB      = 256 << 10 // from tlb on
	word        = math.MaxUint32
)

// known is what is proven of a register's value: it is at most max, and its lowest bits are zero.
type known struct {
	max   uint64
	zeros uint8
}

var nothing = known{math.MaxUint64, 0}

// state is what is known before an instruction.
type state struct {
	registers [16]known
	signed    [2]bool // rdx has the sign of rax, of 32 and of 64 bits
	notZero   [2]bool // rcx
	notMinus1 [2]bool
}

func unknown() state {
	var s state
	for r := range s.registers {
		s.registers[r] = nothing
	}
	return s
}

type verifier struct {
	code     []byte
	list     []instruction // the first is none
	index    []int32       // in the list, by offset
	source   []int32       // of the jumps to an instruction, the place behind the last; 0: none, and entries have math.MaxInt32
	routines int           // where they begin
	resumed  map[int]known // what is known of rcx where detours end and nothing else leads
	at       int           // of the instruction that is proven
	proofs   *[]Proof      // nil: not wanted
	state
}

// Code verifies code that is entered at the given offsets. An error says what is wrong and where.
func Code(code []byte, entryPoints []int) error { return verify(code, entryPoints, nil) }

// room is memory that verifications leave for the next ones: each needs some 25 times as much as there is code.
type room struct {
	list          []instruction
	index, source []int32
}

var rooms = sync.Pool{New: func() any { return new(room) }}

func verify(code []byte, entryPoints []int, proofs *[]Proof) error {
	r := rooms.Get().(*room)
	defer rooms.Put(r)
	r.list = append(r.list[:0], instruction{})
	r.index, r.source = zeros(r.index, len(code)), zeros(r.source, len(code))
	v := &verifier{code: code, list: r.list, index: r.index, source: r.source, routines: len(code), proofs: proofs}
	defer func() { r.list = v.list }() // which has grown
	for at := 0; at < len(code); {
		i := decode(code, at)
		if i.form == formNone {
			return fmt.Errorf("native code: at %#x is no instruction of the list: % x", at, code[at:min(at+12, len(code))])
		}
		v.index[at] = int32(len(v.list))
		v.list = append(v.list, i)
		if i.form == formCall {
			v.routines = min(v.routines, at+i.size+int(i.immediate))
		}
		at += i.size
	}
	for _, at := range entryPoints {
		if err := v.mark(at, -1); err != nil {
			return fmt.Errorf("native code: entry: %w", err)
		}
	}
	var detours []int // their ends
	for at := 0; at < len(code); at += v.instruction(at).size {
		i := v.instruction(at)
		if !i.leads() {
			continue
		}
		if err := v.mark(at+i.size+int(i.immediate), at); err != nil {
			return fmt.Errorf("native code: at %#x: %w", at, err)
		}
		if to := at + i.size + int(i.immediate); to <= at && !v.looksAtBudget(to) {
			detours = append(detours, at)
		}
	}
	if err := v.findDetours(detours); err != nil {
		return err
	}
	return v.straight()
}

// zeros gives n of them, in memory that there may be.
func zeros(s []int32, n int) []int32 {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}

// instruction gives the one that begins at an offset, or one without a form.
func (v *verifier) instruction(at int) *instruction { return &v.list[v.index[at]] }

// leads says whether an instruction has a target.
func (i *instruction) leads() bool {
	return i.form == formJump || i.form == formBranch || i.form == formCall
}

// ends says whether control never reaches what is behind an instruction from there.
func (i *instruction) ends() bool {
	return i.form == formJump || i.form == formJumpMemory || i.form == formReturn
}

// mark notes a jump's target, or an entry, which is from -1. Calls lead to routines and jumps do not, but those of routines, forward.
func (v *verifier) mark(at, from int) error {
	if at < 0 || at >= len(v.code) || v.instruction(at).form == formNone {
		return fmt.Errorf("%#x is not the beginning of an instruction", at)
	}
	inRoutine := from >= v.routines
	switch calls := from >= 0 && v.instruction(from).form == formCall; {
	case calls && (inRoutine || at <= from):
		return fmt.Errorf("the call of %#x is made in a routine, or leads back", at)
	case inRoutine && at <= from:
		return fmt.Errorf("the way back to %#x is in a routine", at)
	case !calls && !inRoutine && at >= v.routines:
		return fmt.Errorf("%#x is in a routine", at)
	}
	if from < 0 {
		if !v.looksAtBudget(at) {
			return fmt.Errorf("the way to %#x does not look at the budget", at)
		}
		v.source[at] = math.MaxInt32
		return nil
	}
	v.source[at] = max(v.source[at], int32(from)+1)
	return nil
}

// looksAtBudget says whether the code at a place begins by taking from the budget and leaving when that is below zero.
func (v *verifier) looksAtBudget(at int) bool {
	i := v.instruction(at)
	next := at + i.size
	return i.spends() && next < len(v.code) && v.instruction(next).form == formBranch && v.instruction(next).operation == less
}

// findDetours proves that ways back which do not look at the budget end detours, and notes where these are the only jumps.
func (v *verifier) findDetours(ends []int) error {
	v.resumed = make(map[int]known, len(ends))
	for _, at := range ends {
		i := v.instruction(at)
		to, first := at+i.size+int(i.immediate), v.straightTo(at)
		if i.form != formJump || first < 0 || int(v.source[first]) > to {
			return fmt.Errorf("native code: at %#x: the way to %#x does not look at the budget", at, to)
		}
		v.resumed[to] = nothing
	}
	isEnd := make(map[int]bool, len(ends))
	for _, at := range ends {
		isEnd[at] = true
	}
	for at := 0; at < len(v.code); at += v.instruction(at).size {
		if i := v.instruction(at); i.leads() && !isEnd[at] {
			delete(v.resumed, at+i.size+int(i.immediate))
		}
	}
	return nil
}

// straightTo gives where the code begins that only leads straight to a place, or -1 when jumps lead into it.
func (v *verifier) straightTo(at int) int {
	for at > 0 {
		before := at - 1
		for v.instruction(before).form == formNone {
			before--
		}
		if v.instruction(before).ends() {
			return at
		}
		if v.source[at] != 0 {
			return -1
		}
		at = before
	}
	return -1 // the start of all
}

const less = 12

// What detours prove of rcx: the offset of one of the TLB's 4,096 entries of 16 bytes.
const (
	tlbOffset      = 4095 * 16
	tlbOffsetZeros = 4
)

// spends says whether an instruction takes from the budget.
func (i *instruction) spends() bool {
	return i.form == formImmediate && i.rm == budget && i.operation == 5 && i.wide && i.immediate > 0
}

// straight goes through the code once.
func (v *verifier) straight() error {
	v.state = unknown()
	ended := false
	for at := 0; at < len(v.code); {
		i := v.instruction(at)
		if at == v.routines && !ended {
			return fmt.Errorf("native code: control runs into the routine at %#x", at)
		}
		if v.source[at] != 0 {
			k, resumes := v.registers[rcx], false
			v.state = unknown()
			if _, resumes = v.resumed[at]; resumes {
				k = known{max(k.max, tlbOffset), min(k.zeros, tlbOffsetZeros)} // of a constant address more is known here than a detour proves
				v.registers[rcx], v.resumed[at] = k, k
			}
		}
		v.at = at
		if why := v.step(at, i); why != "" {
			return fmt.Errorf("native code: at %#x: %s: % x", at, why, v.code[at:at+i.size])
		}
		at += i.size
		if ended = i.ends(); ended || i.form == formCall {
			v.state = unknown()
		}
		if at >= len(v.code) && !ended {
			return fmt.Errorf("native code: control runs over its end")
		}
	}
	return nil
}

// pinned registers are neither read nor written but as the base of an operand.
func pinned(r int) bool { return r == memory || r == entries || r == tlb || r == rsp }

// write notes a register's new value.
func (v *verifier) write(r int, k known) string {
	if pinned(r) || r == budget {
		return "it writes a register that is kept"
	}
	v.registers[r] = k
	switch r {
	case rax, rdx:
		v.signed = [2]bool{}
	case rcx:
		v.notZero, v.notMinus1 = [2]bool{}, [2]bool{}
	}
	return ""
}

// result is what is known of any result of an operation.
func result(wide bool) known {
	if wide {
		return nothing
	}
	return known{word, 0}
}

func width(wide bool) int {
	if wide {
		return 1
	}
	return 0
}

// step proves one instruction and notes what is known behind it. It returns what is wrong.
func (v *verifier) step(at int, i *instruction) string {
	reads := func(registers ...int) bool {
		for _, r := range registers {
			if pinned(r) || r == budget {
				return false
			}
		}
		return true
	}
	const secret = "it reads a register that is kept"
	switch i.form {
	case formJump:
		return v.endDetour(at + i.size + int(i.immediate))
	case formReturn, formCall, formFence:
		return ""
	case formBranch:
		v.branch(at, i)
		return ""
	case formPair:
		k := result(i.wide)
		if i.operation == 0x31 && i.reg == i.rm {
			k = known{0, 64}
		}
		if !reads(i.reg, i.rm) {
			return secret
		}
		return v.write(i.rm, k)
	case formPairTo:
		if !reads(i.reg, i.rm) {
			return secret
		}
		return v.write(i.reg, result(i.wide))
	case formCompare, formTest:
		if !reads(i.reg, i.rm) {
			return secret
		}
		return ""
	case formMove:
		if !reads(i.reg) {
			return secret
		}
		k := v.registers[i.reg]
		if !i.wide {
			k.max = min(k.max, word)
		}
		return v.write(i.rm, k)
	case formExtend:
		return v.write(i.reg, known{255, 0})
	case formSet, formSwap:
		return v.write(rax, nothing)
	case formLea:
		if !reads(i.rm) {
			return secret
		}
		return v.write(i.reg, result(i.wide))
	case formImmediate:
		return v.withImmediate(at, i)
	case formConstant:
		k := nothing
		if i.immediate >= 0 {
			k.max = uint64(i.immediate)
		}
		return v.write(i.rm, k)
	case formShift, formShiftCL:
		return v.write(i.rm, v.shifted(i))
	case formNegate:
		return v.write(i.rm, result(i.wide))
	case formSign:
		why := v.write(rdx, result(i.wide))
		v.signed[width(i.wide)] = true
		return why
	case formMultiply, formDivide, formDivideSigned:
		return v.wideArithmetic(i, reads(i.rm))
	case formJumpMemory:
		return v.jumpMemory(i)
	case formStore:
		if !reads(i.reg) {
			return secret
		}
		return v.operand(i)
	case formExchange:
		if !reads(i.reg) {
			return secret
		}
		if why := v.operand(i); why != "" {
			return why
		}
		return v.write(rax, nothing)
	case formAddMemory, formSetMemory:
		return v.linear(i)
	case formCompareMemory:
		if !reads(i.reg) {
			return secret
		}
		if i.base == entries {
			return v.entry(i, 8)
		}
		return v.operand(i)
	case formVector:
		return ""
	case formVectorMask:
		return v.write(i.reg, known{1<<16 - 1, 0})
	case formVectorMemory:
		if i.index >= 0 || i.distance&15 != 0 {
			return "the vector may not be aligned"
		}
		return v.linear(i)
	case formFloat, formVectorHalf:
		return v.linear(i)
	case formFloatToRegister:
		if why := v.linear(i); why != "" {
			return why
		}
		return v.write(i.reg, result(i.wide))
	case formFloatFromInteger:
		if !reads(i.rm) {
			return secret
		}
		return ""
	case formFloatBits:
		return v.write(i.rm, result(i.wide))
	case formLoad:
		if why := v.operand(i); why != "" {
			return why
		}
		return v.write(i.reg, result(i.wide))
	}
	return "it is not on the list"
}

// endDetour proves that what is known where a jump leads back to is known here, too.
func (v *verifier) endDetour(to int) string {
	want, resumes := v.resumed[to]
	if k := v.registers[rcx]; resumes && (k.max > want.max || k.zeros < want.zeros) {
		return "less is known of rcx than where it leads"
	}
	return ""
}

// branch learns from a comparison just before it.
func (v *verifier) branch(at int, i *instruction) {
	const equal = 4
	if i.operation != equal || v.source[at] != 0 {
		return
	}
	previous := at - 1
	for previous >= 0 && v.instruction(previous).form == formNone {
		previous--
	}
	if previous < 0 {
		return
	}
	switch p := v.instruction(previous); {
	case p.form == formTest && p.reg == rcx && p.rm == rcx:
		v.notZero[width(p.wide)] = true
	case p.form == formImmediate && p.operation == 7 && p.rm == rcx && p.immediate == -1:
		v.notMinus1[width(p.wide)] = true
	}
}

// withImmediate proves an operation on a register with a constant. The budget is only spent, and given back on the way out.
func (v *verifier) withImmediate(at int, i *instruction) string {
	if i.rm == budget && v.at >= v.routines {
		return "a routine changes the budget"
	}
	if i.rm == budget {
		if i.spends() {
			next := at + i.size
			if next < len(v.code) && v.source[next] == 0 && v.instruction(next).form == formBranch && v.instruction(next).operation == less &&
				v.leaves(next+v.instruction(next).size+int(v.instruction(next).immediate)) {
				return ""
			}
			return "it spends from the budget without leaving when there is none"
		}
		if i.gives() && v.leaves(at) {
			return ""
		}
		return "it changes the budget"
	}
	if pinned(i.rm) {
		return "it reads or writes a register that is kept"
	}
	const and, compare = 4, 7
	k := result(i.wide)
	switch i.operation {
	case compare:
		return ""
	case and:
		k = v.registers[i.rm]
		if i.immediate >= 0 {
			k.max = min(k.max, uint64(i.immediate))
			k.zeros = max(k.zeros, uint8(bits.TrailingZeros64(uint64(i.immediate))))
		} else if !i.wide {
			k.max = min(k.max, word)
		}
	}
	return v.write(i.rm, k)
}

// gives says whether an instruction gives back to the budget.
func (i *instruction) gives() bool {
	return i.form == formImmediate && i.rm == budget && i.operation == 0 && i.wide && i.immediate > 0
}

// leaves says whether the code ends at once from there on, apart from giving back to the budget and then a change of the pc.
func (v *verifier) leaves(at int) bool {
	if at < len(v.code) && v.instruction(at).gives() {
		at += v.instruction(at).size
	}
	if at < len(v.code) && v.instruction(at).form == formAddMemory {
		at += v.instruction(at).size
	}
	return at < len(v.code) && v.instruction(at).form == formReturn
}

// shifted is what is known behind a shift.
func (v *verifier) shifted(i *instruction) known {
	const left, right = 4, 5
	k, by := v.registers[i.rm], uint8(i.immediate)
	if i.form == formShiftCL || by == 0 || by > 31 || i.wide {
		return nothing
	}
	k.max = min(k.max, word)
	switch i.operation {
	case left:
		return known{min(k.max<<by, word), min(k.zeros+by, 64)}
	case right:
		return known{k.max >> by, 0}
	}
	return result(false)
}

// wideArithmetic proves operations on rdx:rax. Division must not trap: the divisor is rcx and not zero, and the quotient fits.
func (v *verifier) wideArithmetic(i *instruction, readable bool) string {
	w := width(i.wide)
	switch {
	case !readable:
		return "it reads a register that is kept"
	case i.form == formMultiply:
	case i.rm != rcx || !v.notZero[w]:
		return "the divisor may be zero"
	case i.form == formDivide && v.registers[rdx].max != 0:
		return "the quotient may not fit"
	case i.form == formDivideSigned && (!v.signed[w] || !v.notMinus1[w]):
		return "the quotient may not fit"
	}
	if why := v.write(rax, result(i.wide)); why != "" {
		return why
	}
	return v.write(rdx, result(i.wide))
}

// linear proves an operand in linear memory.
func (v *verifier) linear(i *instruction) string {
	switch {
	case i.base != memory:
		return "the operand is not in linear memory"
	case i.distance < 0:
		return "the operand may be before linear memory"
	case i.index < 0:
	case i.distance > maxDistance-8 || pinned(i.index) || v.registers[i.index].max > word:
		return "the operand may be behind linear memory"
	}
	return v.proved(i)
}

// operand proves one in linear memory or in the TLB.
func (v *verifier) operand(i *instruction) string {
	if i.base != tlb {
		return v.linear(i)
	}
	index := uint64(0)
	switch {
	case i.index >= 0 && pinned(i.index):
		return "the operand's index is a register that is kept"
	case i.index >= 0:
		index = v.registers[i.index].max
	}
	if i.distance < 0 || index > maxTLB || uint64(i.distance)+index > maxTLB-8 {
		return "the operand may be outside the TLB"
	}
	return v.proved(i)
}

// jumpMemory proves a jump to an entry's address.
func (v *verifier) jumpMemory(i *instruction) string {
	if v.at >= v.routines {
		return "a routine leaves for an entry"
	}
	if i.base != entries {
		return "the jump's target is not in the table of entries"
	}
	return v.entry(i, 0)
}

// entry proves an operand that is a half of an entry.
func (v *verifier) entry(i *instruction, distance int32) string {
	if i.form == formCompareMemory && !i.wide || i.distance != distance || i.index < 0 || pinned(i.index) ||
		v.registers[i.index].zeros < 4 || v.registers[i.index].max > (TableEntries-1)*16 {
		return "the operand may not be an entry"
	}
	return v.proved(i)
}
