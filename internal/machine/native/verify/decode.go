package verify

import (
	"encoding/binary"

	"golang.org/x/sys/cpu"
)

// Features are FMA3, AES-NI, PCLMULQDQ and SHA-NI.
type Features struct{ Fused, AES, Carryless, SHA bool }

// Host is what this processor knows: the instructions of what it does not are none of the list.
var Host = Features{Fused: cpu.X86.HasFMA, AES: cpu.X86.HasAES, Carryless: cpu.X86.HasPCLMULQDQ, SHA: hasSHA()}

// Registers by their number in encodings, as far as they have a meaning of their own.
const (
	rax, rcx, rdx, rsp, tlb, budget, entries, memory = 0, 1, 2, 4, 12, 13, 14, 15
)

// form is a kind of instruction on the list.
type form int

const (
	formNone    form = iota
	formPair         // operation on two registers; rm is the destination
	formPairTo       // the same; reg is the destination
	formCompare      // of two registers
	formTest
	formMove   // register to register
	formExtend // al to reg, with zeros
	formSet    // of al
	formLea    // reg = rm + immediate
	formImmediate
	formConstant
	formShift
	formShiftCL
	formNegate
	formSwap     // of the bytes of rax
	formMultiply // rdx:rax = rax * rm
	formDivide
	formDivideSigned
	formSign // of rax into rdx
	formLoad // from memory to reg
	formCompareMemory
	formStore
	formExchange // rax with memory, locked
	formFence
	formAddMemory // an immediate operand
	formSetMemory
	formFloat            // on xmm0, or on xmm0 and xmm1, and memory; or a load of xmm1
	formFloatToRegister  // memory, as an integer, to reg
	formFloatFromInteger // rm, to xmm0
	formFloatBits        // of xmm0 to rm
	formVector           // on xmm0 to xmm5
	formVectorMemory     // on one of them and 16 aligned bytes of memory
	formVectorHalf       // on one of them and 8 bytes of memory
	formVectorMask       // of the signs of one of them to reg
	formJump
	formBranch
	formCall
	formJumpMemory
	formReturn
)

// instruction is a decoded one. Of reg, rm and the rest it has what its form needs.
type instruction struct {
	form      form
	size      int  // bytes of code
	wide      bool // 64 bits, otherwise 32, or fewer in memory
	operation byte // of an immediate operation or a shift; the condition of a branch
	reg, rm   int
	base      int // of an operand in memory: [base + index + distance]
	index     int // -1: none
	distance  int32
	immediate int32
}

// cursor reads bytes; behind the end there are zeros, and it has failed.
type cursor struct {
	code   []byte
	at     int
	failed bool
}

func (c *cursor) byte() byte {
	if c.at >= len(c.code) {
		c.failed = true
		return 0
	}
	c.at++
	return c.code[c.at-1]
}

func (c *cursor) word() int32 {
	if c.at+4 > len(c.code) {
		c.failed, c.at = true, len(c.code)
		return 0
	}
	c.at += 4
	return int32(binary.LittleEndian.Uint32(c.code[c.at-4:]))
}

// decode reads an instruction of the list. The form is formNone for anything else.
func decode(code []byte, at int) instruction {
	c := &cursor{code: code, at: at}
	i := c.instruction()
	i.size = c.at - at
	if c.failed {
		return instruction{}
	}
	return i
}

func (c *cursor) instruction() instruction {
	first := c.byte()
	switch {
	case first == 0xc3:
		return instruction{form: formReturn}
	case first == 0xe8:
		return instruction{form: formCall, immediate: c.word()}
	case first == 0xe9:
		return instruction{form: formJump, immediate: c.word()}
	case first == 0x0f && c.at < len(c.code) && c.code[c.at]&0xf0 == 0x80:
		return instruction{form: formBranch, operation: c.byte() & 15, immediate: c.word()}
	case first == 0x66: // a store of 16 bits, or on xmm0
		prefix := c.byte()
		if prefix&0xf0 != 0x40 {
			return instruction{}
		}
		switch op := c.byte(); {
		case op == 0x0f && c.at < len(c.code) && isVector(c.code[c.at]):
			return c.vector(prefix)
		case op == 0x0f:
			return c.float(first, prefix)
		case op == 0x89 && prefix&8 == 0:
			return c.inMemory(instruction{form: formStore}, prefix)
		}
		return instruction{}
	case first == 0xf2 || first == 0xf3:
		prefix := c.byte()
		if prefix&0xf0 != 0x40 || c.byte() != 0x0f {
			return instruction{}
		}
		if first == 0xf3 && c.at < len(c.code) && c.code[c.at] == 0x7e { // movq from memory
			c.at++
			return c.ofVectors(prefix, formNone, formVectorHalf)
		}
		return c.float(first, prefix)
	case first == 0xf0:
		return c.locked()
	case first == 0xc4:
		return c.fused()
	case first&0xf0 == 0x40:
		return c.prefixed(first)
	case first == 0x88: // without a prefix, some registers are not those of the list
		return instruction{}
	}
	c.at--
	return c.prefixed(0x40)
}

// prefixed decodes what follows a REX prefix, or is as if behind one without bits.
func (c *cursor) prefixed(prefix byte) instruction {
	i := instruction{wide: prefix&8 != 0}
	op := int(c.byte())
	if op == 0x0f {
		op = op<<8 | int(c.byte())
	}
	if op == 0x0fae {
		if prefix != 0x40 || c.byte() != 0xf0 { // mfence
			return instruction{}
		}
		return instruction{form: formFence}
	}
	if op == 0x0f2e {
		c.at--
		return c.float(0, prefix)
	}
	if op>>8 == 0x0f && isPacked(byte(op)) {
		return c.packed(byte(op), prefix)
	}
	if op == 0x0f38 {
		if op := c.byte(); !Host.SHA || op < 0xcb || op > 0xcd || i.wide { // sha256rnds2, sha256msg1, sha256msg2
			return instruction{}
		}
		return c.ofVectors(prefix, formVector, formVectorMemory)
	}
	if op == 0x0fc8 && prefix == 0x48 {
		i.form = formSwap
		return i
	}
	if op == 0x99 {
		if prefix&7 != 0 {
			return instruction{}
		}
		i.form = formSign
		return i
	}
	if op&^7 == 0xb8 { // mov
		if prefix&^1 != 0x40 {
			return instruction{}
		}
		i.form, i.rm, i.immediate = formConstant, op&7|int(prefix&1<<3), c.word()
		if i.immediate < 0 { // which is not extended with its sign, as the other form is
			return instruction{}
		}
		return i
	}
	if c.at >= len(c.code) {
		return instruction{}
	}
	if op == 0x8d {
		return c.lea(i, prefix)
	}
	if c.code[c.at]>>6 != 3 {
		return c.withMemory(i, prefix, op)
	}
	if prefix&2 != 0 {
		return instruction{}
	}
	modrm := c.byte()
	i.reg, i.rm = int(modrm>>3&7|prefix&4<<1), int(modrm&7|prefix&1<<3)
	i.operation = modrm >> 3 & 7
	switch op {
	case 0x01, 0x09, 0x21, 0x29, 0x31: // add, or, and, sub, xor
		i.form, i.operation = formPair, byte(op)
	case 0x39:
		i.form = formCompare
	case 0x85:
		i.form = formTest
	case 0x89:
		i.form = formMove
	case 0x63: // movsxd
		if i.wide {
			i.form = formPairTo
		}
	case 0x03, 0x0b, 0x23, 0x2b, 0x33, 0x0faf: // add, or, and, sub, xor, imul
		i.form = formPairTo
	case 0x0fb6:
		if !i.wide && i.rm == rax {
			i.form = formExtend
		}
	case 0x0fbc, 0x0fbd: // bsf, bsr of 64 bits, which leave other bits as they are
		if i.wide {
			i.form = formPairTo
		}
	default:
		switch op &^ 15 {
		case 0x0f40: // cmov of 64 bits
			if i.wide {
				i.form = formPairTo
			}
			return i
		case 0x0f90: // set of al
			if prefix == 0x40 && modrm == 0xc0 {
				i.form = formSet
			}
			return i
		}
		return c.numbered(i, prefix, op)
	}
	return i
}

// float decodes operations on xmm0 and memory, or xmm0 and a register, from the opcode behind 0x0f on. mandatory is the prefix before REX. None
// needs an aligned operand.
func (c *cursor) float(mandatory, prefix byte) instruction {
	i := instruction{wide: prefix&8 != 0}
	op := c.byte()
	if c.at >= len(c.code) {
		return instruction{}
	}
	scalar := mandatory == 0xf2 || mandatory == 0xf3
	if c.code[c.at]>>6 == 3 { // a register
		modrm := c.byte()
		i.rm = int(modrm&7 | prefix&1<<3)
		switch {
		case modrm&0x38 != 0 || prefix&6 != 0: // not xmm0
		case scalar && op == 0x2a: // cvtsi2sd, cvtsi2ss
			i.form = formFloatFromInteger
		case mandatory == 0x66 && op == 0x7e: // movq, movd
			i.form = formFloatBits
		}
		return i
	}
	switch {
	case scalar && (op == 0x2c || op == 0x2d): // cvttsd2si, cvttss2si, cvtsd2si, cvtss2si
		i.form = formFloatToRegister
	case scalar && op == 0x10 && c.code[c.at]&0x38 == 8 && prefix&4 == 0: // movs to xmm1
		i.form = formFloat
	case c.code[c.at]&0x38 != 0 || prefix&4 != 0: // not xmm0
	case scalar && (op == 0x10 || op == 0x51 || op >= 0x58 && op <= 0x5a || op == 0x5c || op == 0x5e), // movs, sqrts, adds, muls, cvt, subs, divs
		!scalar && op == 0x2e: // ucomisd, ucomiss
		i.form = formFloat
	}
	if i.form == formNone {
		return i
	}
	return c.inMemory(i, prefix)
}

// vectorOperations are the opcodes behind 66 0f of SSE2's operations on integers in vectors whose operand in memory has 16 bytes, and has to be aligned.
var vectorOperations = func() (list [256]bool) {
	for _, op := range []byte{
		0x60, 0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x6b, 0x6c, 0x6d, 0x6f, // punpckl, packss, pcmpgt, packus, punpckh, movdqa
		0x74, 0x75, 0x76, 0xd4, 0xd5, 0xd8, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xde, 0xdf, // pcmpeq, paddq, pmullw, psubus, pminub, pand, paddus, pmaxub, pandn
		0xe0, 0xe3, 0xe4, 0xe5, 0xe8, 0xe9, 0xea, 0xeb, 0xec, 0xed, 0xee, 0xef, // pavg, pmulh, psubs, pminsw, por, padds, pmaxsw, pxor
		0xf4, 0xf5, 0xf6, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, // pmuludq, pmaddwd, psadbw, psub, padd
	} {
		list[op] = true
	}
	return list
}()

// isPacked says whether an opcode behind 0f, with 66 before it or not, is an operation on all doubles or singles of vectors: sqrt, add, mul, cvt to the
// other precision, sub, min, div, max, cmp.
func isPacked(op byte) bool {
	return op == 0x51 || op >= 0x58 && op <= 0x5a || op >= 0x5c && op <= 0x5f || op == 0xc2
}

// packed decodes such an operation on two registers.
func (c *cursor) packed(op, prefix byte) instruction {
	if c.at < len(c.code) && c.code[c.at]>>6 != 3 {
		return instruction{}
	}
	i := c.ofVectors(prefix, formVector, formNone)
	if op == 0xc2 {
		return c.withByte(i)
	}
	return i
}

func isVector(op byte) bool {
	return vectorOperations[op] || isPacked(op) || op == 0xd7 || op == 0x38 || op == 0x3a || op >= 0x70 && op <= 0x73 || op == 0x7f || op == 0xd6
}

// vector decodes what follows 66, a REX prefix and 0f.
func (c *cursor) vector(prefix byte) instruction {
	op := c.byte()
	switch {
	case op == 0x38: // SSSE3 and SSE4.1
		switch op := c.byte(); {
		case op == 0x00 || op >= 0x1c && op <= 0x1e || op == 0x29 || op >= 0x38 && op <= 0x40: // pshufb, pabs, pcmpeqq, pmin and pmax, pmulld
			return c.ofVectors(prefix, formVector, formVectorMemory)
		case Host.AES && op >= 0xdb && op <= 0xdf: // aesimc, aesenc, aesenclast, aesdec, aesdeclast
			return c.ofVectors(prefix, formVector, formVectorMemory)
		case op == 0x20 || op == 0x23 || op == 0x25 || op == 0x30 || op == 0x33 || op == 0x35: // pmovsx, pmovzx to twice the size
			return c.ofVectors(prefix, formVector, formVectorHalf)
		}
		return instruction{}
	case op == 0x3a: // palignr, pclmulqdq
		if op := c.byte(); op != 0x0f && (op != 0x44 || !Host.Carryless) {
			return instruction{}
		}
		return c.withByte(c.ofVectors(prefix, formVector, formVectorMemory))
	case op == 0x70: // pshufd
		return c.withByte(c.ofVectors(prefix, formVector, formVectorMemory))
	case op >= 0x71 && op <= 0x73: // shifts by an immediate
		if c.at >= len(c.code) {
			return instruction{}
		}
		n := c.code[c.at] >> 3 & 7
		if c.code[c.at]>>6 != 3 || n != 2 && n != 6 && (n != 4 || op == 0x73) || prefix&4 != 0 {
			return instruction{}
		}
		if c.byte()&7 > 5 || prefix&3 != 0 {
			return instruction{}
		}
		return c.withByte(instruction{form: formVector})
	case isPacked(op):
		return c.packed(op, prefix)
	case op == 0xd7: // pmovmskb
		if c.at >= len(c.code) || c.code[c.at]>>6 != 3 || c.code[c.at]&7 > 5 || prefix != 0x40 {
			return instruction{}
		}
		return instruction{form: formVectorMask, reg: int(c.byte() >> 3 & 7)}
	case op == 0x7f: // movdqa to memory
		return c.ofVectors(prefix, formNone, formVectorMemory)
	case op == 0xd6: // movq to memory
		return c.ofVectors(prefix, formNone, formVectorHalf)
	}
	return c.ofVectors(prefix, formVector, formVectorMemory)
}

// withByte decodes an immediate byte behind an instruction.
func (c *cursor) withByte(i instruction) instruction {
	c.byte()
	return i
}

// ofVectors decodes the operands of an operation on xmm0 to xmm5 and one of them, or memory.
func (c *cursor) ofVectors(prefix byte, registers, inMemory form) instruction {
	if c.at >= len(c.code) || prefix&4 != 0 || c.code[c.at]>>3&7 > 5 {
		return instruction{}
	}
	if c.code[c.at]>>6 != 3 {
		return c.inMemory(instruction{form: inMemory}, prefix)
	}
	if c.byte()&7 > 5 || prefix&3 != 0 {
		return instruction{}
	}
	return instruction{form: registers}
}

// fused decodes vfmadd132sd xmm0, xmm1, [memory + distance] and its kin, and of whole vectors vfmadd132pd xmm0, xmm1, xmm2 and vfnmadd132pd, on
// processors that have them.
func (c *cursor) fused() instruction {
	prefix, second, op := c.byte(), c.byte(), c.byte()
	if Host.Fused && prefix == 0xe2 && second&^0x80 == 0x71 && op&^4 == 0x98 && c.byte() == 0xc2 {
		return instruction{form: formVector}
	}
	if !Host.Fused || prefix != 0xc2 || second&^0x80 != 0x71 || op&0xf9 != 0x99 || c.byte() != 0x87 {
		return instruction{}
	}
	return instruction{form: formFloat, base: memory, index: -1, distance: c.word()}
}

// locked decodes lock cmpxchg of 8 to 64 bits, behind the lock.
func (c *cursor) locked() instruction {
	prefix := c.byte()
	short := prefix == 0x66
	if short {
		prefix = c.byte()
	}
	i := instruction{form: formExchange, wide: prefix&8 != 0}
	if prefix&0xf0 != 0x40 || short && i.wide || c.byte() != 0x0f {
		return instruction{}
	}
	if op := c.byte(); op != 0xb1 && (op != 0xb0 || short || i.wide) {
		return instruction{}
	}
	if c.at >= len(c.code) || c.code[c.at]>>6 == 3 { // registers cannot be locked
		return instruction{}
	}
	return c.inMemory(i, prefix)
}

// numbered decodes operations whose number is where others have a register.
func (c *cursor) numbered(i instruction, prefix byte, op int) instruction {
	if prefix&4 != 0 {
		return instruction{}
	}
	switch n := i.operation; op {
	case 0x81, 0x83:
		if n == 2 || n == 3 { // adc, sbb
			return instruction{}
		}
		i.form = formImmediate
		if op == 0x81 {
			i.immediate = c.word()
		} else {
			i.immediate = int32(int8(c.byte()))
		}
	case 0xc7:
		if n == 0 && i.wide {
			i.form, i.immediate = formConstant, c.word()
		}
	case 0xc1, 0xd3:
		if n == 2 || n == 3 || n == 6 { // not rol, ror, shl, shr, sar
			return instruction{}
		}
		i.form = formShiftCL
		if op == 0xc1 {
			i.form, i.immediate = formShift, int32(c.byte())
		}
	case 0xf7:
		i.form = [8]form{3: formNegate, 4: formMultiply, 5: formMultiply, 6: formDivide, 7: formDivideSigned}[n]
	}
	return i
}

// lea decodes reg = register + distance, which touches no memory.
func (c *cursor) lea(i instruction, prefix byte) instruction {
	modrm := c.byte()
	mod, rm := modrm>>6, modrm&7
	if prefix&2 != 0 || mod == 0 || mod == 3 {
		return instruction{}
	}
	if rm == 4 && c.byte() != 0x24 {
		return instruction{}
	}
	i.form, i.reg, i.rm = formLea, int(modrm>>3&7|prefix&4<<1), int(rm|prefix&1<<3)
	if mod == 1 {
		i.immediate = int32(int8(c.byte()))
	} else {
		i.immediate = c.word()
	}
	return i
}

// withMemory decodes operations on memory.
func (c *cursor) withMemory(i instruction, prefix byte, op int) instruction {
	n := c.code[c.at] >> 3 & 7
	switch op {
	case 0x88:
		if !i.wide {
			i.form = formStore
		}
	case 0x89:
		i.form = formStore
	case 0x8b, 0x03, 0x0b, 0x23, 0x2b, 0x33, 0x0faf, 0x0fb6, 0x0fb7, 0x0fbe, 0x0fbf:
		i.form = formLoad
	case 0x63:
		if i.wide {
			i.form = formLoad
		}
	case 0x3b:
		i.form = formCompareMemory
	case 0x81, 0xc7:
		if n != 0 || !i.wide || prefix&4 != 0 {
			return instruction{}
		}
		i.form = formSetMemory
		if op == 0x81 {
			i.form = formAddMemory
		}
		if i = c.inMemory(i, prefix); i.form != formNone {
			i.immediate = c.word()
		}
		return i
	case 0xff:
		if n != 4 || i.wide || prefix&4 != 0 {
			return instruction{}
		}
		i.form = formJumpMemory
	}
	if i.form == formNone {
		return i
	}
	return c.inMemory(i, prefix)
}

// inMemory decodes the operand [base], [base + index], [base + index + distance] or [base + distance]. A distance of 8 bits is one behind an index.
func (c *cursor) inMemory(i instruction, prefix byte) instruction {
	modrm := c.byte()
	mod, rm := modrm>>6, modrm&7
	i.reg, i.index = int(modrm>>3&7|prefix&4<<1), -1
	switch {
	case rm == 4 && mod != 3:
		sib := c.byte()
		i.base, i.index = int(sib&7|prefix&1<<3), int(sib>>3&7|prefix&2<<2)
		if sib>>6 != 0 || sib&7 == 5 {
			return instruction{}
		}
		if i.index == rsp {
			i.index = -1
		}
	case mod == 2 && prefix&2 == 0:
		i.base = int(rm | prefix&1<<3)
	default:
		return instruction{}
	}
	switch mod {
	case 1:
		i.distance = int32(int8(c.byte()))
	case 2:
		i.distance = c.word()
	}
	return i
}
