package arm64

import "agentvm/internal/machine/riscv"

// floatEmitters has what only moves bits of the floating-point registers, which are in the hart: no result is rounded and no flag raised. All
// of it but stores marks the unit changed: where it is not yet, or is off, the interpreter looks after it.
func floatEmitters() map[string]emitter {
	all := map[string]emitter{}
	for suffix, size := range map[string]uint32{"w": 2, "d": 3} {
		isSingle := size == 2
		all["fl"+suffix] = func(t *translator, d *riscv.Decoded) {
			t.floatOn(true)
			m := access{size: size, op: load}
			t.transfer(m, x0, t.located(d.Rs1, d.Imm, 1<<m.size, t.layout.Read, m))
			t.setFloat(d.Rd, isSingle)
		}
		all["fs"+suffix] = func(t *translator, d *riscv.Decoded) {
			t.floatOn(false)
			m := access{size: size, op: store}
			to := t.located(d.Rs1, d.Imm, 1<<m.size, t.layout.Write, m)
			t.float(x2, d.Rs2)
			t.transfer(m, x2, to)
		}
		all["fmv."+suffix+".x"] = func(t *translator, d *riscv.Decoded) {
			t.floatOn(true)
			t.copyOf(d.Rs1, x0)
			if isSingle {
				t.mask(x0, x0, 0, 32)
			}
			t.setFloat(d.Rd, isSingle)
		}
		all["fmv.x."+suffix] = func(t *translator, d *riscv.Decoded) {
			t.floatOn(true)
			t.float(x0, d.Rs1)
			if isSingle {
				t.signExtend(x0, x0)
			}
			t.setGuest(d.Rd, x0)
		}
	}
	for name, sign := range map[string]sign{"fsgnj": {exchange: true}, "fsgnjn": {exchange: true, negate: true}, "fsgnjx": {}} {
		all[name+".d"] = func(t *translator, d *riscv.Decoded) { t.changeSign(d, sign, 63) }
		all[name+".s"] = func(t *translator, d *riscv.Decoded) { t.changeSign(d, sign, 31) }
	}
	return all
}

// sign says what is done with the sign of rs2: it replaces that of rs1 or is combined with it, and is the opposite one.
type sign struct{ exchange, negate bool }

// changeSign flips the sign of rs1 where that makes it the wanted one. A register whose upper half says that it has no single is the
// interpreter's.
func (t *translator) changeSign(d *riscv.Decoded, s sign, bit uint32) {
	t.floatOn(true)
	t.float(x0, d.Rs1)
	t.float(x2, d.Rs2)
	if bit == 31 {
		for _, r := range []register{x0, x2} {
			t.field(fieldSigned, x3, r, 32, 63)
			t.compareWith(x3, -1)
			t.jumpIf(notEqual, t.miss())
		}
	}
	if s.exchange {
		t.three(true, opXor, x2, x2, x0)
	}
	if s.negate {
		t.constant(x3, -1)
		t.three(true, opXor, x2, x2, x3)
	}
	t.mask(x2, x2, bit, bit+1)
	t.three(true, opXor, x0, x0, x2)
	t.setFloat(d.Rd, false)
}

// floatOn leaves when the unit is off, or would have to be marked changed.
func (t *translator) floatOn(changes bool) {
	if t.floatIsDirty || t.floatIsOn && !changes {
		return
	}
	t.floatIsOn, t.floatIsDirty = true, changes
	t.inHart(access{size: 2, op: load}, x0, t.layout.MStatus-t.layout.X)
	t.field(field, x0, x0, 13, 14) // mstatus.FS: zero is off, all ones changed
	if changes {
		t.compareWith(x0, 3)
		t.jumpIf(notEqual, t.miss())
		return
	}
	t.compareWith(x0, 0)
	t.jumpIf(equal, t.miss())
}

// float loads a floating-point register.
func (t *translator) float(to register, r uint8) {
	t.inHart(access{size: 3, op: load}, to, t.layout.F-t.layout.X+8*uint32(r))
}

// setFloat sets one to x0. A single has ones above it; x1 is overwritten.
func (t *translator) setFloat(r uint8, isSingle bool) {
	if isSingle {
		t.constant(x1, -1<<32)
		t.three(true, opOr, x0, x0, x1)
	}
	t.inHart(access{size: 3, op: store}, x0, t.layout.F-t.layout.X+8*uint32(r))
}
