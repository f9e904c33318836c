package amd64

import (
	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

// a64Flags are what is known of the flags, which the hart has as the operands of what set them: enum flags of src/arm64/hart.h.
type a64Flags struct {
	known  bool
	kind   int32 // if known; the largest that it may be, if looked
	looked bool  // not known, but kind is a bound
}

// NZCV, as fields of instructions and the upper bits of PSTATE have them.
const (
	flagV = 1 << iota
	flagC
	flagZ
	packedAt = 28
)

// hostConditions has the host's for a subtraction; the last two do not depend on flags.
var hostConditions = [14]byte{equal, notEqual, notBelow, below, negative, notNegative, overflow, notOverflow, above, belowOrEqual, notLess, less, greater, lessOrEqual}

// condition has the host's flags tell a condition, and gives the host's for it. It changes rax alone. When it cannot tell, the interpreter does.
func (t *a64Translator) condition(c byte) byte {
	host := hostConditions[c]
	f := t.flags
	needsCarry := c>>1 == 1 || c>>1 == 4
	if f.known && t.flagsAt == t.here() && (f.kind != blocks.FlagsLogic || !needsCarry) {
		return host
	}
	switch {
	case f.known && f.kind == blocks.FlagsLogic && needsCarry:
		t.noCarry()
	case f.known && f.kind == blocks.FlagsLogic:
		t.hart(true, opLoad, rax, t.layout.ARM64.FlagA)
		t.pair(true, opTest, rax, rax)
	case f.known:
		t.compareFlags(f.kind == blocks.FlagsSub64)
	default:
		t.unknownFlags(c)
	}
	return host
}

// noCarry has the host's flags say below, and not equal, so that it is not above whatever Z is.
func (t *a64Translator) noCarry() {
	t.constant(rax, 0)
	t.immediate(true, immediateCmp, rax, 1)
}

// unknownFlags compares the operands of flags of which is not known here what set them. Both operands have their sign when 32 bits count, so that it
// is only the sign of the difference that differs. Flags that no operands have are the interpreter's, where the block has not made such.
func (t *a64Translator) unknownFlags(c byte) {
	needsCarry, needsSign := c>>1 == 1 || c>>1 == 4, c>>1 == 2 || c>>1 == 3
	compared := int32(blocks.FlagsLogic) // up to which comparing 64 bits tells
	switch {
	case needsCarry:
		compared = blocks.FlagsSub32
	case needsSign:
		compared = blocks.FlagsSub64
	}
	known, largest := t.flags.looked, t.flags.kind
	if known && largest <= compared {
		t.compareFlags(true)
		return
	}
	packed, other, done := t.miss(), t.newLabel(), t.newLabel()
	if known && largest == blocks.FlagsPacked {
		packed = t.newLabel()
	}
	t.hart(true, opLoad, rax, t.layout.ARM64.Flags)
	if !known || largest == blocks.FlagsPacked {
		t.immediate(true, immediateCmp, rax, blocks.FlagsPacked)
		t.jumpIf(equal, packed)
	}
	switch {
	case needsCarry:
		t.immediate(true, immediateCmp, rax, blocks.FlagsLogic)
		t.jumpIf(notEqual, other)
		t.noCarry()
		t.jump(done)
		t.bind(other)
		t.compareFlags(true)
	case needsSign:
		t.immediate(true, immediateCmp, rax, blocks.FlagsSub32)
		t.jumpIf(equal, other)
		t.compareFlags(true)
		t.jump(done)
		t.bind(other)
		t.compareFlags(false)
	default:
		t.compareFlags(true)
	}
	if known && largest == blocks.FlagsPacked {
		t.jump(done)
		t.bind(packed)
		t.packedFlags(c)
	}
	t.bind(done)
	if !known {
		t.flags = a64Flags{kind: blocks.FlagsLogic, looked: true}
	}
}

// compareFlags compares the operands in the hart.
func (t *a64Translator) compareFlags(wide bool) {
	t.hart(true, opLoad, rax, t.layout.ARM64.FlagA)
	t.hart(wide, opCmpTo, rax, t.layout.ARM64.FlagB)
}

// setFlags sets the kind of the flags whose operands the hart has. The host's are not known to be the same.
func (t *a64Translator) setFlags(kind int32) {
	t.hartSet(t.layout.ARM64.Flags, kind)
	t.flags, t.flagsAt = a64Flags{known: true, kind: kind}, 0
}

// subtractFlags sets the flags of a - b, both in registers with their signs when it is of 32 bits.
func (t *a64Translator) subtractFlags(wide bool, a, b register) {
	t.hart(true, opMove, a, t.layout.ARM64.FlagA)
	t.hart(true, opMove, b, t.layout.ARM64.FlagB)
	t.setFlags(blocks.SizedFlags(wide))
}

// keepFlags notes that what was written since the flags were set does not change the host's.
func (t *a64Translator) keepFlags() { t.flagsAt = t.here() }

// packedFlags has the host's flags tell a condition by NZCV themselves, which the hart has in the first operand.
func (t *a64Translator) packedFlags(c byte) {
	const n, z, carry, v = -1 << 31, flagZ << packedAt, flagC << packedAt, flagV << packedAt
	a := t.layout.ARM64.FlagA
	t.hart(false, opLoad, rax, a)
	switch c >> 1 {
	case 0: // equal: Z
		t.immediate(false, immediateAnd, rax, z)
		t.immediate(false, immediateXor, rax, z)
	case 1: // not below: C
		t.immediate(false, immediateAnd, rax, carry)
		t.immediate(false, immediateCmp, rax, carry)
	case 2: // negative: N
		t.immediate(false, immediateAnd, rax, n)
	case 3: // overflow: V, which the smallest number minus 1 has
		t.shift(false, shiftLeft, rax, 3)
		t.immediate(false, immediateAnd, rax, n)
		t.immediate(false, immediateCmp, rax, 1)
	case 4: // above: C and not Z
		t.immediate(false, immediateAnd, rax, z|carry)
		t.immediate(false, immediateXor, rax, ^carry) // all ones, if so
		t.immediate(false, immediateCmp, rax, -2)
	case 5: // not less: N is V
		t.shift(false, shiftLeft, rax, 3)
		t.hart(false, opXorTo, rax, a)
		t.immediate(false, immediateAnd, rax, n)
	default: // greater: that and not Z
		t.shift(false, shiftLeft, rax, 3)
		t.hart(false, opXorTo, rax, a)
		t.shift(false, shiftRight, rax, packedAt+2) // Z, and above it N xor V
		t.unary(false, unaryNegate, rax)
		t.immediate(false, immediateCmp, rax, -1)
	}
}

// conditionalCompare is CCMP and CCMN.
func (t *a64Translator) conditionalCompare(w a64.Word) {
	wide, c := w.Wide(), byte(w.Field(12, 4))
	other := blocks.OperandsOf(w.Field(0, 4))
	immediate, value := w.Bit(11), int32(w.Rm())
	kind := blocks.SizedFlags(wide)
	no, done := t.newLabel(), t.newLabel()
	if c < 14 {
		t.jumpIf(t.condition(c)^1, no)
	}
	switch {
	case w.Bit(30):
	case immediate: // the flags of a + b are those of a - (-b), and of a alone when b is zero
		if value == 0 {
			kind = blocks.FlagsLogic
		}
		value = -value
	default:
		kind = blocks.FlagsLogic // or less
		t.extended(rcx, blocks.ZeroOf(w.Rm()), wide)
		t.addFlags(blocks.ZeroA64, blocks.ZeroOf(w.Rn()), wide)
	}
	if immediate || w.Bit(30) {
		t.extended(rax, blocks.ZeroOf(w.Rn()), wide)
		t.hart(true, opMove, rax, t.layout.ARM64.FlagA)
		if immediate {
			t.hartSet(t.layout.ARM64.FlagB, value)
		} else {
			t.extended(rax, blocks.ZeroOf(w.Rm()), wide)
			t.hart(true, opMove, rax, t.layout.ARM64.FlagB)
		}
		t.setFlags(kind)
	}
	if c >= 14 {
		return
	}
	t.jump(done)
	t.bind(no)
	t.hartSet64(t.layout.ARM64.FlagA, other.A)
	t.hartSet64(t.layout.ARM64.FlagB, other.B)
	t.hartSet(t.layout.ARM64.Flags, other.Kind)
	t.bind(done)
	t.flags = a64Flags{kind: max(other.Kind, kind), looked: true}
}

// hartSet64 sets a place in linear memory, which may change rax.
func (t *a64Translator) hartSet64(at uint32, value uint64) {
	if int64(value) == int64(int32(value)) {
		t.hartSet(at, int32(value))
		return
	}
	t.constant64(rax, value)
	t.hart(true, opMove, rax, at)
}

// conditionalSelect is CSEL, CSINC, CSINV and CSNEG.
func (t *a64Translator) conditionalSelect(w a64.Word) {
	c := byte(w.Field(12, 4))
	rn, rm, rd := blocks.ZeroOf(w.Rn()), blocks.ZeroOf(w.Rm()), blocks.ZeroOf(w.Rd())
	if c >= 14 {
		t.move32Or64(w.Wide(), rax, rn)
		t.setGuest(rd, rax)
		return
	}
	way := w.Field(30, 1)<<1 | w.Field(10, 1)
	if way == 1 && rn == blocks.ZeroA64 && rm == blocks.ZeroA64 { // CSET
		t.set(t.condition(c) ^ 1)
		t.setGuest(rd, rax)
		return
	}
	valid := t.flagsAt == t.here()
	keeps := rn != blocks.ZeroA64 && (way == 0 && rm != blocks.ZeroA64 || way == 1 && rm != blocks.ZeroA64)
	t.copyOf(rm, rdx)
	switch way {
	case 1:
		t.lea(true, rdx, rdx, 1)
	case 2:
		t.immediate(true, immediateXor, rdx, -1)
	case 3:
		t.unary(true, unaryNegate, rdx)
	}
	then := t.value(rn, rcx)
	if valid && keeps {
		t.keepFlags()
	}
	t.moveIf(true, t.condition(c), rdx, then)
	if !w.Wide() {
		t.move32(rdx, rdx)
	}
	t.setGuest(rd, rdx)
}

// extended loads a register into another, with the sign of its lower half when only that counts.
func (t *a64Translator) extended(to register, r uint8, wide bool) {
	if wide {
		t.copyOf(r, to)
		return
	}
	t.pair(true, opSignExtendWord, to, t.value(r, to))
}

// move32Or64 loads a register, or its lower half.
func (t *a64Translator) move32Or64(wide bool, to register, r uint8) {
	if wide {
		t.copyOf(r, to)
		return
	}
	t.move32(to, t.value(r, to))
}
