package arm64

import (
	"sync"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

// a64Emitters has the rows that are translated. Branches, and what depends on more than the row, are not among them.
// It is made for the first page.
var a64Emitters = sync.OnceValue(func() map[*a64.Instruction]a64Emitter {
	all := map[*a64.Instruction]a64Emitter{}
	for i := range a64.Table {
		row := &a64.Table[i]
		if e := a64EmitterOf(row); e != nil {
			all[row] = e
		}
	}
	return all
})

// a64Choose gives what translates an instruction, nil: the interpreter executes it.
func a64Choose(d *blocks.A64) a64Emitter {
	if d.Row.Group == "system" {
		return a64System(d)
	}
	return a64Emitters()[d.Row]
}

func a64EmitterOf(row *a64.Instruction) a64Emitter {
	switch row.Group {
	case "branch":
		if row.Format == a64.FormatADR {
			return (*a64Translator).addressOf
		}
	case "nop":
		return func(*a64Translator, a64.Word) {}
	case "alu":
		return a64ALU(row)
	case "memory", "vmemory":
		return a64Memory(row)
	case "structure":
		return (*a64Translator).structure
	case "exclusive":
		return a64Exclusive(row)
	case "atomic":
		return a64Atomic(row)
	case "fp", "simd", "vfp", "crypto":
		return a64Vector(row)
	}
	return nil
}

func a64ALU(row *a64.Instruction) a64Emitter {
	switch row.Format {
	case a64.FormatADDI:
		return (*a64Translator).addImmediate
	case a64.FormatLOGI:
		return (*a64Translator).logicImmediate
	case a64.FormatMOVW:
		return (*a64Translator).moveWide
	case a64.FormatBFM:
		return (*a64Translator).bitField
	case a64.FormatSHIFT:
		return (*a64Translator).shiftedRegister
	case a64.FormatEXT:
		return (*a64Translator).extendedRegister
	case a64.FormatCC:
		return (*a64Translator).conditionalCompare
	case a64.FormatCSEL:
		return (*a64Translator).conditionalSelect
	case a64.FormatR2:
		return func(t *a64Translator, w a64.Word) { t.same(w, firstOperand) }
	case a64.FormatEXTR:
		return func(t *a64Translator, w a64.Word) { t.same(w, firstOperand|secondOperand) }
	case a64.FormatR3:
		switch row.Name {
		case "adcs.w", "adcs.x", "sbcs.w", "sbcs.x":
			return (*a64Translator).withCarryAndFlags
		case "adc.w", "adc.x", "sbc.w", "sbc.x":
			return func(t *a64Translator, w a64.Word) {
				t.loadFlags()
				t.same(w, firstOperand|secondOperand)
			}
		case "smulh", "umulh":
			const ignored = 31 << 10 // which are ones
			return func(t *a64Translator, w a64.Word) { t.same(w|ignored, firstOperand|secondOperand) }
		}
		return func(t *a64Translator, w a64.Word) { t.same(w, firstOperand|secondOperand) }
	case a64.FormatR4:
		return func(t *a64Translator, w a64.Word) { t.same(w, firstOperand|secondOperand|thirdOperand) }
	}
	return nil
}

// operands is a set of register fields of an instruction.
type operands uint8

const (
	firstOperand  operands = 1 << iota // Rn
	secondOperand                      // Rm
	thirdOperand                       // Ra
	oldResult                          // Rd, of which a part stays
	stackFirst                         // of which number 31 is SP
	stackResult                        // of Rd, too
)

// same writes an instruction that sets a register as it is, except the numbers of registers.
func (t *a64Translator) same(w a64.Word, o operands) {
	rd := w.Rd()
	if o&stackResult == 0 {
		rd = blocks.ZeroOf(rd)
	}
	to := t.to(rd)
	if o&oldResult != 0 {
		if to == x0 {
			to = x1
		}
		t.copyOf(rd, to)
	}
	t.into(to, w, o)
	t.setGuest(rd, to)
}

// into writes an instruction with other registers, of which one is given.
func (t *a64Translator) into(to register, w a64.Word, o operands) {
	out := uint32(w)&^31 | uint32(to)
	put := func(at uint, r register) { out = out&^(31<<at) | uint32(r)<<at }
	if o&firstOperand != 0 {
		rn := w.Rn()
		if o&stackFirst == 0 {
			rn = blocks.ZeroOf(rn)
		}
		put(5, t.value(rn, x0))
	}
	if o&secondOperand != 0 {
		put(16, t.value(blocks.ZeroOf(w.Rm()), x2))
	}
	if o&thirdOperand != 0 {
		put(10, t.value(blocks.ZeroOf(w.Ra()), x3))
	}
	t.word(out)
}

// to is where to compute the value of a register.
func (t *a64Translator) to(rd uint8) register {
	if rd == blocks.ZeroA64 {
		return zero
	}
	return t.result(rd)
}

// setStack notes what is known of SP when an instruction with an immediate operand writes it.
func (t *a64Translator) setStack(rd, rn uint8, distance int64) {
	if rd == blocks.StackA64 {
		t.stackIsAligned = t.stackIsAligned && rn == blocks.StackA64 && distance&15 == 0
	}
}

// addressOf is ADR and ADRP.
func (t *a64Translator) addressOf(w a64.Word) {
	distance := w.Signed(5, 19)<<2 | int64(w.Field(29, 2))
	if w.Bit(31) {
		distance <<= 12
	} else {
		distance += int64(t.at)
	}
	rd := blocks.ZeroOf(w.Rd())
	if rd == blocks.ZeroA64 {
		return
	}
	to := t.to(rd)
	t.inPage(to, distance)
	t.setGuest(rd, to)
}

func (t *a64Translator) addImmediate(w a64.Word) {
	if !w.Bit(29) {
		t.setStack(w.Rd(), w.Rn(), int64(w.Field(10, 12)))
		t.same(w, firstOperand|stackFirst|stackResult)
		return
	}
	rd := blocks.ZeroOf(w.Rd())
	to := t.to(rd)
	t.compareImmediate(w.Wide(), w.Bit(30), to, t.value(w.Rn(), x0), w.Field(10, 12), 12*w.Field(22, 1))
	t.setGuest(rd, to)
}

func (t *a64Translator) logicImmediate(w a64.Word) {
	if w.Field(29, 2) == 3 {
		t.logicFlags(w, firstOperand)
		return
	}
	if w.Rd() == blocks.StackA64 {
		t.stackIsAligned = false
	}
	t.same(w, firstOperand|stackResult)
}

// logicFlags is ANDS and BICS.
func (t *a64Translator) logicFlags(w a64.Word, o operands) {
	rd := blocks.ZeroOf(w.Rd())
	to := t.result(rd)
	t.into(to, w, o)
	t.storeOperands(w.Wide(), to, zero)
	t.setFlags(blocks.FlagsLogic)
	t.isGuests = true
	t.setGuest(rd, to)
}

func (t *a64Translator) moveWide(w a64.Word) {
	if w.Field(29, 2) == 3 { // MOVK
		t.same(w, oldResult)
		return
	}
	t.same(w, 0)
}

func (t *a64Translator) bitField(w a64.Word) {
	if w.Field(29, 2) == 1 { // BFM
		t.same(w, firstOperand|oldResult)
		return
	}
	t.same(w, firstOperand)
}

func (t *a64Translator) shiftedRegister(w a64.Word) {
	isLogic, setsFlags := !w.Bit(24), w.Bit(29)
	if isLogic {
		setsFlags = w.Field(29, 2) == 3
	}
	switch {
	case !setsFlags:
		t.same(w, firstOperand|secondOperand)
	case isLogic:
		t.logicFlags(w, firstOperand|secondOperand)
	default:
		b := t.value(blocks.ZeroOf(w.Rm()), x2)
		if w.Field(10, 6) != 0 {
			const shift = 3<<22 | 63<<10
			t.word(opOr | wideBit(w.Wide()) | uint32(w)&shift | uint32(b)<<16 | uint32(zero)<<5 | uint32(x2))
			b = x2
		}
		t.addOrSubtract(w, t.value(blocks.ZeroOf(w.Rn()), x0), b)
	}
}

// addOrSubtract is ADDS and SUBS of two registers.
func (t *a64Translator) addOrSubtract(w a64.Word, a, b register) {
	rd := blocks.ZeroOf(w.Rd())
	to := t.to(rd)
	if w.Bit(30) {
		t.subtract(w.Wide(), to, a, b)
	} else {
		t.sum(w.Wide(), to, a, b)
	}
	t.setGuest(rd, to)
}

func (t *a64Translator) extendedRegister(w a64.Word) {
	if !w.Bit(29) {
		if w.Rd() == blocks.StackA64 {
			t.stackIsAligned = false
		}
		t.same(w, firstOperand|secondOperand|stackFirst|stackResult)
		return
	}
	option, shift := w.Field(13, 3), w.Field(10, 3)
	op := uint32(field)
	if option >= 4 {
		op = fieldSigned
	}
	bits := uint32(8) << (option & 3)
	t.field(op, x2, t.value(blocks.ZeroOf(w.Rm()), x2), 64-shift, min(bits, 64-shift)-1)
	t.addOrSubtract(w, t.value(w.Rn(), x0), x2)
}

// withCarryAndFlags is ADCS and SBCS: with a carry the difference of a and ~b, without one their sum (add_with_carry of src/arm64/execute_alu.c).
func (t *a64Translator) withCarryAndFlags(w a64.Word) {
	wide, rd := w.Wide(), blocks.ZeroOf(w.Rd())
	first, second := blocks.ZeroOf(w.Rn()), blocks.ZeroOf(w.Rm())
	operand := func(inverted bool) register {
		b := t.value(second, x2)
		if !inverted {
			return b
		}
		t.three(true, opOrNot, x2, zero, b)
		return x2
	}
	sum, done := t.newLabel(), t.newLabel()
	to := t.to(rd)
	t.loadFlags()
	t.jumpIf(below, sum)
	t.subtract(wide, to, t.value(first, x0), operand(!w.Bit(30)))
	t.setGuest(rd, to)
	t.jump(done)
	t.bind(sum)
	t.sum(wide, to, t.value(first, x0), operand(w.Bit(30)))
	t.setGuest(rd, to)
	t.bind(done)
	t.flagsAreKnown, t.isGuests = false, true
}

// conditionalSelect is CSEL, CSINC, CSINV and CSNEG.
func (t *a64Translator) conditionalSelect(w a64.Word) {
	if w.Field(12, 4) < 14 {
		t.loadFlags()
	}
	t.same(w, firstOperand|secondOperand)
}
