package verify_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/arch/arm64/arm64asm"

	"agentvm/internal/machine/native/arm64"
	"agentvm/internal/machine/native/arm64/verify"
	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/riscv"
)

// Words of the cases below.
const (
	ret       = 0xd65f03c0
	spend     = 0xf100075a // subs x26, x26, #1
	give      = 0x9100075a // add x26, x26, #1
	move      = 0xaa0203e1 // mov x1, x2
	mask      = 0x927c4421 // and x1, x1, #0x3ffff0
	entryAt   = 0x8b010311 // add x17, x24, x1
	readEntry = 0xa9400631 // ldp x17, x1, [x17]
	jump      = 0xd61f0220 // br x17
)

// frame makes code of a body: what looks at the budget before it, and a way out behind it.
func frame(body ...uint32) []byte {
	words := append([]uint32{spend, 0x5400000b | uint32(len(body)+2)<<5}, body...)
	var code []byte
	for _, w := range append(words, ret, give, ret) {
		code = binary.LittleEndian.AppendUint32(code, w)
	}
	return code
}

// TestAcceptsWhatIsHarmless: without the flaw that a case of TestRefusesEscapes has, its code is accepted.
func TestAcceptsWhatIsHarmless(t *testing.T) {
	for name, body := range map[string][]uint32{
		"nothing": nil, "move": {move}, "load": {0xf8614ae3}, "store": {0xf8214ae3}, "load of the hart": {0xf9404360}, "store to the hart": {0xf9004360},
		"compare": {0xf100041f}, "entry": {mask, entryAt, readEntry, 0xeb00003f, jump}, "jump to target": {jump}, "branch over": {0x54000040, move}, "bits": {0x8a220021, 0xaa220021, 0xca220021, 0x9ac22c21, 0x93c10421, 0x13810421, 0xdac01021, 0x5ac01021, 0xdac00021, 0xdac00c21},
		"jump to the end": {0x14000001}, "loop that looks at the budget": {0x17fffffe},
	} {
		if err := verify.Code(frame(body...), []int{0}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

var escapes = map[string][]uint32{
	// Instructions that are not on the list.
	"svc": {0xd4000001}, "hvc": {0xd4000002}, "smc": {0xd4000003}, "brk": {0xd4200000}, "hlt": {0xd4400000}, "udf": {0}, "nop": {0xd503201f}, "wfi": {0xd503207f},
	"wfe": {0xd503205f}, "eret": {0xd69f03e0}, "msr tpidr_el0": {0xd51bd040}, "mrs tpidr_el0": {0xd53bd040}, "mrs cntvct_el0": {0xd53be040}, "msr daifset": {0xd50341df},
	"ic ivau": {0xd50b7520}, "dc zva": {0xd50b7420}, "isb": {0xd5033fdf}, "pacia": {0xdac10020}, "fadd": {0x1e602820}, "add of vectors": {0x4e208400},
	"ldr of a vector": {0x3dc00360}, "ldr d, memory and 32 bits": {0xfc614ae3}, "adr": {0x10000000}, "adrp": {0x90000000}, "ldr literal": {0x58000040},
	"bl": {0x94000001}, "blr": {0xd63f0000}, "br x0": {0xd61f0000}, "br x30": {0xd61f03c0}, "ret x0": {0xd65f0000}, "braa": {0xd71f0a20}, "cbz": {0xb4000040}, "cbnz": {0xb5000040},
	"tbz": {0x36000040}, "b.al": {0x5400004e}, "b.nv": {0x5400004f}, "bc.eq": {0x54000050}, "ccmp": {0xfa400800}, "adc": {0x9a000000}, "extr of 64 bits by 32": {0x13c00000}, "extr of 32 bits by 64": {0x13808000}, "rev16": {0xdac00400}, "rev of 32 bits": {0x5ac00800}, "rev32": {0xdac00800}, "cls": {0xdac01400}, "ctz": {0xdac01800}, "cnt": {0xdac01c00},
	"abs": {0xdac02000}, "smax": {0x9ac26020}, "crc32b": {0x1ac24020}, "crc32x": {0x9ac24c20},
	"movk of 32 bits": {0x72800020}, "and with ones apart": {0x9200f021}, "and with no ones": {0x927ffc21}, "and with 32 bits": {0x12000021}, "sbfm of 32 bits": {0x13007c21},
	"add of a shifted register": {0x8b020421}, "add of an extended register": {0x8b224021}, "bic of a shifted register": {0x8a220421}, "bics": {0xea220021}, "ands": {0xea020021}, "eon rotated": {0xcae20421},

	// Registers that are kept.
	"writes memory": {0xaa0103f7}, "writes entries": {0xaa0103f8}, "writes hart": {0xaa0103fb}, "writes g": {0xaa0103fc}, "writes the frame": {0xaa0103fd},
	"writes the link": {0xaa0103fe}, "writes x18": {0xaa0103f2}, "writes target": {0xaa0103f1}, "writes tlb": {0xaa0103f9}, "writes budget": {0xaa0103fa},
	"writes sp": {0x9100003f}, "moves sp": {0x910043ff}, "and to sp": {0x927c443f}, "sub from sp": {0xd10043ff}, "loads memory": {0xf8614af7}, "loads target": {0xf8614af1},
	"loads the link": {0xf940437e}, "loads g": {0xf940437c}, "movz to memory": {0xd2800017}, "movk to target": {0xf2800011}, "csel to hart": {0x9a82003b}, "sdiv to g": {0x9ac20c3c},
	"madd to the link": {0x9b02003e}, "bic to memory": {0x8a220037}, "extr to entries": {0x93c10438}, "clz to g": {0xdac0103c}, "rev to hart": {0xdac00c3b}, "rorv to the link": {0x9ac22c3e}, "rbit to target": {0xdac00031}, "orn to x18": {0xaa220032}, "umulh to memory": {0x9bc27c37}, "sxtw to entries": {0x93407c38}, "adds to target": {0xb1000431},
	"gives budget": {give, 0x54000040, move}, "adds nothing to budget": {0x9100035a}, "takes nothing": {0xf100035a}, "takes without flags": {0xd100075a},
	"takes 32 bits": {0x7100075a}, "spends without looking": {spend, move}, "spends, looks for another condition": {spend, 0x5400004a}, "adds to budget shifted": {0x9140075a},

	// Addresses of the process that the guest could see.
	"reads memory": {0xaa1703e1}, "reads entries": {0xaa1803e1}, "reads hart": {0xaa1b03e1}, "reads g": {0xaa1c03e1}, "reads the link": {0xaa1e03e1}, "reads target": {0xaa1103e1},
	"reads sp": {0x910003e1}, "rev of memory": {0xdac00ee1}, "extr of entries": {0x93d80421}, "eon of g": {0xca3c0021}, "clz of the link": {0xdac013c1}, "rorv by memory": {0x9ad72c21}, "reads x18": {0xaa1203e1}, "adds to memory": {0x910006e1}, "compares sp": {0xf10003ff}, "compares hart": {0xeb01037f}, "stores memory": {0xf8214af7},
	"stores the link": {0xf900437e}, "stores target": {0xf9004371}, "madd of memory": {0x9b025c21}, "csel of entries": {0x9a810301},

	// Operands in memory.
	"any address": {0xf9400000}, "of the stack": {0xf94003e0}, "of g": {0xf9400380}, "behind entries": {0xf9400300}, "memory and a distance": {0xf94002e0},
	"memory and 64 bits": {0xf8616ae3}, "memory and 32 bits with their sign": {0xf861cae3}, "memory and 64 bits with sign": {0xf861eae3}, "index times 8": {0xf8615ae3},
	"hart and a register": {0xf8614b63}, "any two registers": {0xf8614803}, "entries and a register": {0xf8614b03}, "before the hart": {0xf85f8360}, "post-index": {0xf8408760},
	"pre-index": {0xf8408f60}, "ldp": {0xa9400760}, "stp": {0xa9000760}, "ldp of entries": {0xa9400700}, "prefetch": {0xf8a14ae3}, "ldrsw to 32 bits": {0xb8e14ae3},
	"exclusive": {0xc85f7f60}, "cas": {0xc8a17f60}, "ldadd": {0xf8210360}, "ldar": {0xc8dfff60}, "index is memory": {0xf8774ae3}, "index is target": {0xf8714ae3},

	// Jumps, and the way to them.
	"behind the end": {0x14001000}, "before the start": {0x17ffff00}, "branch behind the end": {0x54100000}, "to itself": {0x14000000}, "back without budget": {move, 0x17ffffff},
	"branch back without budget": {move, 0x54ffffe0}, "entry of any index": {move, entryAt, readEntry, jump}, "index not cleared": {entryAt, readEntry, jump},
	"another index": {0x927c4442, entryAt, readEntry, jump}, "larger index": {0x927c4821, entryAt, readEntry, jump}, "index between entries": {0x927d4421, entryAt, readEntry, jump},
	"32 bits of index": {0x121c4421, entryAt, readEntry, jump}, "keeps an entry's address": {mask, entryAt, move, jump}, "reads without an entry": {readEntry},
	"reads another part": {mask, entryAt, 0xa9408631, jump}, "reads twice": {mask, entryAt, readEntry, readEntry}, "reads into a kept register": {mask, entryAt, 0xa9406e31},
	"jumps over the mask": {0x54000040, mask, entryAt, readEntry, jump}, "jumps over the entry": {0x54000060, mask, entryAt, readEntry, jump},
	"a word between": {mask, move, entryAt, readEntry, jump}, "subtracts": {mask, 0xcb010311, readEntry}, "adds to memory for target": {mask, 0x8b0102f1, readEntry},
}

// TestRefusesEscapes: nothing of the list is accepted, and each is refused for itself, not for the code around it.
func TestRefusesEscapes(t *testing.T) {
	for name, body := range escapes {
		if err := verify.Code(frame(body...), []int{0}); err == nil {
			t.Errorf("%s is accepted: %08x", name, body)
		}
	}
	t.Logf("%d escapes", len(escapes))
	good := frame(move)
	for name, c := range map[string]struct {
		code    []byte
		entries []int
	}{
		"the end is missing":              {good[:len(good)-4], []int{0}},
		"an instruction is cut":           {append(good[:len(good):len(good)], 0xc0, 0x03), []int{0}},
		"an entry within an instruction":  {good, []int{2}},
		"an entry behind the end":         {good, []int{len(good)}},
		"an entry before the start":       {good, []int{-4}},
		"an entry without budget":         {good, []int{0, 8}},
		"leaves for where it goes no end": {append(good[:len(good)-8:len(good)-8], frame(move)[8:12]...), []int{0}},
	} {
		if err := verify.Code(c.code, c.entries); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// layout is about that of the machine.
var layout = blocks.Layout{
	X: 0x10000, F: 0x10100, PC: 0x10200, MStatus: 0x10248, Reservation: 0x10300, Reserved: 0x10308,
	Write: 0x10000, Code: 0x20000, Entries: 4096, Other: 2048, EntrySize: 16, Addend: 8,
}

// randomTranslation translates some random instructions, which jump among themselves.
func randomTranslation(t testing.TB, random *rand.Rand) (code []byte, places []int) {
	t.Helper()
	page := make([]byte, blocks.PageSize)
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
		floats := slices.Contains([]riscv.Format{riscv.FormatFL, riscv.FormatFS, riscv.FormatFX, riscv.FormatXF}, row.Format) || strings.HasPrefix(row.Name, "fsgnj")
		if err != nil || row.Length != 4 || row.Extension != "I" && row.Extension != "M" && row.Extension != "A" && row.Extension != "Zba" && row.Extension != "Zbb" && !floats {
			continue
		}
		binary.LittleEndian.PutUint32(page[at:], word)
		at += 4
	}
	return translate(t, blocks.Page{Code: page, Entries: []uint16{0, 20, 80}})
}

// translate gives a page's translation, which must be accepted.
func translate(t testing.TB, p blocks.Page) (code []byte, places []int) {
	t.Helper()
	made, ok := arm64.Translate(&layout, p)
	if !ok {
		return nil, nil
	}
	for _, e := range made.Entries {
		places = append(places, e.At)
	}
	if err := verify.Code(made.Code, places); err != nil {
		t.Fatalf("a translation is refused: %v\n% x", err, p.Code[:120])
	}
	return made.Code, places
}

// harmless decides by golang.org/x/arch, which knows nothing of the verifier, whether an instruction may stand alone in code.
func harmless(w uint32) error {
	if w == entryAt&^(31<<16)|w&(31<<16) || w == readEntry&^(31<<10)|w&(31<<10) {
		return nil // TestRefusesEscapes has what must stand around them
	}
	inst, err := arm64asm.Decode(binary.LittleEndian.AppendUint32(nil, w))
	if err != nil {
		return err
	}
	text := strings.ToLower(arm64asm.GNUSyntax(inst))
	name, operands, _ := strings.Cut(text, " ")
	if text == "ret" || text == "br x17" || name == "b" || strings.HasPrefix(name, "b.") {
		return nil
	}
	listed := strings.Fields("add sub adds subs cmp cmn neg negs and orr eor mov movz movn movk sbfm ubfm sbfx ubfx sbfiz ubfiz lsl lsr asr sxtb sxth sxtw uxtb uxth uxtw " +
		"mul mneg madd msub smulh umulh udiv sdiv csel csinc csinv cset csetm cinc cinv bic orn mvn eon ror extr clz rbit rev ldr ldrb ldrh ldrsb ldrsh ldrsw str strb strh")
	if !slices.Contains(listed, name) {
		return fmt.Errorf("%s is not on the list", name)
	}
	if first, within, found := strings.Cut(operands, "["); found {
		within = strings.TrimSuffix(within, "]")
		base, index, _ := strings.Cut(within, ",")
		switch {
		case base == "x27" && (index == "" || strings.HasPrefix(index, "#") && !strings.Contains(index, "-")):
			operands = first
		case base == "x23" && strings.HasPrefix(index, "w") && strings.HasSuffix(index, ",uxtw"):
			operands = first + index
		default:
			return fmt.Errorf("the operand [%s]", within)
		}
	} else if strings.HasPrefix(name, "ld") || strings.HasPrefix(name, "st") {
		return fmt.Errorf("no operand in memory")
	}
	if strings.HasPrefix(operands, "x26, x26, #") && (name == "subs" || name == "add") && !strings.Contains(operands, "lsl") {
		return nil // where is for the verifier
	}
	for _, r := range strings.FieldsFunc(operands, func(r rune) bool { return strings.ContainsRune(" ,#", r) }) {
		if number, err := strconv.Atoi(strings.TrimLeft(r, "xw")); err == nil && (r[0] == 'x' || r[0] == 'w') && number > 16 && (number < 19 || number > 22) && number != 25 {
			return fmt.Errorf("the register %s", r)
		}
		if strings.HasSuffix(r, "sp") {
			return fmt.Errorf("the stack pointer")
		}
	}
	return nil
}

// TestRefusesMutations changes one or two bytes of translations, or a word, at random. What is accepted nevertheless is harmless by the judgement of
// another decoder, leads nowhere else, and looks at the budget on ways back. AGENTVM_FUZZ_MUTATIONS says how many.
func TestRefusesMutations(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv("AGENTVM_FUZZ_MUTATIONS"))
	if err != nil {
		count = 20_000
	}
	seed, _ := strconv.ParseUint(os.Getenv("AGENTVM_FUZZ_SEED"), 10, 64)
	random := rand.New(rand.NewPCG(seed, 7))
	accepted, judged := 0, map[uint32]error{}
	for done := 0; done < count; {
		code, places := randomTranslation(t, random)
		if code == nil {
			continue
		}
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
			case 2:
				binary.LittleEndian.PutUint32(mutant[at&^3:], random.Uint32())
			}
			if verify.Code(mutant, places) != nil {
				continue
			}
			accepted++
			for at := 0; at < len(mutant); at += 4 {
				w := binary.LittleEndian.Uint32(mutant[at:])
				err, known := judged[w]
				if !known {
					err = harmless(w)
					judged[w] = err
				}
				if err != nil {
					t.Fatalf("seed %d: at %#x %08x is accepted: %v", seed, at, w, err)
				}
				checkJump(t, mutant, at, w)
			}
		}
	}
	t.Logf("%d mutations, %d of them accepted", count, accepted)
	if accepted == 0 || accepted > count/2 {
		t.Errorf("of %d mutations %d are accepted: the test does not try what it should", count, accepted)
	}
}

// checkJump checks where an instruction leads, by the operand that golang.org/x/arch decodes.
func checkJump(t *testing.T, code []byte, at int, w uint32) {
	t.Helper()
	inst, err := arm64asm.Decode(binary.LittleEndian.AppendUint32(nil, w))
	if err != nil {
		return
	}
	for _, a := range inst.Args {
		distance, ok := a.(arm64asm.PCRel)
		if !ok {
			continue
		}
		to := at + int(distance)
		if to < 0 || to >= len(code) || to%4 != 0 {
			t.Fatalf("at %#x %08x leads to %#x of %#x", at, w, to, len(code))
		}
		if first := binary.LittleEndian.Uint32(code[to:]); to <= at && first&0xffc003ff != spend&0xffc003ff {
			t.Fatalf("at %#x %08x leads back to %08x", at, w, first)
		}
	}
}

// FuzzPages: whatever is in a page, and wherever it is entered, its translation is accepted.
func FuzzPages(f *testing.F) {
	f.Add([]byte{0x13, 0x05, 0x15, 0x00, 0x01, 0x00, 0x6f, 0x00, 0x00, 0x00}, uint16(0), uint16(4))
	f.Add([]byte{0x63, 0x05, 0x00, 0x00, 0x37, 0x05, 0x01, 0x00, 0x37, 0x05, 0x01, 0x00}, uint16(4092), uint16(2))
	f.Fuzz(func(t *testing.T, code []byte, a, b uint16) {
		page := make([]byte, blocks.PageSize)
		for n := 0; n < len(page) && len(code) > 0; {
			n += copy(page[n:], code)
		}
		translate(t, blocks.Page{Code: page, Entries: []uint16{a % blocks.PageSize &^ 1, b % blocks.PageSize &^ 1}})
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
