package machine_test

import (
	"context"
	"encoding/binary"
	"os"
	"sync"
	"testing"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/riscv"
)

// machineProgram is compiled once for all tests of the processor. It interprets: it is what translated code is compared with.
// AGENTVM_TEST_TRANSLATE=all has all code translated when it is first reached, see TestBareTranslated.
var machineProgram = sync.OnceValues(func() (*machine.Program, error) {
	cfg := machine.ProgramConfig{Translation: machine.TranslateNever}
	if os.Getenv("AGENTVM_TEST_TRANSLATE") == "all" {
		cfg.Translation = machine.TranslateAll
	}
	return machine.NewProgram(context.Background(), cfg)
})

func testProgram(t testing.TB) *machine.Program {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a machine")
	}
	p, err := machineProgram()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var arm64MachineProgram = sync.OnceValues(func() (*machine.Program, error) {
	return machine.NewProgram(context.Background(), machine.ProgramConfig{Architecture: platform.ARM64})
})

// arm64Program is testProgram of the other machine.
func arm64Program(t testing.TB) *machine.Program {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a machine")
	}
	p, err := arm64MachineProgram()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// rig runs single instructions in M-mode. Code that Go writes is decoded when it is first executed, so that every
// case gets addresses of its own.
type rig struct {
	testing.TB
	m      *machine.Machine
	ram    []byte
	next   uint64          // where sequential code goes
	used   map[uint64]bool // halfwords that hold code of a case, outside the sequential area
	writer uint64          // code that loads the CSRs of a case
	reader uint64          // code that fetches them
	cases  int             // that stateOf has made
}

// Places of the rig in its RAM.
const (
	rigMemory  = 32 << 20
	rigHandler = machine.RAMBase + 0x100  // where traps go
	rigData    = machine.RAMBase + 0x2000 // two pages for loads and stores
	rigDataLen = 0x2000
	rigFar     = machine.RAMBase + 16<<20 // 8 MiB for branches
	rigCode    = machine.RAMBase + 0x10000
	ramEnd     = machine.RAMBase + rigMemory

	jumpToSelf = 0x0000_006f
	fsInitial  = 1 << 13
)

// csrs of a case, in the order of the writer's and the reader's registers from x1 on.
type csrs struct {
	FCSR, MScratch, MEPC, MStatus uint64 // set before and read after
	MCause, MTVal                 uint64 // read after a trap
}

type hartState struct {
	machine.Registers
	csrs
	Trapped bool
}

func newRig(t testing.TB) *rig {
	t.Helper()
	m, err := testProgram(t).NewMachine(t.Context(), machine.Config{
		Memory: rigMemory, MachineMode: true, Deterministic: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	ram, err := m.RAM()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{TB: t, m: m, ram: ram, next: rigCode, used: map[uint64]bool{}}
	r.write(rigHandler, jumpToSelf)
	r.writer = r.place(csrw("fcsr", 1), csrw("mscratch", 2), csrw("mepc", 3), csrw("mstatus", 4))
	r.reader = r.place(csrr(1, "fcsr"), csrr(2, "mscratch"), csrr(3, "mepc"), csrr(4, "mstatus"), csrr(5, "mcause"), csrr(6, "mtval"))
	setup := machine.Registers{PC: r.place(csrw("mtvec", 1), csrw("mstatus", 2))}
	setup.X[1], setup.X[2] = rigHandler, fsInitial
	r.script(setup)
	return r
}

// csrNumbers are the control registers that tests name.
var csrNumbers = map[string]uint16{
	"fflags": 1, "frm": 2, "fcsr": 3, "mstatus": 0x300, "mtvec": 0x305, "mscratch": 0x340, "mepc": 0x341,
	"mcause": 0x342, "mtval": 0x343, "mhartid": 0xf14,
}

func csrw(name string, rs1 uint8) uint32 {
	return encode("csrrw", riscv.Operands{Rs1: rs1, CSR: csrNumbers[name]})
}

func csrr(rd uint8, name string) uint32 {
	return encode("csrrs", riscv.Operands{Rd: rd, CSR: csrNumbers[name]})
}

// encode is riscv.Encode for operands that the tests themselves chose.
func encode(name string, o riscv.Operands) uint32 {
	word, err := riscv.Encode(name, o)
	if err != nil {
		panic(err)
	}
	return word
}

// write puts instructions at an address and returns the one behind them.
func (r *rig) write(at uint64, words ...uint32) uint64 {
	for _, word := range words {
		offset := at - machine.RAMBase
		binary.LittleEndian.PutUint16(r.ram[offset:], uint16(word))
		at += 2
		if word&3 == 3 {
			binary.LittleEndian.PutUint16(r.ram[offset+2:], uint16(word>>16))
			at += 2
		}
	}
	return at
}

// place puts instructions at fresh addresses, a jump to itself behind them, and returns the first address.
func (r *rig) place(words ...uint32) uint64 {
	at := r.next
	r.next = r.write(r.next, append(words, jumpToSelf)...)
	r.next = (r.next + 3) &^ 3
	if r.next > rigFar {
		r.Fatal("too many cases for the rig's memory")
	}
	return at
}

// atPageEnd moves on to the last halfword of a page.
func (r *rig) atPageEnd() { r.next = (r.next+0xfff)&^0xfff + 0xffe }

// step runs one instruction; one that is no jump takes those up to the next jump with it.
func (r *rig) step(registers machine.Registers) machine.Registers { return r.steps(registers, 1) }

// script runs a few CSR accesses and ends in the jump to itself behind them.
func (r *rig) script(registers machine.Registers) machine.Registers { return r.steps(registers, 16) }

func (r *rig) steps(registers machine.Registers, budget int64) machine.Registers {
	if err := r.m.SetRegisters(registers); err != nil {
		r.Fatal(err)
	}
	if _, _, err := r.m.Step(budget); err != nil {
		r.Fatal(err)
	}
	after, err := r.m.Registers()
	if err != nil {
		r.Fatal(err)
	}
	return after
}

// run executes the instruction at before.PC and returns all of the state behind it.
func (r *rig) run(before hartState) hartState {
	load := machine.Registers{PC: r.writer}
	load.X[1], load.X[2], load.X[3], load.X[4] = before.FCSR, before.MScratch, before.MEPC, before.MStatus
	r.script(load)
	after := hartState{Registers: r.step(before.Registers)}
	fetch := r.script(machine.Registers{PC: r.reader})
	after.csrs = csrs{FCSR: fetch.X[1], MScratch: fetch.X[2], MEPC: fetch.X[3], MStatus: fetch.X[4], MCause: fetch.X[5], MTVal: fetch.X[6]}
	after.Trapped = after.PC == rigHandler
	if !after.Trapped {
		after.MCause, after.MTVal = 0, 0
	}
	return after
}
