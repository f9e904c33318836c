package machine_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"agentvm/internal/machine"
	"agentvm/internal/machine/riscv"
)

// TestNativeUnderSignals: while native code runs, Go stops the world, preempts and profiles, by signals that find code which is not Go's. The
// result is that of an interpreter, and it was native code that ran.
func TestNativeUnderSignals(t *testing.T) {
	interpreted := lockstepGuest(t, testProgram(t))
	translated := lockstepGuest(t, programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot}))
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

// TestForksShareNativeCode: copies of a machine execute what the first has translated, out of the same memory, and do what an interpreted one does.
func TestForksShareNativeCode(t *testing.T) {
	p := programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot})
	first := lockstepGuest(t, p)
	first.advance(40_000_000)
	image := first.capture()
	copyOf := func(p *machine.Program) *worker {
		w := newWorker(t)
		return w.attach(p.Restore(t.Context(), machine.Config{Memory: 64 << 20, Deterministic: true, Rand: zeros{}, Console: w.console}, image))
	}
	interpreted := copyOf(testProgram(t))
	interpreted.advance(15_000_000)
	before := first.JITStats()
	for range 4 {
		w := copyOf(p)
		w.advance(15_000_000)
		if w.hash() != interpreted.hash() {
			t.Fatalf("a copy differs after %d instructions", w.Retired())
		}
		s := w.JITStats()
		t.Logf("%+v", s)
		if s.Shared < s.Regions*3/4 || s.Shared == 0 || s.Executed < 10_000_000 {
			t.Errorf("%d of %d regions are the first machine's; %d instructions in native code", s.Shared, s.Regions, s.Executed)
		}
	}
	// A copy that comes upon a page sooner than the first did translates it, into a chunk of its own; without sharing it would fill two.
	if after := first.JITStats(); after.Bytes > before.Bytes+4<<20 {
		t.Errorf("%d bytes of code for one machine, %d for five", before.Bytes, after.Bytes)
	}
}

// TestNativeAcrossPages has a loop with an instruction of which the program writes the second half, in the next page, again and again: what is
// executed is what is there.
func TestNativeAcrossPages(t *testing.T) {
	const (
		rounds, times    = 6, 20_000
		sum, count       = 10, 11 // registers; sum is in one of the host
		at, this, other  = 5, 6, 7
		left, swap, last = 8, 9, 12
	)
	m, err := programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot}).NewMachine(t.Context(), machine.Config{Memory: 16 << 20, MachineMode: true})
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

// TestNativePagesThatMeet has a loop of two pages whose first places in the TLB are the same: going from one to the other leaves native code only
// until each has a place of its own.
func TestNativePagesThatMeet(t *testing.T) {
	const (
		rounds            = 200_000
		count, left       = 10, 9 // registers
		here, there       = 5, 6
		distance          = 4096 * 4096 // TLB_SIZE pages
		first, second int = 0x1000, 0x1000 + distance
	)
	m, err := programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot}).NewMachine(t.Context(), machine.Config{Memory: 32 << 20, MachineMode: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	loadCode(t, m)
	ram, err := m.RAM()
	if err != nil {
		t.Fatal(err)
	}
	for at, words := range map[int][]uint32{
		first:  {encode("addi", riscv.Operands{Rd: count, Rs1: count, Imm: 1}), encode("jalr", riscv.Operands{Rs1: there})},
		second: {encode("addi", riscv.Operands{Rd: left, Rs1: left, Imm: -1}), encode("beq", riscv.Operands{Rs1: left, Imm: 8}), encode("jalr", riscv.Operands{Rs1: here}), wfi},
	} {
		for i, w := range words {
			binary.LittleEndian.PutUint32(ram[at+4*i:], w)
		}
	}
	var r machine.Registers
	r.PC = machine.RAMBase + uint64(first)
	r.X[here], r.X[there], r.X[left] = machine.RAMBase+uint64(first), machine.RAMBase+uint64(second), rounds
	if err := m.SetRegisters(r); err != nil {
		t.Fatal(err)
	}
	for range 120 {
		if _, _, err := m.Step(10_000); err != nil {
			t.Fatal(err)
		}
	}
	got, err := m.Registers()
	if err != nil {
		t.Fatal(err)
	}
	if got.X[count] != rounds || got.X[left] != 0 {
		t.Errorf("%d rounds of %d, %d are left", got.X[count], rounds, got.X[left])
	}
	if s := m.JITStats(); s.Executed < 4*rounds || s.Entered > rounds/100 {
		t.Errorf("%d instructions in native code, which was entered %d times: %+v", s.Executed, s.Entered, s)
	}
}

// TestNativeFloat computes the same of random numbers, many of them at the limits of their formats, with native code and with the interpreter, which
// tests of its own compare with hardware: results and flags are equal, also those that native code leaves to the interpreter.
func TestNativeFloat(t *testing.T) {
	t.Parallel()
	const (
		count          = 20_000
		code, in, out  = 0x1000, 0x10000, 0x200000
		inSize         = 24
		from, to, left = 10, 11, 12 // registers
		fcsr, integer  = 13, 14
	)
	comparisons := []string{"feq", "flt", "fle"}
	random := rand.New(rand.NewPCG(16, 1))
	var operands []byte
	for range count {
		operands = binary.LittleEndian.AppendUint64(operands, randomFloat(random))
		operands = binary.LittleEndian.AppendUint64(operands, randomFloat(random))
		operands = binary.LittleEndian.AppendUint64(operands, uint64(random.IntN(32)|random.IntN(40)/32<<5))
	}
	interpreted, translated := testProgram(t), programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot})
	run := func(t *testing.T, name string, mode uint8, p *machine.Program) ([]byte, machine.JITStats) {
		m, err := p.NewMachine(t.Context(), machine.Config{Memory: 16 << 20, MachineMode: true})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		loadCode(t, m)
		ram, err := m.RAM()
		if err != nil {
			t.Fatal(err)
		}
		copy(ram[in:], operands)
		words := []uint32{
			encode("ld", riscv.Operands{Rd: integer, Rs1: from}),
			encode("fld", riscv.Operands{Rd: 1, Rs1: from}),
			encode("fld", riscv.Operands{Rd: 2, Rs1: from, Imm: 8}),
			encode("ld", riscv.Operands{Rd: fcsr, Rs1: from, Imm: 16}),
			csrw("fcsr", fcsr),
			encode("fld", riscv.Operands{Rd: 3, Rs1: from}),
			encode(name, riscv.Operands{Rd: 3, Rs1: 1, Rs2: 2, RM: mode}),
			csrr(fcsr, "fcsr"),
			encode("fsd", riscv.Operands{Rs1: to, Rs2: 3}),
			encode("sd", riscv.Operands{Rs1: to, Rs2: integer, Imm: 8}),
			encode("sd", riscv.Operands{Rs1: to, Rs2: fcsr, Imm: 16}),
			encode("addi", riscv.Operands{Rd: from, Rs1: from, Imm: inSize}),
			encode("addi", riscv.Operands{Rd: to, Rs1: to, Imm: inSize}),
			encode("addi", riscv.Operands{Rd: left, Rs1: left, Imm: -1}),
			encode("bne", riscv.Operands{Rs1: left, Imm: -14 * 4}),
			wfi,
		}
		switch {
		case strings.HasPrefix(name, "fcvt.w"), strings.HasPrefix(name, "fcvt.l"), slices.Contains(comparisons, name[:3]):
			words[6] = encode(name, riscv.Operands{Rd: integer, Rs1: 1, Rs2: 2, RM: mode})
		case strings.HasSuffix(name, ".w") || strings.HasSuffix(name, ".l") || strings.HasSuffix(name, ".wu"):
			words[6] = encode(name, riscv.Operands{Rd: 3, Rs1: integer, RM: mode})
		}
		for i, w := range append([]uint32{csrw("mstatus", fcsr)}, words...) {
			binary.LittleEndian.PutUint32(ram[code+4*i:], w)
		}
		var r machine.Registers
		r.PC = machine.RAMBase + code
		r.X[from], r.X[to], r.X[left], r.X[fcsr] = machine.RAMBase+in, machine.RAMBase+out, count, 3<<13 // FS: on and changed
		if err := m.SetRegisters(r); err != nil {
			t.Fatal(err)
		}
		for range 60 {
			if _, _, err := m.Step(10_000); err != nil {
				t.Fatal(err)
			}
		}
		return bytes.Clone(ram[out : out+count*inSize]), m.JITStats()
	}
	for _, name := range []string{"fadd", "fsub", "fmul", "fdiv", "fsqrt", "feq", "flt", "fle", "fcvt.w", "fcvt.l", "fcvt.s.d", "fcvt.d.s", "fcvt.d.w", "fcvt.d.wu", "fcvt.d.l",
		"fcvt.s.w", "fcvt.s.wu", "fcvt.s.l"} {
		t.Run(name, func(t *testing.T) {
			suffixes := []string{".s", ".d"}
			if strings.Count(name, ".") == 2 {
				suffixes = []string{""}
			}
			for _, suffix := range suffixes {
				for _, mode := range []uint8{0, 1, 7} {
					want, _ := run(t, name+suffix, mode, interpreted)
					got, stats := run(t, name+suffix, mode, translated)
					for i := 0; i < len(want); i += inSize {
						if !bytes.Equal(want[i:i+inSize], got[i:i+inSize]) {
							t.Fatalf("%s%s, rounding %d, of %x: %x, interpreted %x", name, suffix, mode, operands[i:i+inSize], got[i:i+inSize], want[i:i+inSize])
						}
					}
					leaves := runtime.GOARCH == "arm64" || mode == 1 && !strings.HasPrefix(name, "fcvt.w") && !strings.HasPrefix(name, "fcvt.l") && !slices.Contains(comparisons, name)
					if stats.Native == 0 || leaves != (stats.Left.Float > count/2) {
						t.Errorf("%s%s, rounding %d: %+v", name, suffix, mode, stats)
					}
				}
			}
		})
	}
}
