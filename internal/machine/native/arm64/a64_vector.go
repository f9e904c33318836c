package arm64

import (
	"strings"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

// a64Vector translates instructions on vector registers to themselves: the registers are the host's. Some name a general register, or the flags.
func a64Vector(row *a64.Instruction) a64Emitter {
	emit := func(t *a64Translator, w a64.Word) { t.word(uint32(w)) }
	name, _, _ := strings.Cut(row.Name, ".")
	reads := func(t *a64Translator, w a64.Word) { t.into(register(w.Rd()), w, firstOperand) }
	writes := func(t *a64Translator, w a64.Word) { t.same(w, 0) }
	switch row.Format {
	case a64.FormatFPINT, a64.FormatFPFIX:
		emit = writes
		if opcode := row.Bits.Match >> 16 & 7; opcode>>1 == 1 || opcode == 7 { // SCVTF, UCVTF, FMOV from a register
			emit = reads
		}
	case a64.FormatVC:
		switch {
		case row.Name == "dup.r", row.Name == "ins.r":
			emit = reads
		case name == "smov", name == "umov":
			emit = writes
		}
	case a64.FormatFPC:
		emit = (*a64Translator).compareFloats
	case a64.FormatFPCC:
		emit = (*a64Translator).conditionalCompareFloats
	case a64.FormatFPSEL:
		emit = func(t *a64Translator, w a64.Word) {
			if w.Field(12, 4) < 14 {
				t.loadFlags()
			}
			t.word(uint32(w))
		}
	}
	return func(t *a64Translator, w a64.Word) {
		t.vectorsOn()
		emit(t, w)
	}
}

// compareFloats is FCMP and FCMPE.
func (t *a64Translator) compareFloats(w a64.Word) {
	const ignored = 31 << 16 // in a comparison with zero
	if w.Bit(3) {
		w &^= ignored
	}
	t.word(uint32(w))
	t.floatFlags()
}

// floatFlags keeps the flags that the host has as those of a subtraction: 0 - 1 is less, 0 - 0 equal and 1 - 0 greater, and the smallest number - 1 is
// unordered (set_nzcv of src/arm64/flags.c).
func (t *a64Translator) floatFlags() {
	t.set(x0, greater)
	t.set(x1, overflow)
	t.shiftLeft(x1, x1, 63)
	t.three(true, opOr, x0, x0, x1)
	t.set(x1, less)
	t.storeOperands(true, x0, x1)
	t.setFlags(blocks.FlagsSub64)
	t.isGuests = true
}

// conditionalCompareFloats is FCCMP and FCCMPE.
func (t *a64Translator) conditionalCompareFloats(w a64.Word) {
	const compare, signals = 0x1e202000, 1 << 4
	t.either(w, func() {
		t.word(compare | uint32(w)&(3<<22|31<<16|31<<5|signals))
		t.floatFlags()
	})
}
