package machine_test

import (
	"bytes"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"

	"agentvm/internal/debugenv"
	"agentvm/internal/machine"
	"agentvm/internal/machine/native"
	"agentvm/internal/machine/riscv"
)

// nativeTest has programs that are made in a test translate to native code.
func nativeTest(t *testing.T) {
	t.Helper()
	if !native.Supported() {
		t.Skip("there is no native code on this system")
	}
	t.Setenv(debugenv.Variable, "native")
}

// TestNative runs the tests of translation with native code: each row of the instruction table, sequences, bare programs, and Linux with several
// sets of programs, of which each compares with the interpreter or a model.
func TestNative(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"steps": TestTranslatedStepIsExact, "instructions": TestInstructionTranslated, "sequences": TestTranslatedSequences, "loops": TestTranslatedLoops,
		"bare": TestBareTranslated, "lockstep": TestTranslatedLockstep, "busybox": TestTranslatedLockstepBusybox, "processes": TestTranslatedProcesses,
		"bounded": TestTranslationIsBounded, "together": TestMachinesTranslateTogether, "restored": TestRestoredMachineTranslatesAnew, "idle": TestIdleMachineTranslatesNothing,
	} {
		t.Run(name, func(t *testing.T) {
			nativeTest(t)
			test(t)
		})
	}
}

// TestNativeUnderSignals: while native code runs, Go stops the world, preempts and profiles, by signals that find code which is not Go's. The
// result is that of an interpreter, and it was native code that ran.
func TestNativeUnderSignals(t *testing.T) {
	interpreted := lockstepGuest(t, testProgram(t))
	nativeTest(t)
	translated := lockstepGuest(t, programThat(t, machine.ProgramConfig{Translation: machine.TranslateWaiting}))
	var profile bytes.Buffer
	if err := pprof.StartCPUProfile(&profile); err != nil {
		t.Fatal(err)
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				runtime.GC()
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	for _, w := range []*worker{interpreted, translated} {
		for range 40 {
			if _, stopped, err := w.Step(1_000_000); stopped || err != nil {
				t.Errorf("stopped %t, %v", stopped, err)
			}
		}
	}
	close(done)
	<-ended
	pprof.StopCPUProfile()
	if interpreted.hash() != translated.hash() {
		t.Errorf("after %d instructions the two machines differ", translated.Retired())
	}
	if s := translated.JITStats(); s.Native == 0 || s.Executed < translated.Retired()/4 {
		t.Errorf("%+v: no native code was executed", s)
	}
}

// TestNativeAcrossPages has a loop with an instruction of which the program writes the second half, in the next page, again and again: what is
// executed is what is there.
func TestNativeAcrossPages(t *testing.T) {
	nativeTest(t)
	const (
		rounds, times    = 6, 20_000
		sum, count       = 10, 11 // registers; sum is in one of the host
		at, this, other  = 5, 6, 7
		left, swap, last = 8, 9, 12
	)
	m, err := programThat(t, machine.ProgramConfig{Translation: machine.TranslateWaiting}).NewMachine(t.Context(), machine.Config{Memory: 16 << 20, MachineMode: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	one := encode("addi", riscv.Operands{Rd: sum, Rs1: sum, Imm: 1})
	five := encode("addi", riscv.Operands{Rd: sum, Rs1: sum, Imm: 5})
	if uint16(one) != uint16(five) {
		t.Fatal("the instructions differ in their first halves")
	}
	loadCode(t, m)
	ram, err := m.RAM()
	if err != nil {
		t.Fatal(err)
	}
	place := 0xffc
	put := func(word uint32, size int) {
		for i := range size {
			ram[place+i] = byte(word >> (8 * i))
		}
		place += size
	}
	put(1, 2)   // c.nop
	put(one, 4) // at 0xffe
	put(encode("addi", riscv.Operands{Rd: left, Rs1: left, Imm: -1}), 4)
	put(encode("bne", riscv.Operands{Rs1: left, Imm: -10}), 4)
	put(encode("sh", riscv.Operands{Rs1: at, Rs2: other}), 4)
	put(encode("addi", riscv.Operands{Rd: swap, Rs1: this}), 4)
	put(encode("addi", riscv.Operands{Rd: this, Rs1: other}), 4)
	put(encode("addi", riscv.Operands{Rd: other, Rs1: swap}), 4)
	put(encode("addi", riscv.Operands{Rd: left, Rs1: count}), 4)
	put(encode("addi", riscv.Operands{Rd: last, Rs1: last, Imm: -1}), 4)
	put(encode("bne", riscv.Operands{Rs1: last, Imm: int64(0xffc - place)}), 4)
	put(wfi, 4)
	var r machine.Registers
	r.PC = machine.RAMBase + 0xffc
	r.X[at], r.X[this], r.X[other], r.X[left], r.X[count], r.X[last] = machine.RAMBase+0x1000, uint64(one>>16), uint64(five>>16), times, times, rounds
	if err := m.SetRegisters(r); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if _, _, err := m.Step(10_000); err != nil {
			t.Fatal(err)
		}
	}
	got, err := m.Registers()
	if err != nil {
		t.Fatal(err)
	}
	if want := uint64(times * rounds / 2 * (1 + 5)); got.X[sum] != want || got.X[last] != 0 {
		t.Errorf("the sum is %d, want %d; %d rounds are left", got.X[sum], want, got.X[last])
	}
	if s := m.JITStats(); s.Executed < 3*times*rounds {
		t.Errorf("only %d instructions were translated: %+v", s.Executed, s)
	}
}
