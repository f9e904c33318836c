package machine_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/machine"
	"agentvm/internal/machine/riscv"
)

// testedElsewhere are rows whose effect is not on one hart in one mode.
var testedElsewhere = map[string]string{
	"sret": "TestBare/returns: it leaves M-mode",
	"wfi":  "TestBare/wait: it ends the slice",
}

// TestInstruction runs every row of the instruction table over edge values and compares registers, memory, flags
// and traps with the model. A row without a model or without cases fails.
func TestInstruction(t *testing.T) {
	t.Parallel()
	total := 0
	for i := range riscv.Table {
		row := &riscv.Table[i]
		if testedElsewhere[row.Name] != "" {
			continue
		}
		t.Run(row.Name, func(t *testing.T) {
			r := newRig(t) // a new one each: no row runs into the code of others
			cases := someCases(t, uint64(i), casesOf(row))
			if len(cases) == 0 {
				t.Fatal("no cases for this row of the instruction table")
			}
			for _, c := range cases {
				r.check(row, c)
				if t.Failed() {
					return // one row's first mistake says it all
				}
			}
			total += len(cases)
		})
	}
	t.Logf("%d cases", total)
}

// someCases takes AGENTVM_FUZZ_CASES of a row's cases, chosen by AGENTVM_FUZZ_SEED; 0 is all.
func someCases(t *testing.T, row uint64, cases []instructionCase) []instructionCase {
	t.Helper()
	n := fuzzSetting(t, "AGENTVM_FUZZ_CASES", 0)
	if n == 0 || n >= uint64(len(cases)) {
		return cases
	}
	random := rand.New(rand.NewPCG(fuzzSetting(t, "AGENTVM_FUZZ_SEED", 1), row))
	random.Shuffle(len(cases), func(a, b int) { cases[a], cases[b] = cases[b], cases[a] })
	return cases[:n]
}

// TestInstructionTranslated runs some cases of each row with all code translated when it is first reached;
// AGENTVM_FUZZ_CASES says how many, 0 for all, which takes many minutes.
func TestInstructionTranslated(t *testing.T) {
	if testing.Short() {
		t.Skip("translates")
	}
	count, seed := fuzzSetting(t, "AGENTVM_FUZZ_CASES", 5), fuzzSetting(t, "AGENTVM_FUZZ_SEED", 1)
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInstruction$", "-test.v", "-test.timeout=0")
	again.Env = append(os.Environ(), "AGENTVM_TEST_TRANSLATE=all", fmt.Sprint("AGENTVM_FUZZ_CASES=", count), fmt.Sprint("AGENTVM_FUZZ_SEED=", seed))
	out, err := again.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestInstruction ") {
		t.Errorf("seed %d: %v\n%.4000s", seed, err, out)
	}
}

// instructionCase is one execution. Registers are set by value of the operand, so that the encoding decides where
// they are.
type instructionCase struct {
	o       riscv.Operands
	a, b, c uint64 // of rs1, rs2, rs3, in this order where one register is several of them
	fcsr    uint64
	where   placing
}

type placing int

const (
	inSequence  placing = iota
	acrossPages         // the second half of a 32-bit instruction is in the next page
	alone               // surrounded by unused memory, for jumps
)

// check runs a case on the machine and on the model.
func (r *rig) check(row *riscv.Instruction, c instructionCase) {
	word, err := riscv.Encode(row.Name, c.o)
	if err != nil {
		return // a combination that this row cannot have
	}
	pc, ok := r.position(row, word, c)
	if !ok {
		return
	}
	data := r.ram[rigData-machine.RAMBase:][:rigDataLen]
	copy(data, dataPattern[:])
	before := r.stateOf(row, c)
	before.PC = pc
	want := modelHart{hartState: before, data: append([]byte(nil), data...)}
	if !want.execute(row, word) {
		r.Fatalf("no model for %s", row.Name)
	}
	got := r.run(before)
	tell := func(what, diff string) {
		r.Errorf("%s at %#x (a=%#x b=%#x c=%#x fcsr=%#x): %s, -want +got:\n%s",
			riscv.Disassemble(word, pc), pc, c.a, c.b, c.c, c.fcsr, what, diff)
	}
	r.compareStatus(row, before, &want.hartState, &got)
	if want.hartState != got {
		tell("state", cmp.Diff(describe(want.hartState), describe(got)))
	}
	if !bytes.Equal(data, want.data) {
		tell("memory", firstDifference(want.data, data))
	}
}

// compareStatus checks mstatus.FS, which may turn dirty more often than it must, and takes it out of the comparison.
func (r *rig) compareStatus(row *riscv.Instruction, before hartState, want, got *hartState) {
	const fs, sd = 3 << 13, 1 << 63
	changed := want.F != before.F || want.FCSR != before.FCSR
	if dirty := got.MStatus&fs == fs; dirty != (got.MStatus&sd != 0) || changed && !dirty {
		r.Errorf("%s: mstatus is %#x, FS must be dirty after a write: %v", row.Name, got.MStatus, changed)
	}
	want.MStatus &^= fs | sd
	got.MStatus &^= fs | sd
}

// describe lists what is not zero.
func describe(h hartState) map[string]string {
	text := map[string]string{"pc": fmt.Sprintf("%#x", h.PC), "csrs": fmt.Sprintf("%+x", h.csrs), "trapped": fmt.Sprint(h.Trapped)}
	for i := range 32 {
		text[fmt.Sprintf("x%d", i)] = fmt.Sprintf("%#x", h.X[i])
		text[fmt.Sprintf("f%d", i)] = fmt.Sprintf("%#x", h.F[i])
	}
	return text
}

func firstDifference(want, got []byte) string {
	for i := range want {
		if want[i] != got[i] {
			return fmt.Sprintf("first at data+%#x: -%#x +%#x", i, want[i], got[i])
		}
	}
	return ""
}

// dataPattern gives every byte of the data area a value of its own, half of them negative.
var dataPattern = func() (pattern [rigDataLen]byte) {
	for i := range pattern {
		pattern[i] = byte(i*37 + i>>8*11 + 0x7c)
	}
	return pattern
}()

// stateOf sets all registers to values of their own and then the case's.
func (r *rig) stateOf(row *riscv.Instruction, c instructionCase) hartState {
	var h hartState
	for i := 1; i < 32; i++ {
		h.X[i] = 0x0101_0101_0101_0101 * uint64(i)
	}
	for i := range 32 {
		h.F[i] = boxed(uint64(math.Float32bits(float32(i)+0.5)), 4)
	}
	h.FCSR = c.fcsr
	h.MScratch = 0x5a5a_0ff0_1234_8765
	h.MStatus = fsInitial | 0xa_0000_0000 | 3<<11 | 1<<7
	if r.cases++; r.cases%2 == 1 { // translated code uses the floating-point unit only when it is marked dirty
		h.MStatus |= 3 << 13
	}
	h.MEPC = r.place() // mret's target
	o := registersOf(row, c.o)
	h.X[o.Rs2], h.F[o.Rs2] = c.b, c.b
	h.X[o.Rs1], h.F[o.Rs1] = c.a, c.a
	h.F[o.Rs3] = c.c
	if c.o.Rs3 == c.o.Rs1 {
		h.F[o.Rs3] = c.a
	}
	h.X[0] = 0
	return h
}

// registersOf are the operands with the sources that a 16-bit form implies.
func registersOf(row *riscv.Instruction, o riscv.Operands) riscv.Operands {
	if row.Length == 2 && row.Expands != "-" {
		_, o = expand(row, o)
	}
	return o
}

// position places the instruction so that what runs next is a jump to itself.
func (r *rig) position(row *riscv.Instruction, word uint32, c instructionCase) (uint64, bool) {
	switch c.where {
	case acrossPages:
		r.atPageEnd()
		return r.place(word), true
	case inSequence:
		return r.place(word), true
	}
	target := func(pc uint64) uint64 {
		if row.Name == "jalr" || row.Name == "c.jr" || row.Name == "c.jalr" {
			a := c.a
			if c.o.Rs1 == 0 {
				a = 0 // outside of RAM: left out
			}
			return (a + uint64(c.o.Imm)) &^ 1
		}
		return pc + uint64(c.o.Imm)
	}
	random := rand.New(rand.NewPCG(uint64(word), c.a^c.b))
	for range 100 {
		pc := rigFar + 2<<20 + random.Uint64N(4<<20)&^1
		if c.o.Imm%4 == 0 && random.Uint32()%2 == 0 {
			pc = pc&^0xfff | 0xffe // at the end of a page
		}
		if r.claim(pc, 8) && (target(pc) == pc || r.claim(target(pc), 4)) {
			next := r.write(pc, word)
			r.write(next, jumpToSelf)
			if t := target(pc); t != pc {
				r.write(t, jumpToSelf)
			}
			return pc, true
		}
	}
	return 0, false
}

// claim takes length bytes of the memory for jumps unless something is there.
func (r *rig) claim(at, length uint64) bool {
	if at < rigFar || at > ramEnd-length {
		return false
	}
	for a := at; a < at+length; a += 2 {
		if r.used[a] {
			return false
		}
	}
	for a := at; a < at+length; a += 2 {
		r.used[a] = true
	}
	return true
}

// Cases ---------------------------------------------------------------------------------------------------------------

var edgeValues = []uint64{
	0, 1, 2, ^uint64(0), 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff,
	0x1_0000_0000, 0x7fff_ffff_ffff_ffff, 0x8000_0000_0000_0000, 0x8000_0000_0000_0001, 0xffff_ffff_8000_0000,
	31, 32, 63, 64, 0x0123_4567_89ab_cdef, 0xfedc_ba98_0000_0001,
}

// registerChoices are the assignments of rd, rs1, rs2, rs3 to try: all different, shared in every way, x0 in each
// place, and each register once.
func registerChoices() [][4]uint8 {
	choices := [][4]uint8{{10, 11, 12, 13}, {10, 10, 12, 13}, {10, 11, 10, 13}, {10, 11, 11, 11}, {10, 10, 10, 10},
		{0, 11, 12, 13}, {10, 0, 12, 13}, {10, 11, 0, 13}, {0, 0, 0, 0}, {10, 11, 12, 10}, {0, 11, 0, 1}}
	for i := uint8(1); i < 32; i++ {
		choices = append(choices, [4]uint8{i, i%31 + 1, (i+1)%31 + 1, (i+2)%31 + 1})
	}
	return choices
}

func (c instructionCase) with(registers [4]uint8) instructionCase {
	c.o.Rd, c.o.Rs1, c.o.Rs2, c.o.Rs3 = registers[0], registers[1], registers[2], registers[3]
	return c
}

var usual = [4]uint8{10, 11, 12, 13}

// casesOf chooses by the row's name and format. 16-bit rows get their expansion's cases; Encode refuses those that
// they cannot express, and their immediates are covered by all that fit.
func casesOf(row *riscv.Instruction) []instructionCase {
	name := row.Name
	if row.Length == 2 && row.Expands != "-" {
		name = row.Expands
	}
	switch {
	case branchModels[name] != nil || name == "jal" || name == "jalr":
		return jumpCases(row, name)
	case loadModels[name].size != 0 || storeModels[name].size != 0:
		return memoryCases(row)
	case row.Extension == "A" || strings.HasPrefix(name, "cbo."):
		return atomicCases(row, name)
	case row.Extension == "F" || row.Extension == "D":
		return floatCases(row)
	case strings.HasPrefix(name, "csrr"):
		return csrCases()
	case row.Length == 2:
		return compressedCases(row)
	}
	return integerCases(row)
}

func integerCases(row *riscv.Instruction) []instructionCase {
	var cases []instructionCase
	immediates := immediatesOf(row)
	for _, a := range edgeValues {
		for i, b := range edgeValues {
			cases = append(cases, instructionCase{a: a, b: b, o: riscv.Operands{Imm: immediates[i%len(immediates)]}}.with(usual))
		}
		for _, imm := range immediates[min(len(immediates), len(edgeValues)):] {
			cases = append(cases, instructionCase{a: a, o: riscv.Operands{Imm: imm}}.with(usual))
		}
	}
	for i, registers := range registerChoices() {
		c := instructionCase{a: 0x8000_0000_0000_0005, b: 0x1234_5678_9abc_def0 + uint64(i), o: riscv.Operands{Imm: immediates[i%len(immediates)]}}.with(registers)
		cases = append(cases, c)
		c.where = acrossPages
		cases = append(cases, c)
	}
	return cases
}

// immediatesOf are the edges of what the row can hold, found by asking Encode.
func immediatesOf(row *riscv.Instruction) []int64 {
	var fit []int64
	for _, magnitude := range []int64{0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 24, 31, 32, 33, 63, 64, 124, 127, 128, 252, 255, 256, 496, 504, 511,
		512, 1020, 1023, 1024, 2047, 2048, 4094, 4096, 0x1f000, 0x20000, 0x7ffff000, 0x80000000} {
		for _, imm := range []int64{magnitude, -magnitude} {
			o := riscv.Operands{Rd: 10, Rs1: 11, Rs2: 12, Imm: imm}
			if _, err := riscv.Encode(row.Name, o); err == nil && (imm != 0 || magnitude == imm) {
				fit = append(fit, imm)
			}
		}
	}
	if len(fit) == 0 {
		return []int64{0}
	}
	return fit
}

// compressedCases cross the edge values with all immediates that fit, and the register choices, shifted into x8 to
// x15 as well.
func compressedCases(row *riscv.Instruction) []instructionCase {
	var cases []instructionCase
	for _, imm := range immediatesOf(row) {
		for i, a := range edgeValues {
			o := riscv.Operands{Imm: imm}
			cases = append(cases, instructionCase{a: a, b: edgeValues[(i*7+3)%len(edgeValues)], o: o}.with(usual))
			cases = append(cases, instructionCase{a: a, b: edgeValues[(i*5+2)%len(edgeValues)], o: o}.with([4]uint8{8, 15, 9, 0}))
		}
	}
	immediates := immediatesOf(row)
	for i, registers := range registerChoices() {
		for j := range registers {
			registers[j] = 8 + registers[j]%8
		}
		o := riscv.Operands{Imm: immediates[i%len(immediates)]}
		cases = append(cases, instructionCase{a: 0x8000_0000_8000_0001, b: 3, o: o}.with(registers),
			instructionCase{a: 0x8000_0000_8000_0001, b: 3, o: o}.with(registerChoices()[i]))
	}
	return cases
}

func jumpCases(row *riscv.Instruction, name string) []instructionCase {
	var cases []instructionCase
	distances := []int64{0, 4, 6, 8, -2, -4, -6, 254, -256, 2046, -2048, 4094, -4096, 0xffffe, -0x100000, 1000, -1000, 4096, -4094}
	for _, imm := range distances {
		for i, registers := range append(registerChoices()[:11], [4]uint8{1, 8, 9, 1}, [4]uint8{1, 1, 9, 1}) {
			for _, values := range [][2]uint64{{0, 0}, {1, 2}, {2, 1}, {^uint64(0), 1}, {1, ^uint64(0)}, {1 << 63, 1<<63 - 1}} {
				c := instructionCase{o: riscv.Operands{Imm: imm}, a: values[0], b: values[1], where: alone}.with(registers)
				if name == "jalr" { // a is a place to go to
					c.a = rigFar + uint64(i)*0x1234 + uint64(len(cases))*0x40 + values[0]&1 - uint64(imm)
				}
				cases = append(cases, c)
			}
		}
	}
	return cases
}

// memoryCases read and write at all alignments around the middle of a page and its end, and outside of RAM.
func memoryCases(row *riscv.Instruction) []instructionCase {
	var addresses []uint64
	for offset := range uint64(17) {
		addresses = append(addresses, rigData+0x800-8+offset, rigData+0x1000-9+offset)
	}
	addresses = append(addresses, 0, machine.RAMBase-1, machine.RAMBase-8, ramEnd, ramEnd-0+8, 1<<63, ^uint64(0)-7, ^uint64(0))
	if loadModels[row.Name].size != 0 || loadModels[row.Expands].size != 0 {
		size := max(loadModels[row.Name].size, loadModels[row.Expands].size)
		addresses = append(addresses, ramEnd-size+1)
	}
	var cases []instructionCase
	for _, imm := range immediatesOf(row) {
		for i, address := range addresses {
			c := instructionCase{a: address - uint64(imm), b: edgeValues[i%len(edgeValues)] ^ 0xa5a5, o: riscv.Operands{Imm: imm}}
			cases = append(cases, c.with(usual), c.with([4]uint8{8, 9, 15, 0}))
		}
	}
	immediates := immediatesOf(row)
	for i, registers := range registerChoices() {
		imm := immediates[i%len(immediates)]
		c := instructionCase{a: rigData + 0x100 - uint64(imm), b: 0x8182_8384_8586_8788, o: riscv.Operands{Imm: imm}}.with(registers)
		if registers[1] == 0 {
			c.a = 0
		}
		across := c
		across.where = acrossPages
		cases = append(cases, c, across)
	}
	return cases
}

func atomicCases(row *riscv.Instruction, name string) []instructionCase {
	var cases []instructionCase
	for _, offset := range []uint64{0x100, 0x108, 0x104, 0x101, 0x102, 0x106, 0xff8, 0xffc, 0x1000, 0xffd} {
		for i, b := range edgeValues {
			cases = append(cases, instructionCase{a: rigData + offset, b: b, o: riscv.Operands{AqRl: uint8(i % 4)}}.with(usual))
		}
	}
	for _, a := range []uint64{0, machine.RAMBase - 8, ramEnd, 1 << 63} {
		cases = append(cases, instructionCase{a: a}.with(usual))
	}
	for _, registers := range registerChoices() {
		c := instructionCase{a: rigData + 0x200, b: 0x8182_8384_8586_8788}.with(registers)
		if registers[1] == 0 {
			c.a = 0
		}
		across := c
		across.where = acrossPages
		cases = append(cases, c, across)
	}
	return cases
}

func csrCases() []instructionCase {
	var cases []instructionCase
	for _, number := range []uint16{csrNumbers["mscratch"], csrNumbers["mhartid"], 0x5c0} {
		for i, registers := range registerChoices() {
			for _, a := range []uint64{edgeValues[i%len(edgeValues)], 0xffff_0000_ffff_0000} {
				cases = append(cases, instructionCase{a: a, o: riscv.Operands{CSR: number}}.with(registers))
			}
		}
	}
	return cases
}

var floatValues = []float64{0, math.Copysign(0, -1), 1, -1, 1.5, 3, -7, 0.1, 1e10, -123456.789, 3.5, 2.5, -2.5, 0.5, 1 << 40, -3e9}

func floatCases(row *riscv.Instruction) []instructionCase {
	var values []uint64
	for _, v := range floatValues {
		values = append(values, boxed(uint64(math.Float32bits(float32(v))), 4), math.Float64bits(v))
	}
	values = append(values, 0x7ff0_0000_0000_0001, 0x7ff8_0000_0000_0001, boxed(0x7f80_0001, 4), boxed(0xffc0_0001, 4),
		0x4000_0000_3f80_0000) // a double, and a single that is not boxed
	var cases []instructionCase
	random := rand.New(rand.NewPCG(7, uint64(row.Match)))
	pick := func() uint64 { return values[random.IntN(len(values))] }
	for range 400 {
		o := riscv.Operands{RM: uint8(random.IntN(8))}
		cases = append(cases, instructionCase{a: pick(), b: pick(), c: pick(), fcsr: uint64(random.IntN(256)), o: o}.with(usual))
	}
	if row.Format == riscv.FormatXFM || row.Format == riscv.FormatXF {
		for _, a := range edgeValues {
			for rm := range uint8(5) {
				cases = append(cases, instructionCase{a: a, o: riscv.Operands{RM: rm}}.with(usual))
			}
		}
	}
	for _, registers := range registerChoices() {
		for range 2 {
			c := instructionCase{a: pick(), b: pick(), c: pick(), o: riscv.Operands{RM: uint8(random.IntN(5))}}.with(registers)
			across := c
			across.where = acrossPages
			cases = append(cases, c, across)
		}
	}
	return cases
}

// TestInstructionFloatOff: without mstatus.FS every F and D instruction is illegal.
func TestInstructionFloatOff(t *testing.T) {
	r := newRig(t)
	for i := range riscv.Table {
		row := &riscv.Table[i]
		float := row.Extension == "F" || row.Extension == "D" || strings.HasPrefix(row.Name, "c.f")
		if !float {
			continue
		}
		word := encode(row.Name, riscv.Operands{Rd: 8, Rs1: 9, Rs2: 10, Rs3: 11})
		before := hartState{csrs: csrs{}}
		before.PC = r.place(word)
		for i := range before.X {
			before.X[i] = rigData
		}
		load := machine.Registers{PC: r.place(csrw("mstatus", 4))}
		load.X[4] = 3 << 11
		r.script(load)
		after := r.step(before.Registers)
		cause := r.script(machine.Registers{PC: r.place(csrr(1, "mcause"), csrr(2, "mtval"))})
		if after.PC != rigHandler || cause.X[1] != causeIllegal || cause.X[2] != uint64(word) {
			t.Errorf("%s with FS off: pc %#x, cause %d, mtval %#x", row.Name, after.PC, cause.X[1], cause.X[2])
		}
		if after.F != before.F {
			t.Errorf("%s with FS off changed a register", row.Name)
		}
	}
}

// TestCompilerAgainstWazerosInterpreter runs the same random sequences twice: as translated code that wazero has compiled, and as guest
// code in a machine that wazero interprets, so that no compiler of WebAssembly has a part in the second. What a compiler's mistake would
// let a guest do to the host it would show in one of the guest's registers or in its memory sooner than elsewhere.
func TestCompilerAgainstWazerosInterpreter(t *testing.T) {
	t.Parallel()
	reference := programThat(t, machine.ProgramConfig{Interpreter: true})
	translated, compiled := translatingProgram(t), testProgram(t)
	count, seed := fuzzSetting(t, "AGENTVM_FUZZ_COMPILER", batchSize), fuzzSetting(t, "AGENTVM_FUZZ_SEED", 1)
	for first := uint64(0); first < count; first += batchSize {
		b, pieces := newBatch(^(seed<<32 + first), batchSize)
		program := b.program()
		want, wantRetired := onMachineOf(t, reference, program, len(b.blocks), 1_000_000)
		for name, other := range map[string]*machine.Program{"translated": translated, "compiled": compiled} {
			got, retired := onMachineOf(t, other, program, len(b.blocks), 1_000_000)
			if retired != wantRetired {
				t.Errorf("seed %d, %s: %d instructions, interpreted %d", seed<<32+first, name, retired, wantRetired)
			}
			for i := range batchSize {
				if !bytes.Equal(block(got, i), block(want, i)) {
					t.Fatalf("seed %d, sequence %d, %s:\n%s\n%s", seed<<32+first, i, name, listing(pieces[i]), blockDifference(block(b.blocks, i), block(want, i), block(got, i)))
				}
			}
		}
	}
}
