package amd64

import (
	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

// a64System translates what programs and the kernel's exceptions do with the system all the time.
func a64System(row *a64.Instruction, w a64.Word) a64Emitter {
	number := w.Field(5, 16)
	plain, isPlain := (&blocks.ARM64{}).Plain(number)
	switch row.Name {
	case "isb":
		return func(*a64Translator, a64.Word) {} // nothing that matters here waits for it
	case "clrex":
		return func(t *a64Translator, _ a64.Word) { t.hartSet(t.layout.Reservation, -1) }
	case "sys":
		if number == blocks.ZeroBlock {
			return (*a64Translator).zeroMemory
		}
	case "mrs":
		switch {
		case isPlain:
			return func(t *a64Translator, w a64.Word) {
				t.reaches(number, plain)
				to := t.target(blocks.ZeroOf(w.Rd()))
				t.hart(true, opLoad, to, t.wordAt(number))
				t.setGuest(blocks.ZeroOf(w.Rd()), to)
			}
		case number == blocks.DAIF:
			return func(t *a64Translator, w a64.Word) {
				t.kernel()
				t.hart(true, opLoad, rax, t.layout.ARM64.PState)
				t.immediate(false, immediateAnd, rax, blocks.PStateDAIF)
				t.setGuest(blocks.ZeroOf(w.Rd()), rax)
			}
		case number == blocks.DCZID:
			return func(t *a64Translator, w a64.Word) {
				t.zeroing()
				t.constant(rax, 4) // blocks of 64 bytes
				t.setGuest(blocks.ZeroOf(w.Rd()), rax)
			}
		}
	case "msr":
		switch {
		case isPlain && plain.Writes:
			return func(t *a64Translator, w a64.Word) {
				t.reaches(number, plain)
				t.hart(true, opMove, t.value(blocks.ZeroOf(w.Rd()), rax), t.wordAt(number))
			}
		case number == blocks.DAIF:
			return func(t *a64Translator, w a64.Word) {
				t.kernel()
				t.copyOf(blocks.ZeroOf(w.Rd()), rcx)
				t.immediate(false, immediateAnd, rcx, blocks.PStateDAIF)
				t.hart(true, opLoad, rax, t.layout.ARM64.PState)
				t.immediate(true, immediateAnd, rax, ^blocks.PStateDAIF)
				t.pair(true, opOr, rcx, rax)
				t.setMask(true)
			}
		}
	case "msr.i":
		const set, clear = 3<<3 | 6, 3<<3 | 7
		bits := int32(w.Field(8, 4)) << 6
		switch w.Field(16, 3)<<3 | w.Field(5, 3) {
		case set:
			return func(t *a64Translator, _ a64.Word) {
				t.kernel()
				t.hart(true, opLoad, rax, t.layout.ARM64.PState)
				t.immediate(true, immediateOr, rax, bits)
				t.setMask(false)
			}
		case clear:
			return func(t *a64Translator, _ a64.Word) {
				t.kernel()
				t.hart(true, opLoad, rax, t.layout.ARM64.PState)
				t.immediate(true, immediateAnd, rax, ^bits)
				t.setMask(true)
			}
		}
	}
	return nil
}

// wordAt is the address of a system register.
func (t *a64Translator) wordAt(number uint32) uint32 {
	r, _ := t.layout.ARM64.Plain(number)
	return r.At
}

// kernel leaves at EL0.
func (t *a64Translator) kernel() {
	if t.isKernel {
		return
	}
	t.isKernel = true
	t.hart(false, opLoad, rax, t.layout.ARM64.EL)
	t.immediate(false, immediateCmp, rax, 1)
	t.jumpIf(notEqual, t.miss())
}

// reaches leaves where the register cannot be reached. SP_EL0 is SP itself while SPSel says so.
func (t *a64Translator) reaches(number uint32, r blocks.WordA64) {
	if !r.AnyEL {
		t.kernel()
	}
	if number == blocks.SPEL0 {
		t.hart(false, opLoad, rax, t.layout.ARM64.SPSelect)
		t.immediate(false, immediateCmp, rax, 0)
		t.jumpIf(equal, t.miss())
	}
}

// setMask makes PSTATE's part what is in rax, and leaves when that lets an interrupt through.
func (t *a64Translator) setMask(mayClear bool) {
	if mayClear {
		masked := t.newLabel()
		t.move32(rcx, rax)
		t.immediate(false, immediateAnd, rcx, blocks.PStateI)
		t.jumpIf(notEqual, masked)
		t.hart(false, opLoad, rcx, t.layout.ARM64.IRQ)
		t.immediate(false, immediateCmp, rcx, 0)
		t.jumpIf(notEqual, t.miss())
		t.bind(masked)
	}
	t.hart(true, opMove, rax, t.layout.ARM64.PState)
}

// zeroing leaves when the kernel does not let EL0 zero blocks.
func (t *a64Translator) zeroing() {
	const dze = 1 << 14 // of SCTLR_EL1
	if t.zeroes {
		return
	}
	t.zeroes = true
	t.hart(false, opLoad, rax, t.layout.ARM64.SCTLR)
	t.immediate(false, immediateAnd, rax, dze)
	t.jumpIf(equal, t.miss())
}

// zeroMemory is DC ZVA.
func (t *a64Translator) zeroMemory(w a64.Word) {
	const block = 64
	t.zeroing()
	t.copyOf(blocks.ZeroOf(w.Rd()), rax)
	t.immediate(true, immediateAnd, rax, -block)
	t.lookUp(t.layout.Write, block, t.miss())
	t.constant(rcx, 0)
	for part := uint32(0); part < block; part += 8 {
		t.indexed(true, opMove, rcx, memory, rax, part)
	}
}
