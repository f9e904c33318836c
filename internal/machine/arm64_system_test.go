package machine

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// arm64Case is what testdata/arm64_system.S runs: code, and the state that it begins in.
type arm64Case struct {
	Code                     [16]uint32
	SCTLR, TCR, TTBR0, TTBR1 uint64
	CPACR, CNTKCTL, MDSCR    uint64
	PC, SPSR, SPEL0, SPEL1   uint64
	Entries                  [16]uint64 // of the tables, at arm64Entries
	X                        [31]uint64
	_                        [6]uint64
}

// arm64Outcome is what the first exception of a case finds.
type arm64Outcome struct {
	Vector, ESR, FAR, ELR, SPSR, PAR, SPEL0, SPEL1 uint64
	Entries                                        [16]uint64
	X                                              [31]uint64
	Data                                           [8]uint64
	PAN                                            uint64 // as the exception leaves it
}

// The map of memory. RAM begins at 0x80000000 here, and in the midst of QEMU's.
const (
	systemRecords = 0x80200000
	systemResults = 0x80400000
	systemTables  = 0x80600000 // the list of entries, then a page each:
	tableL0       = systemTables + 0x1000
	tableL1       = systemTables + 0x2000
	tableL2       = systemTables + 0x3000 // of the first GiB, where the cases' data is
	tableL2Code   = systemTables + 0x4000 // of the second, where EL0 has the cases' code
	tableL2Kernel = systemTables + 0x5000 // of the program itself
	tableL3       = systemTables + 0x6000
	tableL1Other  = systemTables + 0x7000 // another address space: its data is one page further
	tableL2Other  = systemTables + 0x8000
	tableL3Other  = systemTables + 0x9000
	systemPlay    = 0x80800000
	systemHole    = 0x3000000000 // nothing is there
)

// Virtual addresses: bits 63 to 48 of the half are added to those of the first GiBs.
const (
	lowHalf, highHalf = 0, 0xffff000000000000
	pageVA            = 0x5000
	block2VA          = 0x200000
	block1VA          = 0xc0800000
	level0VA          = 0x8000000000
	codeLow           = 0x40000000
	codeHigh          = 0xffffff8040000000 // by an entry of level 0 that no case changes
	codeKernel        = 0xffffffff80200000
	codeFlat          = systemRecords
	window            = 0xfe0 // in a page, of what an outcome has 64 bytes of
	fill              = 0xd40000e1d40000e1
)

// Places of arm64Case.Entries.
const (
	entryPage, entryNext, entryL2Table, entryBlock2, entryL1Table, entryBlock1, entryL0Table, entryLevel0 = 0, 1, 2, 3, 4, 5, 6, 7
)

var arm64Entries = [16]uint64{
	tableL3 + 5*8, tableL3 + 6*8, tableL2, tableL2 + 8, tableL1, tableL1 + 3*8, tableL0, tableL0 + 8,
	tableL3 + 16*8, tableL3 + 17*8, tableL3 + 18*8, tableL3 + 19*8, tableL2 + 2*8, tableL3Other + 5*8, tableL3Other + 6*8, tableL2 + 3*8,
}

// Bits of descriptors, as mmu.c has them.
const (
	descPage, descBlock, descUser, descReadOnly, descShared, descAF = 3, 1, 1 << 6, 1 << 7, 3 << 8, 1 << 10
	descNotGlobal, descDBM, descContiguous, descPXN, descUXN        = 1 << 11, 1 << 51, 1 << 52, 1 << 53, 1 << 54
	descNormal                                                      = descAF | descShared | descUser
)

var arm64EntryDefaults = [16]uint64{
	systemPlay | descPage | descNormal, systemPlay + 0x1000 | descPage | descNormal, tableL3 | 3, systemPlay | descBlock | descNormal,
	tableL2 | 3, RAMBase | descBlock | descNormal, tableL1 | 3, 0,
	systemPlay | descPage | descNormal, systemPlay + 0x1000 | descPage | descNormal, 0, 0,
	0, systemPlay + 0x1000 | descPage | descNormal, systemPlay | descPage | descNormal, 0,
}

func arm64SystemTables(t *testing.T) []byte {
	t.Helper()
	b := make([]byte, 0xa000)
	put := func(at, value uint64) { binary.LittleEndian.PutUint64(b[at-systemTables:], value) }
	for i, at := range arm64Entries {
		put(systemTables+uint64(i)*8, at)
	}
	put(tableL0+511*8, tableL1|3)
	put(tableL1+8, tableL2Code|3)
	put(tableL1+510*8, tableL2Kernel|3)
	put(tableL2Code, systemRecords|descBlock|descNormal|descReadOnly|descPXN)
	const kernel = descBlock | descAF | descShared | descUXN
	put(tableL2Kernel, RAMBase|kernel|descReadOnly)
	put(tableL2Kernel+8, systemRecords|kernel|descReadOnly)
	for i, at := range []uint64{systemResults, systemTables, systemPlay} {
		put(tableL2Kernel+16+uint64(i)*8, at|kernel|descPXN)
	}
	put(tableL1Other, tableL2Other|3)
	put(tableL1Other+8, tableL2Code|3)
	put(tableL1Other+510*8, tableL2Kernel|3)
	put(tableL2Other, tableL3Other|3)
	return b
}

const (
	sctlrOnes                                                          = 0x30d00800 // SPAN among them: an exception leaves PAN alone
	sctlrM, sctlrSA, sctlrSA0, sctlrUMA, sctlrDZE, sctlrUCT, sctlrNTWI = 1 << 0, 1 << 3, 1 << 4, 1 << 9, 1 << 14, 1 << 15, 1 << 16
	sctlrNTWE, sctlrWXN, sctlrSPAN, sctlrUCI                           = 1 << 18, 1 << 19, 1 << 23, 1 << 26

	tcrDefault                      = 16 | 16<<16 | 2<<30 | 2<<32 | 1<<36 // 48-bit addresses, 4 KiB, 40-bit physical ones, 16-bit ASIDs
	tcrEPD0, tcrEPD1, tcrA1         = 1 << 7, 1 << 23, 1 << 22
	tcrTBI0, tcrTBI1, tcrHA, tcrHD  = 1 << 37, 1 << 38, 1 << 39, 1 << 40
	pstateDAIF, pstatePAN, pstateIL = 0x3c0, 1 << 22, 1 << 20
	pstateCompared                  = 0xf0700000 | pstateDAIF | 31 // without what only QEMU's processor has
	modeEL0, modeEL1t, modeEL1h     = 0, 4, 5
)

// systemTest is a case with its name, and what is known of its outcome without QEMU.
type systemTest struct {
	name, code string
	arm64Case
	at    uint64                                      // the address of the first case's code: codeLow and so on
	check func(c *systemTest, o *arm64Outcome) string // nil: QEMU is the measure
}

// newSystemTest is a case of EL0 or EL1 under translation. X0 is the address that most code accesses.
func newSystemTest(name, code string, el int, change ...func(*systemTest)) systemTest {
	c := systemTest{name: name, code: code, at: codeHigh, arm64Case: arm64Case{
		SCTLR: sctlrOnes | sctlrM, TCR: tcrDefault, TTBR0: tableL0, TTBR1: tableL0, CPACR: 3 << 20, MDSCR: 1 << 12,
		SPSR: pstateDAIF, SPEL0: pageVA + window + 16, SPEL1: pageVA + window + 32, Entries: arm64EntryDefaults,
	}}
	if el == 1 {
		c.at = codeKernel
		c.SPSR |= modeEL1h
	}
	for i := range c.X {
		c.X[i] = 0x0123456789abcdef * uint64(i+1)
	}
	c.X[0] = pageVA + window + 16
	for _, f := range change {
		f(&c)
	}
	return c
}

// TestArm64SystemLikeQEMU compares exceptions, translation and what the kernel controls with QEMU's virt: cases by hand, and random descriptors with
// random accesses, 600 of them or as many times more as AGENTVM_ARM64_ROUNDS says.
func TestArm64SystemLikeQEMU(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a machine")
	}
	p := arm64TestProgram(t)
	t.Run("exceptions", func(t *testing.T) { arm64CompareSystem(t, p, arm64ExceptionTests()) })
	t.Run("translation", func(t *testing.T) { arm64CompareSystem(t, p, arm64TranslationTests()) })
	t.Run("random", func(t *testing.T) {
		for round := range max(1, arm64Rounds(t)) {
			arm64CompareSystem(t, p, arm64RandomTests(rand.New(rand.NewPCG(7, uint64(round))), 600))
		}
	})
}

func arm64CompareSystem(t *testing.T, p *Program, tests []systemTest) {
	t.Helper()
	program := arm64SystemProgram(t, tests)
	want, got := arm64Outcomes(t, arm64RunQEMU(t, program), len(tests)), arm64SystemRun(t, p, program, len(tests))
	differences := 0
	for i := range tests {
		c := &tests[i]
		difference := ""
		if c.check != nil {
			difference = c.check(c, &got[i])
		} else {
			difference = arm64OutcomeDifference(c.code, &want[i], &got[i])
		}
		if difference != "" {
			t.Errorf("%s (case %d, pc %#x, spsr %#x, sctlr %#x, tcr %#x, x0 %#x):%s", c.name, i, c.PC, c.SPSR, c.SCTLR, c.TCR, c.X[0], difference)
			if differences++; differences > 20 {
				t.FailNow()
			}
		}
	}
	t.Logf("%d cases", len(tests))
}

func arm64OutcomeDifference(code string, want, got *arm64Outcome) string {
	var b strings.Builder
	note := func(name string, w, g uint64) {
		if w != g {
			fmt.Fprintf(&b, " %s is %#x, QEMU has %#x;", name, g, w)
		}
	}
	note("the vector", want.Vector, got.Vector)
	note("esr", want.ESR, got.ESR)
	note("far", want.FAR, got.FAR)
	note("elr", want.ELR, got.ELR)
	note("spsr", want.SPSR&pstateCompared, got.SPSR&pstateCompared)
	note("par", systemPAR(want.PAR), systemPAR(got.PAR))
	note("sp_el0", want.SPEL0, got.SPEL0)
	note("sp_el1", want.SPEL1, got.SPEL1)
	note("pan", want.PAN, got.PAN)
	for i := range want.Entries {
		note(fmt.Sprintf("the entry at %#x", arm64Entries[i]), want.Entries[i], got.Entries[i])
	}
	for i := range want.X {
		note(fmt.Sprint("x", i), want.X[i], got.X[i])
	}
	aborted := want.ESR>>26 == 0x24 || want.ESR>>26 == 0x25
	for i := range want.Data {
		if aborted && (got.Data[i] == fill || strings.Contains(code, "st1 ")) {
			continue // of what stores several registers or elements, some may be stored
		}
		note(fmt.Sprint("data ", i), want.Data[i], got.Data[i])
	}
	return b.String()
}

// systemPAR is PAR_EL1 without what is unknown without EL3, and what QEMU does not tell by the rules (D24.2.139, SH): memory that is not cached is
// shareable by all.
func systemPAR(par uint64) uint64 {
	const failed, nonSecure, shareability = 1, 1 << 9, 3 << 7
	par &^= nonSecure
	if attribute := par >> 56; par&failed == 0 && (attribute < 16 || attribute == 0x44) {
		par = par&^shareability | 2<<7
	}
	return par
}

// arm64Assembled has the words of each code.
func arm64Assembled(t *testing.T, tests []systemTest) {
	t.Helper()
	gcc := arm64Tool(t, "aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
	words := map[string][16]uint32{}
	var order []string
	var source strings.Builder
	source.WriteString(".arch armv8.2-a+crypto\n.text\n")
	for _, c := range tests {
		if _, ok := words[c.code]; !ok {
			fmt.Fprintf(&source, ".org %d\n%s\nsvc 0x77\n", len(order)*64, c.code)
			words[c.code] = [16]uint32{}
			order = append(order, c.code)
		}
	}
	fmt.Fprintf(&source, ".org %d\n", len(order)*64)
	object := filepath.Join(t.TempDir(), "code.o")
	build := exec.Command(gcc, "-c", "-x", "assembler", "-o", object, "-")
	build.Stdin = strings.NewReader(source.String())
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	file, err := elf.Open(object)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	text, err := file.Section(".text").Data()
	if err != nil {
		t.Fatal(err)
	}
	for i, code := range order {
		var w [16]uint32
		if err := binary.Read(bytes.NewReader(text[i*64:]), binary.LittleEndian, &w); err != nil {
			t.Fatal(err)
		}
		words[code] = w
	}
	for i := range tests {
		tests[i].Code = words[tests[i].code]
	}
}

func arm64SystemProgram(t *testing.T, tests []systemTest) string {
	t.Helper()
	gcc := arm64Tool(t, "aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
	arm64Assembled(t, tests)
	dir := t.TempDir()
	var data bytes.Buffer
	for i := range tests {
		c := &tests[i].arm64Case
		c.PC = tests[i].at + uint64(i*binary.Size(c))
		if err := binary.Write(&data, binary.LittleEndian, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "records"), data.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tables"), arm64SystemTables(t), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "system")
	out, err := exec.Command(gcc, "-nostdlib", "-static", "-Wl,-N", "-Wl,--build-id=none", fmt.Sprintf("-Wl,-Ttext=%#x", uint64(arm64Text)),
		fmt.Sprintf("-Wl,--section-start=.records=%#x,--section-start=.results=%#x,--section-start=.tables=%#x", uint64(systemRecords), uint64(systemResults), uint64(systemTables)),
		fmt.Sprintf("-DCOUNT=%d", len(tests)), fmt.Sprintf("-DRECORDS=%q", filepath.Join(dir, "records")), fmt.Sprintf("-DTABLES=%q", filepath.Join(dir, "tables")),
		"-o", program, "testdata/arm64_system.S").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

func arm64Outcomes(t *testing.T, data []byte, count int) []arm64Outcome {
	t.Helper()
	outcomes := make([]arm64Outcome, count)
	if err := binary.Read(bytes.NewReader(data), binary.LittleEndian, outcomes); err != nil {
		t.Fatal(err)
	}
	return outcomes
}

// arm64RunQEMU has what a program leaves on QEMU's virt.
func arm64RunQEMU(t *testing.T, program string) []byte {
	t.Helper()
	qemu := arm64Tool(t, "qemu-system-aarch64", "qemu-system-arm")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, qemu, "-M", "virt,gic-version=3", "-cpu", "max,sve=off,sme=off,pauth=off,lpa2=off", "-accel", "tcg", "-m", "1280", "-display", "none",
		"-serial", "none", "-monitor", "none", "-semihosting-config", "enable=on,target=native", "-kernel", program)
	run.Dir = t.TempDir()
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(run.Dir, "results"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func arm64SystemRun(t *testing.T, p *Program, program string, count int) []arm64Outcome {
	t.Helper()
	var outcomes []arm64Outcome
	arm64RunProgram(t, p, program, func(_ *elf.File, ram []byte) { outcomes = arm64Outcomes(t, ram[systemResults-RAMBase:], count) })
	return outcomes
}
