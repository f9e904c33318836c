package arm64

import (
	"math/bits"
	"strings"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/blocks"
)

// a64Memory translates loads and stores.
func a64Memory(row *a64.Instruction) a64Emitter {
	if row.Format == a64.FormatEXCL {
		return func(t *a64Translator, w a64.Word) { t.ordered(row, w) }
	}
	return func(t *a64Translator, w a64.Word) {
		a := (&blocks.A64{Row: row, Word: w}).Operands()
		if a.Overlaps() {
			t.jump(t.miss())
			return
		}
		t.access(&a, w)
	}
}

// structure is a load or store of structures: itself, at a place.
func (t *a64Translator) structure(w a64.Word) {
	const base, post, increment = 31 << 5, 1 << 23, 31 << 16
	size, table := structureSize(w), t.layout.Read
	if !w.Bit(22) {
		table = t.layout.Write
	}
	t.vectorsOn()
	t.alignedStack(w.Rn())
	t.copyOf(w.Rn(), x0)
	t.lookUp(table, size, t.miss())
	t.setPlace(placeOfOther, x0)
	t.placed.byOther = nil
	isPost := w.Bit(23)
	out := w &^ base
	if isPost {
		out &^= post | increment
	}
	t.word(uint32(out) | uint32(placeOfOther)<<5)
	if isPost {
		t.moveBase(w, size)
	}
}

// structureSize is how many bytes a load or store of structures accesses (C4.1, "Loads and Stores": "Advanced SIMD load/store multiple structures", and
// single structure).
func structureSize(w a64.Word) int64 {
	if !w.Bit(24) { // whole registers
		registers := map[uint32]int64{0: 4, 2: 4, 4: 3, 6: 3, 7: 1, 8: 2, 10: 2}[w.Field(12, 4)]
		return registers * (8 << w.Field(30, 1))
	}
	elements, opcode, size := 1+int64(w.Field(13, 1)<<1|w.Field(21, 1)), w.Field(14, 2), w.Field(10, 2)
	if opcode < 3 { // one lane
		size = opcode
		if opcode == 2 && w.Bit(10) {
			size = 3
		}
	}
	return elements << size
}

// moveBase adds a register to the base of an access of structures, or their size when it is XZR.
func (t *a64Translator) moveBase(w a64.Word, size int64) {
	base := w.Rn()
	if w.Rm() == 31 {
		t.changeBase(base, size)
		return
	}
	if base == blocks.StackA64 {
		t.stackIsAligned = false
	}
	to := t.result(base)
	t.three(true, opAdd, to, t.value(base, x0), t.value(w.Rm(), x2))
	t.setGuest(base, to)
}

// changeBase adds a distance to a base register.
func (t *a64Translator) changeBase(base uint8, distance int64) {
	t.setStack(base, base, distance)
	to := t.result(base)
	t.address(to, base, distance)
	t.setGuest(base, to)
}

// alignedStack leaves when SP is the base of an access and no multiple of 16.
func (t *a64Translator) alignedStack(base uint8) {
	if base != blocks.StackA64 || t.stackIsAligned {
		return
	}
	t.stackIsAligned = true
	t.test(a64InHost[blocks.StackA64], 0, 4)
	t.jumpIf(notEqual, t.miss())
}

// vectorsOn leaves when the kernel wants to hear of the use of vector registers at one of the exception levels.
func (t *a64Translator) vectorsOn() {
	if t.vectorsAreOn {
		return
	}
	t.vectorsAreOn = true
	t.inHart(access{size: 3, op: load}, x0, t.inHartAt(t.layout.ARM64.CPACR))
	t.field(field, x0, x0, 20, 21) // FPEN
	t.compareWith(x0, 3)
	t.jumpIf(notEqual, t.miss())
}

// parts is how an access moves each register.
func parts(a *blocks.AccessA64) access {
	m := access{uint32(bits.TrailingZeros8(a.Size)), store, a.Vector}
	if a.Loads {
		m.op = [...]uint32{0: load, 32: loadSigned32, 64: loadSigned}[a.Signed]
	}
	return m
}

func (t *a64Translator) access(a *blocks.AccessA64, w a64.Word) {
	if a.Vector {
		t.vectorsOn()
	}
	if a.Way != blocks.ByPC {
		t.alignedStack(a.Base)
	}
	m := parts(a)
	at := t.placeOfAccess(a, w, m)
	for i := range a.Count {
		if i > 0 {
			at = t.behind(at, a.Size)
		}
		r := blocks.ZeroOf(a.Rt[i])
		switch {
		case a.Vector:
			t.transfer(m, register(a.Rt[i]), at)
		case !a.Loads:
			t.transfer(m, t.value(r, x2), at)
		default:
			to := t.to(r)
			if to == x0 {
				to = x2
			}
			t.transfer(m, to, at)
			t.setGuest(r, to)
		}
	}
	if a.ChangesBase() {
		t.changeBase(a.Base, a.Offset)
	}
}

// behind is the place behind another.
func (t *a64Translator) behind(o operand, size uint8) operand {
	if o.place == x0 {
		t.add(x0, x0, int64(size))
		return o
	}
	o.distance += uint32(size)
	return o
}

// placeOfAccess finds what an access accesses.
func (t *a64Translator) placeOfAccess(a *blocks.AccessA64, w a64.Word, m access) operand {
	table, size := t.layout.Read, int64(a.Size)*int64(a.Count)
	if !a.Loads {
		table = t.layout.Write
	}
	switch a.Way {
	case blocks.ByPC:
		t.inPage(x0, int64(t.at)+a.Offset)
	case blocks.ByIndex:
		const addExtended = 0x8b200000
		shift := m.size * w.Field(12, 1)
		t.word(addExtended | uint32(t.value(blocks.ZeroOf(w.Rm()), x2))<<16 | w.Field(13, 3)<<13 | shift<<10 | uint32(t.value(a.Base, x0))<<5 | uint32(x0))
	case blocks.After:
		t.copyOf(a.Base, x0)
	default:
		if !a.User {
			if a.Way == blocks.ByOffset {
				return t.located(a.Base, a.Offset, size, table, m)
			}
		}
		t.address(x0, a.Base, a.Offset)
	}
	if a.User {
		t.lookUpUser(table, size)
	} else {
		t.lookUp(table, size, t.miss())
	}
	return operand{}
}

// lookUpUser is lookUp in EL0's tables, which are not where the TLB's register says.
func (t *a64Translator) lookUpUser(table uint32, size int64) {
	t.add(x2, x0, size-1)
	t.mask(x2, x2, 12, 64)
	t.index(x0)
	t.constant(x3, int64(t.layout.ARM64.UserTLB+table+t.layout.Tag))
	t.addShifted(x1, x3, x1, 4) // an entry has 16 bytes
	t.inMemory(access{size: 3, op: load}, x3, x1)
	t.compare(true, x3, x2)
	t.jumpIf(notEqual, t.miss())
	t.addend()
	t.three(true, opAdd, x0, x0, x1)
}

// alignedAt makes x0 the address of an access by a base register, which must be aligned, and x1 the addend that makes it one in linear memory.
func (t *a64Translator) alignedAt(base uint8, table, size uint32) {
	t.alignedStack(base)
	t.copyOf(base, x0)
	t.mask(x2, x0, 12, 64+size) // the tag has zeros there
	t.found(table, x0, x2, 0, t.miss())
}

// ordered is a load-acquire or store-release: with one hart, accesses like others, that must be aligned.
func (t *a64Translator) ordered(row *a64.Instruction, w a64.Word) {
	size := w.Field(30, 2)
	rt := blocks.ZeroOf(w.Rd())
	if w.Bit(22) || strings.HasPrefix(row.Name, "ldapr") {
		t.alignedAt(w.Rn(), t.layout.Read, size)
		t.three(true, opAdd, x0, x0, x1)
		to := t.to(rt)
		t.inMemory(access{size: size, op: load}, to, x0)
		t.setGuest(rt, to)
		return
	}
	t.alignedAt(w.Rn(), t.layout.Write, size)
	t.three(true, opAdd, x0, x0, x1)
	t.inMemory(access{size: size, op: store}, t.value(rt, x2), x0)
}

// a64Exclusive has exclusive accesses of one register. See src/arm64/execute_atomic.c.
func a64Exclusive(row *a64.Instruction) a64Emitter {
	if row.Bits.Match>>21&1 != 0 { // pairs
		return nil
	}
	return func(t *a64Translator, w a64.Word) {
		size := w.Field(30, 2)
		get, put, word := access{size: size, op: load}, access{size: size, op: store}, access{size: 3, op: store}
		reservation, reserved := t.inHartAt(t.layout.Reservation), t.inHartAt(t.layout.Reserved)
		rt := blocks.ZeroOf(w.Rd())
		if w.Bit(22) {
			t.alignedAt(w.Rn(), t.layout.Read, size)
			t.inHart(word, x0, reservation)
			t.three(true, opAdd, x0, x0, x1)
			t.inMemory(get, x1, x0)
			t.inHart(word, x1, reserved)
			t.inHart(word, zero, reserved+8)
			t.setGuest(rt, x1)
			return
		}
		failed, done := t.newLabel(), t.newLabel()
		t.alignedAt(w.Rn(), t.layout.Write, size)
		t.three(true, opAdd, x1, x0, x1)
		t.inHart(access{size: 3, op: load}, x3, reservation)
		t.compare(true, x0, x3)
		t.jumpIf(notEqual, failed)
		t.inMemory(get, x0, x1)
		t.inHart(access{size: 3, op: load}, x3, reserved)
		t.compare(true, x0, x3)
		t.jumpIf(notEqual, failed)
		t.inMemory(put, t.value(rt, x2), x1)
		t.constant(x1, 0)
		t.jump(done)
		t.bind(failed)
		t.constant(x1, 1)
		t.bind(done)
		t.constant(x2, -1)
		t.inHart(word, x2, reservation)
		t.setGuest(blocks.ZeroOf(w.Rm()), x1)
	}
}

// a64Atomic has the atomic accesses of FEAT_LSE but pairs. One hart and no device stores between instructions.
func a64Atomic(row *a64.Instruction) a64Emitter {
	if strings.HasPrefix(row.Name, "casp") {
		return nil
	}
	swaps := strings.HasPrefix(row.Name, "cas")
	return func(t *a64Translator, w a64.Word) {
		size, kind := w.Field(30, 2), w.Field(12, 4)
		if !swaps && kind >= 4 && kind <= 7 && size < 2 {
			t.jump(t.miss())
			return
		}
		get, put := access{size: size, op: load}, access{size: size, op: store}
		rt, rs := blocks.ZeroOf(w.Rd()), blocks.ZeroOf(w.Rm())
		t.alignedAt(w.Rn(), t.layout.Write, size)
		t.three(true, opAdd, x0, x0, x1)
		with := t.value(rs, x2)
		t.inMemory(get, x1, x0)
		if swaps {
			done := t.newLabel()
			if size < 3 {
				t.field(field, x2, with, 0, 8<<size-1)
				with = x2
			}
			t.compare(true, with, x1)
			t.jumpIf(notEqual, done)
			t.inMemory(put, t.value(rt, x3), x0)
			t.bind(done)
			t.setGuest(rs, x1)
			return
		}
		switch kind {
		case 0:
			t.three(true, opAdd, x3, x1, with)
		case 1:
			t.three(true, opAndNot, x3, x1, with)
		case 2:
			t.three(true, opXor, x3, x1, with)
		case 3:
			t.three(true, opOr, x3, x1, with)
		case 4, 5, 6, 7: // the old value, when it is so
			t.compare(size == 3, x1, with)
			t.choose(true, opSelect, [4]byte{greater, less, above, below}[kind-4], x3, x1, with)
		default: // SWP
			t.move(x3, with)
		}
		t.inMemory(put, x3, x0)
		t.setGuest(rt, x1)
	}
}
