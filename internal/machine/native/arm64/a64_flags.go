package arm64

import (
	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

const overflow = 6 // a condition

// storeFlag stores an operand of the flags, with its sign when only the lower half counts. It uses x3 then.
func (t *a64Translator) storeFlag(wide bool, at uint32, r register) {
	if !wide && r != zero {
		t.signExtend(x3, r)
		r = x3
	}
	t.inHart(access{size: 3, op: store}, r, t.inHartAt(at))
}

// storeOperands stores both. It uses x3 when they are of 32 bits.
func (t *a64Translator) storeOperands(wide bool, a, b register) {
	t.storeFlag(wide, t.layout.ARM64.FlagA, a)
	t.storeFlag(wide, t.layout.ARM64.FlagB, b)
}

// setFlags sets the kind of the flags whose operands the hart has. It uses x3.
func (t *a64Translator) setFlags(kind int32) {
	t.flagsAreKnown, t.flags = true, kind
	r := zero
	if kind != 0 {
		r = x3
		t.constant(x3, int64(kind))
	}
	t.inHart(access{size: 3, op: store}, r, t.inHartAt(t.layout.ARM64.Flags))
}

// loadFlags makes the host's flags the guest's. It uses x0, x2 and x3.
func (t *a64Translator) loadFlags() {
	if t.isGuests {
		return
	}
	word := access{size: 3, op: load}
	if !t.flagsAreKnown {
		t.inHart(word, x3, t.inHartAt(t.layout.ARM64.Flags))
	}
	t.inHart(word, x0, t.inHartAt(t.layout.ARM64.FlagA))
	if !t.flagsAreKnown || t.flags != blocks.FlagsLogic {
		t.inHart(word, x2, t.inHartAt(t.layout.ARM64.FlagB))
	}
	if t.flagsAreKnown {
		t.compareFlags(t.flags)
	} else {
		other, narrow, done := t.newLabel(), t.newLabel(), t.newLabel()
		t.compareWith(x3, blocks.FlagsSub32)
		t.jumpIf(above, other)
		t.jumpIf(equal, narrow)
		t.compareFlags(blocks.FlagsSub64)
		t.jump(done)
		t.bind(other)
		t.compareWith(x3, blocks.FlagsLogic)
		t.jumpIf(notEqual, t.miss())
		t.compareFlags(blocks.FlagsLogic)
		t.jump(done)
		t.bind(narrow)
		t.compareFlags(blocks.FlagsSub32)
		t.bind(done)
	}
	t.isGuests = true
}

// compareFlags makes the flags those of the operands in x0 and x2.
func (t *a64Translator) compareFlags(kind int32) {
	if kind == blocks.FlagsLogic {
		t.three(true, opAnds, zero, x0, x0)
		return
	}
	t.compare(kind == blocks.FlagsSub64, x0, x2)
}

// conditionalCompare is CCMP and CCMN.
func (t *a64Translator) conditionalCompare(w a64.Word) {
	wide, immediate, subtracts := w.Wide(), w.Bit(11), w.Bit(30)
	if !subtracts && !immediate {
		t.jump(t.miss())
		return
	}
	t.either(w, func() {
		a := t.value(blocks.ZeroOf(w.Rn()), x0)
		if !immediate {
			t.subtract(wide, zero, a, t.value(blocks.ZeroOf(w.Rm()), x2))
			return
		}
		if a == zero { // immediate forms have the stack pointer there
			a = x0
			t.constant(x0, 0)
		}
		t.compareImmediate(wide, subtracts, zero, a, uint32(w.Rm()), 0)
	})
}

// either compares when a condition holds; otherwise the flags are those that the instruction has.
func (t *a64Translator) either(w a64.Word, compare func()) {
	c := byte(w.Field(12, 4))
	if c >= 14 { // always
		compare()
		return
	}
	other := blocks.OperandsOf(w.Field(0, 4))
	no, done := t.newLabel(), t.newLabel()
	t.loadFlags()
	t.jumpIf(c^1, no)
	compare()
	t.jump(done)
	t.bind(no)
	t.constant(x0, int64(other.A))
	t.constant(x2, int64(other.B))
	t.storeOperands(true, x0, x2)
	t.setFlags(other.Kind)
	isPacked := other.Kind == blocks.FlagsPacked // of no subtraction
	if !isPacked {
		t.compareFlags(other.Kind)
	}
	t.bind(done)
	t.flagsAreKnown, t.isGuests = false, !isPacked
}

// compareImmediate is SUBS or ADDS with an immediate operand. The flags of a + b are those of a - (-b), and of a alone when b is zero.
func (t *a64Translator) compareImmediate(wide, subtracts bool, to, a register, value, shift uint32) {
	kind, b, op := blocks.SizedFlags(wide), int64(value)<<shift, uint32(immediateSubs)
	if !subtracts {
		if b == 0 {
			kind = blocks.FlagsLogic
		}
		b, op = -b, immediateAdds
	}
	second := zero
	if b != 0 {
		second = x1
		t.constant(x1, b)
	}
	t.storeFlag(wide, t.layout.ARM64.FlagA, a)
	t.storeFlag(true, t.layout.ARM64.FlagB, second)
	t.setFlags(kind)
	if shift != 0 {
		op |= shiftedBy12
	}
	t.immediate(op&^(1<<31)|wideBit(wide), to, a, value)
	t.isGuests = true
}

// subtract is SUBS.
func (t *a64Translator) subtract(wide bool, to, a, b register) {
	t.storeOperands(wide, a, b)
	t.setFlags(blocks.SizedFlags(wide))
	t.three(wide, opSubs, to, a, b)
	t.isGuests = true
}

// sum is ADDS: a - (-b), and of a alone when b is zero.
func (t *a64Translator) sum(wide bool, to, a, b register) {
	t.three(wide, opSubs, x1, zero, b)
	t.jumpIf(overflow, t.miss()) // there is no -b
	t.storeFlag(wide, t.layout.ARM64.FlagB, x1)
	t.constant(x1, 1)
	kind := x1
	if wide {
		kind = zero
	}
	t.choose(true, opSelectInc, notEqual, x3, kind, x1) // FlagsLogic is 2
	t.inHart(access{size: 3, op: store}, x3, t.inHartAt(t.layout.ARM64.Flags))
	t.storeFlag(wide, t.layout.ARM64.FlagA, a)
	t.three(wide, opAdds, to, a, b)
	t.flagsAreKnown, t.isGuests = false, true
}
