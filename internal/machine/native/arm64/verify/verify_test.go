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

	"agentvm/internal/machine/a64"
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
	keep      = 0xaa1e03f1 // mov x17, x30
	restore   = 0xaa1103fe // mov x30, x17
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
		"place": {0x8b2142e6, 0x8b3f42e8}, "load at a place": {0xf94004c3}, "store at a place": {0x39003d03}, "add of a shifted register": {0x8b020421}, "compare": {0xf100041f}, "entry": {mask, entryAt, readEntry, 0xeb00003f, jump}, "jump to target": {jump}, "branch over": {0x54000040, move}, "patterns": {0x9200f021, 0x12000021, 0x7200003f, 0xf240003f, 0xb201f021}, "vectors": {0x1e602820, 0x4e208400, 0x9e670020, 0x4e083c01, 0x1e602028}, "structures": {0x4c4070c0, 0x0c000900, 0x4d40c0c0, 0x0d6084c0}, "loads of vectors": {0x3dc00360, 0xfc614ae3, 0x3ce14ae3, 0x3dc000c0, 0xfd4000c0, 0x3d9ffd1f}, "moves": {0x72800021, 0xf2e00021, 0x12800021}, "fields": {0x13007c21, 0xb3403c21, 0x33000021},
		"shifted": {0x8b420421, 0x0b020421, 0xcb020421, 0x8a220421, 0xea220021, 0xea02003f, 0xcae20421}, "extended": {0x8b224021, 0xeb2253ff &^ (31 << 5), 0x0b22d021}, "selects": {0x9a820421, 0xda820421}, "carry": {0x9a020021, 0x5a020021}, "long products": {0x9b220421, 0x9ba28421},
		"reversed": {0xdac00400, 0x5ac00800, 0xdac00800, 0xdac01400}, "loads with their sign": {0xf8a14ae3 &^ (1 << 30), 0x38e14ae3, 0x79c00361}, "bits": {0x8a220021, 0xaa220021, 0xca220021, 0x9ac22c21, 0x93c10421, 0x13810421, 0xdac01021, 0x5ac01021, 0xdac00021, 0xdac00c21},
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
	"ic ivau": {0xd50b7520}, "dc zva": {0xd50b7420}, "isb": {0xd5033fdf}, "pacia": {0xdac10020},
	"adr": {0x10000000}, "adrp": {0x90000000}, "ldr literal": {0x58000040},
	"bl": {0x94000001}, "blr": {0xd63f0000}, "br x0": {0xd61f0000}, "br x30": {0xd61f03c0}, "ret x0": {0xd65f0000}, "braa": {0xd71f0a20}, "cbz": {0xb4000040}, "cbnz": {0xb5000040},
	"tbz": {0x36000040}, "b.al": {0x5400004e}, "b.nv": {0x5400004f}, "bc.eq": {0x54000050}, "ccmp": {0xfa400800}, "extr of 64 bits by 32": {0x13c00000}, "extr of 32 bits by 64": {0x13808000}, "ctz": {0xdac01800}, "cnt": {0xdac01c00},
	"abs": {0xdac02000}, "smax": {0x9ac26020},
	"and with no ones":  {0x927ffc21},
	"and with all ones": {0x9200fc21}, "and with all ones of 32 bits": {0x12007c21}, "and of 32 bits with 64": {0x12400021}, "orr with no pattern": {0xb200f821}, "movn of another kind": {0xb2800021},
	"movk of 32 bits, behind them": {0x72c00021}, "sbfm of 64 bits in fields of 32": {0x93007c21}, "sbfm of 32 bits in fields of 64": {0x13407c21}, "sbfm of 32 bits from bit 32": {0x13207c21}, "bfm of another kind": {0xf3400021},
	"add rotated": {0x8bc20021}, "sub of 32 bits by 32": {0x4b028021}, "eor of 32 bits by 32": {0x4a028021}, "add extended and shifted by 5": {0x8b225421}, "add extended of another kind": {0x8b624021}, "csel with flags": {0xba820021}, "csel of another kind": {0x9a820821},
	"adcs": {0xba020021}, "sbcs": {0xfa020021}, "rev of 64 bits in 32": {0x5ac00c20}, "smaddl of 32 bits": {0x1b220421}, "multiplication of another kind": {0x9b627c21}, "umulh of 32 bits": {0x1bc27c21}, "setf8": {0x3a00080d}, "rmif": {0xba000400},

	// Vector registers: what not all processors have, what has no meaning, and general registers.
	"fadd of half precision": {0x1ee02820}, "fadd of vectors in half precision": {0x4e421420}, "fcvtzs of half precision": {0x9ef80001}, "bfcvt": {0x1e634000}, "fjcvtzs": {0x1e7e0001}, "fcmla": {0x6e02c420}, "usdot": {0x4e829c20}, "smmla": {0x4e82a420}, "eor3": {0xce020420}, "rax1": {0xce628c20}, "sha512h": {0xce628020}, "sm4e": {0xcec08420}, "frint32z": {0x1e684020}, "fmlal": {0x4e22ec20},
	"add of a scalable vector": {0x04220420}, "fmopa": {0x80800000}, "mul of doublewords": {0x4ee29c20}, "fadd of one double": {0x0e62d420}, "sqdmulh of bytes": {0x4e22b420}, "zip of one doubleword": {0x0ec23820}, "ext beyond the end": {0x2e024020}, "dup of nothing": {0x4e000420}, "smov of words to words": {0x0e042c20}, "umov of doublewords to words": {0x0e083c20}, "fmov of one double to all": {0x2f00f400}, "shrn of doublewords": {0x0f408420}, "fccmp": {0x1e610400},
	"fmov from memory": {0x9e6702e0}, "fmov to memory": {0x9e660017}, "scvtf from hart": {0x9e620360}, "fcvtzs to the link": {0x9e78001e}, "fcvtzu with a fixed point to g": {0x9e59fc1c}, "ucvtf with a fixed point from entries": {0x9e43ff00}, "dup from entries": {0x4e080f00}, "ins from g": {0x4e081f80}, "smov to target": {0x4e042c11}, "umov to a place": {0x4e083c06},
	"ldr q, too far": {0x3de00360}, "ldr q of any address": {0x3dc00000}, "ldr d of the stack": {0xfd4003e0}, "str q, memory and 64 bits": {0x3ca16ae3}, "str q, index times 16": {0x3ca15ae3}, "ldr q of 8 bytes": {0x7dc00360}, "str q, index is memory": {0x3cb74ae3}, "ldp of vectors": {0xad400760}, "ld1 of the stack": {0x4c4073e0}, "st4 of any address": {0x4c000020}, "ld1 of the hart": {0x4c407360}, "ld1 at memory": {0x4c4072e0}, "ld1r of target": {0x4d40c220}, "ld1 of a place, post-index": {0x4cdf70c0}, "st2 of a place, by a register": {0x0c8180c0}, "ld4 of doublewords, one each": {0x0c400cc0}, "ld1 of another kind": {0x4c4010c0}, "st1r": {0x4d00c0c0}, "ld1 of half a halfword": {0x0d4044c0}, "ld1 with another bit": {0x4c6070c0},
	"ldr q literal": {0x9c000040}, "post-index q": {0x3cc10760}, "ldur q": {0x3cdf0360},
	"msr fpcr": {0xd51b4400}, "msr fpsr": {0xd51b4420}, "mrs fpcr": {0xd53b4400}, "mrs nzcv": {0xd53b4200},

	// Registers that are kept.
	"writes memory": {0xaa0103f7}, "writes entries": {0xaa0103f8}, "writes hart": {0xaa0103fb}, "writes g": {0xaa0103fc}, "writes the frame": {0xaa0103fd},
	"writes the link": {0xaa0103fe}, "writes x18": {0xaa0103f2}, "writes target": {0xaa0103f1}, "writes tlb": {0xaa0103f9}, "writes budget": {0xaa0103fa},
	"writes sp": {0x9100003f}, "moves sp": {0x910043ff}, "and to sp": {0x927c443f}, "sub from sp": {0xd10043ff}, "loads memory": {0xf8614af7}, "loads target": {0xf8614af1},
	"loads the link": {0xf940437e}, "loads g": {0xf940437c}, "movz to memory": {0xd2800017}, "movk to target": {0xf2800011}, "csel to hart": {0x9a82003b}, "sdiv to g": {0x9ac20c3c},
	"madd to the link": {0x9b02003e}, "bic to memory": {0x8a220037}, "extr to entries": {0x93c10438}, "clz to g": {0xdac0103c}, "rev to hart": {0xdac00c3b}, "rorv to the link": {0x9ac22c3e}, "rbit to target": {0xdac00031}, "orn to x18": {0xaa220032}, "umulh to memory": {0x9bc27c37}, "sxtw to entries": {0x93407c38}, "adds to target": {0xb1000431},
	"orr of a pattern to sp": {0xb240003f}, "eor of a pattern of sp to memory": {0xd24003f7}, "bfm to memory": {0xb3400437}, "extended to sp": {0x8b22403f}, "extended from sp": {0x8b2243e1}, "extended to target": {0xeb224031}, "csneg to g": {0xda82043c}, "adc to hart": {0x9a02003b}, "smaddl to x18": {0x9b220432}, "ands to entries": {0xea020038}, "ands of a pattern to budget": {0xf240003a}, "rev16 to the link": {0xdac0043e},
	"gives budget": {give, 0x54000040, move}, "adds nothing to budget": {0x9100035a}, "takes nothing": {0xf100035a}, "takes without flags": {0xd100075a},
	"takes 32 bits": {0x7100075a}, "spends without looking": {spend, move}, "spends, looks for another condition": {spend, 0x5400004a}, "adds to budget shifted": {0x9140075a},

	// Places.
	"place of 64 bits": {0x8b2162e6}, "place of 32 bits with their sign": {0x8b21c2e6}, "place of 16 bits": {0x8b2122e6}, "place of a shifted index": {0x8b2146e6}, "place without extension": {0x8b0102e6},
	"place from the hart": {0x8b214366}, "place from entries": {0x8b214306}, "place from a register": {0x8b214026}, "place from a place": {0x8b214106}, "place from zero": {0x8b2143e6}, "place in 32 bits": {0x0b2142e6},
	"subtracts for a place": {0xcb2142e6}, "place with flags": {0xab2142e6}, "place of a place": {0x8b2842e6}, "place of memory": {0x8b3742e6}, "place of g": {0x8b3c42e6}, "place in another register": {0x8b2142e3},
	"place in target": {0x8b2142f1}, "place in the hart": {0x8b2142fb}, "place in sp": {0x8b2142ff}, "place in memory": {0x8b2142f7}, "place shifted": {0x8b0112e6},
	"moves to a place": {0xaa0103e6}, "moves to the other place": {0xaa0103e8}, "loads a place": {0xf8614ae6}, "loads the other from the hart": {0xf9400368}, "loads a place by a place": {0xf94000c6}, "reads a place": {0xaa0603e1}, "reads the other place": {0xaa0803e1},
	"stores a place": {0xf8214ae6}, "stores the other to the hart": {0xf9000368}, "stores a place at itself": {0xf90000c6}, "adds to a place": {0x910020c6}, "adds from a place": {0x910020c1}, "movz to a place": {0xd2800006}, "csel of places": {0x9a8800c1}, "compares places": {0xeb0800df},
	"reads an entry into a place": {mask, entryAt, 0xa9401a31, jump}, "entry of a place": {0x927c44c6, 0x8b060311, readEntry, jump},
	"before a place": {0xf85f80c3}, "place and a register": {0xf86148c3}, "post-index of a place": {0xf84084c3}, "pre-index of a place": {0xf8408cc3}, "ldp of a place": {0xa94004c3}, "stp to a place": {0xa90004c3}, "index is a place": {0xf8664ae3},
	"prefetch of a place": {0xf98000c0}, "exclusive of a place": {0xc85f7cc0}, "ldrsw to 32 bits from a place": {0xb9c000c0},

	// Addresses of the process that the guest could see.
	"reads memory": {0xaa1703e1}, "reads entries": {0xaa1803e1}, "reads hart": {0xaa1b03e1}, "reads g": {0xaa1c03e1}, "reads the link": {0xaa1e03e1}, "reads target": {0xaa1103e1},
	"reads sp": {0x910003e1}, "rev of memory": {0xdac00ee1}, "extr of entries": {0x93d80421}, "eon of g": {0xca3c0021}, "clz of the link": {0xdac013c1}, "rorv by memory": {0x9ad72c21}, "reads x18": {0xaa1203e1}, "adds to memory": {0x910006e1}, "compares sp": {0xf10003ff}, "compares hart": {0xeb01037f}, "stores memory": {0xf8214af7},
	"pattern of memory": {0x924002e1}, "extends hart": {0xeb3b4021}, "shifts entries": {0xcb180421}, "bfm of g": {0xb3400781}, "adc of the link": {0x9a1e0021}, "smaddl of memory": {0x9b375421}, "csinc of target": {0x9a910421}, "inserts in a place": {0xb3400426},
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

// assemble makes code of words: hexadecimal digits, LABEL: and jumps, as b>LABEL.
func assemble(t *testing.T, text string) (code []byte, labels map[string]int) {
	t.Helper()
	jumps := map[string]uint32{"b": 0x14000000, "bl": 0x94000000, "eq": 0x54000000, "ne": 0x54000001, "lt": 0x5400000b}
	labels = map[string]int{}
	for range 2 { // labels ahead are known the second time
		code = code[:0]
		for word := range strings.FieldsSeq(text) {
			if name, ok := strings.CutSuffix(word, ":"); ok {
				labels[name] = len(code)
				continue
			}
			w, err := strconv.ParseUint(word, 16, 32)
			if jump, name, ok := strings.Cut(word, ">"); ok {
				distance := uint32(labels[name]-len(code)) / 4
				if w, err = uint64(jumps[jump]|distance&(1<<26-1)), nil; w>>30&1 != 0 {
					w = uint64(jumps[jump] | distance&(1<<19-1)<<5)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			code = binary.LittleEndian.AppendUint32(code, uint32(w))
		}
	}
	return code, labels
}

// withRoutine looks something up, and calls a routine on a detour where it is not found.
const withRoutine = "entry: f100075a lt>out f8614ae3 ne>detour resume: f8614ae3 d65f03c0 " +
	"detour: aa1e03f1 bl>routine aa1103fe ne>out b>resume " +
	"out: 9100075a d65f03c0 " +
	"routine: eb02003f eq>routineEnd aa0203e1 routineEnd: d65f03c0"

// TestRoutines: calls and detours are accepted as translations have them, and not with a flaw.
func TestRoutines(t *testing.T) {
	good, labels := assemble(t, withRoutine)
	if err := verify.Code(good, []int{0}); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{ // what is replaced, and by what
		"call in a routine":                 {"routine: ", "routine: aa1e03f1 bl>second aa1103fe d65f03c0 second: "},
		"call of itself":                    {"routine: ", "routine: aa1e03f1 bl>routine aa1103fe "},
		"call back":                         {"out: ", "out: 9100075a d65f03c0 other: f100075a lt>out aa1e03f1 bl>detour aa1103fe d65f03c0 last: "},
		"call of where a call is":           {"bl>routine", "call: bl>call"},
		"call without the way back":         {"aa1e03f1 bl>", "bl>"},
		"call with another way back":        {"aa1e03f1", "aa0203f1"},
		"call that keeps elsewhere":         {"aa1e03f1", "aa1e03e1"},
		"call that does not restore":        {"aa1103fe", ""},
		"call that restores something else": {"aa1103fe", "aa0103fe"},
		"call that restores later":          {"aa1103fe", "aa0203e1 aa1103fe"},
		"two calls for one way back":        {"bl>routine aa1103fe", "bl>routine bl>routine aa1103fe"},
		"restores without a call":           {"detour: ", "detour: aa1103fe "},
		"keeps without a call":              {"detour: ", "detour: aa1e03f1 "},
		"restores in a routine":             {"routineEnd: ", "routineEnd: aa1103fe "},
		"keeps in a routine":                {"routineEnd: ", "routineEnd: aa1e03f1 "},
		"jump to the call":                  {"aa1e03f1 bl>", "ne>call aa1e03f1 call: bl>"},
		"jump behind the call":              {"bl>routine aa1103fe", "bl>routine back: aa1103fe ne>back"},
		"jump over the call":                {"aa1e03f1 bl>routine aa1103fe", "ne>back aa1e03f1 bl>routine back: aa1103fe"},
		"routine that jumps back":           {"eq>routineEnd", "eq>routine"},
		"routine that jumps to the body":    {"routine: ", "routine: b>entry "},
		"routine that jumps to a leader":    {"eq>routineEnd", "eq>entry"},
		"routine that leaves for target":    {"routineEnd: ", "routineEnd: d61f0220 "},
		"routine that reads an entry":       {"routineEnd: ", "routineEnd: 927c4421 8b010311 a9400631 "},
		"routine that spends":               {"routine: ", "routine: f100075a lt>routineEnd "},
		"routine that gives":                {"routineEnd: ", "routineEnd: 9100075a "},
		"routine without an end":            {"routineEnd: d65f03c0", "routineEnd:"},
		"body that jumps into a routine":    {"ne>detour", "ne>routine"},
		"body that runs into a routine":     {"out: 9100075a d65f03c0", "out: 9100075a"},
		"budget that ends in a routine":     {"lt>out", "lt>routineEnd"},
		"call behind the end":               {"bl>routine", "94001000"},
		"call before the start":             {"bl>routine", "97ffff00"},
		"detour from behind":                {"b>resume ", "b>resume b>detour "},
		"detour from where it leads":        {"resume: ", "resume: ne>detour "},
		"detour with another way in":        {"f8614ae3 ne>detour resume: f8614ae3 d65f03c0 detour: aa1e03f1 bl>routine aa1103fe ", "ne>inside f8614ae3 ne>detour resume: f8614ae3 d65f03c0 detour: aa1e03f1 bl>routine aa1103fe inside: "},
		"detour that control runs into":     {"d65f03c0 detour:", "detour:"},
		"branch that ends a detour":         {"b>resume", "eq>resume d65f03c0"},
		"detours that lead to each other":   {"b>resume ", "b>resume second: b>detour "},
	} {
		text := strings.Replace(withRoutine, change[0], change[1], 1)
		if text == withRoutine {
			t.Errorf("%s: nothing is changed", name)
		}
		code, _ := assemble(t, text)
		if err := verify.Code(code, []int{0}); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
	for _, at := range []string{"routine", "detour", "resume"} {
		if err := verify.Code(good, []int{0, labels[at]}); err == nil {
			t.Errorf("an entry at %s: accepted", at)
		}
	}
}

// layout is about that of the machine.
var layout = blocks.Layout{
	X: 0x10000, F: 0x10100, PC: 0x10200, MStatus: 0x10248, Reservation: 0x10300, Reserved: 0x10308,
	Write: 0x10000, Code: 0x20000, Entries: 4096, Other: 2048, EntrySize: 16, Addend: 8,
	Supervisor: blocks.Supervisor{Privilege: 0x10220, STVec: 0x10310, SScratch: 0x10318, SEPC: 0x10320, SCause: 0x10328, STVal: 0x10330, MIP: 0x10338, MIE: 0x10340, UserEntries: 0x10348, UserEntry: 0x10350},
	Generation: 0x30410, Jumps: 0x30420,
	Walk: blocks.Walk{Scratch: 0x10500, RAMBytes: 0x10520, CodeIndex: 0x20000, Dirty: 0x30000, SATP: 0x10528, SlowLeft: 0x10530, LargestShift: 0x10538, EntryFrame: 12, Filled: 0x30000, Noted: 0x30004, MaxNoted: 512},
}

// a64Layout is about that of the other machine, on a host with everything.
var a64Layout = blocks.Layout{
	Guest: blocks.GuestARM64, X: 0x10000, F: 0x10100, PC: 0x10300, Reservation: 0x10400, Reserved: 0x10408,
	Write: 0x10000, Code: 0x20000, Entries: 4096, Other: 2048, EntrySize: 16, Addend: 8, Generation: 0x30410, Jumps: 0x30420,
	Walk:  blocks.Walk{Scratch: 0x10500, RAMBytes: 0x10520, CodeIndex: 0x20000, Dirty: 0x30000, SlowLeft: 0x10530, LargestShift: 0x10538, EntryFrame: 12, Filled: 0x30000, Noted: 0x30004, MaxNoted: 512},
	ARM64: blocks.ARM64{FlagA: 0x10318, FlagB: 0x10320, Flags: 0x10328, EL: 0x10330, IRQ: 0x10358, PState: 0x10360, SCTLR: 0x103a8, TPIDR: 0x103e0, CPACR: 0x103f8, UserTLB: 0x10800, TTBR0: 0x103b0, TTBR1: 0x103b8, TCR: 0x103c0},
	Host:  blocks.Host{CRC: true, RDM: true, DotProduct: true, AES: true, Carryless: true, SHA: true},
}

// everything is what a processor may have.
var everything = verify.Features{CRC: true, RDM: true, DotProduct: true, AES: true, Carryless: true, SHA: true}

// randomTranslation translates some random instructions of either guest, which jump among themselves.
func randomTranslation(t testing.TB, random *rand.Rand) (code []byte, places []int) {
	t.Helper()
	if random.IntN(2) == 0 {
		return randomA64(t, random)
	}
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
		case riscv.FormatCSR, riscv.FormatCSRI:
			o.CSR = []uint16{0x100, 0x105, 0x140, 0x141}[random.IntN(4)]
		}
		word, err := riscv.Encode(row.Name, o)
		floats := slices.Contains([]riscv.Format{riscv.FormatFL, riscv.FormatFS, riscv.FormatFX, riscv.FormatXF}, row.Format) || strings.HasPrefix(row.Name, "fsgnj")
		if err != nil || row.Length != 4 || !slices.Contains([]string{"I", "M", "A", "Zba", "Zbb", "Zicsr"}, row.Extension) && !floats {
			continue
		}
		binary.LittleEndian.PutUint32(page[at:], word)
		at += 4
	}
	return translate(t, &layout, blocks.Page{Code: page, Entries: []uint16{0, 20, 80}})
}

// randomA64 is randomTranslation of arm64 code.
func randomA64(t testing.TB, random *rand.Rand) (code []byte, places []int) {
	t.Helper()
	page := make([]byte, blocks.PageSize)
	count := uint32(4 + random.IntN(30))
	for at := uint32(0); at < count; at++ {
		row := &a64.Table[random.IntN(len(a64.Table))]
		if row.Group == "simd" || row.Group == "vfp" { // most of the table
			row = &a64.Table[random.IntN(len(a64.Table))]
		}
		word := random.Uint32()
		to := random.Uint32N(40) - at
		switch row.Format {
		case a64.FormatB26:
			word = to & (1<<26 - 1)
		case a64.FormatBC, a64.FormatCB:
			word = word&^(1<<24-1<<5) | to&(1<<19-1)<<5
		case a64.FormatTB:
			word = word&^(1<<19-1<<5) | to&(1<<14-1)<<5
		}
		binary.LittleEndian.PutUint32(page[4*at:], row.Bits.Match|word&^row.Bits.Mask)
	}
	return translate(t, &a64Layout, blocks.Page{Code: page, Entries: []uint16{0, 20, 80}})
}

// translate gives a page's translation, which must be accepted.
func translate(t testing.TB, l *blocks.Layout, p blocks.Page) (code []byte, places []int) {
	t.Helper()
	make := arm64.Translate
	if l.Guest == blocks.GuestARM64 {
		make = arm64.TranslateA64
	}
	made, ok := make(l, p)
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
	if w>>25&7 == 7 {
		return harmlessVector(w)
	}
	if row := a64.Lookup(w); row != nil && row.Group == "structure" {
		if base := w >> 5 & 31; strings.HasSuffix(row.Name, ".post") || base != 6 && base != 8 {
			return fmt.Errorf("%s by x%d", row.Name, base)
		}
		return nil
	}
	inst, err := arm64asm.Decode(binary.LittleEndian.AppendUint32(nil, w))
	if err != nil {
		return err
	}
	text := strings.ToLower(arm64asm.GNUSyntax(inst))
	name, operands, _ := strings.Cut(text, " ")
	if text == "ret" || text == "br x17" || text == "mov x17, x30" || text == "mov x30, x17" || name == "b" || name == "bl" || strings.HasPrefix(name, "b.") {
		return nil
	}
	listed := strings.Fields("add sub adds subs cmp cmn neg negs and orr eor mov movz movn movk sbfm ubfm sbfx ubfx sbfiz ubfiz lsl lsr asr sxtb sxth sxtw uxtb uxth uxtw " +
		"ands tst bics bfm bfi bfxil csneg cneg adc sbc ngc smaddl smsubl umaddl umsubl smull umull smnegl umnegl rev16 rev32 cls crc32b crc32h crc32w crc32x crc32cb crc32ch crc32cw crc32cx " +
		"mul mneg madd msub smulh umulh udiv sdiv csel csinc csinv cset csetm cinc cinv bic orn mvn eon ror extr clz rbit rev ldr ldrb ldrh ldrsb ldrsh ldrsw str strb strh")
	if !slices.Contains(listed, name) {
		return fmt.Errorf("%s is not on the list", name)
	}
	if first, within, found := strings.Cut(operands, "["); found {
		within = strings.TrimSuffix(within, "]")
		base, index, _ := strings.Cut(within, ",")
		switch {
		case (base == "x27" || base == "x6" || base == "x8") && (index == "" || strings.HasPrefix(index, "#") && !strings.Contains(index, "-")):
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
	if index, found := strings.CutSuffix(operands, ", uxtw"); found && name == "add" {
		place, index, isPlace := strings.Cut(index, ", x23, ")
		if isPlace && place != "x6" && place != "x8" || isPlace && !strings.HasPrefix(index, "w") {
			return fmt.Errorf("the place %s", operands)
		}
		if isPlace {
			operands = index
		}
	}
	for _, r := range strings.FieldsFunc(operands, func(r rune) bool { return strings.ContainsRune(" ,#", r) }) {
		if number, err := strconv.Atoi(strings.TrimLeft(r, "xw")); err == nil && (r[0] == 'x' || r[0] == 'w') && (number > 16 && (number < 19 || number > 22) && number != 25 || number == 6 || number == 8) {
			return fmt.Errorf("the register %s", r)
		}
		if strings.HasSuffix(r, "sp") {
			return fmt.Errorf("the stack pointer")
		}
	}
	return nil
}

// harmlessVector decides by the table of the guest's processor, which TestVectors compares the verifier with, for golang.org/x/arch does not know most.
func harmlessVector(w uint32) error {
	row := a64.Lookup(w)
	if row == nil {
		return fmt.Errorf("no instruction")
	}
	name, kind, _ := strings.Cut(row.Name, ".")
	general := uint32(0)
	switch {
	case name == "fmov" && kind[0] != 'i' && row.Format == a64.FormatFPINT:
		general = w & 31
		if w>>16&1 == 1 {
			general = w >> 5 & 31
		}
	case (row.Format == a64.FormatFPINT || row.Format == a64.FormatFPFIX) && strings.HasSuffix(name, "cvtf"), row.Name == "dup.r", row.Name == "ins.r":
		general = w >> 5 & 31
	case row.Format == a64.FormatFPINT, row.Format == a64.FormatFPFIX, name == "smov", name == "umov":
		general = w & 31
	}
	if general > 16 && (general < 19 || general > 22) && general != 25 && general != 31 || general == 6 || general == 8 {
		return fmt.Errorf("%s has x%d", row.Name, general)
	}
	return nil
}

// TestRefusesMutations changes one or two bytes of translations, or a word or a register, or exchanges, drops or repeats words, at random. What is accepted nevertheless is harmless by the judgement of
// another decoder, leads nowhere else, and looks at the budget on ways back. AGENTVM_FUZZ_MUTATIONS says how many.
func TestRefusesMutations(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv("AGENTVM_FUZZ_MUTATIONS"))
	if err != nil {
		count = 20_000
	}
	haveEverything(t)
	seed, _ := strconv.ParseUint(os.Getenv("AGENTVM_FUZZ_SEED"), 10, 64)
	random := rand.New(rand.NewPCG(seed, 7))
	accepted, judged, distances := 0, map[uint32]error{}, map[uint32]jumpDistance{}
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
			w := at &^ 3
			word, next := code[w:w+4], code[min(w+4, len(code)-4):][:4]
			switch random.IntN(12) {
			case 0:
				mutant[random.IntN(len(code))] = byte(random.Uint32())
			case 1:
				mutant[min(at+1, len(code)-1)] = byte(random.Uint32())
			case 2:
				binary.LittleEndian.PutUint32(mutant[w:], random.Uint32())
			case 3:
				field := []int{0, 5, 10, 16}[random.IntN(4)]
				binary.LittleEndian.PutUint32(mutant[w:], binary.LittleEndian.Uint32(word)&^(31<<field)|random.Uint32N(32)<<field)
			case 4:
				copy(mutant[w:], next)
				copy(mutant[min(w+4, len(code)-4):], word)
			case 5: // dropped, in one place
				copy(mutant[w:], next)
			case 6: // one from elsewhere
				copy(mutant[w:], code[random.IntN(len(code)/4)*4:][:4])
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
			}
			checkJumps(t, mutant, places, distances)
		}
	}
	t.Logf("%d mutations, %d of them accepted", count, accepted)
	if accepted == 0 || accepted > count*2/3 { // most words of vectors mean something
		t.Errorf("of %d mutations %d are accepted: the test does not try what it should", count, accepted)
	}
}

// haveEverything has the verifier believe that this processor has.
func haveEverything(t testing.TB) {
	old := verify.Host
	verify.Host = everything
	t.Cleanup(func() { verify.Host = old })
}

// jumpDistance is where an instruction leads, by the operand that golang.org/x/arch decodes.
type jumpDistance struct {
	bytes int
	leads bool
}

// checkJumps checks where the jumps of code lead: back, they look at the budget or end a detour, by the judgement of another decoder.
func checkJumps(t *testing.T, code []byte, places []int, decoded map[uint32]jumpDistance) {
	t.Helper()
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(code[at:]) }
	last := map[int]int{} // the last jump to a place
	for _, at := range places {
		last[at] = len(code)
	}
	var back [][2]int
	for at := 0; at < len(code); at += 4 {
		d, known := decoded[word(at)]
		if !known {
			if inst, err := arm64asm.Decode(code[at : at+4]); err == nil {
				for _, a := range inst.Args {
					if distance, ok := a.(arm64asm.PCRel); ok {
						d = jumpDistance{int(distance), true}
					}
				}
			}
			decoded[word(at)] = d
		}
		if !d.leads {
			continue
		}
		to := at + d.bytes
		if to < 0 || to >= len(code) || to%4 != 0 {
			t.Fatalf("at %#x %08x leads to %#x of %#x", at, word(at), to, len(code))
		}
		last[to] = max(last[to], at)
		if to <= at && word(to)&0xffc003ff != spend&0xffc003ff {
			back = append(back, [2]int{at, to})
		}
	}
	routines := len(code)
	for at := 0; at < len(code); at += 4 {
		if w := word(at); w>>26 == 0x25 {
			routines = min(routines, at+decoded[w].bytes)
		}
	}
	for at := 0; at < len(code); at += 4 {
		w, d := word(at), decoded[word(at)]
		isCall := w>>26 == 0x25
		if _, found := last[at]; (isCall || w == restore) && found || isCall && (word(at-4) != keep || word(at+4) != restore) ||
			w == keep && word(at+4)>>26 != 0x25 || w == restore && word(at-4)>>26 != 0x25 {
			t.Fatalf("at %#x %08x is not a part of a call", at, w)
		}
		inside, leadsInside := at >= routines, at+d.bytes >= routines
		if inside && (isCall || w == jump || w == keep || w>>25&7 != 7 && w&0x3ff == 26<<5|26 || d.leads && d.bytes <= 0) || d.leads && !isCall && inside != leadsInside {
			t.Fatalf("at %#x %08x may not stand in a routine, or lead to one", at, w)
		}
	}
	for _, b := range back {
		at, to := b[0], b[1]
		first := at
		for first > 0 && !endsThere(word(first-4)) {
			if _, found := last[first]; found {
				t.Fatalf("at %#x %08x leads back to %08x, and jumps lead to %#x", at, word(at), word(to), first)
			}
			first -= 4
		}
		if first == 0 || last[first] >= to || word(at)>>26 != 5 {
			t.Fatalf("at %#x %08x leads back to %08x from code that %#x leads to", at, word(at), word(to), last[first])
		}
	}
}

func endsThere(w uint32) bool { return w == ret || w == jump || w>>26 == 5 }

// FuzzPages: whatever is in a page, and wherever it is entered, its translation is accepted.
func FuzzPages(f *testing.F) {
	f.Add([]byte{0x13, 0x05, 0x15, 0x00, 0x01, 0x00, 0x6f, 0x00, 0x00, 0x00}, uint16(0), uint16(4))
	f.Add([]byte{0x63, 0x05, 0x00, 0x00, 0x37, 0x05, 0x01, 0x00, 0x37, 0x05, 0x01, 0x00}, uint16(4092), uint16(2))
	f.Add([]byte{0x00, 0x00, 0x01, 0xab, 0x40, 0x00, 0x00, 0x54, 0xe0, 0x07, 0xc1, 0xa8}, uint16(0), uint16(8))
	haveEverything(f)
	f.Fuzz(func(t *testing.T, code []byte, a, b uint16) {
		page := make([]byte, blocks.PageSize)
		for n := 0; n < len(page) && len(code) > 0; {
			n += copy(page[n:], code)
		}
		for _, l := range []*blocks.Layout{&layout, &a64Layout} {
			translate(t, l, blocks.Page{Code: page, Entries: []uint16{a % blocks.PageSize &^ 1, b % blocks.PageSize &^ 1}})
		}
	})
}

func BenchmarkCode(b *testing.B) {
	haveEverything(b)
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
