package machine_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"testing"

	"agentvm/internal/machine"
	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/riscv"
)

var update = flag.Bool("update", false, "write testdata/listing.txt")

// TestListTranslation: the listing of a function with each kind of operand in memory, with an instruction that is left to the interpreter and
// one across two pages, is that of testdata/listing.txt, up to the ways out of the page.
func TestListTranslation(t *testing.T) {
	code := bytes.Repeat(instructionBytes(0x0001), 0xff0/2) // c.nop
	for _, word := range []uint32{
		encode("ld", riscv.Operands{Rd: 10, Rs1: 11, Imm: 8}), encode("sw", riscv.Operands{Rs1: 11, Rs2: 18}), encode("ecall", riscv.Operands{}), 0x0001,
		encode("addi", riscv.Operands{Rd: 18, Rs1: 18, Imm: 1}), 0xffffffff, encode("jalr", riscv.Operands{Rs1: 1}),
	} {
		code = append(code, instructionBytes(word)...)
	}
	var got bytes.Buffer
	if err := machine.ListTranslation(&got, bytes.NewReader(wrapELF(0x10000, code)), machine.ListOptions{From: 0x10ff0, To: 0x20000}); err != nil {
		t.Fatal(err)
	}
	const file = "testdata/listing.txt"
	listed, _, ways := strings.Cut(got.String(), "            ways out of page 10000")
	if *update {
		if err := os.WriteFile(file, []byte(listed), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || listed != string(want) || !ways {
		t.Errorf("%v; the listing is not that of %s, which -update writes anew:\n%s", err, file, got.String())
	}
}

// TestListTranslationOfAll: each instruction of the table is listed once, and each of its operands in memory has a proof.
func TestListTranslationOfAll(t *testing.T) {
	var code []byte
	wanted := 0
	for i := range riscv.Table {
		if word, err := riscv.Encode(riscv.Table[i].Name, riscv.Operands{Rd: 10, Rs1: 11, Rs2: 12, Imm: 8}); err == nil {
			code = append(code, instructionBytes(word)...)
			wanted++
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		var text strings.Builder
		if err := machine.ListTranslation(&text, bytes.NewReader(wrapELF(0x10000, code)), machine.ListOptions{Arch: arch}); err != nil {
			t.Fatal(err)
		}
		listed, translated := 0, 0
		for line := range strings.Lines(text.String()) {
			if guest := strings.TrimSpace(line[:min(42, len(line))]); guest != "" && !strings.Contains(guest, "ways out") {
				listed++
				if !strings.Contains(line, "interpreter") {
					translated++
				}
			}
			if proven := strings.Contains(line, "; "); proven != (strings.Contains(line, "[") && !strings.Contains(line, " lea ")) {
				t.Errorf("with a proof: %t: %s", proven, line)
			}
		}
		if listed != wanted || translated < 80 {
			t.Errorf("%d instructions are listed, %d of them translated; want %d", listed, translated, wanted)
		}
	}
}

// TestListTranslationOfA64: each instruction of arm64's table is listed, and each of its operands in memory has a proof.
func TestListTranslationOfA64(t *testing.T) {
	var code []byte
	for i := range a64.Table {
		code = binary.LittleEndian.AppendUint32(code, a64.Table[i].Bits.Match|1<<5)
	}
	program := wrapELF(0x10000, code)
	binary.LittleEndian.PutUint16(program[18:], uint16(elf.EM_AARCH64))
	for arch, inMemory := range map[string]func(line string) bool{
		"amd64": func(line string) bool { return strings.Contains(line, "[") && !strings.Contains(line, " lea ") },
		"arm64": func(line string) bool { return strings.Contains(line, "[x") },
	} {
		var text strings.Builder
		if err := machine.ListTranslation(&text, bytes.NewReader(program), machine.ListOptions{Arch: arch}); err != nil {
			t.Fatal(err)
		}
		listed, translated := 0, 0
		for line := range strings.Lines(text.String()) {
			if guest := strings.TrimSpace(line[:min(42, len(line))]); guest != "" && !strings.Contains(guest, "ways out") {
				listed++
				if !strings.Contains(line, "interpreter") {
					translated++
				}
			}
			line = line[min(42, len(line)):]
			if proven := strings.Contains(line, "; "); proven != inMemory(line) {
				t.Errorf("%s: with a proof: %t: %s", arch, proven, line)
			}
		}
		if listed != len(a64.Table) || translated < 500 {
			t.Errorf("%s: %d instructions are listed, %d of them translated; want %d", arch, listed, translated, len(a64.Table))
		}
		t.Logf("%s: %d of %d instructions are translated", arch, translated, listed)
	}
}

// withFunction adds a section of code with one function to a program of one segment.
func withFunction(t *testing.T, program []byte, name string, from, size, section uint64) []byte {
	t.Helper()
	names := append([]byte("\x00"+name), 0)
	symbols := make([]byte, 24)
	symbols, _ = binary.Append(symbols, binary.LittleEndian, elf.Sym64{Name: 1, Info: uint8(elf.STT_FUNC), Shndx: 1, Value: from, Size: size})
	b := bytes.Clone(program)
	at := uint64(len(b))
	b = append(append(b, names...), symbols...)
	binary.LittleEndian.PutUint64(b[40:], uint64(len(b))) // Shoff
	binary.LittleEndian.PutUint16(b[60:], 4)
	b, _ = binary.Append(b, binary.LittleEndian, []elf.Section64{
		{},
		{Type: uint32(elf.SHT_PROGBITS), Flags: uint64(elf.SHF_EXECINSTR | elf.SHF_ALLOC), Addr: 0x10000, Off: 4096, Size: section},
		{Type: uint32(elf.SHT_STRTAB), Off: at, Size: uint64(len(names))},
		{Type: uint32(elf.SHT_SYMTAB), Off: at + uint64(len(names)), Size: uint64(len(symbols)), Link: 2, Entsize: 24},
	})
	binary.LittleEndian.PutUint16(b[62:], 2)
	return b
}

// TestListTranslationChooses: a function by its name, or addresses; what is not there is an error, as is a file that is no program for
// riscv64.
func TestListTranslationChooses(t *testing.T) {
	program := wrapELF(0x10000, bytes.Repeat(instructionBytes(0x0001), 20))
	good := withFunction(t, program, "a\x1b[m", 0x10004, 4, 40)
	other := bytes.Clone(program)
	other[18] = byte(elf.EM_X86_64)
	object := bytes.Clone(program)
	object[16] = byte(elf.ET_REL)
	compressed := withFunction(t, program, "a", 0x10004, 4, 40)
	binary.LittleEndian.PutUint64(compressed[binary.LittleEndian.Uint64(compressed[40:])+64+8:], uint64(elf.SHF_EXECINSTR|elf.SHF_COMPRESSED))
	for name, test := range map[string]struct {
		program []byte
		o       machine.ListOptions
		want    string // in the listing or the error
		fails   bool
	}{
		"function":          {good, machine.ListOptions{Function: "a\x1b[m"}, "a?[m:\n     10004  c.nop", false},
		"addresses":         {good, machine.ListOptions{From: 0x10006, To: 0x10008}, "     10006  c.nop", false},
		"no function":       {good, machine.ListOptions{Function: "b"}, "no function", true},
		"no symbols":        {program, machine.ListOptions{Function: "b"}, "among its 0 symbols", true},
		"no host":           {good, machine.ListOptions{Arch: "mips"}, "only for amd64 and arm64", true},
		"no code":           {good, machine.ListOptions{From: 0x20000, To: 0x20002}, "no code from 0x20000 to 0x20002", true},
		"of no size":        {withFunction(t, program, "a", 0x10004, 0, 40), machine.ListOptions{Function: "a"}, "with a size", true},
		"all addresses":     {withFunction(t, program, "a", 0x10004, ^uint64(0), 40), machine.ListOptions{Function: "a"}, "with a size", true},
		"odd":               {withFunction(t, program, "a", 0x10005, 4, 40), machine.ListOptions{Function: "a"}, "     10006  c.nop", false},
		"ends early":        {withFunction(t, program, "a", 0x10004, 4, 1<<40), machine.ListOptions{}, "the file ends within", true},
		"wraps":             {wrapELF(1<<63-2, instructionBytes(finisher(1)[0])), machine.ListOptions{}, "more than there are addresses", true},
		"another processor": {other, machine.ListOptions{}, "not for 64-bit RISC-V", true},
		"compressed":        {compressed, machine.ListOptions{}, "     10000  c.nop", false},
		"not linked":        {object, machine.ListOptions{}, "not a linked program", true},
		"no ELF":            {[]byte("#!/bin/sh"), machine.ListOptions{}, "want a linked program for riscv64 or arm64 in ELF", true},
		"empty":             {nil, machine.ListOptions{}, "want a linked program for riscv64 or arm64 in ELF", true},
	} {
		var text strings.Builder
		err := machine.ListTranslation(&text, bytes.NewReader(test.program), test.o)
		switch {
		case test.fails && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want %q", name, err, test.want)
		case !test.fails && (err != nil || !strings.Contains(text.String(), test.want)):
			t.Errorf("%s: %v, want %q in\n%s", name, err, test.want, text.String())
		}
	}
	if err := machine.ListTranslation(fullDisk{}, bytes.NewReader(good), machine.ListOptions{}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("output that fails: %v", err)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// FuzzListTranslation: no file makes the listing panic.
func FuzzListTranslation(f *testing.F) {
	f.Add(wrapELF(0x10000, bytes.Repeat(instructionBytes(0x0001), 20)))
	f.Add(wrapELF(1<<63-2, instructionBytes(finisher(1)[0])))
	f.Fuzz(func(_ *testing.T, program []byte) {
		_ = machine.ListTranslation(io.Discard, bytes.NewReader(program), machine.ListOptions{})
	})
}
