package native_test

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/cpu"

	"agentvm/internal/machine/native"
	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/riscv"
)

func word(v uint64) uint64 { return uint64(int64(int32(v))) }

// models of Zba and Zbb: of rs1, and of rs2 or the distance.
var models = map[string]func(a, b uint64) uint64{
	"add.uw": func(a, b uint64) uint64 { return uint64(uint32(a)) + b }, "sh1add": func(a, b uint64) uint64 { return a<<1 + b },
	"sh2add": func(a, b uint64) uint64 { return a<<2 + b }, "sh3add": func(a, b uint64) uint64 { return a<<3 + b },
	"sh1add.uw": func(a, b uint64) uint64 { return uint64(uint32(a))<<1 + b }, "sh2add.uw": func(a, b uint64) uint64 { return uint64(uint32(a))<<2 + b },
	"sh3add.uw": func(a, b uint64) uint64 { return uint64(uint32(a))<<3 + b }, "slli.uw": func(a, b uint64) uint64 { return uint64(uint32(a)) << b },
	"andn": func(a, b uint64) uint64 { return a &^ b }, "orn": func(a, b uint64) uint64 { return a | ^b }, "xnor": func(a, b uint64) uint64 { return ^(a ^ b) },
	"min": func(a, b uint64) uint64 { return uint64(min(int64(a), int64(b))) }, "max": func(a, b uint64) uint64 { return uint64(max(int64(a), int64(b))) },
	"minu": func(a, b uint64) uint64 { return min(a, b) }, "maxu": func(a, b uint64) uint64 { return max(a, b) },
	"rol": func(a, b uint64) uint64 { return bits.RotateLeft64(a, int(b&63)) }, "ror": func(a, b uint64) uint64 { return bits.RotateLeft64(a, -int(b&63)) },
	"rori":  func(a, b uint64) uint64 { return bits.RotateLeft64(a, -int(b&63)) },
	"rolw":  func(a, b uint64) uint64 { return word(uint64(bits.RotateLeft32(uint32(a), int(b&31)))) },
	"rorw":  func(a, b uint64) uint64 { return word(uint64(bits.RotateLeft32(uint32(a), -int(b&31)))) },
	"roriw": func(a, b uint64) uint64 { return word(uint64(bits.RotateLeft32(uint32(a), -int(b&31)))) },
	"clz":   func(a, _ uint64) uint64 { return uint64(bits.LeadingZeros64(a)) }, "ctz": func(a, _ uint64) uint64 { return uint64(bits.TrailingZeros64(a)) },
	"clzw": func(a, _ uint64) uint64 { return uint64(bits.LeadingZeros32(uint32(a))) }, "ctzw": func(a, _ uint64) uint64 { return uint64(bits.TrailingZeros32(uint32(a))) },
	"cpop": func(a, _ uint64) uint64 { return uint64(bits.OnesCount64(a)) }, "cpopw": func(a, _ uint64) uint64 { return uint64(bits.OnesCount32(uint32(a))) },
	"sext.b": func(a, _ uint64) uint64 { return uint64(int64(int8(a))) }, "sext.h": func(a, _ uint64) uint64 { return uint64(int64(int16(a))) },
	"zext.h": func(a, _ uint64) uint64 { return uint64(uint16(a)) }, "rev8": func(a, _ uint64) uint64 { return bits.ReverseBytes64(a) },
	"orc.b": func(a, _ uint64) (v uint64) {
		for at := 0; at < 64; at += 8 {
			if a>>at&255 != 0 {
				v |= 255 << at
			}
		}
		return v
	},
}

// guest is a hart that executes single translated instructions.
type guest struct {
	*testing.T
	memory []byte
	code   *native.Code
	layout blocks.Layout
	pc     int // where the hart has it, and the budget behind it
}

// Places in the hart, as in enter's assembly.
const (
	hart, pc, mstatus, frm, fflags = 4096, 512, 600, 576, 580

	at = 0x10000 // where instructions are
)

func newGuest(t *testing.T) *guest {
	t.Helper()
	if !native.Supported() {
		t.Skip("there is no native code on this system")
	}
	const limit = 4 << 20
	g := &guest{T: t, memory: make([]byte, 1<<20), layout: blocks.Layout{
		X: hart, F: hart + 256, PC: hart + pc, MStatus: hart + mstatus, RoundingMode: hart + frm, Flags: hart + fflags, Reservation: hart + 608, Reserved: hart + 616,
		Write: 64 << 10, Code: 128 << 10, Entries: 4096, Other: 2048, EntrySize: 16, Addend: 8, Generation: 0x30410, Jumps: 0x30420, Places: 0x10400,
		Walk: blocks.Walk{Scratch: 0x10500, RAMBytes: 0x10520, CodeIndex: 0x20000, Dirty: 0x30000, SATP: 0x10528, SlowLeft: 0x10530, LargestShift: 0x10538, EntryFrame: 12, Filled: 0x30000, Noted: 0x30004, MaxNoted: 512},
	}}
	var err error
	g.pc = hart + pc
	if g.code, err = native.New(blocks.GuestRISCV64, g.memory, limit, native.NewLibrary(limit)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.code.Close() })
	return g
}

func (g *guest) register(r uint8) []byte { return g.memory[hart+8*int(r):][:8] }
func (g *guest) float(r uint8) []byte    { return g.memory[hart+256+8*int(r):][:8] }

// translated gives the entry of the translation of instructions.
func (g *guest) translated(instructions ...uint32) (entry uint32) {
	g.Helper()
	page := blocks.Page{Code: make([]byte, blocks.PageSize), Entries: []uint16{0}, Seen: make([]byte, blocks.PageSize/16)}
	var text []string
	for i, instruction := range instructions {
		binary.LittleEndian.PutUint32(page.Code[4*i:], instruction)
		page.Seen[i/4] |= 1 << (i * 2 % 8)
		text = append(text, riscv.Disassemble(instruction, 0))
	}
	made, ok := native.Translate(&g.layout, page)
	if !ok {
		g.Fatalf("%s is not translated", text)
	}
	block, err := g.code.Add(native.Key{Sum: sha256.Sum256(page.Code)}, made, nil)
	if err != nil {
		g.Fatalf("%s: %v", text, err)
	}
	if entry, err = g.code.Install(block, 1); err != nil {
		g.Fatal(err)
	}
	return entry
}

// execute enters the code of one instruction. false: it left it to the interpreter.
func (g *guest) execute(entry uint32) bool {
	g.Helper()
	binary.LittleEndian.PutUint64(g.memory[g.pc+8:], 5)
	if !g.code.Enter(entry, 1|uint64(entry)<<8, at, hart, 8192) {
		g.Fatal("the entry is another slot's")
	}
	left, pc := binary.LittleEndian.Uint64(g.memory[g.pc+8:]), binary.LittleEndian.Uint64(g.memory[g.pc:])
	if done := left == 4 && pc == at+4; done || left == 5 && pc == at {
		return done
	}
	g.Fatalf("%d of the budget is left, and the pc is %#x", left, pc)
	return false
}

// TestKnownAddresses: the verifier accepts accesses of whose address it knows more than that it is one: constants, results of shifts and comparisons.
// The code that finds their page ends with less.
func TestKnownAddresses(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("arm64's verifier learns nothing of addresses")
	}
	g := newGuest(t)
	for _, base := range []uint8{0, 10, 18} { // the first is zero, the last in the hart
		for name, o := range map[string]riscv.Operands{
			"lui": {Imm: 4096}, "addi": {Imm: 64}, "andi": {Rs1: 11, Imm: 255}, "srli": {Rs1: 11, Imm: 60}, "srliw": {Rs1: 11, Imm: 20}, "slli": {Rs1: 11, Imm: 40},
			"sltu": {Rs1: 11, Rs2: 12}, "slt": {Rs1: 11, Rs2: 12}, "lbu": {Rs1: 11}, "lwu": {Rs1: 11}, "clz": {Rs1: 11}, "zext.h": {Rs1: 11},
		} {
			o.Rd = base
			for access, operands := range map[string]riscv.Operands{"ld": {Rd: 12, Rs1: base}, "lbu": {Rd: 12, Rs1: base, Imm: 8}, "sd": {Rs1: base, Rs2: 12}, "sb": {Rs1: base, Rs2: 12, Imm: -8}} {
				g.translated(encode(t, name, o), encode(t, access, operands), encode(t, access, operands))
			}
		}
	}
}

// TestBits executes each instruction of Zba and Zbb, translated, on registers that are in the host's and others.
func TestBits(t *testing.T) {
	g := newGuest(t)
	random := rand.New(rand.NewPCG(16, 2))
	tested := 0
	for i := range riscv.Table {
		row := &riscv.Table[i]
		if row.Extension != "Zba" && row.Extension != "Zbb" {
			continue
		}
		tested++
		for _, o := range []riscv.Operands{{Rd: 10, Rs1: 11, Rs2: 12, Imm: 1}, {Rd: 18, Rs1: 29, Rs2: 30, Imm: 31}, {Rd: 10, Rs1: 29, Rs2: 10}, {Rd: 30, Rs1: 8, Rs2: 30, Imm: 17}, {Rd: 11, Rs1: 11, Rs2: 11}, {Rd: 12, Rs1: 13, Imm: 30}, {Rs1: 11, Rs2: 12}} {
			immediate := row.Format == riscv.FormatSH5 || row.Format == riscv.FormatSH6
			encoded, err := riscv.Encode(row.Name, o)
			if err != nil {
				t.Fatalf("%s: %v", row.Name, err)
			}
			entry := g.translated(encoded)
			for range 200 {
				var x [32]uint64
				for r := uint8(1); r < 32; r++ {
					x[r] = random.Uint64() >> random.IntN(64) << random.IntN(64)
					if random.IntN(8) == 0 {
						x[r] = []uint64{0, 1, ^uint64(0), 1 << 63, 1 << 31, 0xffffffff, 0x00ff00ff00000100, 32}[random.IntN(8)]
					}
					binary.LittleEndian.PutUint64(g.register(r), x[r])
				}
				if !g.execute(entry) {
					t.Fatalf("%s is left to the interpreter", row.Name)
				}
				b := x[o.Rs2]
				if immediate {
					b = uint64(o.Imm)
				}
				a := x[o.Rs1]
				x[o.Rd] = models[row.Name](a, b)
				x[0] = 0
				for r := range uint8(32) {
					if got := binary.LittleEndian.Uint64(g.register(r)); got != x[r] {
						t.Fatalf("%s of %#x and %#x: x%d is %#x, want %#x", riscv.Disassemble(encoded, 0), a, b, r, got, x[r])
					}
				}
			}
		}
	}
	if tested != len(models) {
		t.Errorf("%d rows, %d models", tested, len(models))
	}
}

// TestFused: a product and a third number are added with one rounding, and what was inexact is known; what is no normal number is left to the
// interpreter.
func TestFused(t *testing.T) {
	if !cpu.X86.HasFMA {
		t.Skip("this processor has no fused operations")
	}
	g := newGuest(t)
	g.layout.Host.Fused = true
	binary.LittleEndian.PutUint64(g.memory[hart+mstatus:], 3<<13)
	random := rand.New(rand.NewPCG(33, 7))
	for name, signs := range map[string][2]float64{"fmadd": {1, 1}, "fmsub": {1, -1}, "fnmsub": {-1, 1}, "fnmadd": {-1, -1}} {
		for _, suffix := range []string{".s", ".d"} {
			encoded, err := riscv.Encode(name+suffix, riscv.Operands{Rd: 4, Rs1: 5, Rs2: 6, Rs3: 7})
			if err != nil {
				t.Fatal(err)
			}
			entry, executed := g.translated(encoded), 0
			for range 2000 {
				var x [3]float64
				for i := range x {
					x[i] = math.Ldexp(random.Float64()-0.5, random.IntN(40)-20)
					number := math.Float64bits(x[i])
					if suffix == ".s" {
						x[i] = float64(float32(x[i]))
						number = 0xffffffff<<32 | uint64(math.Float32bits(float32(x[i])))
					}
					binary.LittleEndian.PutUint64(g.float(5+uint8(i)), number)
				}
				exact := new(big.Float).SetPrec(300)
				exact.Mul(big.NewFloat(signs[0]*x[0]).SetPrec(300), big.NewFloat(x[1]))
				exact.Add(exact, big.NewFloat(signs[1]*x[2]))
				binary.LittleEndian.PutUint32(g.memory[hart+fflags:], 0)
				if !g.execute(entry) {
					continue
				}
				executed++
				double, accuracy := exact.Float64()
				want := math.Float64bits(double)
				if suffix == ".s" {
					var single float32
					single, accuracy = exact.Float32()
					want = 0xffffffff<<32 | uint64(math.Float32bits(single))
				}
				got, flags := binary.LittleEndian.Uint64(g.float(4)), binary.LittleEndian.Uint32(g.memory[hart+fflags:])
				if got != want || (flags == 1) != (accuracy != big.Exact) || flags > 1 {
					t.Fatalf("%s%s of %g: %#x with flags %#x, want %#x (%v)", name, suffix, x, got, flags, want, accuracy)
				}
			}
			if executed < 1900 {
				t.Errorf("%s%s: %d of 2000 were executed", name, suffix, executed)
			}
			binary.LittleEndian.PutUint64(g.float(7), math.Float64bits(math.Inf(1)))
			if g.execute(entry) {
				t.Errorf("%s%s with an infinite number is not left to the interpreter", name, suffix)
			}
		}
	}
}

// TestTooLarge: numbers beyond all integers become the nearest one, and raise NV alone; what is no number is left to the interpreter.
func TestTooLarge(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("floating point is the interpreter's")
	}
	g := newGuest(t)
	binary.LittleEndian.PutUint64(g.memory[hart+mstatus:], 3<<13)
	for name, bits := range map[string]int{"fcvt.w.d": 32, "fcvt.l.d": 64, "fcvt.w.s": 32, "fcvt.l.s": 64} {
		encoded, err := riscv.Encode(name, riscv.Operands{Rd: 18, Rs1: 7, RM: 1})
		if err != nil {
			t.Fatal(err)
		}
		entry := g.translated(encoded)
		for exponent := range 128 {
			for _, value := range []float64{math.Ldexp(1, exponent), -math.Ldexp(1.5, exponent), math.Ldexp(1.25, exponent), math.Inf(1), math.NaN()} {
				number := math.Float64bits(value)
				if strings.HasSuffix(name, ".s") {
					number = 0xffffffff<<32 | uint64(math.Float32bits(float32(value)))
				}
				binary.LittleEndian.PutUint64(g.float(7), number)
				binary.LittleEndian.PutUint32(g.memory[hart+fflags:], 2)
				limit := math.Ldexp(1, bits-1)
				certain := math.Abs(value) < limit || math.Abs(value) >= 2*limit && !math.IsInf(value, 0)
				if !g.execute(entry) {
					if certain {
						t.Errorf("%s of %g is left to the interpreter", name, value)
					}
					continue
				}
				want, flags := uint64(int64(value)), uint32(2)
				switch {
				case value >= limit:
					want, flags = uint64(1)<<(bits-1)-1, 2|16
				case value < -limit:
					want, flags = ^uint64(0)<<(bits-1), 2|16
				case value != math.Trunc(value):
					flags |= 1
				}
				if got, raised := binary.LittleEndian.Uint64(g.register(18)), binary.LittleEndian.Uint32(g.memory[hart+fflags:]); got != want || raised != flags {
					t.Errorf("%s of %g: %#x with flags %#x, want %#x with %#x", name, value, got, raised, want, flags)
				}
			}
		}
	}
}

func encode(t *testing.T, name string, o riscv.Operands) uint32 {
	t.Helper()
	word, err := riscv.Encode(name, o)
	if err != nil {
		t.Fatal(err)
	}
	return word
}
