package amd64

import "agentvm/internal/machine/a64"

// a64Float translates scalar floating point.
func a64Float(row *a64.Instruction) a64Emitter {
	switch row.Name {
	case "fmov.s", "fmov.d", "fabs.s", "fabs.d", "fneg.s", "fneg.d":
		return (*a64Translator).floatSign
	case "fmov.w.s", "fmov.x.d", "fmov.x.v1":
		return func(t *a64Translator, w a64Word) {
			t.floatOn()
			at := t.layout.F + 16*uint32(w.rn())
			if row.Name == "fmov.x.v1" {
				at += 8
			}
			to := t.target(zr(w.rd()))
			t.hart(w.wide(), opLoad, to, at)
			t.setGuest(zr(w.rd()), to)
		}
	case "fmov.s.w", "fmov.d.x":
		return func(t *a64Translator, w a64Word) {
			t.floatOn()
			t.move32Or64(w.wide(), rax, zr(w.rn()))
			t.setFloat(w.rd())
		}
	}
	return nil
}

// setFloat sets a vector register to rax.
func (t *a64Translator) setFloat(r uint8) {
	t.hart(true, opMove, rax, t.layout.F+16*uint32(r))
	t.hartSet(t.layout.F+16*uint32(r)+8, 0)
}

// floatSign is FMOV, FABS and FNEG.
func (t *a64Translator) floatSign(w a64Word) {
	t.floatOn()
	wide := w.bit(22)
	t.hart(wide, opLoad, rax, t.layout.F+16*uint32(w.rn()))
	switch w.field(15, 2) {
	case 1: // FABS
		t.shift(wide, shiftLeft, rax, 1)
		t.shift(wide, shiftRight, rax, 1)
	case 2: // FNEG
		t.constant(rcx, 1)
		if wide {
			t.shift(true, rotateRight, rcx, 1)
		} else {
			t.shift(false, rotateRight, rcx, 1)
		}
		t.pair(wide, opXor, rcx, rax)
	}
	t.setFloat(w.rd())
}
