// Package verify proves of native code for arm64, from its bytes alone, that it cannot do anything but compute and read and write a machine's
// linear memory. It shares nothing with the translator that made the code, which it does not trust.
//
// On entry memory (x23) is the address of linear memory, of which Reach bytes are the machine's or inaccessible; hart (x27) is memory and up to
// 4 GiB; entries (x24) is a table of TableEntries times 16 bytes, the first 8 of them an address of verified code; target (x17) is such an
// address; places (x6, x8) are memory and up to 4 GiB. What is proven of code that is accepted:
//
//   - Every instruction is of the list in step. None of them is privileged, calls the system, uses the stack, or raises an exception but by the
//     accesses below.
//   - memory, entries, hart, x18, x28 (Go's g), x29, x30 and sp are never written, and never copied to where the guest could read them; nor is
//     target, which only ever has the address of an entry, by three instructions that stand together, or the way back, by a call.
//   - Places are written by one instruction, which makes them memory + the lower 32 bits of a register, and read by nothing but accesses.
//   - Reads and writes are of [memory + the lower 32 bits of a register] and of [hart + x] and [place + x] with x below 32 KiB.
//   - Vector registers are the guest's: nothing else has been in them when code is entered.
//   - Jumps lead to instructions of the same code, to target, or back to whoever entered it.
//   - Routines are the code's end, from the first place on that is called. They are reached by calls alone, which are three instructions that stand
//     together: target gets the way back, the call, and the way back is what it was. Routines call nothing, neither jump to what is no routine nor
//     to target, do not write target, and leave the budget alone. So their ret leads behind the call.
//   - It ends: every way back, and every entry, takes from the budget and leaves when that is below zero; what is given back to the budget is
//     given back on the way out. Ways back in routines do not exist. Others that do not look at the budget end detours: straight code that is
//     reached by jumps alone, all of them from before the place where it ends.
//
// Nothing has to be known of the values of registers.
package verify

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"golang.org/x/sys/cpu"
)

const (
	// Reach is what code may touch from the start of linear memory on, in bytes: hart and places may be 4 GiB from it, and their operands reach 32 KiB.
	Reach = 4<<30 + distances
	// distances are how far from hart or a place an operand may end.
	distances = 32 << 10
	// TableEntries is the size of the table of entries.
	TableEntries = 1 << 18

	target, memory, entries, tlb, budget, hart, zero = 17, 23, 24, 25, 26, 27, 31

	places  = 1<<6 | 1<<8
	general = (1<<17 - 1 | 0xf<<19) &^ places // x0 to x5, x7, x9 to x16, x19 to x22
	ret     = 0xd65f03c0
	jump    = 0xd61f0220 // br target
	keep    = 0xaa1e03f1 // mov target, x30
	restore = 0xaa1103fe // mov x30, target
)

// Features are those that are not of all processors: FEAT_CRC32, FEAT_RDM, FEAT_DotProd, FEAT_AES, FEAT_PMULL, and both FEAT_SHA1 and FEAT_SHA256.
type Features struct{ CRC, RDM, DotProduct, AES, Carryless, SHA bool }

// Host is what this processor knows: the instructions of what it does not are none of the list.
var Host = Features{
	CRC: cpu.ARM64.HasCRC32, RDM: cpu.ARM64.HasASIMDRDM, DotProduct: cpu.ARM64.HasASIMDDP,
	AES: cpu.ARM64.HasAES, Carryless: cpu.ARM64.HasPMULL, SHA: cpu.ARM64.HasSHA1 && cpu.ARM64.HasSHA2,
}

// Proof is why an operand in memory is where it may be.
type Proof struct {
	At   int // of its instruction in the code, in bytes
	Text string
}

type verifier struct {
	code     []byte
	source   []int32  // by instruction, of the jumps there, the one behind the last; 0: none, and entries have math.MaxInt32
	routines int      // where they begin
	proofs   *[]Proof // nil: not wanted
}

// Code verifies code that is entered at the given offsets. An error says what is wrong and where.
func Code(code []byte, entryPoints []int) error { return verify(code, entryPoints, nil) }

// Prove verifies as Code does, and gives the proofs of all operands in memory, in the order of the code.
func Prove(code []byte, entryPoints []int) ([]Proof, error) {
	var proofs []Proof
	err := verify(code, entryPoints, &proofs)
	return proofs, err
}

func verify(code []byte, entryPoints []int, proofs *[]Proof) error {
	if len(code)%4 != 0 {
		return fmt.Errorf("native code: its last instruction is cut: %d bytes", len(code))
	}
	v := &verifier{code: code, source: make([]int32, len(code)/4), routines: len(code) / 4, proofs: proofs}
	for at := range v.source {
		if w := v.word(at); calls(w) {
			to, _ := leads(w, at)
			v.routines = min(v.routines, to)
		}
	}
	for _, at := range entryPoints {
		if at%4 != 0 {
			return fmt.Errorf("native code: entry: %#x is not the beginning of an instruction", at)
		}
		if err := v.mark(at/4, -1); err != nil {
			return fmt.Errorf("native code: entry: %w", err)
		}
	}
	for at := range v.source {
		if to, ok := leads(v.word(at), at); ok {
			if err := v.mark(to, at); err != nil {
				return fmt.Errorf("native code: at %#x: %w", 4*at, err)
			}
		}
	}
	for at := range v.source {
		if to, ok := leads(v.word(at), at); ok && to <= at && !v.looksAtBudget(to) && !v.endsDetour(at, to) {
			return fmt.Errorf("native code: at %#x: the way to %#x does not look at the budget", 4*at, 4*to)
		}
		if why := v.step(at, v.word(at)); why != "" {
			return fmt.Errorf("native code: at %#x: %s: %08x", 4*at, why, v.word(at))
		}
	}
	for _, end := range []int{v.routines, len(v.source)} {
		if end > 0 && !ends(v.word(end-1)) {
			return fmt.Errorf("native code: control runs over %#x", 4*end)
		}
	}
	return nil
}

// word is an instruction; outside of the code there is none, 0.
func (v *verifier) word(at int) uint32 {
	if at < 0 || at >= len(v.source) {
		return 0
	}
	return binary.LittleEndian.Uint32(v.code[4*at:])
}

func always(w uint32) bool { return w>>26 == 5 }

func calls(w uint32) bool { return w>>26 == 0x25 }

func sometimes(w uint32) bool { return w&0xff000010 == 0x54000000 && w&15 < 14 }

func ends(w uint32) bool { return always(w) || w == ret || w == jump }

// leads gives the instruction that a jump leads to.
func leads(w uint32, at int) (int, bool) {
	switch {
	case always(w), calls(w):
		return at + int(int32(w<<6)>>6), true
	case sometimes(w):
		return at + int(int32(w<<8)>>13), true
	}
	return 0, false
}

// mark notes a jump's target, or an entry, which is from -1. Calls lead to routines and jumps do not, but those of routines, forward.
func (v *verifier) mark(to, from int) error {
	if to < 0 || to >= len(v.source) {
		return fmt.Errorf("%#x is outside of the code", 4*to)
	}
	inRoutine := from >= v.routines
	switch isCall := from >= 0 && calls(v.word(from)); {
	case isCall && (inRoutine || to <= from):
		return fmt.Errorf("the call of %#x is made in a routine, or leads back", 4*to)
	case inRoutine && to <= from:
		return fmt.Errorf("the way back to %#x is in a routine", 4*to)
	case !isCall && !inRoutine && to >= v.routines:
		return fmt.Errorf("%#x is in a routine", 4*to)
	case from < 0 && !v.looksAtBudget(to):
		return fmt.Errorf("the way to %#x does not look at the budget", 4*to)
	case from < 0:
		v.source[to] = math.MaxInt32
	}
	v.source[to] = max(v.source[to], int32(from)+1)
	return nil
}

// looksAtBudget says whether the code at a place begins by taking from the budget and leaving when that is below zero.
func (v *verifier) looksAtBudget(at int) bool { return spends(v.word(at)) && looks(v.word(at+1)) }

// endsDetour says whether a way back ends a detour.
func (v *verifier) endsDetour(at, to int) bool {
	if !always(v.word(at)) {
		return false
	}
	for ; at > 0 && !ends(v.word(at-1)); at-- {
		if v.source[at] != 0 {
			return false // another way in
		}
	}
	return at > 0 && int(v.source[at]) <= to
}

const ofBudget = budget<<5 | budget

// spends says whether an instruction takes from the budget, and sets the flags.
func spends(w uint32) bool { return w&0xffc003ff == 0xf1000000|ofBudget && w>>10&0xfff > 0 }

// gives says whether an instruction gives back to the budget.
func gives(w uint32) bool { return w&0xffc003ff == 0x91000000|ofBudget && w>>10&0xfff > 0 }

// looks says whether an instruction branches when the budget is below zero.
func looks(w uint32) bool { return sometimes(w) && w&15 == 11 }

// leaves says whether the code ends soon from there on, without a jump, apart from giving back to the budget at once.
func (v *verifier) leaves(at int) bool {
	if gives(v.word(at)) {
		at++
	}
	for range 8 {
		w := v.word(at)
		if w == ret {
			return true
		}
		if _, jumps := leads(w, at); jumps || ends(w) || spends(w) || gives(w) {
			return false
		}
		at++
	}
	return false
}

// readable registers, as a set, are what guests may know. Zero reads as zero.
const readable = general | 1<<tlb | 1<<zero

// step proves one instruction. It returns what is wrong.
func (v *verifier) step(at int, w uint32) string {
	to, first, second, third := w&31, w>>5&31, w>>16&31, w>>10&31
	reads := func(registers ...uint32) bool {
		for _, r := range registers {
			if readable>>r&1 == 0 {
				return false
			}
		}
		return true
	}
	value := func(writes uint32, registers ...uint32) string { // an operation on registers
		if writes != zero && general>>writes&1 == 0 {
			return "it writes a register that is kept"
		}
		if !reads(registers...) {
			return "it reads a register that is kept"
		}
		return ""
	}
	const threes = 0x7fe0fc00
	wide := w>>31 == 1
	switch {
	case at >= v.routines && (w == jump || spends(w) || gives(w) || w&0xffe0ffff == 0x8b000000|entries<<5|target):
		return "it is in a routine"
	case always(w), sometimes(w), w == ret, w == jump:
		return ""
	case w == keep:
		return v.call(at + 1)
	case calls(w):
		return v.call(at)
	case w == restore:
		return v.call(at - 1)
	case spends(w):
		if to, ok := leads(v.word(at+1), at+1); ok && looks(v.word(at+1)) && v.source[at+1] == 0 && v.leaves(to) {
			return ""
		}
		return "it spends from the budget without leaving when there is none"
	case gives(w):
		if v.leaves(at) {
			return ""
		}
		return "it changes the budget"
	case w == 0x8b000000|second<<16|entries<<5|target: // add target, entries, index
		return v.entry(at, second)
	case w == 0xa9400000|third<<10|target<<5|target: // ldp target, slot, [target]
		if v.source[at] != 0 || v.word(at-1)&0xffe0ffff != 0x8b000000|entries<<5|target {
			return "it may not read an entry"
		}
		v.proved(at, "target is an entry")
		return value(third)
	case w&0xffe0fc00 == 0x8b204000 && places>>to&1 != 0: // add place, first, the lower half of second
		if first != memory {
			return "the place is not in linear memory"
		}
		return value(zero, second)
	case w&0x1f800000 == 0x11000000: // add, sub, adds, subs with 12 bits: 31 is the stack pointer, except as the result of those with flags
		if first == zero || to == zero && w>>29&1 == 0 {
			return "it uses the stack pointer"
		}
		return value(to, first)
	case w&0x1f800000 == 0x12000000: // and, orr, eor, ands with a pattern of bits: 31 is the stack pointer as the result of those without flags
		if !isPattern(wide, w>>22&1, w>>10&63) {
			return "there is no such pattern"
		}
		if to == zero && w>>29&3 != 3 {
			return "it writes the stack pointer"
		}
		return value(to, first)
	case w&0x1f800000 == 0x12800000 && w>>29&3 != 1 && (wide || w>>22&1 == 0): // movn, movz, movk
		return value(to)
	case w&0x1f800000 == 0x13000000 && w>>29&3 != 3 && w>>22&1 == w>>31 && (wide || w&(1<<21|1<<15) == 0): // sbfm, bfm, ubfm
		return value(to, first)
	case w&0x1f200000 == 0x0b000000 && w>>22&3 != 3 && (wide || w>>15&1 == 0), // add, sub, adds, subs of a shifted register
		w&0x1f000000 == 0x0a000000 && (wide || w>>15&1 == 0), // and, bic, orr, orn, eor, eon, ands, bics
		w&threes == 0x1ac00800, w&threes == 0x1ac00c00,       // udiv, sdiv
		w&threes == 0x1ac02000, w&threes == 0x1ac02400, w&threes == 0x1ac02800, w&threes == 0x1ac02c00, // lslv, lsrv, asrv, rorv
		w&0xffe00000 == 0x93c00000, w&0xffe08000 == 0x13800000, // extr
		w&0x3fe00800 == 0x1a800000,                             // csel, csinc, csinv, csneg
		w&0x3fe0fc00 == 0x1a000000,                             // adc, sbc
		w&0xffe0fc00 == 0x9b407c00, w&0xffe0fc00 == 0x9bc07c00: // smulh, umulh
		return value(to, first, second)
	case w&0x7fe0e000 == 0x1ac04000 && Host.CRC && wide == (w>>10&3 == 3): // crc32, crc32c
		return value(to, first, second)
	case w&0x1fe00000 == 0x0b200000 && w>>10&7 <= 4: // add, sub, adds, subs of an extended register: 31 is the stack pointer, as with 12 bits
		if first == zero || to == zero && w>>29&1 == 0 {
			return "it uses the stack pointer"
		}
		return value(to, first, second)
	case w&0x7ffff000 == 0x5ac00000 && (wide || w>>10&3 != 3), w&0x7ffff800 == 0x5ac01000: // rbit, rev16, rev32, rev, clz, cls
		return value(to, first)
	case w&0x7fe00000 == 0x1b000000, w&0xff600000 == 0x9b200000: // madd, msub, smaddl, smsubl, umaddl, umsubl
		return value(to, first, second, third)
	case w>>25&7 == 7 && isVector(w):
		writes, reads := generals(w)
		return value(writes, reads)
	case w&0x3b20fc00 == 0x38204800: // [first + lower half of second]
		if first != memory {
			return "the operand is not in linear memory"
		}
		if !reads(second) {
			return "it reads a register that is kept"
		}
		v.proved(at, "memory and 32 bits")
		return access(w, to, value)
	case w&0x3e000000 == 0x0c000000: // structures of vector registers
		if places>>first&1 == 0 {
			return "the operand is not at a place"
		}
		if !isStructure(w) {
			return "it is not on the list"
		}
		v.proved(at, "place + 0x0")
		return ""
	case w&0x3b000000 == 0x39000000 && size(w)*(w>>10&0xfff+1) <= distances: // [first + distance]
		base := "hart"
		if places>>first&1 != 0 {
			base = "place"
		} else if first != hart {
			return "the operand is neither in the hart nor at a place"
		}
		if v.proofs != nil {
			v.proved(at, fmt.Sprintf("%s + %#x", base, (w>>10&0xfff)*size(w)))
		}
		return access(w, to, value)
	}
	return "it is not on the list"
}

// size is how many bytes a load or store moves.
func size(w uint32) uint32 {
	if w&(1<<26|1<<23) == 1<<26|1<<23 { // of a vector register, all of it
		return 16
	}
	return 1 << (w >> 30)
}

// access proves what a load or store moves.
func access(w, r uint32, value func(uint32, ...uint32) string) string {
	switch operation, size := w>>22&3, w>>30; {
	case w>>26&1 == 1 && (operation < 2 || size == 0): // of a vector register
		return ""
	case w>>26&1 == 1:
		return "it is not on the list"
	case operation == 0:
		return value(zero, r)
	case operation == 1, operation == 2 && size < 3, operation == 3 && size < 2:
		return value(r)
	}
	return "it is not on the list"
}

// isPattern says whether there is a pattern of ones that stand together in each element, by fields of the instruction (DecodeBitMasks of the
// architecture's manual): the elements' size is one of two to 64 bits, and not all of one are ones.
func isPattern(wide bool, n, imms uint32) bool {
	length := bits.Len32(n<<6|^imms&63) - 1
	if length < 1 || n == 1 && !wide {
		return false
	}
	levels := uint32(1)<<length - 1
	return imms&levels != levels
}

// call proves the three instructions of a call, which is at the second.
func (v *verifier) call(at int) string {
	if at <= 0 || v.word(at-1) != keep || !calls(v.word(at)) || v.word(at+1) != restore || v.source[at] != 0 || v.source[at+1] != 0 {
		return "it is no call, or none that may return"
	}
	return ""
}

// entry proves that an index leads to an entry: just before, all but the bits of an index were cleared. Just behind, the entry is read.
func (v *verifier) entry(at int, index uint32) string {
	const ones = 18 // TableEntries-1, times 16
	before := v.word(at - 1)
	if v.source[at] != 0 || before&0xffc0fc1f != 0x92400000|(ones-1)<<10|index || before>>16&63 != 64-4 || index == zero {
		return "the operand may not be an entry"
	}
	if next := v.word(at + 1); next&0xffff83ff != 0xa9400000|target<<5|target {
		return "it keeps the address of an entry"
	}
	return ""
}

var _ = [1]struct{}{}[TableEntries-1<<18]

func (v *verifier) proved(at int, text string) {
	if v.proofs != nil {
		*v.proofs = append(*v.proofs, Proof{4 * at, text})
	}
}
