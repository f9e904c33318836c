package amd64

import "agentvm/internal/machine/riscv"

// access is what a load or store moves.
type access struct {
	size int32
	op   int
	wide bool
}

func memoryEmitters() map[string]emitter {
	all := map[string]emitter{}
	for name, a := range map[string]access{
		"lb": {1, opLoad8Signed, true}, "lh": {2, opLoad16Signed, true}, "lw": {4, opSignExtendWord, true}, "ld": {8, opLoad, true},
		"lbu": {1, opLoad8, false}, "lhu": {2, opLoad16, false}, "lwu": {4, opLoad, false},
	} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			at, distance := t.locate(d, t.layout.Read, a.size)
			to := t.target(d.Rd)
			if to == at && t.holds[at] >= heldPlace {
				to = rdx // the place is needed again
			}
			t.indexed(a.wide, a.op, to, memory, at, distance)
			t.setGuest(d.Rd, to)
		}
	}
	for name, a := range map[string]access{"sb": {1, opMove8, false}, "sh": {2, opMove, false}, "sw": {4, opMove, false}, "sd": {8, opMove, true}} {
		all[name] = func(t *translator, d *riscv.Decoded) {
			at, distance := t.locate(d, t.layout.Write, a.size)
			t.store(a, t.value(d.Rs2, rdx), at, distance)
		}
	}
	return all
}

// locate gives the register with an address in linear memory, and the distance from there, of what a load or store accesses.
func (t *translator) locate(d *riscv.Decoded, table uint32, size int32) (at register, distance uint32) {
	if g := t.groups[t.at/2]; g != nil {
		return t.located(d.Rs1, g, d.Imm, t.address)
	}
	t.address(rax, d.Rs1, d.Imm)
	t.lookUp(table, size, t.miss())
	return rax, 0
}

// aligned is the first half of lookUp for accesses that must be aligned: the tag has zeros there.
func (t *translator) aligned(d *riscv.Decoded, table uint32, size int32) {
	t.copyOf(d.Rs1, rax)
	t.index(rcx, rax)
	t.move(rdx, rax)
	t.immediate(true, immediateAnd, rdx, -PageSize|(size-1))
	t.found(table, t.miss())
}

// atomicEmitters has LR, SC and the AMOs. One hart and no device stores between instructions, so that a plain read and write is atomic.
func atomicEmitters() map[string]emitter {
	combine := map[string]int{"amoswap": 0, "amoadd": opAdd, "amoxor": opXor, "amoand": opAnd, "amoor": opOr}
	choose := map[string]byte{"amomin": less, "amomax": greater, "amominu": below, "amomaxu": above} // the old value, when it is so
	all := map[string]emitter{}
	for suffix, a := range map[string]access{".w": {4, opMove, false}, ".d": {8, opMove, true}} {
		load := access{8, opLoad, true}
		if a.size == 4 {
			load.op = opSignExtendWord
		}
		amo := func(t *translator, d *riscv.Decoded, value func()) { // the old one is in rcx, rs2 in rdx, the address in rax
			t.aligned(d, t.layout.Write, a.size)
			t.indexed(false, opAddTo, rax, tlb, rcx, t.layout.Write+t.layout.Addend)
			t.copyOf(d.Rs2, rdx)
			t.indexed(true, load.op, rcx, memory, rax, 0)
			value()
			t.store(a, rdx, rax, 0)
			t.setGuest(d.Rd, rcx)
		}
		for name, op := range combine {
			all[name+suffix] = func(t *translator, d *riscv.Decoded) {
				amo(t, d, func() {
					if op != 0 {
						t.pair(true, op, rcx, rdx)
					}
				})
			}
		}
		for name, condition := range choose {
			all[name+suffix] = func(t *translator, d *riscv.Decoded) {
				amo(t, d, func() {
					t.pair(a.wide, opCmp, rdx, rcx)
					t.moveIf(true, condition, rdx, rcx)
				})
			}
		}
		all["lr"+suffix] = func(t *translator, d *riscv.Decoded) {
			t.aligned(d, t.layout.Read, a.size)
			t.hart(true, opMove, rax, t.layout.Reservation)
			t.indexed(false, opAddTo, rax, tlb, rcx, t.layout.Read+t.layout.Addend)
			t.indexed(true, load.op, rcx, memory, rax, 0)
			t.hart(true, opMove, rcx, t.layout.Reserved)
			t.setGuest(d.Rd, rcx)
		}
		all["sc"+suffix] = func(t *translator, d *riscv.Decoded) {
			failed, done := t.newLabel(), t.newLabel()
			t.aligned(d, t.layout.Write, a.size)
			t.move(rdx, rax)
			t.indexed(false, opAddTo, rax, tlb, rcx, t.layout.Write+t.layout.Addend)
			t.indexed(true, load.op, rcx, memory, rax, 0)
			t.hart(true, opCmpTo, rdx, t.layout.Reservation)
			t.jumpIf(notEqual, failed)
			t.hart(true, opCmpTo, rcx, t.layout.Reserved)
			t.jumpIf(notEqual, failed)
			t.store(a, t.value(d.Rs2, rdx), rax, 0)
			t.constant(rcx, 0)
			t.jump(done)
			t.bind(failed)
			t.constant(rcx, 1)
			t.bind(done)
			t.hartSet(t.layout.Reservation, -1)
			t.setGuest(d.Rd, rcx)
		}
	}
	return all
}
