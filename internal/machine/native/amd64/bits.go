package amd64

import "agentvm/internal/machine/riscv"

// bitEmitters has Zba and Zbb, by instructions that every processor has: counting ones and testing bytes is arithmetic.
func bitEmitters() map[string]emitter {
	all := map[string]emitter{
		"slli.uw": func(t *translator, d *riscv.Decoded) {
			t.move32(rax, t.value(d.Rs1, rax))
			t.shift(true, shiftLeft, rax, uint8(d.Imm))
			t.setGuest(d.Rd, rax)
		},
		"xnor": func(t *translator, d *riscv.Decoded) {
			t.copyOf(d.Rs1, rax)
			t.operation(true, opXorTo, rax, d.Rs2)
			t.immediate(true, immediateXor, rax, -1)
			t.setGuest(d.Rd, rax)
		},
		"rori": func(t *translator, d *riscv.Decoded) {
			to := t.target(d.Rd)
			t.copyOf(d.Rs1, to)
			t.shift(true, rotateRight, to, uint8(d.Imm))
			t.setGuest(d.Rd, to)
		},
		"roriw": func(t *translator, d *riscv.Decoded) {
			t.copyOf(d.Rs1, rax)
			t.shift(false, rotateRight, rax, uint8(d.Imm))
			t.pair(true, opSignExtendWord, rax, rax)
			t.setGuest(d.Rd, rax)
		},
		"clz": func(t *translator, d *riscv.Decoded) {
			t.scan(opScanReverse, d.Rs1, 127)
			t.immediate(true, immediateXor, rax, 63)
			t.setGuest(d.Rd, rax)
		},
		"ctz": func(t *translator, d *riscv.Decoded) {
			t.scan(opScanForward, d.Rs1, 64)
			t.setGuest(d.Rd, rax)
		},
		"clzw": func(t *translator, d *riscv.Decoded) { // 32 minus the highest bit of 2 x + 1
			t.move32(rax, t.value(d.Rs1, rax))
			t.shift(true, shiftLeft, rax, 1)
			t.immediate(true, immediateOr, rax, 1)
			t.pair(true, opScanReverse, rax, rax)
			t.unary(true, unaryNegate, rax)
			t.immediate(true, immediateAdd, rax, 32)
			t.setGuest(d.Rd, rax)
		},
		"ctzw": func(t *translator, d *riscv.Decoded) { // the lowest bit of x with another one above it
			t.move32(rax, t.value(d.Rs1, rax))
			t.constant(rcx, 1)
			t.shift(true, shiftLeft, rcx, 32)
			t.pair(true, opOr, rcx, rax)
			t.pair(true, opScanForward, rax, rax)
			t.setGuest(d.Rd, rax)
		},
		"cpop": func(t *translator, d *riscv.Decoded) {
			t.copyOf(d.Rs1, rax)
			t.countOnes()
			t.setGuest(d.Rd, rax)
		},
		"cpopw": func(t *translator, d *riscv.Decoded) {
			t.move32(rax, t.value(d.Rs1, rax))
			t.countOnes()
			t.setGuest(d.Rd, rax)
		},
		"orc.b": func(t *translator, d *riscv.Decoded) { // the highest bit of each byte that is not zero, n; then 2 n - n / 128
			t.copyOf(d.Rs1, rax)
			t.repeated(0x7f7f7f7f)
			t.move(rcx, rax)
			t.pair(true, opAnd, rdx, rcx)
			t.pair(true, opAdd, rdx, rcx)
			t.pair(true, opOr, rcx, rax)
			t.immediate(true, immediateXor, rdx, -1)
			t.pair(true, opAnd, rdx, rax)
			t.move(rcx, rax)
			t.shift(true, shiftLeft, rax, 1)
			t.shift(true, shiftRight, rcx, 7)
			t.pair(true, opSub, rcx, rax)
			t.setGuest(d.Rd, rax)
		},
		"rev8": func(t *translator, d *riscv.Decoded) {
			t.copyOf(d.Rs1, rax)
			t.swapBytes()
			t.setGuest(d.Rd, rax)
		},
	}
	for name, by := range map[string]uint8{"add": 0, "sh1add": 1, "sh2add": 2, "sh3add": 3} {
		add := func(word bool) emitter {
			return func(t *translator, d *riscv.Decoded) {
				if word {
					t.move32(rax, t.value(d.Rs1, rax))
				} else {
					t.copyOf(d.Rs1, rax)
				}
				if by != 0 {
					t.shift(true, shiftLeft, rax, by)
				}
				t.operation(true, opAddTo, rax, d.Rs2)
				t.setGuest(d.Rd, rax)
			}
		}
		if by != 0 {
			all[name] = add(false)
		}
		all[name+".uw"] = add(true)
	}
	for name, op := range map[string]int{"andn": opAnd, "orn": opOr} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			t.copyOf(d.Rs2, rcx)
			t.immediate(true, immediateXor, rcx, -1)
			t.copyOf(d.Rs1, rax)
			t.pair(true, op, rcx, rax)
			t.setGuest(d.Rd, rax)
		}
	}
	for name, condition := range map[string]byte{"min": greater, "max": less, "minu": above, "maxu": below} { // when rs2 is it
		all[name] = func(t *translator, d *riscv.Decoded) {
			t.copyOf(d.Rs1, rax)
			other := t.value(d.Rs2, rcx)
			t.pair(true, opCmp, other, rax)
			t.moveIf(true, condition, rax, other)
			t.setGuest(d.Rd, rax)
		}
	}
	for name, e := range map[string]struct{ back, by uint8 }{"sext.b": {shiftArithmetic, 56}, "sext.h": {shiftArithmetic, 48}, "zext.h": {shiftRight, 48}} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			to := t.target(d.Rd)
			t.copyOf(d.Rs1, to)
			t.shift(true, shiftLeft, to, e.by)
			t.shift(true, e.back, to, e.by)
			t.setGuest(d.Rd, to)
		}
	}
	for name, op := range map[string]byte{"rol": rotateLeft, "ror": rotateRight} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			t.copyOf(d.Rs2, rcx)
			t.copyOf(d.Rs1, rax)
			t.shiftCL(true, op, rax)
			t.setGuest(d.Rd, rax)
		}
		all[name+"w"] = func(t *translator, d *riscv.Decoded) {
			t.copyOf(d.Rs2, rcx)
			t.copyOf(d.Rs1, rax)
			t.shiftCL(false, op, rax)
			t.pair(true, opSignExtendWord, rax, rax)
			t.setGuest(d.Rd, rax)
		}
	}
	return all
}

// scan makes rax the number of a guest register's highest or lowest bit, or what is given when it has none.
func (t *translator) scan(op int, r uint8, none int32) {
	from := t.value(r, rax)
	t.constant(rcx, none)
	t.pair(true, op, rax, from)
	t.moveIf(true, equal, rax, rcx)
}

// repeated makes rdx a pattern of 32 bits, twice. It uses rcx.
func (t *translator) repeated(pattern int32) {
	t.constant(rdx, pattern)
	t.move(rcx, rdx)
	t.shift(true, shiftLeft, rcx, 32)
	t.pair(true, opOr, rcx, rdx)
}

// countOnes adds up the ones of rax by pairs, fours, bytes, and all bytes.
func (t *translator) countOnes() {
	shifted := func(by uint8) {
		t.move(rcx, rax)
		t.shift(true, shiftRight, rcx, by)
	}
	t.repeated(0x55555555)
	shifted(1)
	t.pair(true, opAnd, rdx, rcx)
	t.pair(true, opSub, rcx, rax)
	t.repeated(0x33333333)
	shifted(2)
	t.pair(true, opAnd, rdx, rcx)
	t.pair(true, opAnd, rdx, rax)
	t.pair(true, opAdd, rcx, rax)
	t.repeated(0x0f0f0f0f)
	shifted(4)
	t.pair(true, opAdd, rcx, rax)
	t.pair(true, opAnd, rdx, rax)
	t.repeated(0x01010101)
	t.pair(true, opImul, rax, rdx)
	t.shift(true, shiftRight, rax, 56)
}
