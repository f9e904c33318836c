package amd64

import (
	"maps"
	"sync"

	"agentvm/internal/machine/riscv"
)

type emitter func(t *translator, d *riscv.Decoded)

// emitters has every instruction that is translated, except branches and jumps.
// It is made for the first page: most processes translate none.
var emitters = sync.OnceValue(allEmitters)

func allEmitters() map[string]emitter {
	all := map[string]emitter{
		"lui": func(t *translator, d *riscv.Decoded) {
			to := t.target(d.Rd)
			t.constant(to, int32(d.Imm))
			t.setGuest(d.Rd, to)
		},
		"auipc": func(t *translator, d *riscv.Decoded) {
			to := t.target(d.Rd)
			t.hart(true, opLoad, to, t.layout.PC)
			if distance := d.Imm + int64(t.at); distance == int64(int32(distance)) {
				t.immediate(true, immediateAdd, to, int32(distance))
			} else {
				t.immediate(true, immediateAdd, to, int32(d.Imm))
				t.immediate(true, immediateAdd, to, int32(t.at))
			}
			t.setGuest(d.Rd, to)
		},
		"addi": func(t *translator, d *riscv.Decoded) {
			to := t.target(d.Rd)
			switch {
			case d.Rs1 == 0:
				t.constant(to, int32(d.Imm))
			case inHost[d.Rs1] != 0 && inHost[d.Rs1] == to:
				t.immediate(true, immediateAdd, to, int32(d.Imm))
			default:
				t.address(to, d.Rs1, d.Imm)
			}
			t.setGuest(d.Rd, to)
		},
		"addiw": func(t *translator, d *riscv.Decoded) {
			t.copyOf(d.Rs1, rax)
			if d.Imm != 0 {
				t.immediate(false, immediateAdd, rax, int32(d.Imm))
			}
			t.pair(true, opSignExtendWord, rax, rax)
			t.setGuest(d.Rd, rax)
		},
		"fence": func(*translator, *riscv.Decoded) {},
	}
	for name, op := range map[string]byte{"xori": immediateXor, "ori": immediateOr, "andi": immediateAnd} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			to := t.target(d.Rd)
			t.copyOf(d.Rs1, to)
			t.immediate(true, op, to, int32(d.Imm))
			t.setGuest(d.Rd, to)
		}
	}
	for name, condition := range map[string]byte{"slti": less, "sltiu": below} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			t.immediate(true, immediateCmp, t.value(d.Rs1, rax), int32(d.Imm))
			t.set(condition)
			t.setGuest(d.Rd, rax)
		}
	}
	for name, condition := range map[string]byte{"slt": less, "sltu": below} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			t.compare(d.Rs1, d.Rs2)
			t.set(condition)
			t.setGuest(d.Rd, rax)
		}
	}
	for name, op := range map[string]int{"add": opAddTo, "sub": opSubTo, "xor": opXorTo, "or": opOrTo, "and": opAndTo} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			first, second := d.Rs1, d.Rs2
			if op != opSubTo {
				first, second = t.cheaperFirst(first, second)
			}
			to := t.target(d.Rd, second)
			t.copyOf(first, to)
			t.operation(true, op, to, second)
			t.setGuest(d.Rd, to)
		}
	}
	for name, op := range map[string]int{"addw": opAddTo, "subw": opSubTo} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			first, second := d.Rs1, d.Rs2
			if op != opSubTo {
				first, second = t.cheaperFirst(first, second)
			}
			t.copyOf(first, rax)
			t.operation(false, op, rax, second)
			t.pair(true, opSignExtendWord, rax, rax)
			t.setGuest(d.Rd, rax)
		}
	}
	for name, op := range map[string]byte{"sll": shiftLeft, "srl": shiftRight, "sra": shiftArithmetic} {
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
		all[name+"i"] = func(t *translator, d *riscv.Decoded) {
			to := t.target(d.Rd)
			t.copyOf(d.Rs1, to)
			t.shift(true, op, to, uint8(d.Imm))
			t.setGuest(d.Rd, to)
		}
		all[name+"iw"] = func(t *translator, d *riscv.Decoded) {
			t.copyOf(d.Rs1, rax)
			t.shift(false, op, rax, uint8(d.Imm))
			if op != shiftRight || d.Imm == 0 {
				t.pair(true, opSignExtendWord, rax, rax)
			}
			t.setGuest(d.Rd, rax)
		}
	}
	maps.Copy(all, controlEmitters())
	maps.Copy(all, multiplyEmitters())
	maps.Copy(all, bitEmitters())
	maps.Copy(all, memoryEmitters())
	maps.Copy(all, atomicEmitters())
	maps.Copy(all, floatEmitters())
	return all
}

func multiplyEmitters() map[string]emitter {
	all := map[string]emitter{
		"mul": func(t *translator, d *riscv.Decoded) {
			first, second := t.cheaperFirst(d.Rs1, d.Rs2)
			t.copyOf(first, rax)
			t.operation(true, opImul, rax, second)
			t.setGuest(d.Rd, rax)
		},
		"mulw": func(t *translator, d *riscv.Decoded) {
			first, second := t.cheaperFirst(d.Rs1, d.Rs2)
			t.copyOf(first, rax)
			t.operation(false, opImul, rax, second)
			t.pair(true, opSignExtendWord, rax, rax)
			t.setGuest(d.Rd, rax)
		},
		"mulhsu": func(t *translator, d *riscv.Decoded) { // the unsigned product, corrected when rs1 is negative
			t.copyOf(d.Rs1, rax)
			t.copyOf(d.Rs2, rcx)
			t.unary(true, unaryMultiply, rcx)
			t.copyOf(d.Rs1, rax)
			t.shift(true, shiftArithmetic, rax, 63)
			t.pair(true, opAnd, rcx, rax)
			t.pair(true, opSub, rax, rdx)
			t.setGuest(d.Rd, rdx)
		},
	}
	for name, op := range map[string]byte{"mulh": unaryMultiplySigned, "mulhu": unaryMultiply} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			t.copyOf(d.Rs1, rax)
			t.copyOf(d.Rs2, rcx)
			t.unary(true, op, rcx)
			t.setGuest(d.Rd, rdx)
		}
	}
	for name, remainder := range map[string]bool{"div": false, "rem": true} {
		for _, wide := range []bool{true, false} {
			suffix := "w"
			if wide {
				suffix = ""
			}
			all[name+suffix] = func(t *translator, d *riscv.Decoded) { t.divide(d, wide, true, remainder) }
			all[name+"u"+suffix] = func(t *translator, d *riscv.Decoded) { t.divide(d, wide, false, remainder) }
		}
	}
	return all
}

// divide never traps: dividing by zero gives all ones, or the dividend as the remainder; the most negative number by -1 gives itself, and
// zero.
func (t *translator) divide(d *riscv.Decoded, wide, signed, remainder bool) {
	done, zero, negate := t.newLabel(), t.newLabel(), t.newLabel()
	t.copyOf(d.Rs1, rax)
	t.copyOf(d.Rs2, rcx)
	t.pair(wide, opTest, rcx, rcx)
	t.jumpIf(equal, zero)
	if signed {
		t.immediate(wide, immediateCmp, rcx, -1)
		t.jumpIf(equal, negate)
		t.signIntoRDX(wide)
		t.unary(wide, unaryDivideSigned, rcx)
	} else {
		t.constant(rdx, 0)
		t.unary(wide, unaryDivide, rcx)
	}
	if remainder {
		t.move(rax, rdx)
	}
	t.jump(done)
	if signed {
		t.bind(negate)
		if remainder {
			t.constant(rax, 0)
		} else {
			t.unary(wide, unaryNegate, rax)
		}
		t.jump(done)
	}
	t.bind(zero)
	if !remainder {
		t.constant(rax, -1)
	}
	t.bind(done)
	if !wide {
		t.pair(true, opSignExtendWord, rax, rax)
	}
	t.setGuest(d.Rd, rax)
}
