package native_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/cpu"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native"
	"agentvm/internal/machine/native/blocks"
)

// Places in the hart of the arm64 machine, as in enterA64's assembly.
const (
	hartA64  = 4096
	valuesAt = hartA64 + 256
	pcA64    = hartA64 + 768
	fpsrAt   = hartA64 + 852
	cpacrAt  = hartA64 + 860
	fpcrAt   = hartA64 + 864
)

func newGuestA64(t *testing.T) *guest {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the interpreter does what is tested here")
	}
	g := newGuest(t)
	var err error
	if g.code, err = native.New(blocks.GuestARM64, g.memory, 4<<20, native.NewLibrary(4<<20)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.code.Close() })
	g.pc = pcA64
	g.layout.Guest, g.layout.X, g.layout.F, g.layout.PC = blocks.GuestARM64, hartA64, valuesAt, pcA64
	g.layout.ARM64 = blocks.ARM64{CPACR: cpacrAt, FPCR: fpcrAt, FPSR: fpsrAt}
	g.layout.Host.Fused = cpu.X86.HasFMA
	return g
}

// exactly gives a number of a size, and whether it is what was to be rounded to it.
func exactly(x *big.Float, isDouble bool) (float64, bool) {
	if isDouble {
		v, accuracy := x.Float64()
		return v, accuracy == big.Exact
	}
	v, accuracy := x.Float32()
	return float64(v), accuracy == big.Exact
}

// vectorModels are what the lanes of both operands, and of the result's register before, become; false: as no number, or not by rounding once.
var vectorModels = map[string]func(a, b, d *big.Float) *big.Float{
	"fadd.v": func(a, b, _ *big.Float) *big.Float { return a.Add(a, b) },
	"fsub.v": func(a, b, _ *big.Float) *big.Float { return a.Sub(a, b) },
	"fmul.v": func(a, b, _ *big.Float) *big.Float { return a.Mul(a, b) },
	"fdiv.v": func(a, b, _ *big.Float) *big.Float { return a.SetPrec(200).Quo(a, b) },
	"fmla.v": func(a, b, d *big.Float) *big.Float { return a.Add(a.Mul(a, b), d) },
	"fmls.v": func(a, b, d *big.Float) *big.Float { return a.Sub(d, a.Mul(a, b)) },
	"fabd.v": func(a, b, _ *big.Float) *big.Float { return a.Abs(a.Sub(a, b)) },
	"fmax.v": func(a, b, _ *big.Float) *big.Float {
		if a.Cmp(b) < 0 {
			return b
		}
		return a
	},
	"fminnm.v": func(a, b, _ *big.Float) *big.Float {
		if a.Cmp(b) > 0 {
			return b
		}
		return a
	},
}

// TestVectorsOfNumbers: lanes are rounded each, what was inexact is known, and products with zeros are not left to the interpreter. A lane that is
// infinite, no number or tiny is.
func TestVectorsOfNumbers(t *testing.T) {
	g := newGuestA64(t)
	binary.LittleEndian.PutUint32(g.memory[cpacrAt:], 3<<20)
	random := rand.New(rand.NewPCG(64, 22))
	for i := range a64.Table {
		row := &a64.Table[i]
		model := vectorModels[row.Name]
		if model == nil || strings.HasPrefix(row.Name, "fml") && !cpu.X86.HasFMA {
			continue
		}
		for _, form := range []struct {
			bits     uint32
			lanes    int
			isDouble bool
		}{{1 << 30, 4, false}, {0, 2, false}, {1<<30 | 1<<22, 2, true}} {
			name := fmt.Sprintf("%s of %d, double %t", row.Name, form.lanes, form.isDouble)
			entry := g.translated(row.Bits.Match | form.bits | 3<<16 | 2<<5 | 1)
			size := 4
			if form.isDouble {
				size = 8
			}
			lane := func(r, i int) []byte { return g.memory[valuesAt+16*r+size*i:][:size] }
			put := func(r, i int, v float64) {
				if form.isDouble {
					binary.LittleEndian.PutUint64(lane(r, i), math.Float64bits(v))
				} else {
					binary.LittleEndian.PutUint32(lane(r, i), math.Float32bits(float32(v)))
				}
			}
			get := func(r, i int) float64 {
				if form.isDouble {
					return math.Float64frombits(binary.LittleEndian.Uint64(lane(r, i)))
				}
				return float64(math.Float32frombits(binary.LittleEndian.Uint32(lane(r, i))))
			}
			executed := 0
			fill := func() (want []float64, inexact bool) {
				random := random
				for r := range 4 {
					for at := range 16 {
						g.memory[valuesAt+16*r+at] = 0xff // above half a vector there are no numbers
					}
				}
				for i := range form.lanes {
					for r := 1; r < 4; r++ {
						v := math.Ldexp(random.Float64()-0.5, random.IntN(40)-20)
						if random.IntN(3) == 0 {
							v = float64(random.IntN(5) - 2)
						}
						if r == 3 && v == 0 && row.Name == "fdiv.v" {
							v = 1
						}
						put(r, i, v)
					}
					of := func(r int) *big.Float { return new(big.Float).SetPrec(300).SetFloat64(get(r, i)) }
					v, isExact := exactly(model(of(2), of(3), of(1)), form.isDouble)
					want, inexact = append(want, v), inexact || !isExact
				}
				return want, inexact
			}
			for range 1000 {
				want, inexact := fill()
				binary.LittleEndian.PutUint32(g.memory[fpsrAt:], 0)
				if !g.execute(entry) {
					continue
				}
				executed++
				for i := range form.lanes {
					if get(1, i) != want[i] {
						t.Fatalf("%s: lane %d is %g, want %g", name, i, get(1, i), want[i])
					}
				}
				if flags := binary.LittleEndian.Uint32(g.memory[fpsrAt:]); (flags == 16) != inexact || flags&^16 != 0 {
					t.Fatalf("%s: the flags are %#x, inexact %t", name, flags, inexact)
				}
				if upper := binary.LittleEndian.Uint64(g.memory[valuesAt+16+8:]); size*form.lanes == 8 && upper != 0 {
					t.Fatalf("%s: above it is %#x", name, upper)
				}
			}
			if executed < 800 {
				t.Errorf("%s: %d of 1000 were executed", name, executed)
			}
			bad := []float64{math.NaN(), math.Inf(1)}
			if row.Name == "fmul.v" {
				bad = append(bad, math.Ldexp(1, map[bool]int{false: -149, true: -1074}[form.isDouble]))
			}
			if strings.HasPrefix(row.Name, "fm") && row.Name[2] != 'l' && row.Name[2] != 'u' {
				bad = bad[:1] // the infinite is a number to them
			}
			for _, v := range bad {
				fill()
				for i := range form.lanes {
					put(3, i, 1)
				}
				at := random.IntN(form.lanes)
				put(2, at, v)
				before := string(g.memory[valuesAt:][:64])
				if g.execute(entry) || before != string(g.memory[valuesAt:][:64]) {
					t.Errorf("%s with a lane of %g is not left to the interpreter", name, v)
				}
			}
		}
	}
}
