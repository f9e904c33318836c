package native_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/riscv"
)

// TestWalk: native code itself finds a page that the TLB does not have in the page tables, and one at its second place without them. The programs
// in testdata/bare would not notice if the interpreter did.
func TestWalk(t *testing.T) {
	const (
		tlb, ram, ramBytes           = 8192, 512 << 10, 256 << 10
		scratch, codeIndex, dirty    = 0x60000, 0x61000, 0x62000
		privilege, satp, left, users = hart + 624, hart + 632, hart + 640, hart + 648

		page = 0x4000_3000 // of the guest, the fourth of a table
		data = ram + 0x4000
	)
	g := newGuest(t)
	g.layout.RAM = ram
	g.layout.Supervisor = blocks.Supervisor{Privilege: privilege, UserEntries: users, UserEntry: users + 8}
	g.layout.Walk = blocks.Walk{
		Scratch: scratch, RAMBytes: scratch + 32, CodeIndex: codeIndex, Dirty: dirty, SATP: satp, SlowLeft: left, LargestShift: users + 16,
		EntryFrame: 12, Filled: 192 << 10, Noted: 192<<10 + 4, MaxNoted: 512,
	}
	put := func(at int, value uint64) { binary.LittleEndian.PutUint64(g.memory[at:], value) }
	get := func(at int) uint64 { return binary.LittleEndian.Uint64(g.memory[at:]) }
	const entry = blocks.EntryV | blocks.EntryR | blocks.EntryW | blocks.EntryA | blocks.EntryD | blocks.EntryG
	copy(g.memory[tlb:], bytes.Repeat([]byte{0xff}, 192<<10))
	put(scratch+32, ramBytes)
	put(privilege, blocks.PrivilegeS)
	put(satp, blocks.SATPSv39<<60|blocks.RAMBase>>12+1)
	put(left, 1_000_000)
	for table, e := range map[int]uint64{0x1000 + 8: 2<<10 | blocks.EntryV, 0x2000: 3<<10 | blocks.EntryV, 0x3000 + 3*8: 4<<10 | entry} {
		put(ram+table, e+blocks.RAMBase>>12<<10)
	}
	g.memory[dirty+data>>12] = 1
	put(data+8, 0x1234)
	put(hart+11*8, page)
	put(hart+12*8, 0x5678)
	translated := func(name string, o riscv.Operands) uint32 {
		word, err := riscv.Encode(name, o)
		if err != nil {
			t.Fatal(err)
		}
		return g.translated(word)
	}
	load, store := translated("ld", riscv.Operands{Rd: 10, Rs1: 11, Imm: 8}), translated("sd", riscv.Operands{Rs1: 11, Rs2: 12, Imm: 16})
	if !g.execute(load) || get(hart+10*8) != 0x1234 || !g.execute(store) || get(data+16) != 0x5678 {
		t.Fatalf("loaded %#x, stored %#x", get(hart+10*8), get(data+16))
	}
	if filled := get(tlb + 192<<10); uint32(filled) != 2 || get(left) != 1_000_000-2*blocks.WalkCharge {
		t.Errorf("%#x entries are filled, %d of the charge are left", filled, get(left))
	}
	first, other := tlb+page>>12%4096*16, tlb+(page>>12%4096^2048)*16
	for table := 0; table <= 64<<10; table += 64 << 10 {
		if get(table+first) != page || uint32(get(table+first+8))+page != data {
			t.Errorf("the entry is %#x and %#x", get(table+first), get(table+first+8))
		}
		copy(g.memory[table+other:][:16], g.memory[table+first:])
		put(table+first, ^uint64(0))
	}
	put(satp, 0)
	put(data+8, 0x4321)
	put(hart+12*8, 0x8765)
	if !g.execute(load) || get(hart+10*8) != 0x4321 || !g.execute(store) || get(data+16) != 0x8765 {
		t.Errorf("by the second place, loaded %#x, stored %#x", get(hart+10*8), get(data+16))
	}
	put(other, ^uint64(0))
	if g.execute(load) {
		t.Error("a page that is at no place and in no table is loaded from")
	}
}
