package amd64

import (
	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

// systemRegister is the number of one, of the fields op0, op1, CRn, CRm and op2 of an instruction.
func systemRegister(op0, op1, crn, crm, op2 uint32) uint32 {
	return op0<<14 | op1<<11 | crn<<7 | crm<<3 | op2
}

// plainRegister is a system register that is a word of the hart.
type plainRegister struct {
	at     func(*blocks.ARM64) uint32
	anyEL  bool
	writes bool // MSR does no more than store it
}

var plainRegisters = map[uint32]plainRegister{
	systemRegister(3, 3, 13, 0, 2): {func(a *blocks.ARM64) uint32 { return a.TPIDR }, true, true},
	systemRegister(3, 3, 13, 0, 3): {func(a *blocks.ARM64) uint32 { return a.TPIDRRO }, true, false},
	systemRegister(3, 0, 13, 0, 4): {func(a *blocks.ARM64) uint32 { return a.TPIDR1 }, false, true},
	systemRegister(3, 0, 4, 0, 0):  {func(a *blocks.ARM64) uint32 { return a.SPSR }, false, true},
	systemRegister(3, 0, 4, 0, 1):  {func(a *blocks.ARM64) uint32 { return a.ELR }, false, true},
	systemRegister(3, 0, 5, 2, 0):  {func(a *blocks.ARM64) uint32 { return a.ESR }, false, true},
	systemRegister(3, 0, 6, 0, 0):  {func(a *blocks.ARM64) uint32 { return a.FAR }, false, true},
	spEL0:                          {func(a *blocks.ARM64) uint32 { return a.SP }, false, true},
}

var (
	spEL0     = systemRegister(3, 0, 4, 1, 0)
	daif      = systemRegister(3, 3, 4, 2, 1)
	dczid     = systemRegister(3, 3, 0, 0, 7)
	zeroBlock = systemRegister(1, 3, 7, 4, 1) // DC ZVA
)

const (
	pstateI    = 1 << 7
	pstateDAIF = 15 << 6
)

// a64System translates what programs and the kernel's exceptions do with the system all the time.
func a64System(row *a64.Instruction, w a64Word) a64Emitter {
	number := w.field(5, 16)
	plain, isPlain := plainRegisters[number]
	switch row.Name {
	case "isb":
		return func(*a64Translator, a64Word) {} // nothing that matters here waits for it
	case "clrex":
		return func(t *a64Translator, _ a64Word) { t.hartSet(t.layout.Reservation, -1) }
	case "sys":
		if number == zeroBlock {
			return (*a64Translator).zeroMemory
		}
	case "mrs":
		switch {
		case isPlain:
			return func(t *a64Translator, w a64Word) {
				t.reaches(number, plain)
				to := t.target(zr(w.rd()))
				t.hart(true, opLoad, to, plain.at(&t.layout.ARM64))
				t.setGuest(zr(w.rd()), to)
			}
		case number == daif:
			return func(t *a64Translator, w a64Word) {
				t.kernel()
				t.hart(true, opLoad, rax, t.layout.ARM64.PState)
				t.immediate(false, immediateAnd, rax, pstateDAIF)
				t.setGuest(zr(w.rd()), rax)
			}
		case number == dczid:
			return func(t *a64Translator, w a64Word) {
				t.zeroing()
				t.constant(rax, 4) // blocks of 64 bytes
				t.setGuest(zr(w.rd()), rax)
			}
		}
	case "msr":
		switch {
		case isPlain && plain.writes:
			return func(t *a64Translator, w a64Word) {
				t.reaches(number, plain)
				t.hart(true, opMove, t.value(zr(w.rd()), rax), plain.at(&t.layout.ARM64))
			}
		case number == daif:
			return func(t *a64Translator, w a64Word) {
				t.kernel()
				t.copyOf(zr(w.rd()), rcx)
				t.immediate(false, immediateAnd, rcx, pstateDAIF)
				t.hart(true, opLoad, rax, t.layout.ARM64.PState)
				t.immediate(true, immediateAnd, rax, ^pstateDAIF)
				t.pair(true, opOr, rcx, rax)
				t.setMask(true)
			}
		}
	case "msr.i":
		const set, clear = 3<<3 | 6, 3<<3 | 7
		bits := int32(w.field(8, 4)) << 6
		switch w.field(16, 3)<<3 | w.field(5, 3) {
		case set:
			return func(t *a64Translator, _ a64Word) {
				t.kernel()
				t.hart(true, opLoad, rax, t.layout.ARM64.PState)
				t.immediate(true, immediateOr, rax, bits)
				t.setMask(false)
			}
		case clear:
			return func(t *a64Translator, _ a64Word) {
				t.kernel()
				t.hart(true, opLoad, rax, t.layout.ARM64.PState)
				t.immediate(true, immediateAnd, rax, ^bits)
				t.setMask(true)
			}
		}
	}
	return nil
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
func (t *a64Translator) reaches(number uint32, r plainRegister) {
	if !r.anyEL {
		t.kernel()
	}
	if number == spEL0 {
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
		t.immediate(false, immediateAnd, rcx, pstateI)
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
func (t *a64Translator) zeroMemory(w a64Word) {
	const block = 64
	t.zeroing()
	t.copyOf(zr(w.rd()), rax)
	t.immediate(true, immediateAnd, rax, -block)
	t.lookUp(t.layout.Write, block, t.miss())
	t.constant(rcx, 0)
	for part := uint32(0); part < block; part += 8 {
		t.indexed(true, opMove, rcx, memory, rax, part)
	}
}
