package arm64

import "agentvm/internal/machine/riscv"

// bitEmitters has Zba and Zbb. Ones are counted by arithmetic, for the host counts them in vectors only.
func bitEmitters() map[string]emitter {
	all := map[string]emitter{
		"slli.uw": func(t *translator, d *riscv.Decoded) {
			t.shifted(d, field, 64-uint32(d.Imm), min(31, 63-uint32(d.Imm)))
		},
		"rori": func(t *translator, d *riscv.Decoded) {
			to := t.result(d.Rd)
			t.rotate(true, to, t.value(d.Rs1, x0), uint32(d.Imm))
			t.setGuest(d.Rd, to)
		},
		"roriw": func(t *translator, d *riscv.Decoded) {
			to := t.result(d.Rd)
			t.rotate(false, x0, t.value(d.Rs1, x0), uint32(d.Imm))
			t.signExtend(to, x0)
			t.setGuest(d.Rd, to)
		},
		"rev8":  func(t *translator, d *riscv.Decoded) { t.unary(d, true, opSwapBytes) },
		"clz":   func(t *translator, d *riscv.Decoded) { t.unary(d, true, opLeadingZeros) },
		"clzw":  func(t *translator, d *riscv.Decoded) { t.unary(d, false, opLeadingZeros) },
		"ctz":   func(t *translator, d *riscv.Decoded) { t.unary(d, true, opReverse, opLeadingZeros) },
		"ctzw":  func(t *translator, d *riscv.Decoded) { t.unary(d, false, opReverse, opLeadingZeros) },
		"cpop":  func(t *translator, d *riscv.Decoded) { t.countOnes(d, 64) },
		"cpopw": func(t *translator, d *riscv.Decoded) { t.countOnes(d, 32) },
		"orc.b": func(t *translator, d *riscv.Decoded) { // the highest bit of each byte that is not zero, n; then 2 n - n / 128
			from := t.value(d.Rs1, x0)
			t.constant(x1, 0x7f7f7f7f7f7f7f7f)
			t.three(true, opAnd, x2, from, x1)
			t.three(true, opAdd, x2, x2, x1)
			t.three(true, opOr, x2, x2, from)
			t.three(true, opAndNot, x2, x2, x1)
			t.shiftLeft(x0, x2, 1)
			t.shiftRight(x2, x2, 7)
			t.three(true, opSub, x0, x0, x2)
			t.setGuest(d.Rd, x0)
		},
		"sext.b": func(t *translator, d *riscv.Decoded) { t.shifted(d, fieldSigned, 0, 7) },
		"sext.h": func(t *translator, d *riscv.Decoded) { t.shifted(d, fieldSigned, 0, 15) },
		"zext.h": func(t *translator, d *riscv.Decoded) { t.shifted(d, field, 0, 15) },
	}
	for name, by := range map[string]uint32{"add": 0, "sh1add": 1, "sh2add": 2, "sh3add": 3} {
		add := func(last uint32) emitter {
			return func(t *translator, d *riscv.Decoded) {
				to := t.result(d.Rd)
				t.field(field, x0, t.value(d.Rs1, x0), 64-by, last)
				t.three(true, opAdd, to, x0, t.value(d.Rs2, x2))
				t.setGuest(d.Rd, to)
			}
		}
		if by != 0 {
			all[name] = add(63 - by)
		}
		all[name+".uw"] = add(31)
	}
	for name, op := range map[string]uint32{"andn": opAndNot, "orn": opOrNot, "xnor": opXorNot, "ror": opRotate} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			to := t.result(d.Rd)
			t.three(true, op, to, t.value(d.Rs1, x0), t.value(d.Rs2, x2))
			t.setGuest(d.Rd, to)
		}
	}
	for name, condition := range map[string]byte{"min": less, "max": greater, "minu": below, "maxu": above} { // when rs1 is it
		all[name] = func(t *translator, d *riscv.Decoded) {
			to, a, b := t.result(d.Rd), t.value(d.Rs1, x0), t.value(d.Rs2, x2)
			t.compare(true, a, b)
			t.choose(true, opSelect, condition, to, a, b)
			t.setGuest(d.Rd, to)
		}
	}
	all["rorw"] = func(t *translator, d *riscv.Decoded) {
		to := t.result(d.Rd)
		t.three(false, opRotate, x0, t.value(d.Rs1, x0), t.value(d.Rs2, x2))
		t.signExtend(to, x0)
		t.setGuest(d.Rd, to)
	}
	all["rol"] = func(t *translator, d *riscv.Decoded) {
		to := t.result(d.Rd)
		t.three(true, opSub, x1, zero, t.value(d.Rs2, x2))
		t.three(true, opRotate, to, t.value(d.Rs1, x0), x1)
		t.setGuest(d.Rd, to)
	}
	all["rolw"] = func(t *translator, d *riscv.Decoded) {
		to := t.result(d.Rd)
		t.three(false, opSub, x1, zero, t.value(d.Rs2, x2))
		t.three(false, opRotate, x0, t.value(d.Rs1, x0), x1)
		t.signExtend(to, x0)
		t.setGuest(d.Rd, to)
	}
	return all
}

// unary sets rd to the result of operations on one register, one after the other.
func (t *translator) unary(d *riscv.Decoded, wide bool, ops ...uint32) {
	to, from := t.result(d.Rd), t.value(d.Rs1, x0)
	for _, op := range ops {
		t.word(op | wideBit(wide) | uint32(from)<<5 | uint32(to))
		from = to
	}
	t.setGuest(d.Rd, to)
}

// countOnes adds up the ones of rs1's lowest bits by pairs, fours, bytes, and all bytes.
func (t *translator) countOnes(d *riscv.Decoded, bits uint32) {
	t.field(field, x0, t.value(d.Rs1, x0), 0, bits-1)
	t.constant(x1, 0x5555555555555555)
	t.shiftRight(x2, x0, 1)
	t.three(true, opAnd, x2, x2, x1)
	t.three(true, opSub, x0, x0, x2)
	t.constant(x1, 0x3333333333333333)
	t.shiftRight(x2, x0, 2)
	t.three(true, opAnd, x2, x2, x1)
	t.three(true, opAnd, x0, x0, x1)
	t.three(true, opAdd, x0, x0, x2)
	t.constant(x1, 0x0f0f0f0f0f0f0f0f)
	t.shiftRight(x2, x0, 4)
	t.three(true, opAdd, x0, x0, x2)
	t.three(true, opAnd, x0, x0, x1)
	t.constant(x1, 0x0101010101010101)
	t.three(true, opMul, x0, x0, x1)
	t.shiftRight(x0, x0, 56)
	t.setGuest(d.Rd, x0)
}
