package amd64

// a64System translates what programs do with system registers all the time.
func a64System(w a64Word) a64Emitter {
	const (
		readsTPIDR  = 0xd53bd040 // MRS Xt, TPIDR_EL0
		writesTPIDR = 0xd51bd040
		readsDCZID  = 0xd53b00e0 // MRS Xt, DCZID_EL0
		zeroBlock   = 0xd50b7420 // DC ZVA, Xt
	)
	switch w &^ 31 {
	case readsTPIDR:
		return func(t *a64Translator, w a64Word) {
			to := t.target(zr(w.rd()))
			t.hart(true, opLoad, to, t.layout.ARM64.TPIDR)
			t.setGuest(zr(w.rd()), to)
		}
	case writesTPIDR:
		return func(t *a64Translator, w a64Word) {
			t.hart(true, opMove, t.value(zr(w.rd()), rax), t.layout.ARM64.TPIDR)
		}
	case readsDCZID:
		return func(t *a64Translator, w a64Word) {
			t.zeroing()
			t.constant(rax, 4) // blocks of 64 bytes
			t.setGuest(zr(w.rd()), rax)
		}
	case zeroBlock:
		return func(t *a64Translator, w a64Word) {
			t.zeroing()
			t.copyOf(zr(w.rd()), rax)
			t.immediate(true, immediateAnd, rax, -64)
			t.lookUp(t.layout.Write, 64, t.miss())
			t.constant(rcx, 0)
			for part := uint32(0); part < 64; part += 8 {
				t.indexed(true, opMove, rcx, memory, rax, part)
			}
		}
	}
	return nil
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
