package riscv_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"agentvm/internal/machine/riscv"
)

// wordsOf makes words of a row: its operand bits all zero, all one, each alone, and at random. Those that turn out to
// be another row's or reserved are left out.
func wordsOf(row *riscv.Instruction, count int) []uint32 {
	random := rand.New(rand.NewPCG(1, uint64(row.Match)))
	free := ^row.Mask
	if row.Length == 2 {
		free &= 0xffff
	}
	patterns := []uint32{0, free}
	for bit := range 32 {
		patterns = append(patterns, 1<<bit, free&^(1<<bit))
	}
	for range count {
		patterns = append(patterns, random.Uint32())
	}
	var words []uint32
	seen := map[uint32]bool{}
	for _, p := range patterns {
		word := row.Match | p&free
		if !seen[word] && riscv.Lookup(word) == row {
			words = append(words, word)
		}
		seen[word] = true
	}
	return words
}

// TestDisassembleLikeObjdump compares every row, with some 80 operand patterns each, with GNU objdump.
func TestDisassembleLikeObjdump(t *testing.T) {
	var words []uint32
	for i := range riscv.Table {
		of := wordsOf(&riscv.Table[i], 24)
		if len(of) == 0 {
			t.Errorf("no word for %s", riscv.Table[i].Name)
		}
		words = append(words, of...)
	}
	const base = 0x8000_0000
	pc, mistakes := uint64(base), 0
	for i, theirs := range objdump(t, words, base) {
		ours := riscv.Disassemble(words[i], pc)
		if ours != theirs && !knownDifference(words[i], theirs) {
			t.Errorf("%08x: ours %q, objdump's %q", words[i], ours, theirs)
			if mistakes++; mistakes > 50 {
				t.Fatal("too many differences")
			}
		}
		pc += uint64(riscv.Lookup(words[i]).Length)
	}
	t.Logf("%d words", len(words))
}

// knownDifference: objdump has names for CSRs that the machine does not have, and takes fences with reserved fields,
// which the manual wants executed as fences, for data.
func knownDifference(word uint32, theirs string) bool {
	row := riscv.Lookup(word)
	if prefix, ok := otherNames[row.Name]; ok && strings.HasPrefix(theirs, prefix) {
		return row.Length == 2 && (row.Format == riscv.FormatCN || row.Operands(word).Imm == 0 || row.Name == "c.nop")
	}
	switch row.Format {
	case riscv.FormatCSR, riscv.FormatCSRI:
		return strings.Contains(riscv.Disassemble(word, 0), ",0x") && !strings.Contains(theirs, ",0x")
	case riscv.FormatF:
		const reserved = 0xf00f8f80 // fm, rs1, rd
		return word&reserved != 0 || row.Name == "fence.i" && word != row.Match
	case riscv.FormatFRM, riscv.FormatXFM:
		return strings.HasPrefix(theirs, ".4byte") && exact[row.Name] && word>>12&7 != 0
	}
	return false
}

// otherNames are those that objdump has for shifts by zero, for c.nop and for the defined illegal instruction.
var otherNames = map[string]string{"c.illegal": "c.unimp", "c.nop": "c.addi\tzero,", "c.srli": "c.srli64\t",
	"c.srai": "c.srai64\t", "c.slli": "c.slli64\t"}

// exact are conversions that never round; objdump wants their rounding mode to be 0, the manual does not.
var exact = map[string]bool{"fcvt.d.s": true, "fcvt.d.w": true, "fcvt.d.wu": true}

// objdump assembles words and disassembles them again, one line a word.
func objdump(t *testing.T, words []uint32, base uint64) []string {
	t.Helper()
	assembler, disassembler := tool(t, "riscv64-linux-gnu-as"), tool(t, "riscv64-linux-gnu-objdump")
	dir := t.TempDir()
	source, object := filepath.Join(dir, "words.s"), filepath.Join(dir, "words.o")
	var b strings.Builder
	b.WriteString(".attribute arch, \"rv64gc_zba_zbb_zicboz_zicbom_zicsr_zifencei\"\n")
	for _, word := range words {
		fmt.Fprintf(&b, ".insn %#x\n", word)
	}
	if err := os.WriteFile(source, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, assembler, "-march=rv64gc", "-o", object, source)
	out := run(t, disassembler, "-d", "-M", "no-aliases", fmt.Sprintf("--adjust-vma=%#x", base), object)
	line := regexp.MustCompile(`(?m)^ *[0-9a-f]+:\t[0-9a-f]+ +\t(.*)$`)
	var texts []string
	for _, match := range line.FindAllStringSubmatch(out, -1) {
		texts = append(texts, normal(match[1]))
	}
	if len(texts) != len(words) {
		t.Fatalf("objdump gave %d lines for %d words:\n%.2000s", len(texts), len(words), out)
	}
	return texts
}

var (
	comment = regexp.MustCompile(`\s*(#.*|<.*>)$`)
	target  = regexp.MustCompile(`([\t,])([0-9a-f]{8,16})$`)
)

// normal removes objdump's notes on addresses and writes targets with 0x.
func normal(text string) string {
	return target.ReplaceAllString(comment.ReplaceAllString(text, ""), "${1}0x${2}")
}

func tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing, and CI must not skip this test", name)
	}
	if err != nil {
		t.Skipf("needs %s (Debian package binutils-riscv64-linux-gnu)", name)
	}
	return path
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%.2000s", name, err, out)
	}
	return string(out)
}

// TestEncode takes words apart and puts them together again.
func TestEncode(t *testing.T) {
	for i := range riscv.Table {
		row := &riscv.Table[i]
		for _, word := range wordsOf(row, 64) {
			got, err := riscv.Encode(row.Name, row.Operands(word))
			if err != nil {
				t.Errorf("%s %08x: %v", row.Name, word, err)
			} else if got != word {
				t.Errorf("%s %08x came back as %08x", row.Name, word, got)
			}
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	cases := []struct {
		name string
		o    riscv.Operands
	}{
		{"nothing", riscv.Operands{}},
		{"addi", riscv.Operands{Imm: 2048}},
		{"addi", riscv.Operands{Imm: -2049}},
		{"beq", riscv.Operands{Imm: 3}},
		{"jal", riscv.Operands{Imm: 1 << 20}},
		{"slliw", riscv.Operands{Imm: 32}},
		{"add", riscv.Operands{Rd: 32}},
		{"c.lw", riscv.Operands{Rd: 7, Rs1: 8}},
		{"c.lw", riscv.Operands{Rd: 8, Rs1: 16}},
		{"c.lwsp", riscv.Operands{Rd: 0}},
		{"c.addi4spn", riscv.Operands{Rd: 8}},
		{"c.lui", riscv.Operands{Rd: 2, Imm: 4096}},
		{"c.jr", riscv.Operands{}},
		{"c.mv", riscv.Operands{Rd: 1}},
		{"fadd.s", riscv.Operands{RM: 5}},
	}
	for _, c := range cases {
		if word, err := riscv.Encode(c.name, c.o); err == nil {
			t.Errorf("%s %+v: no error, but %08x", c.name, c.o, word)
		}
	}
}

// FuzzDisassemble: no word panics, and every word that is an instruction survives taking apart and encoding.
func FuzzDisassemble(f *testing.F) {
	for i := range riscv.Table {
		f.Add(riscv.Table[i].Match, uint64(0x8000_0000))
	}
	f.Fuzz(func(t *testing.T, word uint32, pc uint64) {
		if riscv.Disassemble(word, pc) == "" {
			t.Fatalf("%08x: no text", word)
		}
		row := riscv.Lookup(word)
		if row == nil {
			return
		}
		again, err := riscv.Encode(row.Name, row.Operands(word))
		if err != nil || riscv.Lookup(again) != row {
			t.Fatalf("%08x is %s, but encodes to %08x: %v", word, row.Name, again, err)
		}
	})
}
