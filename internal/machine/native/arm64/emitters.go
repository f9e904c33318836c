package arm64

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
			to := t.result(d.Rd)
			t.constant(to, d.Imm)
			t.setGuest(d.Rd, to)
		},
		"auipc": func(t *translator, d *riscv.Decoded) {
			to := t.result(d.Rd)
			t.inHart(access{size: 3, op: load}, x0, t.layout.PC-t.layout.X)
			t.add(to, x0, d.Imm+int64(t.at))
			t.setGuest(d.Rd, to)
		},
		"addi": func(t *translator, d *riscv.Decoded) {
			to := t.result(d.Rd)
			t.address(to, d.Rs1, d.Imm)
			t.setGuest(d.Rd, to)
		},
		"addiw": func(t *translator, d *riscv.Decoded) {
			to := t.result(d.Rd)
			t.address(x0, d.Rs1, d.Imm)
			t.signExtend(to, x0)
			t.setGuest(d.Rd, to)
		},
		"slliw": func(t *translator, d *riscv.Decoded) { t.shifted(d, fieldSigned, 64-uint32(d.Imm), 31-uint32(d.Imm)) },
		"sraiw": func(t *translator, d *riscv.Decoded) { t.shifted(d, fieldSigned, uint32(d.Imm), 31) },
		"srliw": func(t *translator, d *riscv.Decoded) {
			if d.Imm == 0 {
				t.shifted(d, fieldSigned, 0, 31)
				return
			}
			t.shifted(d, field, uint32(d.Imm), 31)
		},
		"slli":  func(t *translator, d *riscv.Decoded) { t.shifted(d, field, 64-uint32(d.Imm), 63-uint32(d.Imm)) },
		"srli":  func(t *translator, d *riscv.Decoded) { t.shifted(d, field, uint32(d.Imm), 63) },
		"srai":  func(t *translator, d *riscv.Decoded) { t.shifted(d, fieldSigned, uint32(d.Imm), 63) },
		"fence": func(*translator, *riscv.Decoded) {},
		"mulhsu": func(t *translator, d *riscv.Decoded) { // the unsigned product, corrected when rs1 is negative
			a, b := t.value(d.Rs1, x1), t.value(d.Rs2, x2)
			t.three(true, opMulHighU, x0, a, b)
			t.field(fieldSigned, x3, a, 63, 63)
			t.three(true, opAnd, x3, x3, b)
			t.three(true, opSub, x0, x0, x3)
			t.setGuest(d.Rd, x0)
		},
	}
	for name, op := range map[string]uint32{"xori": opXor, "ori": opOr, "andi": opAnd} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			to := t.result(d.Rd)
			t.constant(x1, d.Imm)
			t.three(true, op, to, t.value(d.Rs1, x0), x1)
			t.setGuest(d.Rd, to)
		}
	}
	for name, condition := range map[string]byte{"slti": less, "sltiu": below} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			to, from := t.result(d.Rd), t.value(d.Rs1, x0)
			if from == zero {
				from = x0
				t.constant(x0, 0)
			}
			t.compareWith(from, d.Imm)
			t.set(to, condition)
			t.setGuest(d.Rd, to)
		}
	}
	for name, condition := range map[string]byte{"slt": less, "sltu": below} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			to := t.result(d.Rd)
			t.compare(true, t.value(d.Rs1, x0), t.value(d.Rs2, x2))
			t.set(to, condition)
			t.setGuest(d.Rd, to)
		}
	}
	for name, op := range map[string]uint32{
		"add": opAdd, "sub": opSub, "xor": opXor, "or": opOr, "and": opAnd, "sll": opShiftLeft, "srl": opShiftRight, "sra": opShiftArith,
		"mul": opMul, "mulh": opMulHigh, "mulhu": opMulHighU,
	} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			to := t.result(d.Rd)
			t.three(true, op, to, t.value(d.Rs1, x0), t.value(d.Rs2, x2))
			t.setGuest(d.Rd, to)
		}
	}
	for name, op := range map[string]uint32{
		"addw": opAdd, "subw": opSub, "sllw": opShiftLeft, "srlw": opShiftRight, "sraw": opShiftArith, "mulw": opMul,
	} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			to := t.result(d.Rd)
			t.three(false, op, x0, t.value(d.Rs1, x0), t.value(d.Rs2, x2))
			t.signExtend(to, x0)
			t.setGuest(d.Rd, to)
		}
	}
	for suffix, wide := range map[string]bool{"": true, "w": false} {
		for name, op := range map[string]uint32{"": opDiv, "u": opDivU} {
			all["div"+name+suffix] = func(t *translator, d *riscv.Decoded) { t.divide(d, wide, op, false) }
			all["rem"+name+suffix] = func(t *translator, d *riscv.Decoded) { t.divide(d, wide, op, true) }
		}
	}
	maps.Copy(all, bitEmitters())
	maps.Copy(all, memoryEmitters())
	maps.Copy(all, atomicEmitters())
	maps.Copy(all, floatEmitters())
	maps.Copy(all, controlEmitters())
	return all
}

func (t *translator) shifted(d *riscv.Decoded, op, rotate, last uint32) {
	to := t.result(d.Rd)
	t.field(op, to, t.value(d.Rs1, x0), rotate, last)
	t.setGuest(d.Rd, to)
}

// divide: the host's quotient by zero is zero, which makes the remainder right and the quotient wrong.
func (t *translator) divide(d *riscv.Decoded, wide bool, op uint32, remainder bool) {
	a, b := t.value(d.Rs1, x1), t.value(d.Rs2, x2)
	t.three(wide, op, x0, a, b)
	if remainder {
		t.three(wide, opMulSub|uint32(a)<<10, x0, x0, b)
	} else {
		t.compare(wide, b, zero)
		t.choose(wide, opSelectNot, notEqual, x0, x0, zero)
	}
	if !wide {
		t.signExtend(x0, x0)
	}
	t.setGuest(d.Rd, x0)
}

func memoryEmitters() map[string]emitter {
	all := map[string]emitter{}
	for name, a := range map[string]access{
		"lb": {size: 0, op: loadSigned}, "lh": {size: 1, op: loadSigned}, "lw": {size: 2, op: loadSigned}, "ld": {size: 3, op: load},
		"lbu": {size: 0, op: load}, "lhu": {size: 1, op: load}, "lwu": {size: 2, op: load},
	} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			from, to := t.located(d.Rs1, d.Imm, 1<<a.size, t.layout.Read, a), t.result(d.Rd)
			t.transfer(a, to, from)
			t.setGuest(d.Rd, to)
		}
	}
	for name, a := range map[string]access{"sb": {size: 0}, "sh": {size: 1}, "sw": {size: 2}, "sd": {size: 3}} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			to := t.located(d.Rs1, d.Imm, 1<<a.size, t.layout.Write, a)
			t.transfer(a, t.value(d.Rs2, x2), to)
		}
	}
	return all
}

// aligned is lookUp for accesses that must be aligned, of rs1: the tag has zeros there. The virtual address stays in x0, the addend is in x1.
func (t *translator) aligned(d *riscv.Decoded, table uint32, a access) {
	t.copyOf(d.Rs1, x0)
	t.mask(x2, x0, 12, 64+a.size)
	t.found(table, x0, x2, 0, t.miss())
}

// atomicEmitters has LR, SC and the AMOs. One hart and no device stores between instructions, so that a plain read and write is atomic.
func atomicEmitters() map[string]emitter {
	combine := map[string]uint32{"amoswap": 0, "amoadd": opAdd, "amoxor": opXor, "amoand": opAnd, "amoor": opOr}
	keep := map[string]byte{"amomin": less, "amomax": greater, "amominu": below, "amomaxu": above} // the old value, when it is so
	all := map[string]emitter{}
	for suffix, wide := range map[string]bool{".w": false, ".d": true} {
		put, get := access{size: 2, op: store}, access{size: 2, op: loadSigned}
		if wide {
			put, get = access{size: 3, op: store}, access{size: 3, op: load}
		}
		amo := func(t *translator, d *riscv.Decoded, value func(with register)) { // the old one is in x1, the new one in x3
			t.aligned(d, t.layout.Write, put)
			t.three(true, opAdd, x0, x0, x1)
			t.inMemory(get, x1, x0)
			value(t.value(d.Rs2, x2))
			t.inMemory(put, x3, x0)
			t.setGuest(d.Rd, x1)
		}
		for name, op := range combine {
			all[name+suffix] = func(t *translator, d *riscv.Decoded) {
				amo(t, d, func(with register) {
					if op == 0 {
						t.move(x3, with)
						return
					}
					t.three(true, op, x3, x1, with)
				})
			}
		}
		for name, condition := range keep {
			all[name+suffix] = func(t *translator, d *riscv.Decoded) {
				amo(t, d, func(with register) {
					t.compare(wide, x1, with)
					t.choose(true, opSelect, condition, x3, x1, with)
				})
			}
		}
		reservation := func(t *translator) uint32 { return t.layout.Reservation - t.layout.X }
		reserved := func(t *translator) uint32 { return t.layout.Reserved - t.layout.X }
		all["lr"+suffix] = func(t *translator, d *riscv.Decoded) {
			t.aligned(d, t.layout.Read, put)
			t.inHart(access{size: 3, op: store}, x0, reservation(t))
			t.three(true, opAdd, x0, x0, x1)
			t.inMemory(get, x1, x0)
			t.inHart(access{size: 3, op: store}, x1, reserved(t))
			t.setGuest(d.Rd, x1)
		}
		all["sc"+suffix] = func(t *translator, d *riscv.Decoded) {
			failed, done := t.newLabel(), t.newLabel()
			t.aligned(d, t.layout.Write, put)
			t.three(true, opAdd, x1, x0, x1)
			t.inHart(access{size: 3, op: load}, x3, reservation(t))
			t.compare(true, x0, x3)
			t.jumpIf(notEqual, failed)
			t.inMemory(get, x0, x1)
			t.inHart(access{size: 3, op: load}, x3, reserved(t))
			t.compare(true, x0, x3)
			t.jumpIf(notEqual, failed)
			t.inMemory(put, t.value(d.Rs2, x2), x1)
			t.constant(x1, 0)
			t.jump(done)
			t.bind(failed)
			t.constant(x1, 1)
			t.bind(done)
			t.constant(x2, -1)
			t.inHart(access{size: 3, op: store}, x2, reservation(t))
			t.setGuest(d.Rd, x1)
		}
	}
	return all
}
