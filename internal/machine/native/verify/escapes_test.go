package verify_test

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"agentvm/internal/machine/native/verify"
)

// Parts of the cases below.
const (
	extendRAX = "4089c0 "         // mov eax, eax
	maskTLB   = "4081e1f0ff0000 " // and ecx, 0xfff0
	maskEntry = "4081e1ffff0300 " // and ecx, 1<<18 - 1
	by16      = "40c1e104 "       // shl ecx, 4
	testRCX   = "4885c9 0f8428000000 "
	notMinus1 = "4883f9ff 0f841f000000 "
)

// frame makes code of a body: what looks at the budget before it, and a way out behind it.
func frame(t *testing.T, body string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(body, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	head := []byte{0x49, 0x83, 0xed, 1, 0x0f, 0x8c, byte(len(b) + 1), 0, 0, 0} // sub r13, 1; jl behind the body and its ret
	return slices.Concat(head, b, []byte{0xc3}, []byte{0x49, 0x83, 0xc5, 1, 0xc3})
}

// TestAcceptsWhatIsHarmless: without the flaw that a case of TestRefusesEscapes has, its code is accepted.
func TestAcceptsWhatIsHarmless(t *testing.T) {
	for name, body := range map[string]string{
		"nothing":           "",
		"load":              extendRAX + "498b0407",
		"store":             extendRAX + "49890407",
		"store of 16 bits":  extendRAX + "66 41890407",
		"hart":              "498b8700000100 49898700000100",
		"TLB":               maskTLB + "493b940cf8ff0200",
		"TLB without index": "498b842400000300", "store to the TLB": maskTLB + "4989940c00000300",
		"entry by a mask": "4081e1f0ff3f00 41ff240e",
		"entry":           maskEntry + by16 + "493b840e08000000 41ff240e",
		"floating point":  "f2410f108700000100 f2410f588700000100 66410f2e8700000100 410f2e8700000100 66480f7ec0 f3480f2ac0 f2410f2c8700000100",
		"second register": "f2410f108f00000100 f3410f108f00000100",
		"divide":          "4885c9 0f8409000000 4831d2 48f7f1 4889c0",
		"divide signed":   "4885c9 0f840f000000 4883f9ff 0f8405000000 4899 48f7f9",
		"rotate and swap": "48c1c801 40c1c007 48d3c0 480fc8 480fbdc1 480fbcc8 480f44c1", "index rotated": extendRAX + "40c1c804 498b0407",
		"without a prefix": "89c0 81e1f0ff0000 c1e104 8d500f 31d2 01d0 0faff0 498b0407", "numbers": "b8ffffff7f 41b801000000 498b0407",
		"short distances":               extendRAX + "4989540778 498b440708 " + maskTLB + "493b540c08",
		"vectors":                       "66410f6f8700000100 66410ffc8f00000100 66400fefd3 66400f71d008 66400f70c0ee 66410f38009700000100 66410f3a0f870000010004 66410f7f9f00000100",
		"halves of vectors":             "f3410f7e8f08000100 66410f38308708000100 66410fd68708000100",
		"numbers of vectors":            "66400f58c2 400f59c1 66400f51da 400fc2c205 66400fd7c5 400f5ac1",
		"conditions":                    "400f95c0 400f99c0 480f43c1 480f4fc1",
		"branch over":                   "0f8403000000 4889c8",
		"jump to the end":               "e900000000",
		"loop that looks at the budget": "e9f1ffffff",
	} {
		if err := verify.Code(frame(t, body), []int{0}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, some := range []struct {
		body string
		has  bool
	}{
		{"c4c2f1998700000100 c4c2719b8700000100 c4c2f19d8700000100 c4c2719f8700000100", verify.Host.Fused},
		{"c4e27198c2 c4e2f19cc2", verify.Host.Fused},
		{"66410f38dc8700000100 66400f38dfc1 66410f38db8f00000100", verify.Host.AES},
		{"66410f3a44870000010011", verify.Host.Carryless},
		{"400f38cbd1 410f38cc8700000100 400f38cdc1", verify.Host.SHA},
	} {
		if err := verify.Code(frame(t, some.body), []int{0}); (err == nil) != some.has {
			t.Errorf("%s, on a processor with %+v: %v", some.body, verify.Host, err)
		}
	}
}

var escapes = map[string]string{
	// Instructions that are not on the list.
	"syscall": "0f05", "sysenter": "0f34", "int 0x80": "cd80", "int3": "cc", "hlt": "f4", "in": "ec", "out": "ee", "cli": "fa", "ud2": "0f0b",
	"rdmsr": "0f32", "wrmsr": "0f30", "rdtsc": "0f31", "cpuid": "0fa2", "lgdt": "410f0117", "wrfsbase": "f3480faed0", "wrpkru": "0f01ef", "xgetbv": "0f01d0",
	"push": "50", "pop": "58", "pushf": "9c", "popf": "9d", "std": "fd", "enter": "c8000000", "leave": "c9", "mov ds": "8ed8", "nop": "90",
	"call": "e800000000", "call register": "ffd0", "call memory": "41ff9700000100", "jmp register": "ffe0", "jmp register with prefix": "41ffe7",
	"jmp [rax]": "ff20", "jmp far": "ff28", "ret 8": "c20800", "retf": "cb", "iretq": "48cf", "short jump": "eb00",
	"rep movsq": "f348a5", "stosb": "aa", "xchg": "4c87f8", "cmpxchg": "f04c0fb18700000100", "movabs": "48b80000000000000000",
	"movaps": "0f28c1", "movaps from memory": "410f288700000100", "movapd": "66410f288700000100", "addpd": "66410f588700000100",
	"adds to xmm1": "f2410f588f00000100", "xmm2": "f2410f109700000100", "xmm9": "f2450f108f00000100", "xmm1 as 128 bits": "66410f108f00000100", "xmm8": "f2450f108700000100", "bits of xmm1": "66480f7ec8", "xmm1 as integer": "f2480f2cc1", "to xmm1": "f2480f2ac8", "of xmm1": "f2410f58c1",
	"ldmxcsr": "410fae9700000100", "stmxcsr": "410fae9f00000100", "fxrstor": "410fae8f00000100", "movsd to memory": "f2410f118700000100", "maskmovdqu": "66410ff7c1",
	"fused, to xmm1": "c4c2f1998f00000100", "fused, to xmm8": "c442f1998700000100", "fused with xmm2": "c4c2e9998700000100", "fused with xmm9": "c4c2b1998700000100", "fused, packed": "c4c2f1988700000100", "fused, of 256 bits": "c4c2f5998700000100",
	"numbers of vectors in memory": "410f588700000100", "of any address": "66400f5900", "numbers to xmm6": "66400f58f0", "numbers of xmm9": "66410f58c1", "compared in memory": "66410fc2870000010001", "logic of numbers": "66400f54c1",
	"signs to rsp": "66400fd7e0", "signs of xmm6": "66400fd7c6", "signs to memory": "66440fd7f8", "signs of mmx": "400fd7c0", "index of signs that grew": "66400fd7c0 4883c001 498b0407", "signs of a number": "400f50c0",
	"fused, packed, of xmm3": "c4e27198c3", "fused, packed, to xmm1": "c4e27198ca", "fused, packed, with xmm2": "c4e26998c2", "fused, packed, of xmm10": "c4c27198c2", "fused, packed, of 256 bits, registers": "c4e27598c2", "fused, packed, subtracted": "c4e2719ac2", "fused, packed, alternating": "c4e27196c2",
	"fused of two registers": "c4c2f199c7", "fused of [rdi]": "c4e2f1998700000100", "fused of the TLB": "c4c2f199842400000100", "fused of an index": "c4c2f199840700000100", "fused of [r14]": "c4c2f1998600000100", "fused before memory": "c4c2f19987f8ffffff",
	"gather": "c4c2f1928407000001", "another map": "c4c1f1998700000100", "without 66": "c4c2f0998700000100", "fused, another order": "c4c2f1a98700000100", "vmovsd from xmm1": "c4c17b118f00000100", "without REX": "f20f588700000100", "vaddsd": "c4c17b588700000100", "cvttpd2pi": "66410f2c8700000100", "movq to xmm0": "66490f6ec7", "pextrq": "664c0f3a16c700", "x87": "d9c0", "avx": "c5f877", "adc": "4883d001", "sbb": "4883d801", "rcl": "48c1d001", "rcr": "48d3d8", "sal": "48c1f001", "bsr of 32 bits": "400fbdc0", "bsf of 32 bits": "410fbcc8", "lzcnt": "f3480fbdc0", "popcnt": "f3480fb8c0", "bswap of rcx": "480fc9", "bswap of memory": "490fcf", "bswap of 32 bits": "400fc8", "bt": "480fa3c8", "setl of another register": "400f9cc4",
	"lock": "f0 49018700000100", "fs": "64 498b8700000100", "gs": "65 498b8700000100", "address size": "67 498b8700000100", "movsxd of 32 bits": "4063c0",

	// Registers that are kept.
	"number to rsp": "bc01000000", "number to memory": "41bf01000000", "number of 64 bits": "49b80000000000000000", "number below zero": "b8000000f0",
	"lea to rsp, without a prefix": "8d6008", "adds to rsp, without a prefix": "01c4", "shifts rsp, without a prefix": "c1e401",
	"short distance before memory": extendRAX + "498b4407f8", "short distance from any register": "488b440108", "short distance of any index": "498b440708", "short and scaled": extendRAX + "498b444708",
	"short distance from memory": "498b4708", "short distance of a store to the stack": "4889442408", "short distance, any index of the TLB": "498b440c08", "byte of ah": "8824070000",
	"writes rsp": "4889c4", "writes memory": "4989c7", "writes entries": "4989c6", "writes tlb": "4989c4", "loads memory": "4d8bbf00000100",
	"adds to rsp": "4883c408", "adds to memory": "4983c701", "lea to memory": "4c8d7800", "clears memory": "4d31ff", "shifts memory": "49c1e701",
	"sets memory": "49c7c700000000", "negates rsp": "48f7dc", "32 bits of rsp": "4089c4", "cmov to memory": "4c0f4cf8", "imul to entries": "4c0faff0", "rotates memory": "49c1c701", "bsr to rsp": "480fbde0", "bsf to entries": "4c0fbcf0", "cmove to memory": "4c0f44f8",
	"writes budget": "4989c5", "gives budget": "4983c501 4889c8", "takes less than nothing": "4983edff", "xor of budget": "4983f501", "32 bits of budget": "4183ed01",
	"spends without looking": "4983ed01",

	// Addresses of the process that the guest could see.
	"reads memory": "4c89f8", "reads rsp": "4889e0", "lea of memory": "498d4708", "lea of rsp": "488d442408", "stores memory": "4d89bf00000100",
	"stores rsp": "4989a700000100", "stores a byte of rsp": "4188a700000100", "compares entries": "4c39f0", "adds tlb": "4c01e0", "multiplies by memory": "49f7e7",
	"reads an entry": maskEntry + by16 + "498b040e", "adds an entry": maskEntry + by16 + "4903040e",

	// The floating-point unit.
	"xmm0 to memory": "66490f7ec7", "xmm0 to rsp": "66480f7ec4", "number to entries": "f24d0f2cb700000100", "half to budget": "66410f7ec5", "converts memory": "f2490f2ac7",
	"converts rsp": "f2480f2ac4", "floating-point load of any address": "f2480f1000", "of two registers": "f2480f580408", "of the stack, compared": "66480f2e0424",
	"of memory before": "f2410f1087f8ffffff", "of any index": "f2410f100407", "of the TLB": maskTLB + "f2410f10840c00400000", "of the table": maskEntry + by16 + "f2410f10040e",
	"relative to pc, divided": "f2480f5e0500000000",

	// Vectors.
	"vector that is not aligned": "66410f6f8708000100", "store of one that is not aligned": "66410f7f8701000100", "shuffle of one that is not aligned": "66410f38008704000100",
	"vector by an index": extendRAX + "66410f6f0407", "vector of the TLB": maskTLB + "66410f6f840c00000000", "vector of the table": "66410f6f8600000100", "vector of any address": "66400f6f00",
	"vector of the stack": "66400f6f0424", "vector before memory": "66410f6f87f0ffffff", "vector relative to pc": "66400f6f0510000000", "store of a vector to any address": "66400f7f00",
	"half of any address": "f3400f7e00", "half before memory": "f3410f7e87f8ffffff", "half by any index": "f3410f7e0407", "store of half to the stack": "66400fd60424", "widened from any address": "66400f383000",
	"xmm6 as a vector": "66410f6fb700000100", "xmm8 as a vector": "66450f6f8700000100", "of xmm6": "66400fefc6", "of xmm9": "66410fefc1", "shifts xmm6": "66400f71d608", "shifts xmm8": "66410f71d008", "shifts 64 bits with a sign": "66400f73e008",
	"shift by a register": "66410fd18700000100", "shift of memory": "66410f7117", "movntdq": "66410fe78700000100", "movdqu": "f3410f6f8700000100", "mmx": "410ffc8700000100", "pblendvb": "66410f38108700000100", "pextrb to memory": "66410f3a14870000010000",
	"ptest": "66410f38178700000100", "sha1rnds4": "410f3acc870000010000", "sha1nexte": "410f38c88700000100", "rounds of what is not aligned": "410f38cb8708000100", "rounds of xmm6": "400f38cbc6", "rounds of 64 bits": "480f38cbd1", "aeskeygen": "66410f3adf870000010000",
	"cmov of 32 bits": "400f43c1", "set of cl": "400f95c1", "set of memory": "410f958700000100", "cmov to rsp": "480f43e1",

	// Operands in memory.
	"any address": "488b00", "any two registers": "488b0408", "absolute": "488b042500000000", "relative to pc": "488b0500000000", "of the stack": "488b0424",
	"index of 64 bits": "498b0407", "store by an index of 64 bits": "49890407", "index that grew": extendRAX + "4883c001 498b0407",
	"index that was replaced": extendRAX + "4889c8 498b0407", "index from memory": extendRAX + "498b0407 49890407",
	"index behind a join": "0f8403000000 " + extendRAX + "498b0407", "index times 2": extendRAX + "498b0447", "index with its sign": "4863c0 498b0407",
	"index shifted in 64 bits": extendRAX + "48c1e004 498b0407", "index rotated in 64 bits": extendRAX + "48c1c804 498b0407", "index rotated by nothing": "40c1c800 498b0407",
	"index of 32 bits rotated by rcx": "40d3c8 498b0407", "index with swapped bytes": extendRAX + "480fc8 498b0407", "index that bsr left": extendRAX + "480fbdc1 498b0407", "index that set changed": extendRAX + "400f9cc0 498b0407",
	"index of and with a negative number": "4883e0f0 498b0407", "negative constant": "48c7c0ffffffff 498b0407", "base as index": "4b8b043f",
	"before memory": "498b87f8ffffff", "before memory, indexed": extendRAX + "498b8407f8ffffff", "far behind memory": extendRAX + "498b840700000100",
	"immediate before memory": "498187f8ffffff01000000", "TLB as large as memory": extendRAX + "498b0404", "TLB without index, behind it": "498b842400000400", "before the TLB, without index": "498b8424f8ffffff",
	"far behind the TLB": maskTLB + "498b940c00000400", "before the TLB": maskTLB + "498b940c00ffffff", "store far behind the TLB": maskTLB + "4989940c00000400", "store before the TLB": maskTLB + "4989940c00ffffff", "store to the TLB at any index": extendRAX + "49891404", "store to the table without index": "49891e", "store to the stack without index": "48890424",
	"immediate to the TLB": maskTLB + "4981840c0000000001000000", "store to the table": maskEntry + by16 + "4989040e",

	// Jumps.
	"into an instruction": "e9f2ffffff", "into an instruction ahead": "e901000000 4889c8", "behind the end": "e900100000", "before the start": "e900f0ffff", "branch behind the end": "0f8400100000",
	"to itself": "e9fbffffff", "back without budget": "4889c8 e9f8ffffff", "branch back without budget": "4889c8 0f84f7ffffff",
	"leaves for a loop": "4983ed01 0f8cecffffff", "entry of any index": "41ff2406", "entry of 32 bits": "4089c9 41ff240e",
	"between entries": "4081e1ffff3f00 41ff240e", "behind the table": "4081e1ffff0f00 40c1e104 41ff240e", "second half of an entry": maskEntry + by16 + "41ffa40e08000000",
	"from linear memory": "41ffa700000100", "from linear memory, indexed": extendRAX + "41ff2407", "from the TLB": maskTLB + "41ff240c",
	"compares the first half": maskEntry + by16 + "493b040e", "half of a comparison": maskEntry + by16 + "413b840e08000000",
	"mask rotated": maskEntry + by16 + "40c1c91c 41ff240e", "mask undone": maskEntry + "40c1e11d 40c1e104 4883c901 41ff240e", "shift by rcx": maskEntry + "40d3e1 41ff240e",

	// Exceptions of the processor.
	"divide by anything": "4831d2 48f7f1", "divide by what another width says": "4085c9 0f8406000000 4831d2 48f7f1", "divide by another register": "4885c9 0f8406000000 4831d2 48f7f3",
	"quotient too large": "4885c9 0f8403000000 48f7f1", "rdx changed": "4885c9 0f8409000000 4831d2 4889c2 48f7f1", "rcx changed": "4885c9 0f8409000000 4831d2 4889c1 48f7f1",
	"signed without sign": "4885c9 0f840d000000 4883f9ff 0f8403000000 48f7f9", "sign of another width": "4885c9 0f840f000000 4883f9ff 0f8405000000 4099 48f7f9",
	"signed by -1": "4885c9 0f8405000000 4899 48f7f9", "branch when not zero": "4885c9 0f8506000000 4831d2 48f7f1", "compared before": "4885c9 4883c101 0f8406000000 4831d2 48f7f1",
	"rax changed": "4885c9 0f8412000000 4883f9ff 0f8408000000 4899 4889c8 48f7f9",
}

// TestRefusesEscapes: nothing of the list is accepted, and each is refused for itself, not for the code around it.
func TestRefusesEscapes(t *testing.T) {
	for name, body := range escapes {
		if err := verify.Code(frame(t, body), []int{0}); err == nil {
			t.Errorf("%s is accepted: %s", name, body)
		}
	}
	t.Logf("%d escapes", len(escapes))
	good := frame(t, "4889c8")
	for name, c := range map[string]struct {
		code    []byte
		entries []int
	}{
		"the end is missing":              {good[:len(good)-1], []int{0}},
		"an instruction is cut":           {append(good[:len(good):len(good)], 0x49, 0x8b), []int{0}},
		"an immediate is cut":             {append(good[:len(good):len(good)], 0xe9, 0, 0), []int{0}},
		"an entry within an instruction":  {good, []int{1}},
		"an entry behind the end":         {good, []int{len(good)}},
		"an entry before the start":       {good, []int{-1}},
		"an entry without budget":         {good, []int{0, 10}},
		"leaves for where it goes no end": {append(good[:len(good)-5:len(good)-5], 0x48, 0x89, 0xc8, 0xc3), []int{0}},
	} {
		if err := verify.Code(c.code, c.entries); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// assemble makes code of words: hexadecimal digits, LABEL: and >LABEL, which is the distance to it.
func assemble(t *testing.T, text string) (code []byte, labels map[string]int) {
	t.Helper()
	labels = map[string]int{}
	for range 2 { // labels ahead are known the second time
		code = code[:0]
		for word := range strings.FieldsSeq(text) {
			if name, ok := strings.CutSuffix(word, ":"); ok {
				labels[name] = len(code)
			} else if name, ok := strings.CutPrefix(word, ">"); ok {
				code = binary.LittleEndian.AppendUint32(code, uint32(int32(labels[name]-len(code)-4)))
			} else if b, err := hex.DecodeString(word); err != nil {
				t.Fatal(err)
			} else {
				code = append(code, b...)
			}
		}
	}
	return code, labels
}

// withRoutine looks something up, calls a routine on a detour where it is not found, and returns to where what is known of rcx is used.
const withRoutine = "entry: 4983ed01 0f8c >out " + maskTLB + "493b940c00000000 0f85 >detour " +
	"resume: 4103840c00010000 c3 out: 4983c501 c3 " +
	"detour: e8 >routine " + maskTLB + "e9 >resume " +
	"routine: 4889c1 4839d1 0f84 >routineEnd 4889c8 routineEnd: c3"

// TestRoutines: calls and detours are accepted as translations have them, and not with a flaw.
func TestRoutines(t *testing.T) {
	good, _ := assemble(t, withRoutine)
	if err := verify.Code(good, []int{0}); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{ // what is replaced, and by what
		"call in a routine":               {"routine: ", "routine: e8 >second c3 second: "},
		"call of itself":                  {"routine: ", "routine: e8 >routine "},
		"call back":                       {"routine: ", "routine: c3 4983ed01 0f8c >out e8 >routine c3 other: "},
		"call into an instruction":        {"routine: 4889c1", "48 routine: 89c1"},
		"routine that jumps back":         {"0f84 >routineEnd", "0f84 >routine"},
		"routine that jumps to the body":  {"routine: ", "routine: e9 >entry "},
		"routine that jumps to a leader":  {"0f84 >routineEnd", "0f84 >entry"},
		"routine that leaves for entries": {"routine: ", "routine: " + maskEntry + by16 + "41ff240e "},
		"routine that spends":             {"routine: ", "routine: 4983ed01 0f8c >routineEnd "},
		"routine that gives":              {"routineEnd: ", "routineEnd: 4983c501 "},
		"routine without an end":          {"routineEnd: c3", "routineEnd:"},
		"body that jumps into a routine":  {"0f85 >detour", "0f85 >routine"},
		"body that runs into a routine":   {"e9 >resume ", ""},
		"budget that ends in a routine":   {"0f8c >out", "0f8c >routineEnd"},
		"detour that knows less of rcx":   {"detour: e8 >routine " + maskTLB, "detour: e8 >routine "},
		"detour that knows another mask":  {"detour: e8 >routine " + maskTLB, "detour: e8 >routine 4081e1f0ffff00 "},
		"detour with a mask of 64 bits":   {"detour: e8 >routine " + maskTLB, "detour: e8 >routine 4881e1f0ffffff "},
		"detour that masks, then calls":   {"detour: e8 >routine " + maskTLB, "detour: " + maskTLB + "e8 >routine "},
		"detour from behind":              {"e9 >resume ", "e9 >resume e9 >detour "},
		"detour from where it leads":      {"resume: ", "resume: 0f84 >detour "},
		"detour that is an end of others": {"detour: ", "detour: 0f84 >inside inside: "},
		"detour that control runs into":   {"c3 out: 4983c501 c3 ", "e9 >out out: 4983c501 0f84 >detour "},
		"branch that ends a detour":       {"e9 >resume", "0f84 >resume c3"},
		"resumed from elsewhere, too":     {"493b940c00000000 ", "493b940c00000000 0f84 >resume "},
		"resumed without what it needs":   {"493b940c00000000 0f85 >detour ", "0f85 >detour 4889c1 "},
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
	_, labels := assemble(t, withRoutine)
	for _, at := range []string{"routine", "detour", "resume"} {
		if err := verify.Code(good, []int{0, labels[at]}); err == nil {
			t.Errorf("an entry at %s: accepted", at)
		}
	}
	random := rand.New(rand.NewPCG(33, 5))
	execute(t, random, good, slices.Repeat([]int{0}, 100))
}
