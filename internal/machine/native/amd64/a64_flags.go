package amd64

// a64Flags are what is known of the flags, which the hart has as the operands of what set them: enum flags of src/arm64/hart.h.
type a64Flags struct {
	known  bool
	kind   int32 // if known; the largest that it may be, if looked
	looked bool  // not known, but kind is a bound
}

const (
	flagsSub64 = 0
	flagsSub32 = 1
	flagsLogic = 2
)

// sizedFlags is the kind of a subtraction.
func sizedFlags(wide bool) int32 {
	if wide {
		return flagsSub64
	}
	return flagsSub32
}

// hostConditions has the host's for a subtraction; the last two do not depend on flags.
var hostConditions = [14]byte{equal, notEqual, notBelow, below, negative, notNegative, overflow, notOverflow, above, belowOrEqual, notLess, less, greater, lessOrEqual}

// condition has the host's flags tell a condition, and gives the host's for it. It changes rax alone. When it cannot tell, the interpreter does.
func (t *a64Translator) condition(c byte) byte {
	host := hostConditions[c]
	f := t.flags
	needsCarry := c>>1 == 1 || c>>1 == 4
	needsSign := c>>1 == 2 || c>>1 == 3
	if f.known && t.flagsAt == t.here() && (f.kind != flagsLogic || !needsCarry) {
		return host
	}
	switch {
	case f.known && f.kind == flagsLogic:
		if needsCarry {
			t.jump(t.miss())
			return host
		}
		t.hart(true, opLoad, rax, t.layout.ARM64.FlagA)
		t.pair(true, opTest, rax, rax)
	case f.known:
		t.compareFlags(f.kind == flagsSub64)
	default:
		t.unknownFlags(needsCarry, needsSign)
	}
	return host
}

// unknownFlags compares the operands of flags of which is not known here what set them. Both operands have their sign when 32 bits count, so that it
// is only the sign of the difference that differs.
func (t *a64Translator) unknownFlags(needsCarry, needsSign bool) {
	most := int32(flagsLogic)
	if needsCarry {
		most = flagsSub32
	}
	if t.flags.looked && t.flags.kind <= most && !needsSign {
		t.compareFlags(true)
		return
	}
	other, done := t.newLabel(), t.newLabel()
	t.hart(true, opLoad, rax, t.layout.ARM64.Flags)
	t.immediate(true, immediateCmp, rax, most)
	switch {
	case needsCarry: // a logical operation has none
		t.jumpIf(belowOrEqual, other)
		t.immediate(true, immediateCmp, rax, flagsLogic)
		t.jumpIf(notEqual, t.miss())
		t.constant(rax, 0)
		t.immediate(true, immediateCmp, rax, 1) // below, and not equal: above is false whatever Z is
		t.jump(done)
		t.bind(other)
		t.compareFlags(true)
	case needsSign:
		t.jumpIf(above, t.miss())
		t.immediate(true, immediateCmp, rax, flagsSub32)
		t.jumpIf(equal, other)
		t.compareFlags(true)
		t.jump(done)
		t.bind(other)
		t.compareFlags(false)
	default:
		t.jumpIf(above, t.miss())
		t.flags = a64Flags{kind: most, looked: true}
		t.compareFlags(true)
		return
	}
	t.bind(done)
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
	t.setFlags(sizedFlags(wide))
}

// keepFlags notes that what was written since the flags were set does not change the host's.
func (t *a64Translator) keepFlags() { t.flagsAt = t.here() }

// nzcvOperands are operands of a subtraction of 64 bits with the flags NZCV, or of a logical operation; none has others. It is set_nzcv of src/arm64/flags.c.
var nzcvOperands = map[uint32]struct {
	kind, a, b int32
}{0: {flagsSub64, 0, -1}, 2: {flagsSub64, 1, 0}, 4: {flagsLogic, 0, 0}, 6: {flagsSub64, 0, 0}, 8: {flagsSub64, 0, 1}, 10: {flagsSub64, -1, 0}}

// conditionalCompare is CCMP and CCMN.
func (t *a64Translator) conditionalCompare(w a64Word) {
	wide, c := w.wide(), byte(w.field(12, 4))
	other, fits := nzcvOperands[w.field(0, 4)]
	immediate, value := w.bit(11), int32(w.rm())
	kind := sizedFlags(wide)
	if !w.bit(30) { // the flags of a + b are those of a - (-b), and of a alone when b is zero
		if !immediate {
			t.jump(t.miss())
			return
		}
		if value == 0 {
			kind = flagsLogic
		}
		value = -value
	}
	if !fits && c < 14 {
		t.jump(t.miss())
		return
	}
	no, done := t.newLabel(), t.newLabel()
	if c < 14 {
		t.jumpIf(t.condition(c)^1, no)
	}
	t.extended(rax, zr(w.rn()), wide)
	t.hart(true, opMove, rax, t.layout.ARM64.FlagA)
	if immediate {
		t.hartSet(t.layout.ARM64.FlagB, value)
	} else {
		t.extended(rax, zr(w.rm()), wide)
		t.hart(true, opMove, rax, t.layout.ARM64.FlagB)
	}
	t.setFlags(kind)
	if c >= 14 {
		return
	}
	t.jump(done)
	t.bind(no)
	t.hartSet(t.layout.ARM64.FlagA, other.a)
	t.hartSet(t.layout.ARM64.FlagB, other.b)
	t.hartSet(t.layout.ARM64.Flags, other.kind)
	t.bind(done)
	t.flags = a64Flags{kind: max(other.kind, kind), looked: true}
}

// conditionalSelect is CSEL, CSINC, CSINV and CSNEG.
func (t *a64Translator) conditionalSelect(w a64Word) {
	c := byte(w.field(12, 4))
	rn, rm, rd := zr(w.rn()), zr(w.rm()), zr(w.rd())
	if c >= 14 {
		t.move32Or64(w.wide(), rax, rn)
		t.setGuest(rd, rax)
		return
	}
	way := w.field(30, 1)<<1 | w.field(10, 1)
	if way == 1 && rn == zeroA64 && rm == zeroA64 { // CSET
		t.set(t.condition(c) ^ 1)
		t.setGuest(rd, rax)
		return
	}
	valid := t.flagsAt == t.here()
	keeps := rn != zeroA64 && (way == 0 && rm != zeroA64 || way == 1 && rm != zeroA64)
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
	if !w.wide() {
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
