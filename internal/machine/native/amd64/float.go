package amd64

import "agentvm/internal/machine/riscv"

const floatStates = 3 << 13 // mstatus.FS: zero is off, all ones changed

// floatEmitters has what only moves bits of the floating-point registers, which are in the hart: no result is rounded and no flag raised. All
// of it but a store marks the unit changed: where it is not yet, or is off, the interpreter looks after it.
func floatEmitters() map[string]emitter {
	all := map[string]emitter{}
	for suffix, a := range map[string]access{"w": {4, opMove, false}, "d": {8, opMove, true}} {
		single := a.size == 4
		all["fl"+suffix] = func(t *translator, d *riscv.Decoded) {
			t.floatOn(true)
			t.address(rax, d.Rs1, d.Imm)
			t.lookUp(t.layout.Read, a.size)
			t.indexed(a.wide, opLoad, rax, memory, rax, 0)
			t.setFloat(d.Rd, single)
		}
		all["fs"+suffix] = func(t *translator, d *riscv.Decoded) {
			t.floatOn(false)
			t.address(rax, d.Rs1, d.Imm)
			t.lookUp(t.layout.Write, a.size)
			t.float(rdx, d.Rs2)
			t.store(a, rdx)
		}
		all["fmv."+suffix+".x"] = func(t *translator, d *riscv.Decoded) {
			t.floatOn(true)
			from := t.value(d.Rs1, rax)
			if single {
				t.move32(rax, from)
			} else {
				t.move(rax, from)
			}
			t.setFloat(d.Rd, single)
		}
		all["fmv.x."+suffix] = func(t *translator, d *riscv.Decoded) {
			t.floatOn(true)
			t.float(rax, d.Rs1)
			if single {
				t.pair(true, opSignExtendWord, rax, rax)
			}
			t.setGuest(d.Rd, rax)
		}
	}
	for name, sign := range map[string]sign{"fsgnj": {exchange: true}, "fsgnjn": {exchange: true, negate: true}, "fsgnjx": {}} {
		all[name+".d"] = func(t *translator, d *riscv.Decoded) { t.changeSign(d, sign, true) }
		all[name+".s"] = func(t *translator, d *riscv.Decoded) { t.changeSign(d, sign, false) }
	}
	return all
}

// sign says what is done with the sign of rs2: it replaces that of rs1 or is combined with it, and is the opposite one.
type sign struct{ exchange, negate bool }

// changeSign flips the sign of rs1 where that makes it the wanted one. A register whose upper half says that it has no single is the
// interpreter's.
func (t *translator) changeSign(d *riscv.Decoded, s sign, double bool) {
	t.floatOn(true)
	t.float(rax, d.Rs1)
	t.float(rcx, d.Rs2)
	bits := uint8(63)
	if !double {
		bits = 31
		for _, r := range []register{rax, rcx} {
			t.move(rdx, r)
			t.shift(true, shiftArithmetic, rdx, 32)
			t.immediate(true, immediateCmp, rdx, -1)
			t.jumpIf(notEqual, t.miss())
		}
	}
	if s.exchange {
		t.pair(true, opXor, rax, rcx)
	}
	if s.negate {
		t.immediate(true, immediateXor, rcx, -1)
	}
	t.shift(double, shiftRight, rcx, bits)
	t.shift(double, shiftLeft, rcx, bits)
	t.pair(true, opXor, rcx, rax)
	t.setFloat(d.Rd, false)
}

// floatOn leaves when the unit is off, or would have to be marked changed.
func (t *translator) floatOn(changes bool) {
	t.hart(false, opLoad, rax, t.layout.MStatus)
	t.immediate(false, immediateAnd, rax, floatStates)
	if changes {
		t.immediate(false, immediateCmp, rax, floatStates)
		t.jumpIf(notEqual, t.miss())
		return
	}
	t.immediate(false, immediateCmp, rax, 0)
	t.jumpIf(equal, t.miss())
}

// float loads a floating-point register.
func (t *translator) float(to register, r uint8) { t.hart(true, opLoad, to, t.layout.F+8*uint32(r)) }

// setFloat sets one to rax. A single has ones above it; rcx is overwritten.
func (t *translator) setFloat(r uint8, single bool) {
	if single {
		t.constant(rcx, -1)
		t.shift(true, shiftLeft, rcx, 32)
		t.pair(true, opOr, rcx, rax)
	}
	t.hart(true, opMove, rax, t.layout.F+8*uint32(r))
}
