package verify_test

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/arch/x86/x86asm"

	"agentvm/internal/machine/native/verify"
)

// Addresses of the interpreter's process: nothing else is there.
const (
	atMemory = uint64(0x4000_0000_0000)
	atTable  = uint64(0x2000_0000_0000)
	atStack  = uint64(0x1000_0000_0000)
)

// host executes code of amd64 that golang.org/x/arch decodes. Reads give random values, mostly those that are wrong at the edges.
type host struct {
	*testing.T
	random            *rand.Rand
	code              []byte
	decoded           map[int]x86asm.Inst
	r                 [16]uint64
	pc                int
	behind            int // the place behind the call that is being executed; 0: none
	zero, sign, carry bool
	overflow          bool
	flagsKnown        bool
	done              bool
	instructions      int
}

// execute runs from each entry, with random registers, and gives the number of instructions.
func execute(t *testing.T, random *rand.Rand, code []byte, places []int) int {
	h := &host{T: t, random: random, code: code, decoded: map[int]x86asm.Inst{}}
	for _, place := range places {
		for r := range h.r {
			h.r[r] = h.any()
		}
		h.r[4], h.r[15], h.r[14], h.r[12] = atStack, atMemory, atTable, atMemory+[]uint64{0, 0x20000, 0xfffffff0}[random.IntN(3)]
		h.r[13] = uint64(random.IntN(400))
		h.pc, h.behind, h.done = place, 0, false
		for limit := h.instructions + 100_000; !h.done && !t.Failed(); {
			h.step()
			if h.instructions > limit {
				t.Errorf("from %#x on it does not end", place)
			}
		}
		if h.r[4] != atStack || h.r[15] != atMemory || h.r[14] != atTable {
			t.Errorf("from %#x on registers are changed that are kept: %x", place, h.r)
		}
		if t.Failed() {
			break
		}
	}
	return h.instructions
}

// any is a value of a register or of memory.
func (h *host) any() uint64 {
	switch h.random.IntN(8) {
	case 0:
		return 0
	case 1:
		return ^uint64(0)
	case 2:
		return 1 << h.random.IntN(64)
	case 3:
		return 1<<63 - 1
	case 4:
		return uint64(h.random.Uint32())
	}
	return h.random.Uint64()
}

func (h *host) step() {
	if h.pc >= 0 && h.pc+5 <= len(h.code) && h.code[h.pc] == 0xc4 {
		h.fused(h.code[h.pc:min(h.pc+9, len(h.code))])
		return
	}
	if h.sha() {
		return
	}
	inst, ok := h.decoded[h.pc]
	if !ok {
		var err error
		if h.pc < 0 || h.pc >= len(h.code) {
			h.Errorf("control reaches %#x of %#x", h.pc, len(h.code))
			return
		}
		if inst, err = x86asm.Decode(h.code[h.pc:], 64); err != nil {
			h.Errorf("at %#x: %v: % x", h.pc, err, h.code[h.pc:min(h.pc+12, len(h.code))])
			return
		}
		h.decoded[h.pc] = inst
	}
	h.instructions++
	before := h.pc
	h.pc += inst.Len
	h.execute(&inst)
	if h.Failed() {
		h.Logf("at %#x: %v, registers %x", before, inst, h.r)
	}
}

// sha executes an operation of SHA-NI on vector registers (Intel's manual, volume 2, "SHA256RNDS2"), which golang.org/x/arch does not know. It is false
// for other instructions.
func (h *host) sha() bool {
	if h.pc < 0 || h.pc+5 > len(h.code) {
		return false
	}
	code := h.code[h.pc:][:5]
	if code[0]&0xf0 != 0x40 || code[1] != 0x0f || code[2] != 0x38 || code[3] < 0xcb || code[3] > 0xcd {
		return false
	}
	size := 5
	switch modrm := code[4]; {
	case code[0]&5 == 0 && modrm>>6 == 3 && modrm>>3&7 <= 5 && modrm&7 <= 5:
	case code[0] == 0x41 && modrm>>6 == 2 && modrm&7 == 7 && modrm>>3&7 <= 5:
		m := x86asm.Mem{Base: x86asm.R15, Disp: int64(int32(binary.LittleEndian.Uint32(h.code[h.pc+5:])))}
		if m.Disp&15 != 0 {
			h.Errorf("%v may not be aligned", m)
		}
		h.address(m, 16, x86asm.MOV, false)
		size += 4
	default:
		h.Errorf("at %#x: % x", h.pc, code)
	}
	h.pc += size
	h.instructions++
	return true
}

// fused is vfmadd132sd and its kin (Intel's manual, volume 2, "VFMADD132SD"), which golang.org/x/arch does not know.
func (h *host) fused(code []byte) {
	second := code[2] &^ 0x80
	if code[1] == 0xe2 && second == 0x71 && (code[3] == 0x98 || code[3] == 0x9c) && code[4] == 0xc2 { // of whole vectors
		h.pc += 5
		h.instructions++
		return
	}
	if len(code) < 9 || code[1] != 0xc2 || second != 0x71 || !slices.Contains([]byte{0x99, 0x9b, 0x9d, 0x9f}, code[3]) || code[4] != 0x87 {
		h.Errorf("at %#x: % x", h.pc, code)
		return
	}
	m := x86asm.Mem{Base: x86asm.R15, Disp: int64(int32(binary.LittleEndian.Uint32(code[5:])))}
	h.address(m, 8, x86asm.MOV, false)
	h.pc += len(code)
	h.instructions++
}

// number gives a register's number and how many bits an operand has.
func number(r x86asm.Reg) (n, size int) {
	switch {
	case r >= x86asm.AL && r <= x86asm.BL:
		return int(r - x86asm.AL), 8
	case r >= x86asm.SPB && r <= x86asm.R15B:
		return int(r-x86asm.SPB) + 4, 8
	case r >= x86asm.AX && r <= x86asm.R15W:
		return int(r - x86asm.AX), 16
	case r >= x86asm.EAX && r <= x86asm.R15L:
		return int(r - x86asm.EAX), 32
	case r >= x86asm.RAX && r <= x86asm.R15:
		return int(r - x86asm.RAX), 64
	}
	return -1, 0
}

func mask(size int) uint64 { return ^uint64(0) >> (64 - size) }

func signExtend(v uint64, size int) uint64 { return uint64(int64(v<<(64-size)) >> (64 - size)) }

// address of an operand in memory, which must be where the code may be.
func (h *host) address(m x86asm.Mem, bytes int, op x86asm.Op, write bool) uint64 {
	base, _ := number(m.Base)
	if base < 0 || m.Segment != 0 {
		h.Errorf("an operand without base: %v", m)
		return 0
	}
	address := h.r[base] + uint64(m.Disp)
	if m.Index != 0 {
		index, size := number(m.Index)
		if size != 64 {
			h.Errorf("an index of %d bits", size)
			return 0
		}
		address += h.r[index] * uint64(m.Scale)
	}
	const tableEnd = atTable + 16*verify.TableEntries
	inTable := address >= atTable && address < tableEnd
	switch {
	case op == x86asm.LEA:
	case inTable && op == x86asm.CMP && address%16 == 8 && bytes == 8:
	case inTable && op == x86asm.JMP && address%16 == 0 && bytes == 8:
	case op != x86asm.JMP && address >= atMemory && address-atMemory+uint64(bytes) <= verify.Reach:
	default:
		h.Errorf("%v reaches %#x, write %t", op, address, write)
	}
	return address
}

func (h *host) read(inst *x86asm.Inst, arg x86asm.Arg) (value uint64, size int) {
	switch a := arg.(type) {
	case x86asm.Reg:
		n, size := number(a)
		if n < 0 {
			h.Errorf("register %v", a)
			return 0, 64
		}
		if inst.Op != x86asm.LEA && n == 4 || n == 12 || n == 14 || n == 15 {
			h.Errorf("an address is read from %v", a)
		}
		return h.r[n] & mask(size), size
	case x86asm.Imm:
		return uint64(a), 64
	case x86asm.Mem:
		h.address(a, inst.MemBytes, inst.Op, false)
		return h.any() & mask(8*inst.MemBytes), 8 * inst.MemBytes
	}
	h.Errorf("operand %v", arg)
	return 0, 64
}

func (h *host) write(inst *x86asm.Inst, arg x86asm.Arg, value uint64) {
	switch a := arg.(type) {
	case x86asm.Reg:
		n, size := number(a)
		switch {
		case n < 0 || n == 4 || n == 12 || n == 14 || n == 15:
			h.Errorf("%v is written", a)
		case size >= 32:
			h.r[n] = value & mask(size)
		default:
			h.r[n] = h.r[n]&^mask(size) | value&mask(size)
		}
	case x86asm.Mem:
		h.address(a, inst.MemBytes, inst.Op, true)
	default:
		h.Errorf("operand %v is written", arg)
	}
}

// flags are those of a result; carry and overflow are given.
func (h *host) flags(result uint64, size int, carry, overflow bool) {
	h.zero, h.sign, h.carry, h.overflow = result&mask(size) == 0, result>>(size-1)&1 != 0, carry, overflow
	h.flagsKnown = true
}

func (h *host) condition(op x86asm.Op) bool {
	if !h.flagsKnown {
		return h.random.IntN(2) == 0
	}
	switch op {
	case x86asm.JE, x86asm.SETE, x86asm.CMOVE:
		return h.zero
	case x86asm.JNE, x86asm.SETNE, x86asm.CMOVNE:
		return !h.zero
	case x86asm.JL, x86asm.SETL, x86asm.CMOVL:
		return h.sign != h.overflow
	case x86asm.JGE, x86asm.SETGE, x86asm.CMOVGE:
		return h.sign == h.overflow
	case x86asm.JLE, x86asm.SETLE, x86asm.CMOVLE:
		return h.zero || h.sign != h.overflow
	case x86asm.JG, x86asm.SETG, x86asm.CMOVG:
		return !h.zero && h.sign == h.overflow
	case x86asm.JB, x86asm.SETB, x86asm.CMOVB:
		return h.carry
	case x86asm.JAE, x86asm.SETAE, x86asm.CMOVAE:
		return !h.carry
	case x86asm.JBE, x86asm.SETBE, x86asm.CMOVBE:
		return h.carry || h.zero
	case x86asm.JA, x86asm.SETA, x86asm.CMOVA:
		return !h.carry && !h.zero
	case x86asm.JS, x86asm.SETS, x86asm.CMOVS:
		return h.sign
	case x86asm.JNS, x86asm.SETNS, x86asm.CMOVNS:
		return !h.sign
	case x86asm.JO, x86asm.SETO, x86asm.CMOVO:
		return h.overflow
	case x86asm.JNO, x86asm.SETNO, x86asm.CMOVNO:
		return !h.overflow
	}
	return h.random.IntN(2) == 0 // of the parity
}

// scalar are operations on xmm registers whose operand in memory needs no alignment.
var scalar = map[x86asm.Op]bool{
	x86asm.MOVSD_XMM: true, x86asm.MOVSS: true, x86asm.ADDSD: true, x86asm.ADDSS: true, x86asm.SUBSD: true, x86asm.SUBSS: true, x86asm.MULSD: true, x86asm.MULSS: true,
	x86asm.DIVSD: true, x86asm.DIVSS: true, x86asm.SQRTSD: true, x86asm.SQRTSS: true, x86asm.CVTSD2SS: true, x86asm.CVTSS2SD: true, x86asm.UCOMISD: true, x86asm.UCOMISS: true,
	x86asm.CVTSI2SD: true, x86asm.CVTSI2SS: true, x86asm.CVTSD2SI: true, x86asm.CVTSS2SI: true, x86asm.CVTTSD2SI: true, x86asm.CVTTSS2SI: true, x86asm.MOVD: true,
}

// vector executes an operation on whole vector registers, whose values nothing depends on. It is false for others.
func (h *host) vector(inst *x86asm.Inst) bool {
	isVector := func(a x86asm.Arg) bool {
		r, ok := a.(x86asm.Reg)
		return ok && r >= x86asm.X0 && r <= x86asm.X15
	}
	if scalar[inst.Op] || inst.Op == x86asm.PMOVMSKB || !isVector(inst.Args[0]) && (!isVector(inst.Args[1]) || inst.Op == x86asm.MOVQ && inst.MemBytes == 0) {
		return false
	}
	for i, a := range inst.Args {
		if m, ok := a.(x86asm.Mem); ok {
			if m.Base != x86asm.R15 || m.Index != 0 || inst.MemBytes != 8 && m.Disp&15 != 0 {
				h.Errorf("%v may not be aligned", m)
			}
			h.address(m, max(inst.MemBytes, 8), x86asm.MOV, i == 0)
		} else if isVector(a) && a.(x86asm.Reg) > x86asm.X5 {
			h.Errorf("%v is used", a)
		}
	}
	return true
}

func (h *host) execute(inst *x86asm.Inst) {
	if h.vector(inst) {
		return
	}
	to, from := inst.Args[0], inst.Args[1]
	switch inst.Op {
	case x86asm.RET:
		if inst.Args[0] != nil || h.r[4] != atStack {
			h.Errorf("it returns with another stack")
		}
		h.pc, h.behind, h.done = h.behind, 0, h.behind == 0
	case x86asm.CALL:
		if h.behind != 0 {
			h.Errorf("a call in what was called")
		}
		h.behind = h.pc
		h.jump(to)
	case x86asm.JMP:
		if m, ok := to.(x86asm.Mem); ok {
			h.address(m, 8, inst.Op, false)
			if h.done = true; h.behind != 0 {
				h.Errorf("an entry is reached with another stack")
			}
			return
		}
		h.jump(to)
	case x86asm.JE, x86asm.JNE, x86asm.JL, x86asm.JGE, x86asm.JLE, x86asm.JG, x86asm.JB, x86asm.JAE, x86asm.JBE, x86asm.JA, x86asm.JS, x86asm.JNS,
		x86asm.JO, x86asm.JNO, x86asm.JP, x86asm.JNP:
		if h.condition(inst.Op) {
			h.jump(to)
		}
	case x86asm.MOV, x86asm.MOVZX:
		value, _ := h.read(inst, from)
		h.write(inst, to, value)
	case x86asm.MOVSX, x86asm.MOVSXD:
		value, size := h.read(inst, from)
		h.write(inst, to, signExtend(value, size))
	case x86asm.LEA:
		m := from.(x86asm.Mem)
		if base, _ := number(m.Base); base == 4 || base == 12 || base == 14 || base == 15 || m.Index != 0 {
			h.Errorf("an address is copied")
		}
		h.write(inst, to, h.address(m, 0, inst.Op, false))
	case x86asm.MOVSD_XMM, x86asm.MOVSS, x86asm.ADDSD, x86asm.ADDSS, x86asm.SUBSD, x86asm.SUBSS, x86asm.MULSD, x86asm.MULSS, x86asm.DIVSD, x86asm.DIVSS,
		x86asm.SQRTSD, x86asm.SQRTSS, x86asm.CVTSD2SS, x86asm.CVTSS2SD, x86asm.UCOMISD, x86asm.UCOMISS, x86asm.CVTSI2SD, x86asm.CVTSI2SS:
		if loads := inst.Op == x86asm.MOVSD_XMM || inst.Op == x86asm.MOVSS; to != x86asm.X0 && !(loads && to == x86asm.X1) {
			h.Errorf("%v is written", to)
		}
		h.read(inst, from)
		h.flagsKnown = h.flagsKnown && inst.Op != x86asm.UCOMISD && inst.Op != x86asm.UCOMISS
	case x86asm.CVTSD2SI, x86asm.CVTSS2SI, x86asm.CVTTSD2SI, x86asm.CVTTSS2SI:
		h.read(inst, from)
		h.write(inst, to, h.any())
	case x86asm.MOVD, x86asm.MOVQ:
		if from != x86asm.X0 {
			h.Errorf("%v is read", from)
		}
		h.write(inst, to, h.any())
	case x86asm.PMOVMSKB:
		if x, ok := from.(x86asm.Reg); !ok || x < x86asm.X0 || x > x86asm.X5 {
			h.Errorf("%v is read", from)
		}
		h.write(inst, to, h.any()&0xffff)
	case x86asm.SETO, x86asm.SETNO, x86asm.SETB, x86asm.SETAE, x86asm.SETE, x86asm.SETNE, x86asm.SETBE, x86asm.SETA,
		x86asm.SETS, x86asm.SETNS, x86asm.SETP, x86asm.SETNP, x86asm.SETL, x86asm.SETGE, x86asm.SETLE, x86asm.SETG:
		value := uint64(0)
		if h.condition(inst.Op) {
			value = 1
		}
		h.write(inst, to, value)
	case x86asm.BSWAP:
		value, _ := h.read(inst, to)
		h.write(inst, to, bits.ReverseBytes64(value))
	case x86asm.BSF, x86asm.BSR:
		value, size := h.read(inst, from)
		if value == 0 || size != 64 {
			h.write(inst, to, h.any()) // what is there then is not said
		} else if inst.Op == x86asm.BSF {
			h.write(inst, to, uint64(bits.TrailingZeros64(value)))
		} else {
			h.write(inst, to, uint64(63-bits.LeadingZeros64(value)))
		}
		h.flagsKnown = false
	case x86asm.CMOVO, x86asm.CMOVNO, x86asm.CMOVB, x86asm.CMOVAE, x86asm.CMOVE, x86asm.CMOVNE, x86asm.CMOVBE, x86asm.CMOVA,
		x86asm.CMOVS, x86asm.CMOVNS, x86asm.CMOVP, x86asm.CMOVNP, x86asm.CMOVL, x86asm.CMOVGE, x86asm.CMOVLE, x86asm.CMOVG:
		old, _ := h.read(inst, to)
		if value, _ := h.read(inst, from); h.condition(inst.Op) {
			old = value
		}
		h.write(inst, to, old)
	default:
		h.arithmetic(inst)
	}
}

func (h *host) jump(to x86asm.Arg) {
	rel, ok := to.(x86asm.Rel)
	if !ok {
		h.Errorf("a jump to %v", to)
		return
	}
	h.pc += int(rel)
}

func (h *host) arithmetic(inst *x86asm.Inst) {
	to, from := inst.Args[0], inst.Args[1]
	switch inst.Op {
	case x86asm.CDQ, x86asm.CQO:
		if size := inst.DataSize; inst.Op == x86asm.CQO {
			h.r[2] = uint64(int64(h.r[0]) >> 63)
		} else if size == 32 {
			h.r[2] = uint64(uint32(int32(h.r[0]) >> 31))
		}
		return
	case x86asm.MUL, x86asm.DIV, x86asm.IDIV:
		h.wide(inst)
		return
	case x86asm.MFENCE:
		return
	case x86asm.CMPXCHG:
		h.exchange(inst)
		return
	case x86asm.IMUL:
		if from == nil {
			h.wide(inst)
			return
		}
	}
	a, size := h.read(inst, to)
	b := uint64(0)
	if from != nil {
		b, _ = h.read(inst, from)
		b &= mask(size)
		if _, inMemory := from.(x86asm.Mem); inMemory && h.random.IntN(4) != 0 {
			b = a // the TLB has the page, the entry is the slot's
		}
	}
	bit := func(v uint64) bool { return v>>(size-1)&1 != 0 }
	var result uint64
	switch inst.Op {
	case x86asm.ADD:
		result = (a + b) & mask(size)
		h.flags(result, size, result < a, bit(a) == bit(b) && bit(result) != bit(a))
	case x86asm.SUB, x86asm.CMP:
		result = (a - b) & mask(size)
		h.flags(result, size, a < b, bit(a) != bit(b) && bit(result) != bit(a))
		if inst.Op == x86asm.CMP {
			return
		}
	case x86asm.NEG:
		result = -a
		h.flags(result, size, a != 0, a == 1<<(size-1))
	case x86asm.AND, x86asm.TEST:
		result = a & b
		h.flags(result, size, false, false)
		if inst.Op == x86asm.TEST {
			return
		}
	case x86asm.OR:
		result = a | b
		h.flags(result, size, false, false)
	case x86asm.XOR:
		result = a ^ b
		h.flags(result, size, false, false)
	case x86asm.IMUL:
		result = a * b
		h.flagsKnown = false
	case x86asm.ROL, x86asm.ROR:
		by := b & (uint64(size) - 1)
		if inst.Op == x86asm.ROR {
			by = (uint64(size) - by) & (uint64(size) - 1)
		}
		result = a<<by | a>>(uint64(size)-by)
		h.flagsKnown = false
	case x86asm.SHL, x86asm.SHR, x86asm.SAR:
		by := b & 63 & (uint64(size) - 1)
		result = map[x86asm.Op]uint64{x86asm.SHL: a << by, x86asm.SHR: a >> by, x86asm.SAR: uint64(int64(signExtend(a, size)) >> by)}[inst.Op]
		h.flagsKnown = false
	default:
		h.Errorf("instruction %v", inst)
		return
	}
	h.write(inst, to, result&mask(size))
}

// exchange is lock cmpxchg with memory, of which each value may be found.
func (h *host) exchange(inst *x86asm.Inst) {
	old, size := h.read(inst, inst.Args[0])
	value, _ := h.read(inst, inst.Args[1])
	locked := slices.ContainsFunc(inst.Prefix[:], func(p x86asm.Prefix) bool { return p&0xff == x86asm.PrefixLOCK&0xff && p != 0 })
	if _, inMemory := inst.Args[0].(x86asm.Mem); !inMemory || !locked {
		h.Errorf("%v is not atomic", inst)
	}
	if h.random.IntN(2) == 0 {
		h.write(inst, inst.Args[0], value)
	} else {
		h.r[0] = h.r[0]&^mask(size) | old&mask(size)
	}
	h.flagsKnown = false
}

// wide is multiplication and division of rdx:rax.
func (h *host) wide(inst *x86asm.Inst) {
	b, size := h.read(inst, inst.Args[0])
	a, upper := h.r[0]&mask(size), h.r[2]&mask(size)
	h.flagsKnown = false
	switch inst.Op {
	case x86asm.DIV:
		if b == 0 || upper >= b {
			h.Errorf("it divides %#x:%#x by %#x", upper, a, b)
			return
		}
	case x86asm.IDIV:
		if b == 0 || b == mask(size) && a == 1<<(size-1) || upper != uint64(int64(signExtend(a, size))>>63)&mask(size) {
			h.Errorf("it divides %#x:%#x by %#x with signs", upper, a, b)
			return
		}
	}
	switch {
	case size == 64 && inst.Op == x86asm.DIV:
		h.r[0], h.r[2] = bits.Div64(upper, a, b)
	case size == 64:
		h.r[0], h.r[2] = h.any(), h.any()
	default:
		h.r[0], h.r[2] = h.any()&mask(32), h.any()&mask(32)
	}
}
