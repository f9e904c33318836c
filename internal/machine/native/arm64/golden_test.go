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

var update = flag.Bool("update", false, "write testdata/golden.txt")

var layout = blocks.Layout{
	X: 0x10000, F: 0x10100, PC: 0x10200, MStatus: 0x10248, Reservation: 0x10300, Reserved: 0x10308,
	Write: 0x10000, Code: 0x20000, Entries: 4096, Other: 2048, EntrySize: 16, Addend: 8,
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
	const file = "testdata/golden.txt"
	if *update {
		if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, wanted := strings.Split(text.String(), "\n"), strings.Split(string(want), "\n")
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
	for at := 0; at < len(code); at += 4 {
		inst, err := arm64asm.Decode(code[at:])
		if err != nil {
			t.Fatalf("at %#x: %v: % x", at, err, code[at:at+4])
		}
		if inst.Op == arm64asm.ADD && inst.Args[0] == arm64asm.RegSP(arm64asm.X26) {
			break
		}
		fmt.Fprintf(&text, "\t%08x\t%s\n", inst.Enc, arm64asm.GNUSyntax(inst))
	}
	return text.String()
}
