package machine_test

import (
	"encoding/binary"
	"math/big"
	"math/bits"

	"agentvm/internal/machine"
	"agentvm/internal/machine/riscv"
)

// The model: what each instruction does, written from the manual and independently of the machine's C. It works on a
// hartState and a copy of the data area.

// Exception causes.
const (
	causeIllegal         = 2
	causeBreakpoint      = 3
	causeLoadMisaligned  = 4
	causeLoadAccess      = 5
	causeStoreMisaligned = 6
	causeStoreAccess     = 7
	causeECallM          = 11
)

func signExtend(v uint64, width uint) uint64 { return uint64(int64(v<<(64-width)) >> (64 - width)) }
func word32(v uint64) uint64                 { return signExtend(v, 32) }
func low32(v uint64) uint64                  { return v & 0xffff_ffff }
func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// binaryModels are the operations of two values; immediates and shift amounts are the second.
var binaryModels = map[string]func(a, b uint64) uint64{
	"add":  func(a, b uint64) uint64 { return a + b },
	"sub":  func(a, b uint64) uint64 { return a - b },
	"sll":  func(a, b uint64) uint64 { return a << (b % 64) },
	"slt":  func(a, b uint64) uint64 { return truth(int64(a) < int64(b)) },
	"sltu": func(a, b uint64) uint64 { return truth(a < b) },
	"xor":  func(a, b uint64) uint64 { return a ^ b },
	"srl":  func(a, b uint64) uint64 { return a >> (b % 64) },
	"sra":  func(a, b uint64) uint64 { return uint64(int64(a) >> (b % 64)) },
	"or":   func(a, b uint64) uint64 { return a | b },
	"and":  func(a, b uint64) uint64 { return a & b },
	"addw": func(a, b uint64) uint64 { return word32(a + b) },
	"subw": func(a, b uint64) uint64 { return word32(a - b) },
	"sllw": func(a, b uint64) uint64 { return word32(a << (b % 32)) },
	"srlw": func(a, b uint64) uint64 { return word32(low32(a) >> (b % 32)) },
	"sraw": func(a, b uint64) uint64 { return uint64(int64(int32(a)) >> (b % 32)) },

	"mul":    func(a, b uint64) uint64 { return a * b },
	"mulh":   func(a, b uint64) uint64 { return highProduct(signed(a), signed(b)) },
	"mulhsu": func(a, b uint64) uint64 { return highProduct(signed(a), unsigned(b)) },
	"mulhu":  func(a, b uint64) uint64 { return highProduct(unsigned(a), unsigned(b)) },
	"div":    func(a, b uint64) uint64 { return quotient(signed(a), signed(b)) },
	"divu":   func(a, b uint64) uint64 { return quotient(unsigned(a), unsigned(b)) },
	"rem":    func(a, b uint64) uint64 { return remainder(signed(a), signed(b)) },
	"remu":   func(a, b uint64) uint64 { return remainder(unsigned(a), unsigned(b)) },
	"mulw":   func(a, b uint64) uint64 { return word32(a * b) },
	"divw":   func(a, b uint64) uint64 { return word32(quotient(signed(word32(a)), signed(word32(b)))) },
	"divuw":  func(a, b uint64) uint64 { return word32(quotient(unsigned(low32(a)), unsigned(low32(b)))) },
	"remw":   func(a, b uint64) uint64 { return word32(remainder(signed(word32(a)), signed(word32(b)))) },
	"remuw":  func(a, b uint64) uint64 { return word32(remainder(unsigned(low32(a)), unsigned(low32(b)))) },

	"add.uw":    func(a, b uint64) uint64 { return b + low32(a) },
	"sh1add":    func(a, b uint64) uint64 { return b + 2*a },
	"sh2add":    func(a, b uint64) uint64 { return b + 4*a },
	"sh3add":    func(a, b uint64) uint64 { return b + 8*a },
	"sh1add.uw": func(a, b uint64) uint64 { return b + 2*low32(a) },
	"sh2add.uw": func(a, b uint64) uint64 { return b + 4*low32(a) },
	"sh3add.uw": func(a, b uint64) uint64 { return b + 8*low32(a) },
	"slli.uw":   func(a, b uint64) uint64 { return low32(a) << b },
	"andn":      func(a, b uint64) uint64 { return a &^ b },
	"orn":       func(a, b uint64) uint64 { return a | ^b },
	"xnor":      func(a, b uint64) uint64 { return ^a ^ b },
	"min":       func(a, b uint64) uint64 { return uint64(min(int64(a), int64(b))) },
	"minu":      func(a, b uint64) uint64 { return min(a, b) },
	"max":       func(a, b uint64) uint64 { return uint64(max(int64(a), int64(b))) },
	"maxu":      func(a, b uint64) uint64 { return max(a, b) },
	"rol":       func(a, b uint64) uint64 { return bits.RotateLeft64(a, int(b%64)) },
	"ror":       func(a, b uint64) uint64 { return bits.RotateLeft64(a, -int(b%64)) },
	"rolw":      func(a, b uint64) uint64 { return word32(uint64(bits.RotateLeft32(uint32(a), int(b%32)))) },
	"rorw":      func(a, b uint64) uint64 { return word32(uint64(bits.RotateLeft32(uint32(a), -int(b%32)))) },
}

// immediateModels are the rows that do one of binaryModels with an immediate.
var immediateModels = map[string]string{
	"addi": "add", "slti": "slt", "sltiu": "sltu", "xori": "xor", "ori": "or", "andi": "and", "slli": "sll",
	"srli": "srl", "srai": "sra", "addiw": "addw", "slliw": "sllw", "srliw": "srlw", "sraiw": "sraw",
	"rori": "ror", "roriw": "rorw", "slli.uw": "slli.uw",
}

var unaryModels = map[string]func(a uint64) uint64{
	"clz":    func(a uint64) uint64 { return uint64(bits.LeadingZeros64(a)) },
	"ctz":    func(a uint64) uint64 { return uint64(bits.TrailingZeros64(a)) },
	"cpop":   func(a uint64) uint64 { return uint64(bits.OnesCount64(a)) },
	"clzw":   func(a uint64) uint64 { return uint64(bits.LeadingZeros32(uint32(a))) },
	"ctzw":   func(a uint64) uint64 { return uint64(bits.TrailingZeros32(uint32(a))) },
	"cpopw":  func(a uint64) uint64 { return uint64(bits.OnesCount32(uint32(a))) },
	"sext.b": func(a uint64) uint64 { return signExtend(a, 8) },
	"sext.h": func(a uint64) uint64 { return signExtend(a, 16) },
	"zext.h": func(a uint64) uint64 { return a % 65536 },
	"rev8":   bits.ReverseBytes64,
	"orc.b": func(a uint64) uint64 {
		var result uint64
		for i := 0; i < 64; i += 8 {
			if a>>i%256 != 0 {
				result |= 255 << i
			}
		}
		return result
	},
}

func signed(v uint64) *big.Int   { return big.NewInt(int64(v)) }
func unsigned(v uint64) *big.Int { return new(big.Int).SetUint64(v) }

// bits64 is a number modulo 2^64.
func bits64(v *big.Int) uint64 {
	return new(big.Int).And(v, unsigned(^uint64(0))).Uint64() // And works in two's complement
}

func highProduct(a, b *big.Int) uint64 {
	product := new(big.Int).Mul(a, b)
	return bits64(product.Rsh(product, 64)) // Rsh rounds down, as two's complement needs
}

func quotient(a, b *big.Int) uint64 {
	if b.Sign() == 0 {
		return ^uint64(0)
	}
	return bits64(new(big.Int).Quo(a, b))
}

func remainder(a, b *big.Int) uint64 {
	if b.Sign() == 0 {
		return bits64(a)
	}
	return bits64(new(big.Int).Rem(a, b))
}

var branchModels = map[string]func(a, b uint64) bool{
	"beq":  func(a, b uint64) bool { return a == b },
	"bne":  func(a, b uint64) bool { return a != b },
	"blt":  func(a, b uint64) bool { return int64(a) < int64(b) },
	"bge":  func(a, b uint64) bool { return int64(a) >= int64(b) },
	"bltu": func(a, b uint64) bool { return a < b },
	"bgeu": func(a, b uint64) bool { return a >= b },
}

// access is what a load or store moves.
type access struct {
	size   uint64
	signed bool
	float  bool
}

var loadModels = map[string]access{
	"lb": {1, true, false}, "lh": {2, true, false}, "lw": {4, true, false}, "ld": {8, true, false},
	"lbu": {1, false, false}, "lhu": {2, false, false}, "lwu": {4, false, false},
	"flw": {4, false, true}, "fld": {8, false, true},
}

var storeModels = map[string]access{
	"sb": {1, false, false}, "sh": {2, false, false}, "sw": {4, false, false}, "sd": {8, false, false},
	"fsw": {4, false, true}, "fsd": {8, false, true},
}

var amoModels = map[string]func(old, operand uint64, width uint) uint64{
	"amoswap": func(_, b uint64, _ uint) uint64 { return b },
	"amoadd":  func(a, b uint64, _ uint) uint64 { return a + b },
	"amoxor":  func(a, b uint64, _ uint) uint64 { return a ^ b },
	"amoand":  func(a, b uint64, _ uint) uint64 { return a & b },
	"amoor":   func(a, b uint64, _ uint) uint64 { return a | b },
	"amomin":  func(a, b uint64, w uint) uint64 { return uint64(min(int64(signExtend(a, w)), int64(signExtend(b, w)))) },
	"amomax":  func(a, b uint64, w uint) uint64 { return uint64(max(int64(signExtend(a, w)), int64(signExtend(b, w)))) },
	"amominu": func(a, b uint64, w uint) uint64 { return min(a<<(64-w), b<<(64-w)) >> (64 - w) },
	"amomaxu": func(a, b uint64, w uint) uint64 { return max(a<<(64-w), b<<(64-w)) >> (64 - w) },
}

// modelHart is a state together with the memory that loads and stores of a case may touch.
type modelHart struct {
	hartState
	data []byte // the rig's data area
}

// expand gives the 32-bit instruction that a 16-bit one stands for. Source: the manual's chapter "C".
func expand(row *riscv.Instruction, o riscv.Operands) (string, riscv.Operands) {
	const ra, sp = 1, 2
	switch row.Format {
	case riscv.FormatCIW:
		o.Rs1 = sp
	case riscv.FormatCNOP:
		o.Imm = 0
	case riscv.FormatCI, riscv.FormatCIW1, riscv.FormatCBSH, riscv.FormatCBI, riscv.FormatCA, riscv.FormatCISH, riscv.FormatCADD:
		o.Rs1 = o.Rd
	case riscv.FormatCI16:
		o.Rd, o.Rs1 = sp, sp
	case riscv.FormatCIFD, riscv.FormatCILW, riscv.FormatCILD, riscv.FormatCSSFD, riscv.FormatCSSW, riscv.FormatCSSD:
		o.Rs1 = sp
	case riscv.FormatCJALR:
		o.Rd = ra
	}
	return row.Expands, o
}

func (h *modelHart) setX(rd uint8, value uint64) {
	if rd != 0 {
		h.X[rd] = value
	}
}

// trap enters the handler. PC is still that of the instruction.
func (h *modelHart) trap(cause, value uint64) {
	h.MEPC, h.MCause, h.MTVal = h.PC, cause, value
	h.Trapped, h.PC = true, rigHandler
	mie := h.MStatus >> 3 & 1
	h.MStatus = h.MStatus&^(1<<3|1<<7) | mie<<7 | 3<<11
}

// bytes gives the memory of an access, or where it leaves the RAM.
func (h *modelHart) bytes(address, size uint64) (_ []byte, fault uint64) {
	if address-rigData < rigDataLen && size <= rigDataLen-(address-rigData) {
		return h.data[address-rigData:][:size], 0
	}
	for i := range size {
		if a := address + i; a < machine.RAMBase || a >= ramEnd {
			return nil, a
		}
	}
	panic("a case reaches RAM outside of the data area")
}

func (h *modelHart) load(address uint64, a access) (uint64, bool) {
	from, fault := h.bytes(address, a.size)
	if from == nil {
		h.trap(causeLoadAccess, fault)
		return 0, false
	}
	var padded [8]byte
	copy(padded[:], from)
	value := binary.LittleEndian.Uint64(padded[:])
	if a.signed {
		value = signExtend(value, uint(8*a.size))
	}
	return value, true
}

func (h *modelHart) store(address, value uint64, a access) bool {
	to, fault := h.bytes(address, a.size)
	if to == nil {
		h.trap(causeStoreAccess, fault)
		return false
	}
	var padded [8]byte
	binary.LittleEndian.PutUint64(padded[:], value)
	copy(to, padded[:])
	return true
}
