package amd64

import (
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
		if a.Overlaps() { // which the architecture leaves open
			t.jump(t.miss())
			return
		}
		t.access(&a, w)
	}
}

// a64Structure has loads and stores of structures of one element: registers as they are in memory, and one that is repeated.
func a64Structure(row *a64.Instruction) a64Emitter {
	name, _, _ := strings.Cut(row.Name, ".")
	counts := map[string]uint8{"ld1x1": 1, "ld1x2": 2, "ld1x3": 3, "ld1x4": 4, "ld1r": 1, "st1x1": 1, "st1x2": 2, "st1x3": 3, "st1x4": 4}
	count, ok := counts[name]
	if !ok {
		return nil
	}
	repeats := name == "ld1r"
	isPost := strings.HasSuffix(row.Name, ".post")
	return func(t *a64Translator, w a64.Word) {
		size, table := uint8(8), t.layout.Read
		switch {
		case repeats:
			size = 1 << w.Field(10, 2)
		case w.Bit(30):
			size = 16
		}
		if !w.Bit(22) {
			table = t.layout.Write
		}
		t.floatOn()
		t.alignedStack(w.Rn())
		t.copyOf(w.Rn(), rax)
		t.lookUp(table, int32(size)*int32(count), t.miss())
		for i := range count {
			a := blocks.AccessA64{Size: size, Count: 1, Vector: true, Rt: [2]uint8{(w.Rd() + i) & 31}}
			switch {
			case repeats:
				op, wide := loadOf(size, 0)
				t.indexed(wide, op, rax, memory, rax, 0)
				t.broadcast(size)
				t.setHalves(w.Rd(), w.Bit(30))
			case w.Bit(22):
				t.load(&a, rax, uint32(i)*uint32(size))
			default:
				t.storeRegisters(&a, rax, uint32(i)*uint32(size))
			}
		}
		if isPost {
			t.moveBase(w, int32(size)*int32(count))
		}
	}
}

// moveBase adds a register to the base of an access of structures, or their size when it is XZR.
func (t *a64Translator) moveBase(w a64.Word, size int32) {
	base := w.Rn()
	t.copyOf(base, rax)
	if w.Rm() == 31 {
		t.immediate(true, immediateAdd, rax, size)
		t.setStack(base, base, int64(size))
	} else {
		t.operation(true, opAddTo, rax, w.Rm())
		if base == blocks.StackA64 {
			t.stackIsAligned = false
		}
	}
	t.setGuest(base, rax)
}

// alignedStack leaves when SP is the base of an access and no multiple of 16.
func (t *a64Translator) alignedStack(base uint8) {
	if base != blocks.StackA64 || t.stackIsAligned {
		return
	}
	t.stackIsAligned = true
	t.move32(rax, t.inHost[blocks.StackA64])
	t.immediate(false, immediateAnd, rax, 15)
	t.jumpIf(notEqual, t.miss())
}

// floatOn leaves when the kernel wants to hear of the use of vector registers at one of the exception levels.
func (t *a64Translator) floatOn() {
	if t.floatIsOn {
		return
	}
	t.floatIsOn = true
	const enabled = 3 << 20
	t.hart(false, opLoad, rax, t.layout.ARM64.CPACR)
	t.immediate(false, immediateAnd, rax, enabled)
	t.immediate(false, immediateCmp, rax, enabled)
	t.jumpIf(notEqual, t.miss())
}

func (t *a64Translator) access(a *blocks.AccessA64, w a64.Word) {
	if a.Vector {
		t.floatOn()
	}
	if a.Way != blocks.ByPC {
		t.alignedStack(a.Base)
	}
	switch at, distance, has := t.placeOf(a, w); {
	case a.Loads:
		t.load(a, at, distance)
	case has:
		t.storeRegisters(a, at, distance)
	default:
		t.lookUpAcross(t.layout.Write, int32(a.Size)*int32(a.Count), func() { t.storeRegisters(a, rax, 0) })
	}
	if a.ChangesBase() {
		t.setStack(a.Base, a.Base, a.Offset)
		if r := t.inHost[a.Base]; r != 0 {
			t.lea(true, r, r, int32(a.Offset))
		} else {
			t.hartAdd(t.layout.X+8*uint32(a.Base), int32(a.Offset))
			t.forget(a.Base)
		}
	}
}

// copies says whether an access is one of those with which memory is copied and set, wherever that is. They are looked up where they are in two pages, too,
// which takes a second store in the code.
func copies(a *blocks.AccessA64) bool { return a.Vector && a.Size == 16 }

// placeOf gives a register with an address in linear memory, and the distance from there, of an access. It is false for stores that are to be looked up
// yet.
func (t *a64Translator) placeOf(a *blocks.AccessA64, w a64.Word) (at register, distance uint32, has bool) {
	table, size := t.layout.Read, int32(a.Size)*int32(a.Count)
	if !a.Loads {
		table = t.layout.Write
	}
	switch a.Way {
	case blocks.ByPC:
		t.address(rax, int64(t.at)+a.Offset)
	case blocks.ByIndex:
		t.extend(rax, blocks.ZeroOf(w.Rm()), w.Field(13, 3))
		if w.Bit(12) && a.Size > 1 {
			shift := uint8(0)
			for s := a.Size; s > 1; s /= 2 {
				shift++
			}
			t.shift(true, shiftLeft, rax, shift)
		}
		t.operation(true, opAddTo, rax, a.Base)
	case blocks.After:
		t.copyOf(a.Base, rax)
	default:
		if g := t.groups[t.at/2]; g != nil && a.Way == blocks.ByOffset {
			at, distance = t.located(a.Base, g, a.Offset, t.baseAt)
			return at, distance, true
		}
		t.baseAt(rax, a.Base, a.Offset)
	}
	switch {
	case a.User:
		t.lookUpUser(table, size)
	case a.Loads:
		t.lookUpAcross(table, size, nil)
	case copies(a):
		return rax, 0, false
	default:
		t.lookUp(table, size, t.miss())
	}
	return rax, 0, true
}

// lookUpUser is lookUp in EL0's tables, which are not where the TLB's register says.
func (t *a64Translator) lookUpUser(table uint32, size int32) {
	t.index(rcx, rax)
	t.lea(true, rdx, rax, size-1)
	t.immediate(true, immediateAnd, rdx, -PageSize)
	t.immediate(false, immediateAdd, rcx, int32(t.layout.ARM64.UserTLB+table))
	t.indexed(true, opCmpTo, rdx, memory, rcx, t.layout.Tag)
	t.jumpIf(notEqual, t.miss())
	t.indexed(false, opAddTo, rax, memory, rcx, t.layout.Addend)
}

// baseAt makes a register's value and a distance of less than 16 bits.
func (t *a64Translator) baseAt(to register, base uint8, distance int64) {
	if r := t.inHost[base]; r != 0 {
		t.lea(true, to, r, int32(distance))
		return
	}
	t.copyOf(base, to)
	if distance != 0 {
		t.immediate(true, immediateAdd, to, int32(distance))
	}
}

func (t *a64Translator) load(a *blocks.AccessA64, at register, distance uint32) {
	if a.Vector {
		for i := range a.Count {
			v := t.layout.F + 16*uint32(a.Rt[i])
			part := distance + uint32(i)*uint32(a.Size)
			switch a.Size {
			case 16:
				t.indexed(true, opLoad, rcx, memory, at, part)
				t.indexed(true, opLoad, rdx, memory, at, part+8)
				t.hart(true, opMove, rcx, v)
				t.hart(true, opMove, rdx, v+8)
			default:
				op, wide := loadOf(a.Size, 0)
				t.indexed(wide, op, rcx, memory, at, part)
				t.hart(true, opMove, rcx, v)
				t.hartSet(v+8, 0)
			}
		}
		return
	}
	op, wide := loadOf(a.Size, a.Signed)
	scratch := [2]register{rcx, rdx}
	var in [2]register
	for i := range a.Count {
		r := blocks.ZeroOf(a.Rt[i])
		in[i] = t.inHost[r]
		if in[i] == 0 {
			in[i] = scratch[i]
		}
		t.indexed(wide, op, in[i], memory, at, distance+uint32(i)*uint32(a.Size))
		t.setGuest(r, in[i])
	}
}

// loadOf is the host's load of some bytes, extended with their sign to some bits, or zeros.
func loadOf(size, signed uint8) (op int, wide bool) {
	switch size {
	case 1:
		op = opLoad8
		if signed != 0 {
			op = opLoad8Signed
		}
	case 2:
		op = opLoad16
		if signed != 0 {
			op = opLoad16Signed
		}
	case 4:
		op = opLoad
		if signed == 64 {
			op = opSignExtendWord
		}
	default:
		return opLoad, true
	}
	return op, signed == 64
}

func (t *a64Translator) storeRegisters(a *blocks.AccessA64, at register, distance uint32) {
	how := storeOf(min(a.Size, 8))
	for i := range a.Count {
		part := distance + uint32(i)*uint32(a.Size)
		if !a.Vector {
			t.store(how, t.value(blocks.ZeroOf(a.Rt[i]), rdx), at, part)
			continue
		}
		v := t.layout.F + 16*uint32(a.Rt[i])
		t.hart(true, opLoad, rdx, v)
		t.store(how, rdx, at, part)
		if a.Size == 16 {
			t.hart(true, opLoad, rdx, v+8)
			t.store(how, rdx, at, part+8)
		}
	}
}

// aligned makes the offset of the TLB's entry for an access by a base register, in rcx, and the address in rax. What is not aligned is not found:
// the tag has zeros there.
func (t *a64Translator) aligned(base uint8, table uint32, size int32) {
	t.alignedStack(base)
	t.copyOf(base, rax)
	t.index(rcx, rax)
	t.move(rdx, rax)
	t.immediate(true, immediateAnd, rdx, -PageSize|(size-1))
	t.found(table, t.miss())
}

// inMemory makes the address in rax one in linear memory.
func (t *a64Translator) inMemory(table uint32) {
	t.indexed(false, opAddTo, rax, tlb, rcx, table+t.layout.Addend)
}

func storeOf(size uint8) access {
	a := access{size: int32(size), op: opMove, wide: size == 8}
	if size == 1 {
		a.op = opMove8
	}
	return a
}

// ordered is a load-acquire or store-release: with one hart, accesses like others, that must be aligned.
func (t *a64Translator) ordered(row *a64.Instruction, w a64.Word) {
	size := uint8(1) << w.Field(30, 2)
	loads := w.Bit(22) || strings.HasPrefix(row.Name, "ldapr")
	rt := blocks.ZeroOf(w.Rd())
	if loads {
		t.aligned(w.Rn(), t.layout.Read, int32(size))
		t.inMemory(t.layout.Read)
		op, wide := loadOf(size, 0)
		t.indexed(wide, op, rcx, memory, rax, 0)
		t.setGuest(rt, rcx)
		return
	}
	t.aligned(w.Rn(), t.layout.Write, int32(size))
	t.inMemory(t.layout.Write)
	t.store(storeOf(size), t.value(rt, rdx), rax, 0)
}

// a64Exclusive has exclusive accesses of one register. See src/arm64/execute_atomic.c.
func a64Exclusive(row *a64.Instruction) a64Emitter {
	if row.Bits.Match>>21&1 != 0 { // pairs
		return nil
	}
	return func(t *a64Translator, w a64.Word) {
		size := uint8(1) << w.Field(30, 2)
		op, wide := loadOf(size, 0)
		rt := blocks.ZeroOf(w.Rd())
		if w.Bit(22) {
			t.aligned(w.Rn(), t.layout.Read, int32(size))
			t.hart(true, opMove, rax, t.layout.Reservation)
			t.inMemory(t.layout.Read)
			t.indexed(wide, op, rcx, memory, rax, 0)
			t.hart(true, opMove, rcx, t.layout.Reserved)
			t.hartSet(t.layout.Reserved+8, 0)
			t.setGuest(rt, rcx)
			return
		}
		failed, done := t.newLabel(), t.newLabel()
		t.aligned(w.Rn(), t.layout.Write, int32(size))
		t.move(rdx, rax)
		t.inMemory(t.layout.Write)
		t.indexed(wide, op, rcx, memory, rax, 0)
		t.hart(true, opCmpTo, rdx, t.layout.Reservation)
		t.jumpIf(notEqual, failed)
		t.hart(true, opCmpTo, rcx, t.layout.Reserved)
		t.jumpIf(notEqual, failed)
		t.store(storeOf(size), t.value(rt, rdx), rax, 0)
		t.constant(rcx, 0)
		t.jump(done)
		t.bind(failed)
		t.constant(rcx, 1)
		t.bind(done)
		t.hartSet(t.layout.Reservation, -1)
		t.setGuest(blocks.ZeroOf(w.Rm()), rcx)
	}
}

// a64Atomic has the atomic accesses of FEAT_LSE. One hart and no device stores between instructions.
func a64Atomic(row *a64.Instruction) a64Emitter {
	if strings.HasPrefix(row.Name, "casp") {
		return (*a64Translator).swapPair
	}
	swaps := strings.HasPrefix(row.Name, "cas")
	return func(t *a64Translator, w a64.Word) {
		size := uint8(1) << w.Field(30, 2)
		op, wide := loadOf(size, 0)
		rt, rs := blocks.ZeroOf(w.Rd()), blocks.ZeroOf(w.Rm())
		kind := w.Field(12, 4)
		if !swaps && kind >= 4 && kind <= 7 && size < 4 {
			t.jump(t.miss())
			return
		}
		t.aligned(w.Rn(), t.layout.Write, int32(size))
		t.inMemory(t.layout.Write)
		if swaps {
			done := t.newLabel()
			t.copyOf(rs, rdx)
			switch size {
			case 1:
				t.immediate(false, immediateAnd, rdx, 0xff)
			case 2:
				t.immediate(false, immediateAnd, rdx, 0xffff)
			case 4:
				t.move32(rdx, rdx)
			}
			t.indexed(wide, op, rcx, memory, rax, 0)
			t.pair(true, opCmp, rdx, rcx)
			t.jumpIf(notEqual, done)
			t.store(storeOf(size), t.value(rt, rdx), rax, 0)
			t.bind(done)
			t.setGuest(rs, rcx)
			return
		}
		t.copyOf(rs, rdx)
		t.indexed(wide, op, rcx, memory, rax, 0)
		switch kind {
		case 0:
			t.pair(true, opAdd, rcx, rdx)
		case 1:
			t.immediate(true, immediateXor, rdx, -1)
			t.pair(true, opAnd, rcx, rdx)
		case 2:
			t.pair(true, opXor, rcx, rdx)
		case 3:
			t.pair(true, opOr, rcx, rdx)
		case 4, 5, 6, 7: // the old value, when it is so
			t.pair(size == 8, opCmp, rdx, rcx)
			t.moveIf(true, [4]byte{greater, less, above, below}[kind-4], rdx, rcx)
		}
		t.store(storeOf(size), rdx, rax, 0)
		t.setGuest(rt, rcx)
	}
}

// swapPair is CASP. What was there is equal to what it is compared with where the other pair is stored, so both registers are set first.
func (t *a64Translator) swapPair(w a64.Word) {
	size := uint8(4) << w.Field(30, 1)
	wide := size == 8
	done := t.newLabel()
	t.aligned(w.Rn(), t.layout.Write, 2*int32(size))
	t.inMemory(t.layout.Write)
	t.indexed(wide, opLoad, rcx, memory, rax, 0)
	t.indexed(wide, opLoad, rdx, memory, rax, uint32(size))
	differ, second := t.newLabel(), blocks.ZeroOf(w.Rm()+1)
	t.compareWith(wide, rcx, w.Rm())
	t.jumpIf(notEqual, differ)
	t.compareWith(wide, rdx, second)
	t.bind(differ)
	t.move32(rax, rax) // where the verifier knows no more that it is an address
	t.setGuest(w.Rm(), rcx)
	t.setGuest(second, rdx)
	t.jumpIf(notEqual, done)
	how := storeOf(size)
	t.store(how, t.value(w.Rd(), rdx), rax, 0)
	t.store(how, t.value(blocks.ZeroOf(w.Rd()+1), rdx), rax, uint32(size))
	t.bind(done)
}

// compareWith compares a register with a guest register, and changes neither.
func (t *a64Translator) compareWith(wide bool, r register, guest uint8) {
	switch {
	case guest == blocks.ZeroA64:
		t.immediate(wide, immediateCmp, r, 0)
	case t.inHost[guest] != 0:
		t.pair(wide, opCmp, t.inHost[guest], r)
	default:
		t.hart(wide, opCmpTo, r, t.layout.X+8*uint32(guest))
	}
}
