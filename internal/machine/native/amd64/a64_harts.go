package amd64

import (
	"strings"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

// What machines of several harts have in other forms. The host keeps accesses in order, except a store before a later load, which takes a fence
// (Intel's manual, volume 3, "Memory Ordering"). What is read and written at once is so by one instruction.

// a64Shared gives what translates a row then, nil: the interpreter executes it.
func a64Shared(row *a64.Instruction, w a64.Word) a64Emitter {
	switch {
	case row.Name == "dsb": // it waits for the other harts
		return nil
	case row.Name == "dmb":
		const loadsAndStores = 3
		if w.Field(8, 2) == loadsAndStores {
			return func(t *a64Translator, _ a64.Word) { t.fence() }
		}
		return func(*a64Translator, a64.Word) {}
	case row.Group == "memory":
		return func(t *a64Translator, w a64.Word) {
			t.ordered(row, w)
			if !w.Bit(22) && !strings.HasPrefix(row.Name, "ldapr") {
				t.fence() // no later load-acquire comes before a store-release
			}
		}
	case row.Group == "exclusive" && row.Bits.Match>>21&1 == 0 && !w.Bit(22):
		return (*a64Translator).storeExclusive
	case row.Group == "atomic" && !strings.HasPrefix(row.Name, "casp"):
		if strings.HasPrefix(row.Name, "cas") {
			return (*a64Translator).compareAndSwap
		}
		return (*a64Translator).fetchAndModify
	case row.Group == "exclusive" && row.Bits.Match>>21&1 != 0 || row.Group == "atomic":
		return nil // pairs
	}
	return a64EmitterOf(row)
}

// forExchange leaves the address in rcx of an aligned access to write.
func (t *a64Translator) forExchange(base uint8, size uint8) {
	t.aligned(base, t.layout.Write, int32(size))
	t.inMemory(t.layout.Write)
	t.move32(rcx, rax)
}

// truncated leaves the lower bytes of a register.
func (t *a64Translator) truncated(r register, size uint8) {
	switch size {
	case 1, 2:
		t.immediate(false, immediateAnd, r, int32(1)<<(8*size)-1)
	case 4:
		t.move32(r, r)
	}
}

// storeExclusive is STXR: by the value, as in src/arm64/execute_atomic.c.
func (t *a64Translator) storeExclusive(w a64.Word) {
	size := uint8(1) << w.Field(30, 2)
	failed, done := t.newLabel(), t.newLabel()
	t.aligned(w.Rn(), t.layout.Write, int32(size))
	t.hart(true, opCmpTo, rax, t.layout.Reservation)
	t.jumpIf(notEqual, failed)
	t.inMemory(t.layout.Write)
	t.move32(rcx, rax)
	t.copyOf(blocks.ZeroOf(w.Rd()), rdx)
	t.hart(true, opLoad, rax, t.layout.Reserved)
	t.exchange(size, rdx, rcx)
	t.jumpIf(notEqual, failed)
	t.constant(rcx, 0)
	t.jump(done)
	t.bind(failed)
	t.constant(rcx, 1)
	t.bind(done)
	t.hartSet(t.layout.Reservation, -1)
	t.setGuest(blocks.ZeroOf(w.Rm()), rcx)
}

func (t *a64Translator) compareAndSwap(w a64.Word) {
	size := uint8(1) << w.Field(30, 2)
	rs := blocks.ZeroOf(w.Rm())
	t.forExchange(w.Rn(), size)
	t.copyOf(rs, rax)
	t.truncated(rax, size)
	t.copyOf(blocks.ZeroOf(w.Rd()), rdx)
	t.exchange(size, rdx, rcx)
	t.setGuest(rs, rax)
}

// fetchAndModify is LDADD and its kin. When another hart comes between, the interpreter tries again.
func (t *a64Translator) fetchAndModify(w a64.Word) {
	size := uint8(1) << w.Field(30, 2)
	kind := w.Field(12, 4)
	if kind >= 4 && kind <= 7 && size < 4 {
		t.jump(t.miss())
		return
	}
	op, wide := loadOf(size, 0)
	t.forExchange(w.Rn(), size)
	t.indexed(wide, op, rax, memory, rcx, 0)
	t.copyOf(blocks.ZeroOf(w.Rm()), rdx)
	switch kind {
	case 0:
		t.pair(true, opAdd, rax, rdx)
	case 1:
		t.immediate(true, immediateXor, rdx, -1)
		t.pair(true, opAnd, rax, rdx)
	case 2:
		t.pair(true, opXor, rax, rdx)
	case 3:
		t.pair(true, opOr, rax, rdx)
	case 4, 5, 6, 7: // the old value, when it is so
		t.pair(size == 8, opCmp, rdx, rax)
		t.moveIf(true, [4]byte{greater, less, above, below}[kind-4], rdx, rax)
	}
	t.exchange(size, rdx, rcx)
	t.jumpIf(notEqual, t.miss())
	t.setGuest(blocks.ZeroOf(w.Rd()), rax)
}

// fence is mfence.
func (t *a64Translator) fence() { t.bytes(0x0f, 0xae, 0xf0) }

// exchange stores `from` at the address in linear memory if rax is what is there, and leaves what was there in rax: lock cmpxchg.
func (t *a64Translator) exchange(size uint8, from, at register) {
	t.bytes(0xf0)
	op := opExchange
	switch size {
	case 1:
		op = opExchange8
	case 2:
		t.bytes(0x66)
	}
	t.indexed(size == 8, op, from, memory, at, 0)
	t.overwrite(rax)
}
