package native_test

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"testing"

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

// TestBits executes each instruction of Zba and Zbb, translated, on registers that are in the host's and others.
func TestBits(t *testing.T) {
	const hart, pc, budget, va, limit = 4096, 512, 520, 0x10000, 4 << 20 // places as in enter's assembly
	layout := blocks.Layout{X: hart, F: hart + 256, PC: hart + pc, MStatus: hart + 600, RoundingMode: hart + 576, Reservation: hart + 608, Reserved: hart + 616,
		Write: 64 << 10, Code: 128 << 10, Entries: 4096, Other: 2048, EntrySize: 16, Addend: 8}
	if !native.Supported() {
		t.Skip("there is no native code on this system")
	}
	memory := make([]byte, 1<<20)
	code, err := native.New(memory, limit, native.NewLibrary(limit))
	if err != nil {
		t.Fatal(err)
	}
	defer code.Close()
	random := rand.New(rand.NewPCG(16, 2))
	register := func(r uint8) []byte { return memory[hart+8*int(r):][:8] }
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
			page := blocks.Page{Code: make([]byte, blocks.PageSize), Entries: []uint16{0}}
			binary.LittleEndian.PutUint32(page.Code, encoded)
			made, ok := native.Translate(&layout, page)
			if !ok {
				t.Fatalf("%s is not translated", row.Name)
			}
			block, err := code.Add(native.Key{Sum: sha256.Sum256(page.Code)}, made, nil)
			if err != nil {
				t.Fatalf("%s: %v", row.Name, err)
			}
			entry, err := code.Install(block, 1)
			if err != nil {
				t.Fatal(err)
			}
			for range 200 {
				var x [32]uint64
				for r := uint8(1); r < 32; r++ {
					x[r] = random.Uint64() >> random.IntN(64) << random.IntN(64)
					if random.IntN(8) == 0 {
						x[r] = []uint64{0, 1, ^uint64(0), 1 << 63, 1 << 31, 0xffffffff, 0x00ff00ff00000100, 32}[random.IntN(8)]
					}
					binary.LittleEndian.PutUint64(register(r), x[r])
				}
				binary.LittleEndian.PutUint64(memory[hart+budget:], 5)
				if !code.Enter(entry, 1|uint64(entry)<<8, va, hart, 8192) {
					t.Fatalf("%s: the entry is another slot's", row.Name)
				}
				b := x[o.Rs2]
				if immediate {
					b = uint64(o.Imm)
				}
				a := x[o.Rs1]
				x[o.Rd] = models[row.Name](a, b)
				x[0] = 0
				for r := range uint8(32) {
					if got := binary.LittleEndian.Uint64(register(r)); got != x[r] {
						t.Fatalf("%s of %#x and %#x: x%d is %#x, want %#x", riscv.Disassemble(encoded, 0), a, b, r, got, x[r])
					}
				}
				if left, at := binary.LittleEndian.Uint64(memory[hart+budget:]), binary.LittleEndian.Uint64(memory[hart+pc:]); left != 4 || at != va+4 {
					t.Fatalf("%s: %d of the budget is left, and the pc is %#x", row.Name, left, at)
				}
			}
		}
	}
	if tested != len(models) {
		t.Errorf("%d rows, %d models", tested, len(models))
	}
}
