package machine

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native"
	"agentvm/internal/machine/native/blocks"
)

// arm64Block is what testdata/arm64_batch.S runs: four instructions, of which the last is the one that the block is about.
type arm64Block struct {
	Code   [4]uint32
	V      [32][2]uint64
	Flags  uint64
	FPCR   uint64
	FPSR   uint64
	SP     uint64
	X      [31]uint64
	Memory [512]byte
}

func (b *arm64Block) word() uint32 { return b.Code[3] }

const arm64NOP = 0xd503201f

// Places of the program: memory is where its blocks' memory is while an instruction runs, across two pages. Branches find a place to go to at each 8
// bytes between arm64Text and arm64PlacesEnd, which x27 then says.
const (
	arm64Text      = RAMBase + 0x100000
	arm64Last      = arm64Text + 0x10000 - 8 + 12 // where the last instruction of a block is
	arm64PlacesEnd = arm64Text + 0x20000
	arm64Data      = 0x80131000
	arm64Memory    = arm64Data + 0xf00
	arm64Block0    = 28 // the register that has the block
)

// arm64Groups are what single instructions can show of; for branches and the system's see TestArm64FlowLikeQEMU and arm64_system_test.go.
var arm64Groups = []string{"alu", "memory", "exclusive", "atomic", "vmemory", "structure", "fp", "simd", "vfp", "crypto", "nop"}

// TestArm64LikeQEMU runs instructions of every row, with random operands, on the arm64 machine and under QEMU's user mode: twelve of each, and sixty
// as often as AGENTVM_ARM64_ROUNDS says.
func TestArm64LikeQEMU(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs a machine")
	}
	rounds, count := arm64Rounds(t), 60
	if rounds == 0 {
		rounds, count = 1, 12
	}
	p := arm64TestProgram(t)
	for _, group := range arm64Groups {
		t.Run(group, func(t *testing.T) {
			for round := range rounds {
				arm64Round(t, p, group, count, rand.New(rand.NewPCG(3, uint64(round))))
			}
		})
	}
}

// TestArm64Translated runs the comparisons with QEMU with all of the guest's code translated before it is executed.
func TestArm64Translated(t *testing.T) {
	if testing.Short() {
		t.Skip("translates")
	}
	if arm64Translation() == TranslateAll || !native.Translates(blocks.GuestARM64) {
		t.Skip("there is no translator for arm64 here, or all of it is translated")
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestArm64(|Sequences|Flow|System)LikeQEMU$", "-test.v")
	again.Env = append(os.Environ(), "AGENTVM_TEST_TRANSLATE=all")
	out, err := again.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestArm64SystemLikeQEMU ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestArm64SequencesLikeQEMU runs four instructions in a row: random ones of data processing, of which some set flags and some depend on them, and
// loads and stores by one base register, which are on both sides of a page's end.
func TestArm64SequencesLikeQEMU(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a machine")
	}
	count := 500 * max(arm64Rounds(t), 1)
	p, random := arm64TestProgram(t), rand.New(rand.NewPCG(4, 0))
	t.Run("flags", func(t *testing.T) {
		rows := arm64Rows("alu", "fp", "simd", "vfp")
		setters := arm64Named(rows, "subs", "adds", "ands", "bics", "ccm", "fcm", "fccm")
		users := arm64Named(rows, "cs", "ccm", "fcsel", "fccm", "adc", "sbc")
		var blocks []arm64Block
		for range count {
			b := arm64RandomBlock(random, arm64Pick(setters, random), arm64Pick(rows, random), arm64Pick(users, random), arm64Pick(users, random))
			if random.IntN(2) == 0 {
				b.Code[0], b.Code[1] = b.Code[1], b.Code[0]
			}
			arm64Numbers(&b, random)
			if random.IntN(2) == 0 {
				b.FPCR = 0
			}
			blocks = append(blocks, b)
		}
		arm64Compare(t, p, arm64CPU, blocks)
	})
	t.Run("accesses", func(t *testing.T) {
		rows := arm64Rows("memory", "vmemory")
		var blocks []arm64Block
		for range count {
			b := arm64RandomBlock(random, 0, 0, 0, 0)
			for i := range b.Code {
				b.Code[i] = arm64Near(rows, random)
			}
			b.X[arm64Base] = arm64Memory + 256
			blocks = append(blocks, b)
		}
		arm64Compare(t, p, arm64CPU, blocks)
	})
}

func arm64Rows(groups ...string) (rows []*a64.Instruction) {
	for i := range a64.Table {
		if row := &a64.Table[i]; slices.Contains(groups, row.Group) {
			rows = append(rows, row)
		}
	}
	return rows
}

// arm64Named has the rows whose names begin so.
func arm64Named(rows []*a64.Instruction, prefixes ...string) []*a64.Instruction {
	return slices.DeleteFunc(slices.Clone(rows), func(row *a64.Instruction) bool {
		return !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(row.Name, prefix) })
	})
}

// arm64Pick is an instruction of one of the rows. Registers are mostly of a few, so that one needs what another has made.
func arm64Pick(rows []*a64.Instruction, random *rand.Rand) uint32 {
	for {
		row := rows[random.IntN(len(rows))]
		word := random.Uint32()
		if random.IntN(4) != 0 {
			word &^= 0x1c<<5 | 0x1c | 0x1c<<16
		}
		word = row.Bits.Match | word&^row.Bits.Mask
		if a64.Lookup(word) == row && !arm64Open(row, word) {
			return word
		}
	}
}

// arm64Base is the base register of arm64Near.
const arm64Base = 1

// arm64Near is a load or store less than 64 bytes from arm64Base, which it may move a little.
func arm64Near(rows []*a64.Instruction, random *rand.Rand) uint32 {
	for {
		row := rows[random.IntN(len(rows))]
		word := random.Uint32()&^(31<<5) | arm64Base<<5
		offset := uint32(random.IntN(48)) - 16
		switch row.Format {
		case a64.FormatLSU:
			word = word&^(0xfff<<10) | uint32(random.IntN(4))<<10
		case a64.FormatLSI:
			word = word&^(0x1ff<<12) | offset&0x1ff<<12
		case a64.FormatLSP:
			word = word&^(0x7f<<15) | (uint32(random.IntN(5))-2)&0x7f<<15
		default:
			continue
		}
		word = row.Bits.Match | word&^row.Bits.Mask
		loadsBase := row.Group == "memory" && (word&31 == arm64Base || row.Format == a64.FormatLSP && word>>10&31 == arm64Base)
		if a64.Lookup(word) == row && !arm64Open(row, word) && !loadsBase {
			return word
		}
	}
}

// arm64Rounds is AGENTVM_ARM64_ROUNDS, 0 without it.
func arm64Rounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("AGENTVM_ARM64_ROUNDS")
	if text == "" {
		return 0
	}
	rounds, err := strconv.Atoi(text)
	if err != nil || rounds < 1 {
		t.Fatalf("AGENTVM_ARM64_ROUNDS is %q, not a number above 0", text)
	}
	return rounds
}

// arm64TestProgram is the machine, compiled once for all tests.
func arm64TestProgram(t *testing.T) *Program {
	t.Helper()
	p, err := arm64Compiled()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var arm64Compiled = sync.OnceValues(func() (*Program, error) {
	return NewProgram(context.Background(), ProgramConfig{Architecture: platform.ARM64, Translation: arm64Translation()})
})

// arm64Translation is that of the machine under test: of all code before it is executed, where AGENTVM_TEST_TRANSLATE says so, else of none.
func arm64Translation() Translation {
	if os.Getenv("AGENTVM_TEST_TRANSLATE") == "all" {
		return TranslateAll
	}
	return TranslateNever
}

func arm64Round(t *testing.T, p *Program, group string, count int, random *rand.Rand) {
	t.Helper()
	var blocks []arm64Block
	for i := range a64.Table {
		row := &a64.Table[i]
		if row.Group != group || row.Format == a64.FormatLSL { // literals are where the program is
			continue
		}
		of := arm64Blocks(row, count, random)
		if len(of) < count {
			t.Errorf("%s: %d of %d cases could be made", row.Name, len(of), count)
		}
		blocks = append(blocks, of...)
	}
	arm64Compare(t, p, arm64CPU, blocks)
}

// arm64CPU is the processor of QEMU's that has all that the machine has.
const arm64CPU = "max,sve=off,pauth=off"

// arm64Compare runs the blocks here and under QEMU.
func arm64Compare(t *testing.T, p *Program, cpu string, blocks []arm64Block) {
	t.Helper()
	program := arm64Program(t, blocks)
	want, got := arm64QEMU(t, cpu, program, len(blocks)), arm64Run(t, p, program, len(blocks))
	differences := 0
	for i := range blocks {
		if want[i] != got[i] {
			row := a64.Lookup(blocks[i].word())
			t.Errorf("%s %08x: %s", row.Name, blocks[i].Code, arm64Difference(&blocks[i], &want[i], &got[i]))
			if differences++; differences > 20 {
				t.FailNow()
			}
		}
	}
	t.Logf("%d instructions", len(blocks))
}

func arm64Difference(before, want, got *arm64Block) string {
	var b strings.Builder
	note := func(name string, old, w, g uint64) {
		if w != g {
			fmt.Fprintf(&b, " %s was %#x, is %#x, QEMU has %#x;", name, old, g, w)
		}
	}
	note("nzcv", before.Flags, want.Flags, got.Flags)
	note(fmt.Sprintf("fpcr %#x, fpsr", before.FPCR), before.FPSR, want.FPSR, got.FPSR)
	note("sp", before.SP, want.SP, got.SP)
	for i := range want.X {
		note(fmt.Sprint("x", i), before.X[i], want.X[i], got.X[i])
	}
	for i := range want.V {
		note(fmt.Sprint("v", i), before.V[i][0], want.V[i][0], got.V[i][0])
		note(fmt.Sprint("v", i, " upper"), before.V[i][1], want.V[i][1], got.V[i][1])
	}
	for i := range want.Memory {
		note(fmt.Sprint("memory ", i), uint64(before.Memory[i]), uint64(want.Memory[i]), uint64(got.Memory[i]))
	}
	word := before.word()
	d, n, m, a := word&31, word>>5&31, word>>16&31, word>>10&31
	fmt.Fprintf(&b, " format %s, v%d %#x, n: v%d %#x, m: v%d %#x, a: v%d %#x", a64.Lookup(word).Format, d, before.V[d], n, before.V[n], m, before.V[m], a, before.V[a])
	return b.String()
}

// arm64Blocks makes blocks of a row. What the architecture leaves open is left out: the same register written twice, for example.
func arm64Blocks(row *a64.Instruction, count int, random *rand.Rand) []arm64Block {
	var blocks []arm64Block
	for tries := 0; len(blocks) < count && tries < 100*count; tries++ {
		word := row.Bits.Match | random.Uint32()&^row.Bits.Mask
		if a64.Lookup(word) != row || arm64Open(row, word) {
			continue
		}
		b := arm64RandomBlock(random, arm64NOP, arm64NOP, arm64NOP, word)
		switch row.Group {
		case "fp", "vfp":
			arm64Numbers(&b, random)
		case "memory", "exclusive", "atomic", "vmemory", "structure":
			arm64Address(&b, row, word, random)
		}
		blocks = append(blocks, b)
	}
	return blocks
}

func arm64RandomBlock(random *rand.Rand, code ...uint32) arm64Block {
	b := arm64Block{Code: [4]uint32(code), Flags: uint64(random.Uint32()) & 0xf0000000, SP: arm64Memory + 256}
	for i := range b.X {
		b.X[i] = arm64Value(random)
	}
	b.X[arm64Block0] = 0
	for i := range b.V {
		b.V[i] = [2]uint64{arm64Value(random), arm64Value(random)}
	}
	for i := range b.Memory {
		b.Memory[i] = byte(random.Uint32())
	}
	return b
}

// arm64Numbers has vectors of floating-point numbers, in all modes.
func arm64Numbers(b *arm64Block, random *rand.Rand) {
	const defaultNaN, flushToZero, alternativeHalf = 1 << 25, 1 << 24, 1 << 26
	b.FPCR = uint64(random.IntN(4)) << 22
	for _, bit := range []uint64{defaultNaN, flushToZero, alternativeHalf} {
		if random.IntN(4) == 0 {
			b.FPCR |= bit
		}
	}
	single := func() uint64 {
		edges := []uint32{0, 1, 0x7fffff, 0x800000, 0x800001, 0x3f000000, 0x3f7fffff, 0x3f800000, 0x3fc00000, 0x40200000, 0x4b000000, 0x4b7fffff, 0x4effffff, 0x4f000000, 0x4f800000, 0x5f000000, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fc12345}
		switch random.IntN(3) {
		case 0:
			return uint64(edges[random.IntN(len(edges))] | random.Uint32()&(1<<31))
		case 1:
			return uint64(math.Float32bits(float32(random.NormFloat64()) * 1000))
		default:
			return uint64(random.Uint32())
		}
	}
	double := func() uint64 {
		edges := []uint64{0, 1, 1<<52 - 1, 1 << 52, 1<<52 + 1, 0x3fe0000000000000, 0x3ff0000000000000, 0x3ff8000000000000, 0x4004000000000000, 0x36a0000000000000, 0x380fffffffffffff, 0x3810000000000000, 0x47efffffe0000000, 0x47f0000000000000, 0x41dfffffffc00000, 0x41e0000000000000, 0x43e0000000000000, 0x43f0000000000000, 0x7fefffffffffffff, 0x7ff0000000000000, 0x7ff0000000000001, 0x7ff8000000000000, 0x7ff812345678abcd, 0x3f10000000000000, 0x40effc0000000000}
		switch random.IntN(3) {
		case 0:
			return edges[random.IntN(len(edges))] | random.Uint64()&(1<<63)
		case 1:
			return math.Float64bits(random.NormFloat64() * 1000)
		default:
			return random.Uint64()
		}
	}
	for i := range b.V {
		for half := range b.V[i] {
			switch random.IntN(5) {
			case 0, 1:
				b.V[i][half] = single() | single()<<32
			case 2: // of half precision
				b.V[i][half] = random.Uint64()
			default:
				b.V[i][half] = double()
			}
		}
	}
}

// arm64Value prefers what is at an edge.
func arm64Value(random *rand.Rand) uint64 {
	edges := []uint64{0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 1 << 32, 1<<63 - 1, 1 << 63, 1<<64 - 1}
	switch random.IntN(4) {
	case 0:
		return edges[random.IntN(len(edges))]
	case 1:
		return random.Uint64() >> random.IntN(64)
	default:
		return random.Uint64()
	}
}

// arm64Address has the instruction access its memory. Only accesses in order and atomic ones must be aligned.
func arm64Address(b *arm64Block, row *a64.Instruction, word uint32, random *rand.Rand) {
	n, m := word>>5&31, word>>16&31
	base := uint64(arm64Memory + 256)
	switch {
	case row.Format == a64.FormatLSU: // up to 64 KiB ahead: from the middle again
		scale := word >> 30
		if word>>26&1 == 1 && word>>23&1 == 1 {
			scale = 4
		}
		base -= uint64(word>>10&0xfff) << scale
	case row.Format == a64.FormatLSP:
		scale := 2 + word>>31
		if word>>26&1 == 1 {
			scale = 2 + word>>30
		}
		offset := int64(int32(word<<10)>>25) << scale
		if strings.HasSuffix(row.Name, ".post") {
			offset = 0
		}
		base -= uint64(offset)
	case row.Format == a64.FormatLSR && m != 31:
		b.X[m] = uint64(random.IntN(8))
		if word>>13&7 == 6 && random.IntN(2) == 0 {
			b.X[m] = 1<<32 - 1 - uint64(random.IntN(8))
		}
	}
	if unaligned := row.Group == "memory" || row.Group == "vmemory" || row.Group == "structure"; unaligned && row.Format != a64.FormatEXCL && n != 31 {
		base += uint64(random.IntN(32)) - 16
	}
	if n == 31 {
		b.SP = base
	} else {
		b.X[n] = base
	}
}

// arm64Open tells words whose result is open, and those that use the block's register.
func arm64Open(row *a64.Instruction, word uint32) bool {
	d, n, m, a := word&31, word>>5&31, word>>16&31, word>>10&31
	if d == arm64Block0 || n == arm64Block0 || m == arm64Block0 {
		return true
	}
	switch row.Format {
	case a64.FormatR4, a64.FormatLSP, a64.FormatEXCL:
		if a == arm64Block0 {
			return true
		}
	}
	switch row.Format {
	case a64.FormatLSU:
		return n == 31 && word>>10&0xf != 0 // SP stays aligned
	case a64.FormatLSI:
		return d == n || n == 31
	case a64.FormatLSR:
		return d == n || m == n || n == 31
	case a64.FormatLSP:
		return d == n || a == n || d == a || n == 31
	case a64.FormatEXCL:
		return d == n || a == n || m == n || d == m || a == m || d == a || n == 31
	case a64.FormatATOM:
		return d == n || m == n || d == m || n == 31 || strings.HasPrefix(row.Name, "casp") && (m >= 26 || d >= 26)
	case a64.FormatLSM, a64.FormatLSS:
		return n == 31 || m == n
	}
	return false
}

func arm64Tool(t *testing.T, name, debianPackage string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing, and CI must not skip this test", name)
	}
	if err != nil {
		t.Skipf("needs %s (Debian package %s)", name, debianPackage)
	}
	return path
}

func arm64Program(t *testing.T, blocks []arm64Block) string {
	t.Helper()
	gcc := arm64Tool(t, "aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
	dir := t.TempDir()
	var data bytes.Buffer
	if err := binary.Write(&data, binary.LittleEndian, blocks); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "blocks"), data.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "batch")
	out, err := exec.Command(gcc, "-nostdlib", "-static", "-Wl,-N", "-Wl,--build-id=none", fmt.Sprintf("-Wl,-Ttext=%#x", uint64(arm64Text)), fmt.Sprintf("-Wl,-Tdata=%#x", uint64(arm64Data)),
		fmt.Sprintf("-DCOUNT=%d", len(blocks)), fmt.Sprintf("-DBLOCKS=%q", filepath.Join(dir, "blocks")), "-o", program, "testdata/arm64_batch.S").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

func arm64Decode(t *testing.T, data []byte, count int) []arm64Block {
	t.Helper()
	blocks := make([]arm64Block, count)
	if err := binary.Read(bytes.NewReader(data), binary.LittleEndian, blocks); err != nil {
		t.Fatal(err)
	}
	return blocks
}

func arm64QEMU(t *testing.T, cpu, program string, count int) []arm64Block {
	t.Helper()
	qemu := arm64Tool(t, "qemu-aarch64-static", "qemu-user-static")
	out, err := exec.Command(qemu, "-cpu", cpu, program).Output()
	if err != nil {
		t.Fatal(err)
	}
	return arm64Decode(t, out, count)
}

func arm64Run(t *testing.T, p *Program, program string, count int) []arm64Block {
	t.Helper()
	var blocks []arm64Block
	arm64RunProgram(t, p, program, func(file *elf.File, ram []byte) {
		symbols, err := file.Symbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range symbols {
			if s.Name == "blocks" {
				blocks = arm64Decode(t, ram[s.Value-RAMBase:], count)
			}
		}
	})
	return blocks
}

// arm64RunProgram runs a program until it powers off, and calls results with its file and what it has left in RAM.
func arm64RunProgram(t *testing.T, p *Program, program string, results func(file *elf.File, ram []byte)) {
	t.Helper()
	m, err := p.NewMachine(t.Context(), Config{Memory: 128 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	ram, err := m.ram()
	if err != nil {
		t.Fatal(err)
	}
	file, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_LOAD && segment.Filesz != 0 {
			if _, err := segment.ReadAt(ram[segment.Vaddr-RAMBase:][:segment.Filesz], 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	m.markRAM(0, uint64(len(ram)))
	hart, ok := m.memory.Read(m.layout.Hart, 776)
	if !ok {
		t.Fatal(errHart)
	}
	binary.LittleEndian.PutUint64(hart, 1)
	binary.LittleEndian.PutUint64(hart[768:], file.Entry)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	exit, err := m.Run(ctx)
	if err != nil || exit.Reason != PowerOff {
		hart, _ = m.memory.Read(m.layout.Hart, 1200)
		t.Fatalf("%+v, %v; pc %#x, esr %#x", exit, err, binary.LittleEndian.Uint64(hart[768:]), hart)
	}
	if s := m.JITStats(); arm64Translation() == TranslateAll && s.Executed < m.Retired()/4 {
		t.Errorf("only %d of %d instructions were translated: %+v", s.Executed, m.Retired(), s)
	}
	results(file, ram)
}
