package arm64_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/arch/arm64/arm64asm"

	"agentvm/internal/machine/native/arm64"
	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/riscv"
)

var update = flag.Bool("update", false, "write the golden files")

var layout = blocks.Layout{
	X: 0x10000, F: 0x10100, PC: 0x10200, MStatus: 0x10248, Reservation: 0x10300, Reserved: 0x10308,
	Write: 0x10000, Code: 0x20000, Entries: 4096, Other: 2048, EntrySize: 16, Addend: 8,
	Supervisor: blocks.Supervisor{Privilege: 0x10220, STVec: 0x10310, SScratch: 0x10318, SEPC: 0x10320, SCause: 0x10328, STVal: 0x10330, MIP: 0x10338, MIE: 0x10340, UserEntries: 0x10348, UserEntry: 0x10350},
	Generation: 0x30410, Jumps: 0x30420,
	Walk: blocks.Walk{Scratch: 0x10500, RAMBytes: 0x10520, CodeIndex: 0x20000, Dirty: 0x30000, SATP: 0x10528, SlowLeft: 0x10530, LargestShift: 0x10538, EntryFrame: 12, Filled: 0x30000, Noted: 0x30004, MaxNoted: 512},
}

// translate makes the code of some words at the start of a page, of which nothing else was ever executed.
func translate(words ...uint32) (blocks.Translation, bool) {
	page := blocks.Page{Code: make([]byte, blocks.PageSize), Entries: []uint16{0}, Seen: make([]byte, blocks.PageSize/16)}
	for i, w := range words {
		binary.LittleEndian.PutUint32(page.Code[4*i:], w)
		page.Seen[i/4] |= 1 << (i * 2 % 8)
	}
	return arm64.Translate(&layout, page)
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
	fmt.Fprint(&text, "ld s3, 16(s4); fld fa0, 8(s4); sw a0, 28(s4); ld a1, 0(sp); sh a2, 10(sp); lw a1, 0(a1)\n", listing(t, group(t)))
	compareGolden(t, "testdata/golden.txt", text.String())
}

// compareGolden compares a text with that of a file.
func compareGolden(t *testing.T, file, text string) {
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

// group is the code of accesses by two base registers, and of the copy that looks each up by itself. It ends with one that is alone.
func group(t *testing.T) []byte {
	t.Helper()
	var words []uint32
	for _, one := range []struct {
		name string
		o    riscv.Operands
	}{
		{"ld", riscv.Operands{Rd: 19, Rs1: 20, Imm: 16}}, {"fld", riscv.Operands{Rd: 10, Rs1: 20, Imm: 8}}, {"sw", riscv.Operands{Rs2: 10, Rs1: 20, Imm: 28}},
		{"ld", riscv.Operands{Rd: 11, Rs1: 2}}, {"sh", riscv.Operands{Rs2: 12, Rs1: 2, Imm: 10}}, {"lw", riscv.Operands{Rd: 11, Rs1: 11}},
	} {
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

// listing disassembles code up to its first exit.
func listing(t *testing.T, code []byte) string {
	t.Helper()
	var text strings.Builder
	for at := 0; at < len(code); at += 4 {
		inst, err := arm64asm.Decode(code[at:])
		if err != nil { // which it does of most instructions on vector registers
			fmt.Fprintf(&text, "\t%08x\t\n", binary.LittleEndian.Uint32(code[at:]))
			continue
		}
		if inst.Op == arm64asm.ADD && inst.Args[0] == arm64asm.RegSP(arm64asm.X26) {
			break
		}
		fmt.Fprintf(&text, "\t%08x\t%s\n", inst.Enc, arm64asm.GNUSyntax(inst))
	}
	return text.String()
}
