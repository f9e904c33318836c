package amd64_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/arch/x86/x86asm"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/amd64"
	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/riscv"
)

var update = flag.Bool("update", false, "write the files of testdata")

var layout = amd64.Layout{
	X: 0x10000, F: 0x10100, PC: 0x10200, MStatus: 0x10248, RoundingMode: 0x10240, Reservation: 0x10300, Reserved: 0x10308,
	Write: 0x10000, Code: 0x20000, Entries: 4096, Other: 2048, EntrySize: 16, Addend: 8,
	Supervisor: blocks.Supervisor{Privilege: 0x10220, STVec: 0x10310, SScratch: 0x10318, SEPC: 0x10320, SCause: 0x10328, STVal: 0x10330, MIP: 0x10338, MIE: 0x10340, UserEntries: 0x10348, UserEntry: 0x10350},
	Generation: 0x30410, Jumps: 0x30420, Places: 0x10400,
	Walk: blocks.Walk{Scratch: 0x10500, RAMBytes: 0x10520, CodeIndex: 0x20000, Dirty: 0x30000, SATP: 0x10528, SlowLeft: 0x10530, LargestShift: 0x10538, EntryFrame: 12, Filled: 0x30000, Noted: 0x30004, MaxNoted: 512},
}

// translate makes the code of some words at the start of a page, of which nothing else was ever executed.
func translate(words ...uint32) (amd64.Translation, bool) {
	page := amd64.Page{Code: make([]byte, amd64.PageSize), Entries: []uint16{0}, Seen: make([]byte, amd64.PageSize/16)}
	for i, w := range words {
		binary.LittleEndian.PutUint32(page.Code[4*i:], w)
		page.Seen[i/4] |= 1 << (i * 2 % 8)
	}
	return amd64.Translate(&layout, page)
}

// TestGolden: each instruction's code is that of testdata/golden.txt, once with operands in registers of the host, once with some in the
// hart. Exits and the way to other pages, which stand behind, are left out.
func TestGolden(t *testing.T) {
	var text strings.Builder
	for i := range riscv.Table {
		row := &riscv.Table[i]
		for _, o := range []riscv.Operands{{Rd: 10, Rs1: 11, Rs2: 12, Imm: 8}, {Rd: 18, Rs1: 19, Rs2: 20, Imm: -2048}, {Rd: 10, Rs1: 19, Rs2: 10}, {Rs1: 11}} {
			if row.Format == riscv.FormatU {
				o.Imm <<= 12
			} else if row.Format == riscv.FormatSH5 || row.Format == riscv.FormatSH6 {
				o.Imm &= 31
			}
			word, err := riscv.Encode(row.Name, o)
			if row.Length != 4 || err != nil {
				continue
			}
			if made, ok := translate(word); ok {
				fmt.Fprintf(&text, "%s\n%s", riscv.Disassemble(word, 0), listing(t, made.Code))
			}
		}
	}
	for _, csr := range []uint16{0x100, 0x105, 0x140} {
		for _, name := range []string{"csrrw", "csrrs", "csrrc", "csrrsi"} {
			for _, o := range []riscv.Operands{{Rd: 10, Rs1: 19, CSR: csr}, {Rd: 19, CSR: csr}} {
				word, err := riscv.Encode(name, o)
				if err != nil {
					t.Fatal(err)
				}
				if made, ok := translate(word); ok {
					fmt.Fprintf(&text, "%s\n%s", riscv.Disassemble(word, 0), listing(t, made.Code))
				}
			}
		}
	}
	fmt.Fprint(&text, "ld s3, 16(s4); fld fa0, 8(s4); sw a0, 28(s4)\n", listing(t, group(t)))
	golden(t, "testdata/golden.txt", text.String())
}

// TestGoldenA64 is that for arm64 guests: of each row that is translated, whose code is as the table has it first, once with registers 0, 1 and 2, which
// are in the host's, and for general registers once with 12, 13 and 14.
func TestGoldenA64(t *testing.T) {
	l := layout
	l.Guest, l.Host = blocks.GuestARM64, blocks.Host{Fused: true, AES: true, Carryless: true, SHA: true}
	l.ARM64 = blocks.ARM64{
		Flags: 0x10600, FlagA: 0x10608, FlagB: 0x10610, FPCR: 0x10618, FPSR: 0x1061c, CPACR: 0x10620, SCTLR: 0x10628, EL: 0x10630, IRQ: 0x10634, SPSelect: 0x10638,
		PState: 0x10640, TPIDR: 0x10648, TPIDRRO: 0x10650, TPIDR1: 0x10658, SP: 0x10660, ELR: 0x10668, SPSR: 0x10670, ESR: 0x10678, FAR: 0x10680,
		UserTLB: 0x11000, TTBR0: 0x10688, TTBR1: 0x10690, TCR: 0x10698,
	}
	var text strings.Builder
	for i := range a64.Table {
		row := &a64.Table[i]
		registers := []uint32{2<<16 | 1<<5, 14<<16 | 13<<5 | 12}
		if slices.Contains([]string{"simd", "vfp", "fp", "crypto", "vmemory", "structure"}, row.Group) {
			registers = registers[:1]
		}
		for _, operands := range registers {
			word := row.Bits.Match | operands&^row.Bits.Mask
			if a64.Lookup(word) != row {
				continue
			}
			page := amd64.Page{Code: make([]byte, amd64.PageSize), Entries: []uint16{0}, Seen: make([]byte, amd64.PageSize/16)}
			binary.LittleEndian.PutUint32(page.Code, word)
			page.Seen[0] = 1
			if made, ok := amd64.TranslateA64(&l, page); ok {
				fmt.Fprintf(&text, "%s %08x\n%s", row.Name, word, listing(t, made.Code))
			}
		}
	}
	golden(t, "testdata/golden_a64.txt", text.String())
}

// golden compares a text with a file, or writes it anew.
func golden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, wanted := strings.Split(text, "\n"), strings.Split(string(want), "\n")
	for i := range min(len(got), len(wanted)) {
		if got[i] != wanted[i] {
			t.Fatalf("line %d of %s is %q, and now %q; -update writes it anew", i+1, file, wanted[i], got[i])
		}
	}
	if len(got) != len(wanted) {
		t.Errorf("%d lines, %s has %d", len(got), file, len(wanted))
	}
}

// listing disassembles code up to its first exit.
func listing(t *testing.T, code []byte) string {
	t.Helper()
	var text strings.Builder
	for at := 0; at < len(code); {
		inst, err := x86asm.Decode(code[at:], 64)
		if err != nil {
			t.Fatalf("at %#x: %v: % x", at, err, code[at:])
		}
		if inst.Op == x86asm.ADD && inst.Args[0] == x86asm.R13 {
			break
		}
		fmt.Fprintf(&text, "\t%x\t%s\n", code[at:at+inst.Len], x86asm.IntelSyntax(inst, uint64(at), nil))
		at += inst.Len
	}
	return text.String()
}

// group is the code of accesses by one base register, and of the copy that looks each up by itself.
func group(t *testing.T) []byte {
	t.Helper()
	var words []uint32
	for _, one := range []struct {
		name string
		o    riscv.Operands
	}{{"ld", riscv.Operands{Rd: 19, Rs1: 20, Imm: 16}}, {"fld", riscv.Operands{Rd: 10, Rs1: 20, Imm: 8}}, {"sw", riscv.Operands{Rs2: 10, Rs1: 20, Imm: 28}}} {
		word, err := riscv.Encode(one.name, one.o)
		if err != nil {
			t.Fatal(err)
		}
		words = append(words, word)
	}
	made, ok := translate(words...)
	if !ok {
		t.Fatal("it is not translated")
	}
	return made.Code
}

// TestEntries: every place that control reaches from elsewhere may be entered, also within an instruction; what was never executed and
// what the interpreter executes may not.
func TestEntries(t *testing.T) {
	const (
		addi   = 0x00150513 // addi a0, a0, 1
		branch = 0x00050463 // beq a0, zero, +8
		ecall  = 0x00000073
		wrong  = 0xffffffff
	)
	for name, test := range map[string]struct {
		words   []uint32
		entries []int
	}{
		"one block":           {[]uint32{addi, addi, wrong}, []int{0}},
		"branch":              {[]uint32{branch, addi, addi, wrong}, []int{0, 4, 8}},
		"behind a call":       {[]uint32{0x000000ef | 0xff<<12, addi, wrong}, []int{0, 4}},
		"behind what is left": {[]uint32{addi, ecall, addi, wrong}, []int{0, 8}},
		"nothing":             {[]uint32{ecall}, nil},
	} {
		made, ok := translate(test.words...)
		var got []int
		for _, e := range made.Entries {
			got = append(got, e.Offset)
		}
		if !slices.Equal(got, test.entries) || ok != (test.entries != nil) {
			t.Errorf("%s: entries %v, %t, want %v", name, got, ok, test.entries)
		}
	}
	long := make([]uint32, 200)
	for i := range long {
		long[i] = addi
	}
	if made, _ := translate(long...); len(made.Entries) != 4 || made.Instructions != 200 {
		t.Errorf("%d instructions in %v, want 200 in blocks of at most 64", made.Instructions, made.Entries)
	}
	// c.nop twice is one word; a jump into an instruction's second half is to an instruction of its own.
	overlap := []uint32{0x00000563, 0x00010537, 0x00010537, wrong} // beq zero, zero, +10; lui; lui, whose second half is c.nop
	made, _ := translate(overlap...)
	page := amd64.Page{Code: make([]byte, amd64.PageSize), Entries: []uint16{0}}
	for i, w := range overlap {
		binary.LittleEndian.PutUint32(page.Code[4*i:], w)
	}
	if made, _ = amd64.Translate(&layout, page); !slices.ContainsFunc(made.Entries, func(e amd64.Entry) bool { return e.Offset == 10 }) {
		t.Errorf("entries %v, want one at 10, within an instruction", made.Entries)
	}
}
