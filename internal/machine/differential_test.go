package machine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentvm/internal/machine"
	"agentvm/internal/machine/riscv"
)

// A batch is one program of many sequences. The same program, at the same addresses, runs under QEMU's user mode and
// on the machine in M-mode. Each sequence has a block of memory: what its registers, fcsr and the data area hold
// before, which the program replaces by what they hold behind. At the end it writes all blocks to its standard output
// and exits; on the machine that system call ends the run, and the blocks are read from RAM.
type batch struct {
	sequences [][]uint32
	blocks    []byte
}

const (
	blockF    = 32 * 8
	blockFCSR = blockF + 32*8
	blockData = blockFCSR + 8
	dataSize  = 512
	blockSize = blockData + dataSize

	batchData   = machine.RAMBase + 0x1000 - dataSize/2 // across two pages
	batchBlocks = machine.RAMBase + 0x3000
	batchSize   = 200
	sequenceLen = 40
)

// newBatch makes count sequences from a seed.
func newBatch(seed uint64, count int) (batch, [][]piece) {
	g := newGenerator(seed)
	var b batch
	var all [][]piece
	for range count {
		pieces := g.sequence(sequenceLen)
		all = append(all, pieces)
		b.sequences = append(b.sequences, words(pieces))
		b.blocks = append(b.blocks, randomBlock(g.Rand)...)
	}
	return b, all
}

func randomBlock(r *rand.Rand) []byte {
	block := make([]byte, 0, blockSize)
	for i := range 32 {
		value := randomInteger(r)
		switch i {
		case regStack, regBase, regData:
			value = batchData + dataSize/2
		}
		block = binary.LittleEndian.AppendUint64(block, value)
	}
	for range 32 {
		block = binary.LittleEndian.AppendUint64(block, randomFloat(r))
	}
	block = binary.LittleEndian.AppendUint64(block, uint64(r.IntN(5)<<5|r.IntN(32)))
	for range dataSize / 8 {
		block = binary.LittleEndian.AppendUint64(block, randomFloat(r))
	}
	return block
}

func randomInteger(r *rand.Rand) uint64 {
	switch r.IntN(3) {
	case 0:
		return edgeValues[r.IntN(len(edgeValues))]
	case 1:
		return uint64(int64(r.Uint64()) >> r.IntN(64))
	}
	return r.Uint64()
}

// randomFloat is a double or a boxed single: random, near one, or an edge of the format.
func randomFloat(r *rand.Rand) uint64 {
	fraction := []uint64{0, 1, 1 << 51, 1<<52 - 1, r.Uint64() >> 12, 1 << 22 << 29}[r.IntN(6)]
	exponent := []uint64{0, 1, 1022, 1023, 1024, 2046, 2047, r.Uint64() % 2048, 1000 + r.Uint64()%50}[r.IntN(9)]
	double := r.Uint64()&(1<<63) | exponent<<52 | fraction
	if r.IntN(2) == 0 {
		return double
	}
	exponent = []uint64{0, 1, 126, 127, 128, 254, 255, r.Uint64() % 256, 115 + r.Uint64()%25}[r.IntN(9)]
	return boxed(double>>63<<31|exponent<<23|fraction>>29, 4)
}

// program is the batch's ELF.
func (b *batch) program() []byte {
	codeAt := (batchBlocks + uint64(len(b.blocks)) + 4095) &^ 4095
	image := make([]byte, codeAt-machine.RAMBase)
	copy(image[batchBlocks-machine.RAMBase:], b.blocks)
	return startAt(wrapELF(machine.RAMBase, append(image, b.code(codeAt)...)), codeAt)
}

// startAt changes a program's entry.
func startAt(program []byte, entry uint64) []byte {
	const entryOffset = 24
	binary.LittleEndian.PutUint64(program[entryOffset:], entry)
	return program
}

// code: a jump over the two subroutines, all sequences one after the other, and the end.
func (b *batch) code(at uint64) []byte {
	var c codeBuffer
	in, out := c.copier(true), c.copier(false)
	start := len(c.bytes)
	for i, sequence := range b.sequences {
		c.add(loadImmediate(regBlock, batchBlocks+uint64(i)*blockSize)...)
		c.call(in)
		for x := uint8(1); x < regBlock; x++ {
			c.op("ld", riscv.Operands{Rd: x, Rs1: regBlock, Imm: int64(x) * 8})
		}
		c.add(sequence...)
		for x := uint8(1); x < regBlock; x++ {
			c.op("sd", riscv.Operands{Rs2: x, Rs1: regBlock, Imm: int64(x) * 8})
		}
		c.call(out)
	}
	c.end(uint64(len(b.blocks)))
	binary.LittleEndian.PutUint32(c.bytes, encode("jal", riscv.Operands{Imm: int64(start)}))
	return c.bytes
}

// codeBuffer is an assembler for the batch's frame.
type codeBuffer struct{ bytes []byte }

func (c *codeBuffer) add(words ...uint32) {
	for _, word := range words {
		c.bytes = append(c.bytes, instructionBytes(word)...)
	}
}

func (c *codeBuffer) op(name string, o riscv.Operands) { c.add(encode(name, o)) }

func (c *codeBuffer) call(subroutine int) {
	c.op("jal", riscv.Operands{Rd: 1, Imm: int64(subroutine - len(c.bytes))})
}

// copier adds a subroutine that moves the data area, the floating-point registers and fcsr between the machine and
// the block that x31 points to. The first four bytes of the code are left for the jump over it.
func (c *codeBuffer) copier(in bool) int {
	if len(c.bytes) == 0 {
		c.bytes = make([]byte, 4)
	}
	entry := len(c.bytes)
	from, to := uint8(5), uint8(6)
	if !in {
		from, to = to, from
	}
	c.op("addi", riscv.Operands{Rd: 5, Rs1: regBlock, Imm: blockData})
	c.add(loadImmediate(6, batchData)...)
	c.op("addi", riscv.Operands{Rd: 7, Rs1: 5, Imm: dataSize})
	loop := len(c.bytes)
	c.op("ld", riscv.Operands{Rd: 28, Rs1: from})
	c.op("sd", riscv.Operands{Rs2: 28, Rs1: to})
	c.op("addi", riscv.Operands{Rd: 5, Rs1: 5, Imm: 8})
	c.op("addi", riscv.Operands{Rd: 6, Rs1: 6, Imm: 8})
	c.op("bne", riscv.Operands{Rs1: 5, Rs2: 7, Imm: int64(loop - len(c.bytes))})
	for f := range uint8(32) {
		if in {
			c.op("fld", riscv.Operands{Rd: f, Rs1: regBlock, Imm: blockF + int64(f)*8})
		} else {
			c.op("fsd", riscv.Operands{Rs2: f, Rs1: regBlock, Imm: blockF + int64(f)*8})
		}
	}
	if in {
		c.op("ld", riscv.Operands{Rd: 28, Rs1: regBlock, Imm: blockFCSR})
		c.add(csrw("fcsr", 28))
	} else {
		c.add(csrr(28, "fcsr"))
		c.op("sd", riscv.Operands{Rs2: 28, Rs1: regBlock, Imm: blockFCSR})
	}
	c.op("jalr", riscv.Operands{Rs1: 1})
	return entry
}

// end writes the blocks to descriptor 1 and exits with 0.
func (c *codeBuffer) end(length uint64) {
	const s0, s1, a0, a1, a2, a7, write, exit, ecall = 8, 9, 10, 11, 12, 17, 64, 93, 0x73
	c.add(loadImmediate(s0, batchBlocks)...)
	c.add(loadImmediate(s1, length)...)
	loop := len(c.bytes)
	c.op("addi", riscv.Operands{Rd: a0, Imm: 1})
	c.op("addi", riscv.Operands{Rd: a1, Rs1: s0})
	c.op("addi", riscv.Operands{Rd: a2, Rs1: s1})
	c.op("addi", riscv.Operands{Rd: a7, Imm: write})
	c.add(ecall)
	c.op("add", riscv.Operands{Rd: s0, Rs1: s0, Rs2: a0})
	c.op("sub", riscv.Operands{Rd: s1, Rs1: s1, Rs2: a0})
	c.op("blt", riscv.Operands{Rs1: 0, Rs2: s1, Imm: int64(loop - len(c.bytes))})
	c.op("addi", riscv.Operands{Rd: a0})
	c.op("addi", riscv.Operands{Rd: a7, Imm: exit})
	c.add(ecall)
}

// onQEMU runs a program under QEMU and returns what it wrote.
func onQEMU(t testing.TB, qemu string, program []byte) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "batch")
	if err := os.WriteFile(path, program, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, qemu, "-cpu", "rv64,zba=true,zbb=true", path)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("QEMU: %v\n%s", err, stderr.Bytes())
	}
	return out
}

// onMachine runs a program on the machine, in slices of the given budget, and returns its blocks.
func onMachine(t testing.TB, program []byte, length int, budget int64) []byte {
	t.Helper()
	blocks, _ := onMachineOf(t, testProgram(t), program, length, budget)
	return blocks
}

// onMachineOf also tells how many instructions there were.
func onMachineOf(t testing.TB, p *machine.Program, program []byte, length int, budget int64) ([]byte, uint64) {
	t.Helper()
	m, err := p.NewMachine(t.Context(), machine.Config{Memory: 16 << 20, MachineMode: true, Deterministic: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	ram, err := m.RAM()
	if err != nil {
		t.Fatal(err)
	}
	info, err := m.LoadELF(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{TB: t, m: m, ram: ram}
	const setupAt, handler = machine.RAMBase + 15<<20, machine.RAMBase + 15<<20 + 0x100
	r.write(setupAt, csrw("mtvec", 1), csrw("mstatus", 2), jumpToSelf)
	r.write(handler, jumpToSelf)
	setup := machine.Registers{PC: setupAt}
	setup.X[1], setup.X[2] = handler, fsInitial
	r.script(setup)
	if err := m.SetRegisters(machine.Registers{PC: info.Entry}); err != nil {
		t.Fatal(err)
	}
	const limit = 20_000_000
	for m.PC() != handler {
		if _, _, err := m.Step(budget); err != nil || m.Retired() > limit {
			t.Fatalf("at %#x after %d instructions: %v", m.PC(), m.Retired(), err)
		}
	}
	return bytes.Clone(ram[batchBlocks-machine.RAMBase:][:length]), m.Retired()
}

// TestDifferentialQEMU compares the machine with QEMU's user mode: random sequences of all user-mode instructions on
// random registers. AGENTVM_FUZZ_SEQUENCES and AGENTVM_FUZZ_SEED make it longer and different, as `.ci/run processor` does.
func TestDifferentialQEMU(t *testing.T) {
	t.Parallel()
	qemu := debianTool(t, "qemu-riscv64-static")
	count, seed := fuzzSetting(t, "AGENTVM_FUZZ_SEQUENCES", 6000), fuzzSetting(t, "AGENTVM_FUZZ_SEED", 1)
	for first := uint64(0); first < count; first += batchSize {
		b, pieces := newBatch(seed<<32+first, batchSize)
		program := b.program()
		theirs, ours := onQEMU(t, qemu, program), onMachine(t, program, len(b.blocks), 1_000_000)
		if bytes.Equal(theirs, ours) {
			continue
		}
		for i := range b.sequences {
			if !bytes.Equal(block(theirs, i), block(ours, i)) {
				t.Fatalf("seed %d, sequence %d:\n%s", seed<<32+first, i, minimise(t, qemu, pieces[i], block(b.blocks, i)))
			}
		}
		t.Fatalf("QEMU wrote %d bytes, the machine %d", len(theirs), len(ours))
	}
}

func fuzzSetting(t *testing.T, name string, usual uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	value, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return value
}

func block(blocks []byte, i int) []byte {
	return blocks[min(len(blocks), i*blockSize):min(len(blocks), (i+1)*blockSize)]
}

// minimise takes out instructions as long as the difference stays, and prints what is left.
func minimise(t *testing.T, qemu string, pieces []piece, before []byte) string {
	t.Helper()
	code := words(pieces)
	run := func() (theirs, ours []byte) {
		b := batch{sequences: [][]uint32{code}, blocks: bytes.Clone(before)}
		program := b.program()
		return onQEMU(t, qemu, program), onMachine(t, program, blockSize, 1_000_000)
	}
	for i := range code {
		if pieces[i].fixed {
			continue
		}
		saved := code[i]
		code[i] = map[int]uint32{2: 1, 4: 0x13}[pieces[i].size]
		if theirs, ours := run(); bytes.Equal(theirs, ours) {
			code[i] = saved
		}
	}
	var text strings.Builder
	for _, word := range code {
		if word != 1 && word != 0x13 {
			fmt.Fprintln(&text, riscv.Disassemble(word, 0))
		}
	}
	theirs, ours := run()
	return text.String() + blockDifference(before, theirs, ours)
}

func blockDifference(before, theirs, ours []byte) string {
	var text strings.Builder
	for i := 0; i+8 <= min(len(theirs), len(ours)); i += 8 {
		a, b := binary.LittleEndian.Uint64(theirs[i:]), binary.LittleEndian.Uint64(ours[i:])
		if a == b {
			continue
		}
		name := fmt.Sprintf("data+%#x", i-blockData)
		switch {
		case i < blockF:
			name = fmt.Sprintf("x%d", i/8)
		case i < blockFCSR:
			name = fmt.Sprintf("f%d", (i-blockF)/8)
		case i < blockData:
			name = "fcsr"
		}
		fmt.Fprintf(&text, "%s: QEMU %#x, ours %#x\n", name, a, b)
	}
	for i := range 32 {
		fmt.Fprintf(&text, "before: x%d=%#x f%d=%#x\n", i, binary.LittleEndian.Uint64(before[i*8:]), i, binary.LittleEndian.Uint64(before[blockF+i*8:]))
	}
	fmt.Fprintf(&text, "before: fcsr=%#x\n", before[blockFCSR])
	return text.String()
}

// TestDifferentialBudget: how long slices are changes nothing.
func TestDifferentialBudget(t *testing.T) {
	const count = 50
	b, _ := newBatch(99, count)
	program := b.program()
	want := onMachine(t, program, len(b.blocks), 1_000_000)
	for _, budget := range []int64{1, 7, 1000} {
		got := onMachine(t, program, len(b.blocks), budget)
		for i := range count {
			if !bytes.Equal(block(got, i), block(want, i)) {
				t.Fatalf("sequence %d with slices of %d:\n%s", i, budget, blockDifference(block(b.blocks, i), block(want, i), block(got, i)))
			}
		}
	}
}
