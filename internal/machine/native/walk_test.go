package native_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"agentvm/internal/machine/native"
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

// TestWalkA64 is that for arm64's tables, which native code also leaves to the interpreter where an entry says anything else than that the access is permitted.
func TestWalkA64(t *testing.T) {
	const (
		x, v, tlb, ram, ramBytes  = 4096, 4096 + 256, 8192, 512 << 10, 256 << 10
		scratch, codeIndex, dirty = 0x60000, 0x61000, 0x62000
		registers                 = 4096 + 800
		el, sctlr, tcr            = registers, registers + 8, registers + 16
		ttbr0, ttbr1              = registers + 24, registers + 32
		left, largest             = registers + 40, registers + 48

		upper    = 0xffff_8000_0000_0000
		page     = 0x4000_3000 // in both halves: the entries are 0, 1, 0 and 3 of their tables
		data     = ram + 0x4000
		descends = blocks.RAMBase | blocks.DescriptorTable
		entry    = blocks.RAMBase + 0x4000 | blocks.DescriptorTable | blocks.DescriptorAF
	)
	g := newGuest(t)
	library := native.NewLibrary(1 << 20)
	var err error
	if g.code, err = native.New(blocks.GuestARM64, g.memory, 1<<20, library); err != nil {
		t.Fatal(err)
	}
	defer g.code.Close()
	g.pc = x + 768
	g.layout.Guest, g.layout.X, g.layout.F, g.layout.PC, g.layout.RAM = blocks.GuestARM64, x, v, x+768, ram
	g.layout.ARM64 = blocks.ARM64{EL: el, SCTLR: sctlr, TCR: tcr, TTBR0: ttbr0, TTBR1: ttbr1}
	g.layout.Walk = blocks.Walk{
		Scratch: scratch, RAMBytes: scratch + 128, CodeIndex: codeIndex, Dirty: dirty, SlowLeft: left, LargestShift: largest,
		EntryFrame: 12, Filled: 192 << 10, Noted: 192<<10 + 4, MaxNoted: 512,
	}
	put := func(at int, value uint64) { binary.LittleEndian.PutUint64(g.memory[at:], value) }
	const load, store = 0xf9400440, 0xf9000841 // ldr x0, [x2, 8]; str x1, [x2, 16]
	loads, stores := g.translated(load), g.translated(store)
	for _, test := range []struct {
		name           string
		address        uint64
		level          uint64
		change         func()
		loaded, stored bool
	}{
		{"a program's page", page, 0, func() { put(ram+0x3000+3*8, entry|blocks.DescriptorUser|blocks.DescriptorNotGlobal) }, true, true},
		{"a program's page that cannot be written", page, 0, func() { put(ram+0x3000+3*8, entry|blocks.DescriptorUser|blocks.DescriptorReadOnly) }, true, false},
		{"the kernel's page, of a program", page, 0, func() {}, false, false},
		{"a page that was not used", page, 0, func() { put(ram+0x3000+3*8, entry&^blocks.DescriptorAF|blocks.DescriptorUser) }, false, false},
		{"a table that is not for programs", page, 0, func() {
			put(ram+0x3000+3*8, entry|blocks.DescriptorUser)
			put(ram+0x2000, descends|0x3000|1<<blocks.DescriptorTableAP)
		}, false, false},
		{"the kernel's page", upper | page, 1, func() {}, true, true},
		{"the kernel's page, by the lower half", page, 1, func() {}, true, true},
		{"a program's page, of the kernel", upper | page, 1, func() { put(ram+0x3000+3*8, entry|blocks.DescriptorUser) }, false, false},
		{"a kernel's page of one address space", upper | page, 1, func() { put(ram+0x3000+3*8, entry|blocks.DescriptorNotGlobal) }, false, false},
		{"no page", upper | page, 1, func() { put(ram+0x3000+3*8, 0) }, false, false},
		{"a large page", upper | page, 1, func() {
			put(largest+8, blocks.Superpage)
			put(ram+0x2000, blocks.RAMBase|blocks.DescriptorValid|blocks.DescriptorAF)
			put(ram+0x3000+8, 0x1234)
			g.memory[dirty+(ram+0x3000)>>12] = 1
		}, true, true},
		{"a large page of which none is known", upper | page, 1, func() { put(ram+0x2000, blocks.RAMBase|blocks.DescriptorValid|blocks.DescriptorAF) }, false, false},
		{"a large page that programs may use", upper | page, 1, func() {
			put(largest+8, blocks.Superpage)
			put(ram+0x2000, blocks.RAMBase|blocks.DescriptorValid|blocks.DescriptorAF|blocks.DescriptorUser)
		}, false, false},
		{"a tag", (upper | page) &^ (1 << 56), 1, func() {}, false, false},
		{"tables of another size", upper | page, 1, func() { put(tcr, blocks.TCR48+1|blocks.TCRMemory40<<32) }, false, false},
		{"a half without tables", upper | page, 1, func() { put(tcr, blocks.TCR48|1<<23|blocks.TCRMemory40<<32) }, false, false},
		{"less memory", upper | page, 1, func() { put(tcr, blocks.TCR48) }, false, false},
		{"no translation", upper | page, 1, func() { put(sctlr, 0) }, false, false},
		{"a table beyond RAM", upper | page, 1, func() { put(ram+0x1000+8, descends|ramBytes) }, false, false},
		{"no time left", upper | page, 1, func() { put(left, blocks.WalkCharge-1) }, false, false},
		{"a page of code", upper | page, 1, func() { g.memory[codeIndex+2*4] = 1 }, true, false},
		{"a page whose stores are to be noted", upper | page, 1, func() { g.memory[dirty+data>>12] = 0 }, true, false},
	} {
		clear(g.memory[x:tlb])
		clear(g.memory[scratch:])
		copy(g.memory[tlb:], bytes.Repeat([]byte{0xff}, 192<<10))
		put(tlb+192<<10, 0)
		put(scratch+128, ramBytes)
		put(el, test.level)
		put(sctlr, blocks.SCTLRM)
		put(tcr, blocks.TCR48|blocks.TCRMemory40<<32)
		put(ttbr0, 5<<48|blocks.RAMBase|1) // an ASID, and CnP
		put(ttbr1, blocks.RAMBase)
		put(left, 1_000_000)
		put(ram, descends|0x1000)
		put(ram+256*8, descends|0x1000) // of upper
		put(ram+0x1000+8, descends|0x2000)
		put(ram+0x2000, descends|0x3000)
		put(ram+0x3000+3*8, entry)
		put(data+8, 0x1234)
		g.memory[dirty+data>>12] = 1
		put(x+2*8, test.address)
		put(x+8, 0x5678)
		test.change()
		before := slices.Clone(g.memory[tlb:][:256<<10])
		if got := g.execute(loads); got != test.loaded || got && binary.LittleEndian.Uint64(g.memory[x:]) != 0x1234 {
			t.Errorf("%s: loaded %t, %#x", test.name, got, g.memory[x:][:8])
		} else if !got && !bytes.Equal(before, g.memory[tlb:][:256<<10]) {
			t.Errorf("%s: the TLB was changed", test.name)
		}
		if got := g.execute(stores); got != test.stored {
			t.Errorf("%s: stored %t", test.name, got)
		}
	}
}

// TestAcrossPages: native code itself accesses two pages that are next to each other, where the TLB has both, wherever they are in memory: with all loads, and
// stores of vectors. Otherwise nothing is changed.
func TestAcrossPages(t *testing.T) {
	const (
		tlb, scratch, base   = 8192, 0x60000, 0x7000_3000
		first, second, other = 0x9_0000, 0x8_4000, 0x8_8000
	)
	g := newGuestA64(t)
	g.layout.Walk.Scratch = scratch
	put := func(at int, value uint64) { binary.LittleEndian.PutUint64(g.memory[at:], value) }
	for name, test := range map[string]struct {
		word   uint32
		size   int
		stores bool
	}{
		"ldr x0, [x2]": {0xf9400040, 8, false}, "ldr w0, [x2]": {0xb9400040, 4, false}, "ldrh w0, [x2]": {0x79400040, 2, false}, "ldp x0, x1, [x2]": {0xa9400440, 16, false},
		"ldr q0, [x2]": {0x3dc00040, 16, false}, "ldp q0, q1, [x2]": {0xad400440, 32, false}, "ldr x0, [x2], 8": {0xf8408440, 8, false},
		"str q0, [x2]": {0x3d800040, 16, true}, "stp q0, q1, [x2]": {0xad000440, 32, true}, "str q0, [x2, 8]!": {0x3c808c40, 16, true},
	} {
		entry := g.translated(test.word)
		for before := 1; before < test.size; before++ {
			for known := range 4 { // a bit for each page
				for at := range g.memory[first : first+4096] {
					g.memory[first+at], g.memory[second+at], g.memory[other+at] = byte(3*at+1), byte(5*at+2), 0xcc
				}
				for r := range 64 {
					put(hartA64+8*r, 0x0102030405060708*uint64(r+3))
				}
				at := uint64(base + 4096 - before)
				if strings.Contains(name, ", 8]") {
					at -= 8
				}
				put(hartA64+16, at)
				put(scratch+24, 0)
				put(cpacrAt, 3<<20)
				table := tlb
				if test.stores {
					table += 64 << 10
				}
				copy(g.memory[tlb:], bytes.Repeat([]byte{0xff}, 192<<10))
				for page, place := range []uint32{first, second} {
					if e := table + (base>>12+page)%4096*16; known>>page&1 != 0 {
						va := uint32(base + page<<12)
						put(e, uint64(va))
						put(e+8, uint64(place-va))
					}
				}
				memory := slices.Clone(g.memory)
				if got := g.execute(entry); got != (known == 3) {
					t.Fatalf("%s, %d bytes in the first page of %b: executed %t", name, before, known, got)
				} else if !got {
					if !bytes.Equal(memory[first:], g.memory[first:]) || !bytes.Equal(memory[hartA64:pcA64], g.memory[hartA64:pcA64]) {
						t.Fatalf("%s, %d bytes in the first page of %b: something was changed", name, before, known)
					}
					continue
				}
				wanted := hartA64 // where the registers are
				if strings.Contains(name, "q") {
					wanted = valuesAt
				}
				if test.stores {
					copy(memory[first+4096-before:], memory[wanted:][:before])
					copy(memory[second:], memory[wanted+before:][:test.size-before])
				} else if loaded := slices.Concat(memory[first+4096-before:first+4096], memory[second:][:test.size-before]); !bytes.Equal(g.memory[wanted:][:test.size], loaded) {
					t.Fatalf("%s, %d bytes in the first page: loaded % x, want % x", name, before, g.memory[wanted:][:test.size], loaded)
				}
				if !bytes.Equal(memory[first:], g.memory[first:]) || !bytes.Equal(memory[second:first], g.memory[second:first]) {
					t.Fatalf("%s, %d bytes in the first page: memory is another", name, before)
				}
			}
		}
	}
}
