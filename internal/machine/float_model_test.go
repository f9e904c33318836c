package machine_test

import (
	"math"
	"math/big"
	"strings"

	"agentvm/internal/machine/riscv"
)

// The floating-point half of the model: operands, boxing, rounding modes and the inexact flag with arithmetic by
// math/big, for numbers whose results are zero or normal. TestFloatingPoint and TestDifferentialQEMU have the rest.

const (
	flagNX = 1
	flagDZ = 8
	flagNV = 16

	canonical32 = 0x7fc0_0000
	canonical64 = 0x7ff8_0000_0000_0000
)

var roundingModes = [5]big.RoundingMode{big.ToNearestEven, big.ToZero, big.ToNegativeInf, big.ToPositiveInf, big.ToNearestAway}

// float is a format: its registers hold singles boxed.
type float struct{ double bool }

func (f float) precision() uint {
	if f.double {
		return 53
	}
	return 24
}

func (f float) bits(register uint64) uint64 {
	switch {
	case f.double:
		return register
	case register>>32 != 0xffff_ffff:
		return canonical32
	}
	return low32(register)
}

func (f float) value(bits uint64) float64 {
	if f.double {
		return math.Float64frombits(bits)
	}
	return float64(math.Float32frombits(uint32(bits)))
}

func (f float) signaling(bits uint64) bool {
	quiet := uint64(1) << (f.precision() - 2)
	return math.IsNaN(f.value(bits)) && bits&quiet == 0
}

func (f float) sign() uint64 {
	if f.double {
		return 1 << 63
	}
	return 1 << 31
}

func (f float) register(v float64) uint64 {
	switch {
	case math.IsNaN(v) && f.double:
		return canonical64
	case math.IsNaN(v):
		return boxed(canonical32, 4)
	case f.double:
		return math.Float64bits(v)
	}
	return boxed(uint64(math.Float32bits(float32(v))), 4)
}

func formatOf(name string) float { return float{double: strings.HasSuffix(name, ".d")} }

// rounded makes a register value of an exact or rounded number.
func (f float) rounded(v *big.Float, h *modelHart) uint64 {
	if v.Acc() != big.Exact {
		h.FCSR |= flagNX
	}
	result, _ := v.Float64()
	return f.register(result)
}

// executeFloat does all of F and D but loads and stores.
func (h *modelHart) executeFloat(name string, o riscv.Operands, word uint32, next uint64) bool {
	row := riscv.Lookup(word)
	if row == nil || row.Extension != "F" && row.Extension != "D" {
		return false
	}
	mode := o.RM
	if mode == 7 {
		mode = uint8(h.FCSR >> 5 & 7)
	}
	if strings.Contains("R4 FRM FXM XFM", string(row.Format)) && mode > 4 {
		h.trap(causeIllegal, uint64(word))
		return true
	}
	done := h.floatArithmetic(name, o, mode) || h.floatSelect(name, o) || h.floatToInteger(name, o, mode) ||
		h.floatFromInteger(name, o, mode) || h.floatMoves(name, o)
	if done {
		h.PC = next
	}
	return done
}

func (h *modelHart) floatArithmetic(name string, o riscv.Operands, mode uint8) bool {
	f := formatOf(name)
	operation := strings.TrimSuffix(strings.TrimSuffix(name, ".s"), ".d")
	operands := map[string]int{"fadd": 2, "fsub": 2, "fmul": 2, "fdiv": 2, "fsqrt": 1, "fmadd": 3, "fmsub": 3, "fnmadd": 3, "fnmsub": 3}
	count, ok := operands[operation]
	if !ok {
		return false
	}
	var v [3]float64
	nan, invalid := false, false
	for i, register := range []uint8{o.Rs1, o.Rs2, o.Rs3}[:count] {
		b := f.bits(h.F[register])
		v[i] = f.value(b)
		nan, invalid = nan || math.IsNaN(v[i]), invalid || f.signaling(b)
	}
	if invalid {
		h.FCSR |= flagNV
	}
	if nan {
		h.F[o.Rd] = f.register(math.NaN())
		return true
	}
	h.F[o.Rd] = h.compute(f, operation, v, mode)
	return true
}

// compute is for finite operands; of the special cases it knows division by zero and roots of negative numbers.
func (h *modelHart) compute(f float, operation string, v [3]float64, mode uint8) uint64 {
	z := new(big.Float).SetPrec(f.precision()).SetMode(roundingModes[mode])
	a, b, c := big.NewFloat(v[0]), big.NewFloat(v[1]), big.NewFloat(v[2])
	switch operation {
	case "fadd":
		return f.sum(z, a, b, h)
	case "fsub":
		return f.sum(z, a, b.Neg(b), h)
	case "fmul":
		return f.rounded(z.Mul(a, b), h)
	case "fdiv":
		switch {
		case v[1] == 0 && v[0] == 0:
			h.FCSR |= flagNV
			return f.register(math.NaN())
		case v[1] == 0:
			h.FCSR |= flagDZ
			return f.register(math.Inf(1) * math.Copysign(1, v[0]) * math.Copysign(1, v[1]))
		}
		return f.rounded(z.Quo(a, b), h)
	case "fsqrt":
		return h.root(f, z, v[0])
	}
	product := new(big.Float).SetPrec(120).Mul(a, b)
	if operation == "fnmadd" || operation == "fnmsub" {
		product.Neg(product)
	}
	if operation == "fmsub" || operation == "fnmadd" {
		c.Neg(c)
	}
	return f.sum(z, product, c, h)
}

// sum adds; an exact zero from different signs is positive except when rounding down.
func (f float) sum(z, a, b *big.Float, h *modelHart) uint64 {
	down := z.Mode() == big.ToNegativeInf
	if a.Sign() == 0 && b.Sign() == 0 {
		if a.Signbit() == b.Signbit() {
			return f.rounded(a, h)
		}
		return f.register(map[bool]float64{true: math.Copysign(0, -1), false: 0}[down])
	}
	z.Add(a, b)
	if z.Sign() == 0 {
		return f.register(map[bool]float64{true: math.Copysign(0, -1), false: 0}[down])
	}
	return f.rounded(z, h)
}

func (h *modelHart) root(f float, z *big.Float, v float64) uint64 {
	switch {
	case v == 0:
		return f.register(v)
	case v < 0:
		h.FCSR |= flagNV
		return f.register(math.NaN())
	}
	// The root to many bits, then once more: no root of a double is within 2^-150 of a tie.
	exact := new(big.Float).SetPrec(300).Sqrt(big.NewFloat(v))
	if square := new(big.Float).SetPrec(700).Mul(exact, exact); square.Cmp(big.NewFloat(v)) != 0 {
		h.FCSR |= flagNX
	}
	result, _ := z.Set(exact).Float64()
	return f.register(result)
}

func (h *modelHart) floatSelect(name string, o riscv.Operands) bool {
	f := formatOf(name)
	a, b := f.bits(h.F[o.Rs1]), f.bits(h.F[o.Rs2])
	x, y := f.value(a), f.value(b)
	nan, invalid := math.IsNaN(x) || math.IsNaN(y), f.signaling(a) || f.signaling(b)
	setFlag := func(when bool) {
		if when {
			h.FCSR |= flagNV
		}
	}
	put := func(bits uint64) { h.F[o.Rd] = boxed(bits, 4<<truth(f.double)) }
	switch name[:len(name)-2] {
	case "fsgnj":
		put(a&^f.sign() | b&f.sign())
	case "fsgnjn":
		put(a&^f.sign() | ^b&f.sign())
	case "fsgnjx":
		put(a ^ b&f.sign())
	case "fmin", "fmax":
		setFlag(invalid)
		h.F[o.Rd] = f.register(selectFloat(name[:4] == "fmax", x, y))
	case "feq":
		setFlag(invalid)
		h.setX(o.Rd, truth(x == y))
	case "flt":
		setFlag(nan)
		h.setX(o.Rd, truth(x < y))
	case "fle":
		setFlag(nan)
		h.setX(o.Rd, truth(x <= y))
	default:
		return false
	}
	return true
}

func selectFloat(largest bool, x, y float64) float64 {
	switch {
	case math.IsNaN(x):
		return y
	case math.IsNaN(y):
		return x
	case largest:
		return math.Max(x, y)
	}
	return math.Min(x, y)
}

// integerKinds are the integer formats of conversions.
var integerKinds = map[string]struct{ low, high *big.Int }{
	"w":  {big.NewInt(math.MinInt32), big.NewInt(math.MaxInt32)},
	"wu": {big.NewInt(0), big.NewInt(math.MaxUint32)},
	"l":  {big.NewInt(math.MinInt64), big.NewInt(math.MaxInt64)},
	"lu": {big.NewInt(0), new(big.Int).SetUint64(math.MaxUint64)},
}

func (h *modelHart) floatToInteger(name string, o riscv.Operands, mode uint8) bool {
	parts := strings.Split(name, ".")
	if parts[0] != "fcvt" || len(parts) != 3 {
		return false
	}
	kind, ok := integerKinds[parts[1]]
	if !ok {
		return false
	}
	f := formatOf(name)
	v := f.value(f.bits(h.F[o.Rs1]))
	result := kind.high
	switch {
	case math.IsNaN(v) || math.IsInf(v, 1):
		h.FCSR |= flagNV
	case math.IsInf(v, -1):
		h.FCSR |= flagNV
		result = kind.low
	default:
		result = h.roundToInteger(v, mode)
		if result.Cmp(kind.low) < 0 || result.Cmp(kind.high) > 0 {
			h.FCSR |= flagNV
			result = map[bool]*big.Int{true: kind.low, false: kind.high}[v < 0]
		} else if exact, _ := new(big.Float).SetInt(result).Float64(); exact != v {
			h.FCSR |= flagNX
		}
	}
	value := bits64(result)
	if parts[1] == "w" || parts[1] == "wu" {
		value = word32(value)
	}
	h.setX(o.Rd, value)
	return true
}

func (h *modelHart) roundToInteger(v float64, mode uint8) *big.Int {
	switch mode {
	case 0:
		v = math.RoundToEven(v)
	case 1:
		v = math.Trunc(v)
	case 2:
		v = math.Floor(v)
	case 3:
		v = math.Ceil(v)
	default:
		v = math.Round(v)
	}
	result, _ := big.NewFloat(v).Int(nil)
	return result
}

func (h *modelHart) floatFromInteger(name string, o riscv.Operands, mode uint8) bool {
	parts := strings.Split(name, ".")
	if parts[0] != "fcvt" || len(parts) != 3 {
		return false
	}
	f := float{double: parts[1] == "d"}
	z := new(big.Float).SetPrec(f.precision()).SetMode(roundingModes[mode])
	x := h.X[o.Rs1]
	switch parts[2] {
	case "w":
		z.SetInt64(int64(int32(x)))
	case "wu":
		z.SetInt(unsigned(low32(x)))
	case "l":
		z.SetInt64(int64(x))
	case "lu":
		z.SetInt(unsigned(x))
	default:
		return h.floatToFloat(f, o, z)
	}
	h.F[o.Rd] = f.rounded(z, h)
	return true
}

// floatToFloat is fcvt.s.d and fcvt.d.s; f is the result's format.
func (h *modelHart) floatToFloat(f float, o riscv.Operands, z *big.Float) bool {
	from := float{double: !f.double}
	b := from.bits(h.F[o.Rs1])
	v := from.value(b)
	if from.signaling(b) {
		h.FCSR |= flagNV
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		h.F[o.Rd] = f.register(v)
		return true
	}
	h.F[o.Rd] = f.rounded(z.Set(big.NewFloat(v)), h)
	return true
}

func (h *modelHart) floatMoves(name string, o riscv.Operands) bool {
	switch name {
	case "fmv.x.w":
		h.setX(o.Rd, word32(h.F[o.Rs1]))
	case "fmv.x.d":
		h.setX(o.Rd, h.F[o.Rs1])
	case "fmv.w.x":
		h.F[o.Rd] = boxed(low32(h.X[o.Rs1]), 4)
	case "fmv.d.x":
		h.F[o.Rd] = h.X[o.Rs1]
	case "fclass.s", "fclass.d":
		f := formatOf(name)
		h.setX(o.Rd, f.class(f.bits(h.F[o.Rs1])))
	default:
		return false
	}
	return true
}

// class is the manual's table "Format of result of FCLASS instruction".
func (f float) class(bits uint64) uint64 {
	v := f.value(bits)
	smallest := math.Float64frombits(1 << 52)
	if !f.double {
		smallest = math.Float64frombits(uint64(1023-126) << 52)
	}
	negative := bits&f.sign() != 0
	place := map[bool]uint64{true: 0, false: 7}[negative] // infinity
	switch {
	case f.signaling(bits):
		return 1 << 8
	case math.IsNaN(v):
		return 1 << 9
	case math.IsInf(v, 0):
	case v == 0:
		place = map[bool]uint64{true: 3, false: 4}[negative]
	case math.Abs(v) < smallest:
		place = map[bool]uint64{true: 2, false: 5}[negative]
	default:
		place = map[bool]uint64{true: 1, false: 6}[negative]
	}
	return 1 << place
}
