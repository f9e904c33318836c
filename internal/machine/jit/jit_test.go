package jit_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tetratelabs/wazero"

	"agentvm/internal/machine/jit"
	"agentvm/internal/machine/riscv"
)

var update = flag.Bool("update", false, "write what Translate makes now into testdata")

// layout is one like the machine's.
var layout = &jit.Layout{
	X: 0, F: 256, PC: 512, Budget: 520, MStatus: 584, FRM: 576, FFlags: 580,
	Reservation: 800, Reserved: 808, Read: 0, Write: 4096, Code: 8192, Entries: 256, EntrySize: 16, Tag: 0, Addend: 8,
	SlotSize: 8, OpTranslated: 99, Version: jit.Version,
}

// page puts instructions at the start of a page.
func page(instructions ...uint32) []byte {
	code := make([]byte, 0, jit.PageSize)
	for _, word := range instructions {
		code = binary.LittleEndian.AppendUint16(code, uint16(word))
		if word&3 == 3 {
			code = binary.LittleEndian.AppendUint16(code, uint16(word>>16))
		}
	}
	return code[:jit.PageSize]
}

// one asks for the region of one page.
func one(entries []uint16, code []byte) jit.Request {
	return jit.Request{Pages: []jit.Page{{Code: code, Entries: entries}}}
}

// seen has the bits of some offsets.
func seen(offsets ...int) []byte {
	bits := make([]byte, jit.PageSize/16)
	for _, o := range offsets {
		bits[o/16] |= 1 << (o / 2 % 8)
	}
	return bits
}

func encode(name string, o riscv.Operands) uint32 {
	word, err := riscv.Encode(name, o)
	if err != nil {
		panic(err)
	}
	return word
}

// programs are pages whose translation is compared byte by byte, for it decides what the cache on disk finds.
var programs = map[string]jit.Request{
	"loop": one([]uint16{0}, page(
		encode("addi", riscv.Operands{Rd: 1, Rs1: 1, Imm: 1}),
		encode("ld", riscv.Operands{Rd: 2, Rs1: 3, Imm: 8}),
		encode("sd", riscv.Operands{Rs1: 3, Rs2: 2, Imm: 16}),
		encode("bne", riscv.Operands{Rs1: 1, Rs2: 2, Imm: -12}),
		encode("ecall", riscv.Operands{}),
	)),
	"call": one([]uint16{0, 4}, page(
		encode("jal", riscv.Operands{Rd: 1, Imm: 12}),
		encode("mul", riscv.Operands{Rd: 10, Rs1: 10, Rs2: 11}),
		encode("jal", riscv.Operands{Imm: -8}),
		encode("fadd.d", riscv.Operands{Rd: 1, Rs1: 2, Rs2: 3, RM: 7}),
		encode("jalr", riscv.Operands{Rs1: 1}),
	)),
	"singles": {Pages: []jit.Page{{ // two accesses share a look at the TLB, two look by themselves because one of them must
		Entries: []uint16{0}, Single: seen(12), Code: page(
			encode("ld", riscv.Operands{Rd: 1, Rs1: 2, Imm: 8}),
			encode("ld", riscv.Operands{Rd: 5, Rs1: 2, Imm: 16}),
			encode("ld", riscv.Operands{Rd: 6, Rs1: 8, Imm: 24}),
			encode("ld", riscv.Operands{Rd: 7, Rs1: 8, Imm: 32}),
			encode("ecall", riscv.Operands{}),
		),
	}}},
	"pages": {Pages: []jit.Page{ // a loop whose halves are in two pages
		{Entries: []uint16{0}, Code: page(encode("addi", riscv.Operands{Rd: 1, Rs1: 1, Imm: 1}), encode("jal", riscv.Operands{Imm: 4096}))},
		{Entries: []uint16{4}, Code: page(0, encode("jal", riscv.Operands{Imm: -4100}))},
	}},
	"entered inside": one([]uint16{0, 4, 12}, page( // a loop in a loop, where the machine enters both in the middle
		encode("addi", riscv.Operands{Rd: 1, Rs1: 1, Imm: 1}),
		encode("addi", riscv.Operands{Rd: 2, Rs1: 2, Imm: 1}),
		encode("addi", riscv.Operands{Rd: 3, Rs1: 3, Imm: 1}),
		encode("addi", riscv.Operands{Rd: 4, Rs1: 4, Imm: 1}),
		encode("bne", riscv.Operands{Rs1: 4, Rs2: 5, Imm: -8}),
		encode("bne", riscv.Operands{Rs1: 1, Rs2: 5, Imm: -20}),
		encode("ebreak", riscv.Operands{}),
	)),
	"two heads": one([]uint16{0}, page( // a loop that is entered at two places
		encode("beq", riscv.Operands{Rs1: 1, Imm: 8}),
		encode("amoadd.w", riscv.Operands{Rd: 1, Rs1: 2, Rs2: 3}),
		encode("addi", riscv.Operands{Rd: 4, Rs1: 4, Imm: 1}),
		encode("bne", riscv.Operands{Rs1: 4, Rs2: 5, Imm: -8}),
		encode("ebreak", riscv.Operands{}),
	)),
}

func TestTranslateGolden(t *testing.T) {
	for name, request := range programs {
		t.Run(name, func(t *testing.T) {
			region, ok := jit.Translate(layout, request)
			if !ok {
				t.Fatal("nothing to translate")
			}
			if again, _ := jit.Translate(layout, request); !bytes.Equal(again.Module, region.Module) {
				t.Error("translated twice, it is not the same")
			}
			path := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".hex")
			got := hex.Dump(region.Module)
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("module (-want +got); go test ./internal/machine/jit -update accepts it:\n%s", diff)
			}
			compile(t, region.Module)
		})
	}
}

// compile has a module validated.
func compile(t testing.TB, module []byte) {
	t.Helper()
	runtime := wazero.NewRuntimeWithConfig(context.Background(), wazero.NewRuntimeConfigInterpreter())
	defer runtime.Close(context.Background())
	if _, err := runtime.CompileModule(context.Background(), module); err != nil {
		t.Errorf("the module is not valid: %v", err)
	}
}

func TestTableModule(t *testing.T) { compile(t, jit.TableModule()) }

// TestTranslateEveryInstruction: each row of the table is translated to a valid module, or left to the interpreter.
func TestTranslateEveryInstruction(t *testing.T) {
	left := map[string]bool{}
	for i := range riscv.Table {
		row := &riscv.Table[i]
		word := row.Match
		if riscv.Lookup(word) != row {
			word |= 0x1 << 7 // c.lui and its like want a register or an immediate
		}
		if riscv.Lookup(word) != row {
			word = row.Match | 1<<7 | 1<<5 | 1<<2
		}
		region, ok := jit.Translate(layout, one([]uint16{0}, page(word, 0)))
		if !ok {
			left[row.Extension] = true
			continue
		}
		compile(t, region.Module)
	}
	for _, extension := range []string{"M", "A", "F", "D", "Zba", "Zicsr"} {
		if left[extension] {
			t.Errorf("an instruction of %s is left to the interpreter", extension)
		}
	}
	if !left["Zifencei"] || !left["Privileged"] {
		t.Errorf("system instructions were translated; left: %v", left)
	}
}

func TestTranslateLeaves(t *testing.T) {
	nop := encode("addi", riscv.Operands{})
	tests := []struct {
		name    string
		request jit.Request
		want    []jit.Entry
		count   int
	}{
		{"an instruction of the interpreter", one([]uint16{0}, page(encode("ecall", riscv.Operands{}))), nil, 0},
		{"no instruction", one([]uint16{0}, page(0)), nil, 0},
		{"behind a stop", jit.Request{Pages: []jit.Page{{Code: page(nop, nop, nop, 0), Entries: []uint16{0}, Stops: []uint16{8}}}}, []jit.Entry{{}}, 2},
		{"an entry that is a stop", jit.Request{Pages: []jit.Page{{Code: page(nop, nop, 0), Entries: []uint16{0, 4}, Stops: []uint16{4}}}}, []jit.Entry{{}, {Offset: 4}}, 2},
		{"beyond the limit", jit.Request{Pages: one([]uint16{0}, page(nop, nop, nop, nop)).Pages, Limit: 3}, []jit.Entry{{}}, 3},
		{"what was not seen", jit.Request{Pages: []jit.Page{{Code: page(nop, nop, nop, nop), Entries: []uint16{0}, Seen: seen(0, 4, 12)}}}, []jit.Entry{{}}, 2},
		{"an entry that was not seen", jit.Request{Pages: []jit.Page{{Code: page(nop), Entries: []uint16{0}, Seen: seen(4)}}}, nil, 0},
		{"several pages", jit.Request{Pages: []jit.Page{{Code: page(nop)}, {Code: page(nop), Entries: []uint16{0}}, {Code: page(nop, nop), Entries: []uint16{0, 4}}}}, []jit.Entry{{1, 0}, {2, 0}, {2, 4}}, 3},
		{"the half of an instruction at the page's end", one([]uint16{jit.PageSize - 2}, append(page()[:jit.PageSize-2], 0x13, 0)), nil, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			region, ok := jit.Translate(layout, tt.request)
			if ok != (tt.want != nil) || !cmp.Equal(region.Entries, tt.want) || region.Instructions != tt.count {
				t.Errorf("Translate() = %v with %d instructions, %t; want %v with %d", region.Entries, region.Instructions, ok, tt.want, tt.count)
			}
		})
	}
}

// FuzzTranslate: whatever is in a page, Translate ends, and what it makes is a valid module.
func FuzzTranslate(f *testing.F) {
	for _, r := range programs {
		f.Add(r.Pages[0].Code[:64], uint16(0), uint16(8))
	}
	f.Add(bytes.Repeat([]byte{0xe3, 0x8e, 0x10, 0xfe, 0x01, 0xa0}, 200), uint16(6), uint16(600))
	f.Fuzz(func(t *testing.T, code []byte, first, second uint16) {
		whole := append(bytes.Clone(code), make([]byte, jit.PageSize)...)[:jit.PageSize]
		first, second = first%jit.PageSize&^1, second%jit.PageSize&^1
		entries := []uint16{min(first, second), max(first, second)}
		if first == second {
			entries = entries[:1]
		}
		single := bytes.Repeat([]byte{byte(first), byte(second)}, jit.PageSize/32)
		beside := one([]uint16{second}, slices.Concat(whole[first:], whole[:first])).Pages[0]
		for _, r := range []jit.Request{one(entries, whole), {Pages: []jit.Page{one(entries, whole).Pages[0], beside}}, {Pages: []jit.Page{{Code: whole, Entries: entries, Single: single}}}} {
			if region, ok := jit.Translate(layout, r); ok {
				compile(t, region.Module)
			}
		}
	})
}

func ExampleTranslate() {
	increment := encode("addi", riscv.Operands{Rd: 1, Rs1: 1, Imm: 1})
	again := encode("jal", riscv.Operands{Imm: -4})
	region, ok := jit.Translate(layout, one([]uint16{0}, page(increment, again)))
	fmt.Println(ok, region.Instructions, region.Entries)
	// Output: true 2 [{0 0}]
}
