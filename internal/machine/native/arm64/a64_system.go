package arm64

import (
	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

// a64System translates what programs and the kernel's exceptions do with the system all the time.
func a64System(d *blocks.A64) a64Emitter {
	number := d.Word.Field(5, 16)
	plain, isPlain := (&blocks.ARM64{}).Plain(number)
	switch d.Row.Name {
	case "isb":
		return func(*a64Translator, a64.Word) {} // nothing that matters here waits for it
	case "clrex":
		return func(t *a64Translator, _ a64.Word) {
			t.constant(x0, -1)
			t.inHart(access{size: 3, op: store}, x0, t.inHartAt(t.layout.Reservation))
		}
	case "sys":
		if number == blocks.ZeroBlock {
			return (*a64Translator).zeroMemory
		}
	case "mrs":
		if isPlain || number == blocks.DAIF || number == blocks.DCZID {
			return (*a64Translator).readSystem
		}
	case "msr":
		if isPlain && plain.Writes || number == blocks.DAIF {
			return (*a64Translator).writeSystem
		}
	case "msr.i":
		const set, clear = 3<<3 | 6, 3<<3 | 7
		bits := int64(d.Word.Field(8, 4)) << 6
		switch d.Word.Field(16, 3)<<3 | d.Word.Field(5, 3) {
		case set:
			return func(t *a64Translator, _ a64.Word) { t.changeMask(opOr, bits) }
		case clear:
			return func(t *a64Translator, _ a64.Word) { t.changeMask(opAndNot, bits) }
		}
	}
	return nil
}

func (t *a64Translator) readSystem(w a64.Word) {
	number, rd := w.Field(5, 16), blocks.ZeroOf(w.Rd())
	switch number {
	case blocks.DAIF:
		t.kernel()
		t.loadWord(x0, t.layout.ARM64.PState)
		t.mask(x0, x0, 6, 10)
	case blocks.DCZID:
		t.zeroing()
		t.constant(x0, 4) // blocks of 64 bytes
	default:
		plain, _ := t.layout.ARM64.Plain(number)
		t.reaches(number, plain)
		t.loadWord(x0, plain.At)
	}
	t.setGuest(rd, x0)
}

func (t *a64Translator) writeSystem(w a64.Word) {
	number, value := w.Field(5, 16), blocks.ZeroOf(w.Rd())
	if number == blocks.DAIF {
		t.kernel()
		t.mask(x1, t.value(value, x1), 6, 10)
		t.loadWord(x0, t.layout.ARM64.PState)
		t.constant(x2, blocks.PStateDAIF)
		t.three(true, opAndNot, x0, x0, x2)
		t.three(true, opOr, x0, x0, x1)
		t.setMask()
		return
	}
	plain, _ := t.layout.ARM64.Plain(number)
	t.reaches(number, plain)
	t.inHart(access{size: 3, op: store}, t.value(value, x0), t.inHartAt(plain.At))
}

// loadWord loads a word of the hart.
func (t *a64Translator) loadWord(to register, at uint32) {
	t.inHart(access{size: 3, op: load}, to, t.inHartAt(at))
}

// kernel leaves at EL0.
func (t *a64Translator) kernel() {
	if t.isKernel {
		return
	}
	t.isKernel = true
	t.inHart(access{size: 2, op: load}, x0, t.inHartAt(t.layout.ARM64.EL))
	t.compareWith(x0, 1)
	t.jumpIf(notEqual, t.miss())
}

// reaches leaves where the register cannot be reached. SP_EL0 is SP itself while SPSel says so.
func (t *a64Translator) reaches(number uint32, r blocks.WordA64) {
	if !r.AnyEL {
		t.kernel()
	}
	if number == blocks.SPEL0 {
		t.inHart(access{size: 2, op: load}, x0, t.inHartAt(t.layout.ARM64.SPSelect))
		t.compareWith(x0, 0)
		t.jumpIf(equal, t.miss())
	}
}

// changeMask is MSR of DAIFSet and DAIFClr.
func (t *a64Translator) changeMask(op uint32, bits int64) {
	t.kernel()
	t.loadWord(x0, t.layout.ARM64.PState)
	t.constant(x1, bits)
	t.three(true, op, x0, x0, x1)
	t.setMask()
}

// setMask makes PSTATE's part what is in x0, and leaves when that lets an interrupt through.
func (t *a64Translator) setMask() {
	masked := t.newLabel()
	t.test(x0, 7, 8)
	t.jumpIf(notEqual, masked)
	t.inHart(access{size: 2, op: load}, x1, t.inHartAt(t.layout.ARM64.IRQ))
	t.compareWith(x1, 0)
	t.jumpIf(notEqual, t.miss())
	t.bind(masked)
	t.inHart(access{size: 3, op: store}, x0, t.inHartAt(t.layout.ARM64.PState))
}

// zeroing leaves when the kernel does not let EL0 zero blocks.
func (t *a64Translator) zeroing() {
	if t.zeroes {
		return
	}
	t.zeroes = true
	t.loadWord(x0, t.layout.ARM64.SCTLR)
	t.test(x0, 14, 15)
	t.jumpIf(equal, t.miss())
}

// zeroMemory is DC ZVA.
func (t *a64Translator) zeroMemory(w a64.Word) {
	const block = 64
	t.zeroing()
	t.mask(x0, t.value(blocks.ZeroOf(w.Rd()), x0), 6, 64)
	t.lookUp(t.layout.Write, block, t.miss())
	for part := 0; part < block; part += 8 {
		if part > 0 {
			t.add(x0, x0, 8)
		}
		t.inMemory(access{size: 3, op: store}, zero, x0)
	}
}
