package verify_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/amd64"
	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/native/verify"
	"agentvm/internal/machine/riscv"
)

// walk is what both machines have for that.
var walk = blocks.Walk{Scratch: 0x10500, RAMBytes: 0x10520, CodeIndex: 0x20000, Dirty: 0x30000, SATP: 0x10528, SlowLeft: 0x10530, LargestShift: 0x10538, EntryFrame: 12, Filled: 0x30000, Noted: 0x30004, MaxNoted: 512}

// features are those of this processor, of which the verifier knows.
var features = blocks.Host{Fused: verify.Host.Fused, AES: verify.Host.AES, Carryless: verify.Host.Carryless, SHA: verify.Host.SHA}

// layout is about that of the machine.
var layout = amd64.Layout{
	X: 0x10000, F: 0x10100, PC: 0x10200, MStatus: 0x10248, RoundingMode: 0x10240, Reservation: 0x10300, Reserved: 0x10308,
	Write: 64 << 10, Code: 128 << 10, Entries: 4096, Other: 2048, EntrySize: 16, Addend: 8, Host: features,
	Walk: walk,
}

// layoutA64 is about that of the arm64 machine.
var layoutA64 = amd64.Layout{
	Guest: blocks.GuestARM64, X: 0x10000, F: 0x10100, PC: 0x10300, Reservation: 0x10400, Reserved: 0x10408,
	Write: 64 << 10, Code: 128 << 10, Entries: 4096, Other: 2048, EntrySize: 16, Addend: 8, Host: features,
	ARM64: blocks.ARM64{Flags: 0x10328, FlagA: 0x10318, FlagB: 0x10320, FPCR: 0x10350, FPSR: 0x10354, CPACR: 0x10420, SCTLR: 0x10428, EL: 0x10330, IRQ: 0x10358, SPSelect: 0x1035c, PState: 0x10360, TPIDR: 0x10430, SP: 0x10438, ELR: 0x10440, SPSR: 0x10448, TTBR0: 0x10450, TTBR1: 0x10458, TCR: 0x10460},
	Walk:  walk,
}

// randomTranslation translates some random instructions of one of the guests, which jump among themselves.
func randomTranslation(t testing.TB, random *rand.Rand) (code []byte, places []int) {
	t.Helper()
	if random.IntN(2) == 0 {
		return randomA64(t, random)
	}
	return randomRISCV(t, random)
}

func randomA64(t testing.TB, random *rand.Rand) (code []byte, places []int) {
	t.Helper()
	page := make([]byte, amd64.PageSize)
	for at := range 4 + random.IntN(30) {
		row := &a64.Table[random.IntN(len(a64.Table))]
		word := random.Uint32()&^row.Bits.Mask | row.Bits.Match
		switch row.Format {
		case a64.FormatB26:
			word = row.Bits.Match | uint32(random.IntN(40)-at)&(1<<26-1)
		case a64.FormatBC, a64.FormatCB:
			word = word&^(0x7ffff<<5) | uint32(random.IntN(40)-at)&0x7ffff<<5
		case a64.FormatTB:
			word = word&^(0x3fff<<5) | uint32(random.IntN(40)-at)&0x3fff<<5
		}
		binary.LittleEndian.PutUint32(page[4*at:], word)
	}
	made, ok := amd64.TranslateA64(&layoutA64, amd64.Page{Code: page, Entries: []uint16{0, 20, 80}})
	if !ok {
		return nil, nil
	}
	for _, e := range made.Entries {
		places = append(places, e.At)
	}
	if err := verify.Code(made.Code, places); err != nil {
		t.Fatalf("a translation is refused: %v\n% x", err, page[:140])
	}
	return made.Code, places
}

func randomRISCV(t testing.TB, random *rand.Rand) (code []byte, places []int) {
	t.Helper()
	page := make([]byte, amd64.PageSize)
	count := 4 + random.IntN(30)
	for at := 0; at < 4*count; {
		row := &riscv.Table[random.IntN(len(riscv.Table))]
		o := riscv.Operands{Rd: uint8(random.IntN(32)), Rs1: uint8(random.IntN(32)), Rs2: uint8(random.IntN(32))}
		switch row.Format {
		case riscv.FormatB, riscv.FormatJ:
			o.Imm = int64(4*random.IntN(40)) - int64(at)
		case riscv.FormatI, riscv.FormatL, riscv.FormatS, riscv.FormatFL, riscv.FormatFS:
			o.Imm = int64(random.IntN(4096) - 2048)
		case riscv.FormatU:
			o.Imm = int64(int32(random.Uint32())) &^ 0xfff
		case riscv.FormatSH5, riscv.FormatSH6:
			o.Imm = int64(random.IntN(32))
		}
		word, err := riscv.Encode(row.Name, o)
		floats := slices.Contains([]riscv.Format{riscv.FormatFL, riscv.FormatFS, riscv.FormatFX, riscv.FormatXF}, row.Format) || strings.HasPrefix(row.Name, "fsgnj") || row.Format == riscv.FormatR4
		if err != nil || row.Length != 4 || row.Extension != "I" && row.Extension != "M" && row.Extension != "A" && row.Extension != "Zba" && row.Extension != "Zbb" && !floats {
			continue
		}
		binary.LittleEndian.PutUint32(page[at:], word)
		at += 4
	}
	made, ok := amd64.Translate(&layout, amd64.Page{Code: page, Entries: []uint16{0, 20, 80}})
	if !ok {
		return nil, nil
	}
	for _, e := range made.Entries {
		places = append(places, e.At)
	}
	if err := verify.Code(made.Code, places); err != nil {
		t.Fatalf("a translation is refused: %v\n% x", err, page[:120])
	}
	return made.Code, places
}

// TestRefusesMutations changes one or two bytes of translations at random. What is accepted nevertheless is executed by an interpreter that
// knows nothing of the verifier, from each entry, with memory that is as bad as it can be: nothing outside is reached, and it ends.
// AGENTVM_FUZZ_MUTATIONS says how many.
func TestRefusesMutations(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv("AGENTVM_FUZZ_MUTATIONS"))
	if err != nil {
		count = 10_000
	}
	seed, _ := strconv.ParseUint(os.Getenv("AGENTVM_FUZZ_SEED"), 10, 64)
	random := rand.New(rand.NewPCG(seed, 7))
	accepted, executed := 0, 0
	for done := 0; done < count; {
		code, places := randomTranslation(t, random)
		if code == nil {
			continue
		}
		executed += execute(t, random, code, places)
		for range 1000 {
			done++
			mutant := append([]byte(nil), code...)
			at := random.IntN(len(code))
			mutant[at] ^= byte(1 + random.IntN(255))
			switch random.IntN(4) {
			case 0:
				mutant[random.IntN(len(code))] = byte(random.Uint32())
			case 1:
				mutant[min(at+1, len(code)-1)] = byte(random.Uint32())
			}
			if verify.Code(mutant, places) == nil {
				accepted++
				executed += execute(t, random, mutant, some(random, places))
			}
			if t.Failed() {
				t.Fatalf("seed %d, byte %#x; entries %d\n% x\nfrom\n% x", seed, at, places, mutant, code)
			}
		}
	}
	t.Logf("%d mutations, %d of them accepted; %d instructions executed", count, accepted, executed)
	if accepted == 0 || accepted > count/2 || executed < accepted {
		t.Errorf("of %d mutations %d are accepted, and %d instructions executed: the test does not try what it should", count, accepted, executed)
	}
}

// some are three of the places.
func some(random *rand.Rand, places []int) []int {
	places = slices.Clone(places)
	random.Shuffle(len(places), func(a, b int) { places[a], places[b] = places[b], places[a] })
	return places[:min(3, len(places))]
}

func FuzzCode(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		if code, places := randomTranslation(f, random); code != nil {
			f.Add(code, uint64(places[0]))
		}
	}
	f.Fuzz(func(t *testing.T, code []byte, seed uint64) {
		places := []int{int(seed % uint64(len(code)+1))}
		if verify.Code(code, places) == nil {
			execute(t, rand.New(rand.NewPCG(seed, 0)), code, places)
		}
	})
}

// FuzzPages: whatever is in a page, and wherever it is entered, its translation is accepted.
func FuzzPages(f *testing.F) {
	f.Add([]byte{0x13, 0x05, 0x15, 0x00, 0x01, 0x00, 0x6f, 0x00, 0x00, 0x00}, uint16(0), uint16(4))
	f.Add([]byte{0x63, 0x05, 0x00, 0x00, 0x37, 0x05, 0x01, 0x00, 0x37, 0x05, 0x01, 0x00}, uint16(4092), uint16(2))
	f.Fuzz(func(t *testing.T, code []byte, a, b uint16) {
		page := make([]byte, amd64.PageSize)
		for n := 0; n < len(page) && len(code) > 0; {
			n += copy(page[n:], code)
		}
		for _, guest := range []struct {
			translate func(*amd64.Layout, amd64.Page) (amd64.Translation, bool)
			layout    *amd64.Layout
		}{{amd64.Translate, &layout}, {amd64.TranslateA64, &layoutA64}} {
			made, ok := guest.translate(guest.layout, amd64.Page{Code: page, Entries: []uint16{a % amd64.PageSize &^ 1, b % amd64.PageSize &^ 1}})
			var places []int
			for _, e := range made.Entries {
				places = append(places, e.At)
			}
			if err := verify.Code(made.Code, places); ok && err != nil {
				t.Fatal(err)
			}
		}
	})
}

func BenchmarkCode(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 1))
	var codes [][]byte
	var places [][]int
	bytes := 0
	for len(codes) < 50 {
		if code, p := randomTranslation(b, random); code != nil {
			codes, places, bytes = append(codes, code), append(places, p), bytes+len(code)
		}
	}
	b.SetBytes(int64(bytes))
	for b.Loop() {
		for i := range codes {
			if err := verify.Code(codes[i], places[i]); err != nil {
				b.Fatal(err)
			}
		}
	}
}
