package machine

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

func withSCTLR(set, clear uint64) func(*systemTest) {
	return func(c *systemTest) { c.SCTLR = c.SCTLR&^clear | set }
}

func withTCR(set uint64) func(*systemTest) { return func(c *systemTest) { c.TCR |= set } }

func withX(register int, value uint64) func(*systemTest) {
	return func(c *systemTest) { c.X[register] = value }
}

func withSPSR(bits uint64) func(*systemTest) { return func(c *systemTest) { c.SPSR = bits } }

func withEntry(entry int, descriptor uint64) func(*systemTest) {
	return func(c *systemTest) { c.Entries[entry] = descriptor }
}

// flat has no translation.
func flat(c *systemTest) {
	c.SCTLR &^= sctlrM
	c.at = codeFlat
}

// stops has the first instruction raise an exception, and change nothing.
func stops(syndrome uint64) func(*systemTest) {
	return func(c *systemTest) {
		c.check = func(c *systemTest, o *arm64Outcome) string {
			if o.ESR == syndrome && o.ELR == c.PC && o.X == c.X && o.SPEL0 == c.SPEL0 && o.Data == [8]uint64{fill, fill, fill, fill, fill, fill, fill, fill} {
				return ""
			}
			return fmt.Sprintf(" esr is %#x, elr %#x, want %#x at %#x; x %#x, sp_el0 %#x, data %#x", o.ESR, o.ELR, syndrome, c.PC, o.X, o.SPEL0, o.Data)
		}
	}
}

// stopsAt has it end at an address that cannot be accessed or executed.
func stopsAt(syndrome, address uint64) func(*systemTest) {
	return func(c *systemTest) {
		c.check = func(c *systemTest, o *arm64Outcome) string {
			elr := c.PC
			if syndrome>>26 == 0x22 {
				elr = address
			}
			if o.ESR == syndrome && o.FAR == address && o.ELR == elr {
				return ""
			}
			return fmt.Sprintf(" esr is %#x, far %#x, elr %#x, want %#x, %#x, %#x", o.ESR, o.FAR, o.ELR, syndrome, address, elr)
		}
	}
}

// arm64ExceptionTests are exceptions of instructions, and what the kernel lets EL0 do.
func arm64ExceptionTests() []systemTest {
	var tests []systemTest
	add := func(name, code string, el int, change ...func(*systemTest)) {
		tests = append(tests, newSystemTest(fmt.Sprintf("EL%d %s: %s", el, name, code), code, el, change...))
	}
	both := func(name, code string, change ...func(*systemTest)) {
		add(name, code, 0, change...)
		add(name, code, 1, change...)
	}
	for _, code := range []string{
		"svc 0xffff", "brk 0xf00d", "hlt 1", "smc 0", ".inst 0", ".inst 0xffffffff", "dcps1", "drps", "sysl x1, #0, c7, c1, #0", "msr spsel, #1", "msr S0_0_C4_C0_4, xzr",
		"mov x1, 1\nmov x2, 2\nsvc 3",
	} {
		both("instruction", code)
		both("instruction, all flags", code, func(c *systemTest) { c.SPSR |= 0xf0000000 | pstatePAN })
		both("instruction, no translation", code, flat)
		both("instruction, PAN by exceptions", code, withSCTLR(0, sctlrSPAN))
		add("instruction, SP_EL0", code, 1, withSPSR(pstateDAIF|modeEL1t))
	}
	add("psci", "mov x0, 0x84000000\nhvc 0", 1)
	add("psci", "hvc 0", 0)
	add("eret", "eret", 0)

	// System registers and instructions. What they read differs from QEMU's: that they may be read is compared.
	for _, register := range []string{
		"ctr_el0", "dczid_el0", "cntfrq_el0", "cntvct_el0", "cntpct_el0", "cntv_ctl_el0", "cntv_cval_el0", "cntv_tval_el0", "cntp_ctl_el0", "cntp_cval_el0", "cntp_tval_el0", "nzcv", "daif", "fpcr", "fpsr",
		"tpidr_el0", "tpidrro_el0", "currentel", "spsel", "sp_el0", "sctlr_el1", "ttbr0_el1", "esr_el1", "far_el1", "mair_el1", "cntkctl_el1", "vbar_el1", "S3_0_C4_C2_3", "S3_0_C12_C12_5",
	} {
		code := "mrs x1, " + register + "\nmov x1, 0"
		both("allowed", code, withSCTLR(sctlrUCT|sctlrUMA, 0), func(c *systemTest) { c.CNTKCTL, c.MDSCR = 0x303, 0 })
		both("forbidden", code)
		for bit := range 10 {
			if register[:3] == "cnt" {
				add(fmt.Sprint("cntkctl bit ", bit), code, 0, func(c *systemTest) { c.CNTKCTL = 1 << bit })
			}
		}
	}
	for _, code := range []string{
		"msr nzcv, x0", "msr daif, x0\nmrs x1, daif", "msr tpidr_el0, x0\nmrs x1, tpidr_el0", "msr cntv_ctl_el0, xzr", "msr cntp_cval_el0, x0",
		"dc zva, x0", "dc cvau, x0", "dc cvac, x0", "dc civac, x0", "ic ivau, x0", "prfm pldl1keep, [x0]",
	} {
		both("allowed", code, withSCTLR(sctlrUCT|sctlrUMA|sctlrUCI|sctlrDZE|sctlrNTWE|sctlrNTWI, 0), func(c *systemTest) { c.CNTKCTL, c.MDSCR = 0x303, 0 })
		both("forbidden", code, withSCTLR(0, sctlrNTWE|sctlrNTWI))
	}
	add("forbidden", "wfi", 0)
	for _, code := range []string{"wfe", "msr daifset, #15\nmrs x1, daif", "msr daifset, #5\nmrs x1, daif", "msr daifclr, #10\nmrs x1, daif"} {
		both("allowed", code, withSCTLR(sctlrUMA|sctlrNTWE, 0))
	}
	// What QEMU 7.2 does not trap, or tells another way: the syndromes are those of D24.2.40.
	for code, syndrome := range map[string]uint64{
		"wfe": 0x07e00001, "msr daifset, #15": 0x620cd3fe, "msr daifclr, #10": 0x620ed3f4, "mrs x1, S2_3_C0_C1_0": 0x6220c023, "msr S2_3_C0_C5_0, x1": 0x6220c02a, "mrs x1, midr_el1": 0x02000000,
	} {
		add("forbidden", code, 0, stops(syndrome))
	}
	for _, code := range []string{
		"dc ivac, x0", "dc isw, x0", "ic iallu", "ic ialluis", "tlbi vmalle1", "tlbi vmalle1is", "tlbi vae1, x0", "at s1e1r, x0", "at s1e0w, x0", "msr S0_0_C4_C1_4, xzr",
		"msr tpidrro_el0, x20", "msr ttbr0_el1, x20", "msr elr_el1, x0", "mrs x1, currentel", "mrs x1, spsel", "msr spsel, #0\nmrs x1, spsel", "msr sp_el0, x0",
		"msr spsel, #0\nmsr sp_el0, x0", "mov x1, sp\nmsr spsel, #0\nmov x2, sp\nmov sp, x0\nmsr spsel, #1\nmov x3, sp\nmrs x4, sp_el0",
	} {
		add("for the kernel", code, 0, withSCTLR(sctlrUCI, 0))
		if code != "msr tpidrro_el0, x20" && code != "msr ttbr0_el1, x20" { // which this program needs
			add("for the kernel", code, 1)
		}
	}

	// What the processor has, whatever QEMU's has.
	for _, known := range []struct {
		register string
		value    uint64
	}{
		{"ctr_el0", 0xb444c004}, {"dczid_el0", 4}, {"cntfrq_el0", 10000000},
	} {
		add("value", "mrs x1, "+known.register, 0, withSCTLR(sctlrUCT|sctlrDZE, 0), func(c *systemTest) {
			c.CNTKCTL = 3
			c.check = func(_ *systemTest, o *arm64Outcome) string {
				if o.X[1] == known.value && o.ESR == 0x56000077 {
					return ""
				}
				return fmt.Sprintf(" is %#x, esr %#x, want %#x", o.X[1], o.ESR, known.value)
			}
		})
	}

	for enabled := range uint64(4) {
		for _, code := range []string{"fmov d0, x1", "mrs x1, fpcr", "msr fpsr, xzr", "ldr q0, [x0]", "stp s0, s1, [x0, #8]!", "ld1 {v0.8b}, [x0], x1", "movi v0.16b, 0", "fadd s0, s0, s0", "aese v0.16b, v1.16b"} {
			both(fmt.Sprint("fpen ", enabled), code, func(c *systemTest) { c.CPACR = enabled << 20 })
		}
	}

	// Alignment of SP, of PC, of what is exclusive or in order.
	for _, code := range []string{"ldr x1, [sp]", "str x1, [sp], 8", "ldp x1, x2, [sp, -16]!", "stp x1, x2, [sp]", "ldr q0, [sp]", "st1 {v0.16b}, [sp]", "ldxr x1, [sp]", "ldar w1, [sp]", "swp x1, x2, [sp]", "prfm pldl1keep, [sp]", "ldtr x1, [sp]", "add sp, sp, 1"} {
		for _, offset := range []uint64{0, 4, 8} {
			for _, check := range []uint64{0, sctlrSA, sctlrSA0} {
				for el := range 2 {
					stop := func(*systemTest) {}
					if offset%16 != 0 && check == []uint64{sctlrSA0, sctlrSA}[el] && code[:3] != "prf" && code[:3] != "add" {
						stop = stops(0x9a000000) // QEMU does not check SP
					}
					add(fmt.Sprintf("SP + %d, checked %#x", offset, check), code, el, withSCTLR(check, 0), stop, func(c *systemTest) { c.SPEL0 += offset; c.SPEL1 += offset })
				}
			}
		}
	}
	for _, code := range []string{"br x0", "blr x0", "ret x0"} {
		for _, address := range []uint64{1, 2, 3, pageVA + window + 2, 0xffff000000000001} { // QEMU looks at the translation first
			both("PC", code, withX(0, address), stopsAt(0x8a000000, address))
			both("PC", code, withX(0, address^1<<60), withTCR(tcrTBI0|tcrTBI1), stopsAt(0x8a000000, address))
		}
	}
	// QEMU looks at the address of exclusive stores only after a load.
	stores := map[string]uint64{"stxrh w1, w2, [x0]": 2, "stlxr w1, w2, [x0]": 4, "stxr w1, x2, [x0]": 8, "stxp w1, w2, w3, [x0]": 8, "stxp w1, x2, x3, [x0]": 16}
	for _, code := range []string{
		"ldxrb w1, [x0]", "ldxrh w1, [x0]", "ldxr w1, [x0]", "ldaxr x1, [x0]", "ldxp w1, w2, [x0]", "ldaxp x1, x2, [x0]", "stxrh w1, w2, [x0]", "stlxr w1, w2, [x0]", "stxr w1, x2, [x0]", "stxp w1, w2, w3, [x0]", "stxp w1, x2, x3, [x0]",
		"cash w1, w2, [x0]", "cas x1, x2, [x0]", "casp w2, w3, w4, w5, [x0]", "casp x2, x3, x4, x5, [x0]", "swpb w1, w2, [x0]", "ldaddal x1, x2, [x0]", "ldumax w1, w2, [x0]",
		"ldr x1, [x0]", "stp x1, x2, [x0]", "ld1 {v0.2d, v1.2d}, [x0]", "str q0, [x0]",
	} {
		for _, offset := range []uint64{1, 2, 4, 8, 14} {
			for el := range 2 {
				address := pageVA + window + 16 + offset
				stop := func(*systemTest) {}
				if size := stores[code]; offset%max(size, 1) != 0 {
					stop = stopsAt([]uint64{0x92000061, 0x96000061}[el], address)
				}
				add(fmt.Sprint("data at ", offset), code, el, withX(0, address), stop)
			}
		}
	}

	// Returns, legal or not. The mode of AArch32 is legal on QEMU's processor only.
	for _, state := range []uint64{0, 4, 5, 1, 2, 3, 6, 7, 8, 9, 12, 13} {
		for _, bits := range []uint64{0, pstateIL, pstatePAN, 0xf0000000, 1 << 21} {
			isLegal := state == 0 || state == 4 || state == 5
			if !isLegal && bits == pstatePAN { // QEMU leaves PAN as it is
				continue
			}
			code := "msr spsr_el1, x0\nadr x1, 1f\nmsr elr_el1, x1\neret\n1: mrs x2, nzcv\nmrs x3, S3_0_C4_C2_3\nmrs x4, daif"
			add(fmt.Sprintf("to %#x", state|bits), code, 1, withX(0, state|bits|pstateDAIF))
			if !isLegal { // and keeps a tag of PC
				continue
			}
			add(fmt.Sprintf("to %#x, tagged", state|bits), "msr spsr_el1, x0\nadr x1, 1f\nbic x1, x1, x5\nmsr elr_el1, x1\neret\n1: adr x2, .", 1, withX(0, state|bits|pstateDAIF), withX(5, 1<<60), withTCR(tcrTBI1))
		}
	}
	add("illegal state", "mov x1, 1", 0, withSPSR(pstateDAIF|pstateIL))
	add("illegal state", "mov x1, 1", 1, withSPSR(pstateDAIF|pstateIL|modeEL1h))
	add("software step, which is off", "mov x1, 1", 0, withSPSR(pstateDAIF|1<<21))
	return tests
}

// arm64TranslationTests have tables that change, or that begin at other levels.
func arm64TranslationTests() []systemTest {
	var tests []systemTest
	add := func(name, code string, el int, change ...func(*systemTest)) {
		tests = append(tests, newSystemTest(fmt.Sprintf("EL%d %s: %s", el, name, code), code, el, change...))
	}
	const alias = 0xffffffff00000000
	// An access, another descriptor, and the access again.
	for _, level := range []struct {
		entry int
		va    uint64
		kind  uint64
		frame uint64
		named uint64 // another address of the page or the block, which is what is invalidated
	}{{entryPage, pageVA, descPage, systemPlay, pageVA}, {entryBlock2, block2VA, descBlock, systemPlay, block2VA + 0x123000}, {entryBlock1, block1VA, descBlock, RAMBase, block1VA + 0x3000}} {
		for _, access := range []string{"ldr", "ldtr", "str", "sttr"} {
			for _, invalidate := range []string{"vmalle1", "vae1, x12", "vaae1, x12", "vale1, x12", "vaale1, x12", "vmalle1is", "vae1is, x12", "aside1is, x13"} {
				for _, global := range []uint64{0, descNotGlobal} {
					code := access + " x1, [x0]\nmov x3, 1\nstr x11, [x10]\ndsb ish\ntlbi " + invalidate + "\ndsb ish\nisb\n" + access + " x2, [x0]"
					if invalidate[0] == 'a' && global == 0 {
						continue // which leaves global entries
					}
					user := uint64(0)
					if len(access) == 4 {
						user = descUser
					}
					old := level.frame | level.kind | descAF | descShared | user | global
					for _, descriptor := range []uint64{0, old | descReadOnly, old ^ descUser, old &^ descAF} {
						add("tlbi", code, 1, withEntry(level.entry, old), withX(0, level.va+window+16), withX(1, 77), withX(10, alias+arm64Entries[level.entry]), withX(11, descriptor),
							withX(12, 5<<48|level.named>>12), withX(13, 5<<48), func(c *systemTest) { c.TTBR0 |= 5 << 48 })
					}
				}
			}
		}
	}
	// Tagged addresses are the same entries.
	for _, access := range []string{"ldr", "ldtr"} {
		user := uint64(0)
		if len(access) == 4 {
			user = descUser
		}
		add("tlbi of a tagged address of a block", access+" x1, [x0]\nstr xzr, [x10]\ndsb ish\ntlbi vae1, x12\ndsb ish\nisb\n"+access+" x2, [x0]", 1, withTCR(tcrTBI0), withEntry(entryBlock2, systemPlay|descBlock|descAF|user),
			withX(0, 0xa5<<56|block2VA+window+16), withX(10, alias+arm64Entries[entryBlock2]), withX(12, (block2VA+0x123000)>>12), func(c *systemTest) {
				const fault, last = 0x96000006, 6 * 4 // of level 2, by the second load; QEMU 7.2 keeps the block when it was accessed by another tag and page
				c.check = func(c *systemTest, o *arm64Outcome) string {
					if o.ESR == fault && o.FAR == c.X[0] && o.ELR == c.PC+last {
						return ""
					}
					return fmt.Sprintf(" esr is %#x, far %#x, elr %#x, want %#x, %#x, %#x", o.ESR, o.FAR, o.ELR, fault, c.X[0], c.PC+last)
				}
			})
		add("tlbi of a tagged address", access+" x1, [x0]\nstr xzr, [x10]\ndsb ish\ntlbi vae1, x12\ndsb ish\nisb\n"+access+" x2, [x0]", 1, withTCR(tcrTBI0), withEntry(entryPage, systemPlay|descPage|descAF|user),
			withX(0, 0x5a<<56|pageVA+window+16), withX(10, alias+arm64Entries[entryPage]), withX(12, pageVA>>12))
	}
	// Address spaces, and a number that another one has again.
	for _, bits := range []uint64{0, descNotGlobal} {
		for _, asids := range [][2]uint64{{1, 2}, {1, 1}, {0x100, 0x200}} {
			for _, access := range []string{"ldr", "ldtr"} {
				code := access + " x1, [x0]\nmsr ttbr0_el1, x11\nisb\n" + access + " x2, [x0]\ntlbi aside1, x12\nmsr ttbr0_el1, x13\ntlbi vmalle1\nisb\n" + access + " x3, [x0]\nmsr ttbr0_el1, x14\nisb\n" + access + " x4, [x0]"
				if asids[0] == asids[1] || bits == 0 {
					code = "nop\n" + access + " x1, [x0]\nmsr ttbr0_el1, x11\ntlbi vmalle1\ndsb ish\nisb\n" + access + " x2, [x0]\ntlbi vmalle1\nmsr ttbr0_el1, x13\ntlbi vmalle1\nisb\n" + access + " x3, [x0]"
				}
				add(fmt.Sprint("address spaces ", asids), code, 1, func(c *systemTest) {
					c.TCR += 25 - 16
					c.TTBR0 = tableL1 | asids[0]<<48
					c.X[11], c.X[12], c.X[13], c.X[14] = tableL1Other|asids[1]<<48, asids[0]<<48, tableL1Other|asids[0]<<48, tableL1|asids[1]<<48
					for i := range c.Entries {
						c.Entries[i] |= bits
					}
				})
			}
		}
	}
	// Bounds of both halves.
	for _, half := range []struct {
		size  uint64
		table uint64
	}{{16, tableL0}, {20, tableL0}, {24, tableL0}, {25, tableL1}, {28, tableL1}, {33, tableL1}, {34, tableL2}, {39, tableL2}} {
		top := uint64(1) << (64 - half.size)
		for _, address := range []uint64{pageVA + window, block2VA + window, block1VA + window, level0VA + window, top - 8, top, top - 4, 1 << 55, 1 << 56, 1<<63 | pageVA + window, 0x7f<<56 | pageVA + window} {
			for _, tagged := range []uint64{0, tcrTBI0} {
				for el := range 2 {
					for _, code := range []string{"ldr x1, [x0]", "br x0"} {
						add(fmt.Sprint("T0SZ ", half.size), code, el, withX(0, address), func(c *systemTest) {
							c.TCR = c.TCR + half.size - 16 | tagged
							c.TTBR0 = half.table
						})
					}
				}
			}
		}
	}
	for _, half := range []struct{ size, table uint64 }{{16, tableL0}, {20, tableL0 + 480*8}, {25, tableL1}} {
		bottom := -(uint64(1) << (64 - half.size))
		for _, address := range []uint64{bottom + pageVA + window, bottom, bottom - 8, bottom - 4, 0xffffff8000000000 + pageVA + window, 0xff7fff8000000000 + pageVA + window, 0x0affff8000000000 + pageVA + window, 0x5affff8000000000 + pageVA + window} {
			for _, tagged := range []uint64{0, tcrTBI1} {
				for el := range 2 {
					for _, code := range []string{"ldr x1, [x0]", "blr x0"} {
						add(fmt.Sprint("T1SZ ", half.size), code, el, withX(0, address), func(c *systemTest) {
							c.TCR = c.TCR + (half.size-16)<<16 | tagged
							c.TTBR1 = half.table
						})
					}
				}
			}
		}
	}
	for el := range 2 {
		add("EPD0", "ldr x1, [x0]", el, withTCR(tcrEPD0))
		add("the table is nowhere", "ldr x1, [x0]", el, func(c *systemTest) { c.TTBR0 = systemHole })
		for _, code := range []string{"ldr x1, [x0]", "str x1, [x0]", "br x0", "swp x1, x2, [x0]", "dc zva, x0"} {
			for _, change := range []func(*systemTest){
				withEntry(entryPage, systemHole|descPage|descNormal), withEntry(entryPage, 1<<40|descPage|descNormal), withEntry(entryPage, 1<<47|descPage|descNormal),
				withEntry(entryL2Table, systemHole|3), withEntry(entryL1Table, systemHole|3), withEntry(entryL0Table, systemHole|3), withEntry(entryL1Table, 1<<44|3), withEntry(entryL2Table, 1<<41|3), withEntry(entryL0Table, 1<<40|3),
				func(c *systemTest) { flat(c); c.X[0] = systemHole }, func(c *systemTest) { flat(c); c.X[0] = 1 << 55 }, func(c *systemTest) { flat(c); c.X[0] = systemPlay + window },
				func(c *systemTest) { flat(c); c.X[0] = 1<<60 | systemPlay + window }, func(c *systemTest) { flat(c); c.X[0] = 1<<60 | systemPlay + window; c.TCR |= tcrTBI0 },
			} {
				add("outside", code, el, withSCTLR(sctlrDZE, 0), withX(0, pageVA+0xfc0), change)
			}
		}
	}
	// A device's page, and one that is code and data at a time.
	add("code that changes", "str w1, [x0]\nldr x2, [x0]\nblr x0", 1, withX(1, 0xd4000121), withEntry(entryPage, systemPlay|descPage|descAF), func(c *systemTest) { c.X[0] = pageVA + window })
	return tests
}

var arm64Accesses = []string{
	"ldr x1, [x0]", "ldrb w1, [x0]", "ldrsh x1, [x0]", "str x1, [x0]", "strb w1, [x0]", "ldp x1, x2, [x0], 16", "stp x1, x2, [x0, -16]!", "ldtr x1, [x0]", "ldtrsw x1, [x0]", "sttr x1, [x0]", "sttrb w1, [x0]",
	"ldr q0, [x0]\nmov x1, v0.d[0]", "str q0, [x0]", "stp q0, q1, [x0]", "ld1 {v0.16b, v1.16b}, [x0]", "st1 {v0.16b, v1.16b}, [x0], 32", "st4 {v0.s, v1.s, v2.s, v3.s}[1], [x0]",
	"ldr x1, [x0], 8\nldr x2, [x0], 8", "str w1, [x0, 12]!", "ldr x1, [x0, w3, uxtw]",
	"br x0", "blr x0", "ret x0", "prfm pldl1keep, [x0]\nmov x1, 5",
	"bic x0, x0, 15\nldxr x1, [x0]\nstxr w2, x3, [x0]", "bic x0, x0, 15\nldaxp x1, x2, [x0]\nstlxp w4, x3, x4, [x0]", "bic x0, x0, 15\nldar x1, [x0]", "bic x0, x0, 15\nstlr x1, [x0]", "bic x0, x0, 15\ncas x1, x2, [x0]", "bic x0, x0, 15\ncasp x2, x3, x4, x5, [x0]",
	"bic x0, x0, 15\nswpal x1, x2, [x0]", "bic x0, x0, 15\nldadd w1, w2, [x0]", "dc zva, x0", "dc cvac, x0",
	"at s1e1r, x0", "at s1e1w, x0", "at s1e0r, x0", "at s1e0w, x0", "mov x1, 1\nldr x1, [x0]\nstr x1, [x0, 8]\nldr x2, [x0, 8]",
}

// arm64RandomTests have descriptors, controls and accesses as they come.
func arm64RandomTests(random *rand.Rand, count int) []systemTest {
	var tests []systemTest
	chance := func(percent int) bool { return random.IntN(100) < percent }
	for range count {
		el := random.IntN(2)
		code := arm64Accesses[random.IntN(len(arm64Accesses))]
		c := newSystemTest("random: "+code, code, el)
		if chance(30) {
			c.SPSR |= pstatePAN
		}
		for _, bit := range []uint64{sctlrWXN, sctlrSPAN} {
			if chance(20) {
				c.SCTLR ^= bit
			}
		}
		c.SCTLR |= sctlrDZE | sctlrUCI
		for _, bit := range []uint64{tcrHA, tcrHD, tcrTBI0, tcrTBI1} {
			if chance(40) {
				c.TCR |= bit
			}
		}
		attributes := func() uint64 {
			a := uint64(random.IntN(4))<<6 | uint64(random.IntN(4))<<8 | uint64(random.IntN(4))<<2
			for _, bit := range []uint64{descPXN, descUXN, descDBM, descNotGlobal, descContiguous} {
				if chance(30) {
					a |= bit
				}
			}
			if chance(75) {
				a |= descAF
			}
			return a
		}
		kind := func(usual uint64) uint64 {
			if chance(6) {
				return uint64(random.IntN(4))
			}
			return usual
		}
		c.Entries[entryPage] = systemPlay | attributes() | kind(descPage)
		c.Entries[entryNext] = systemPlay + 0x1000 | attributes() | kind(descPage)
		c.Entries[entryBlock2] = systemPlay | attributes() | kind(descBlock)
		c.Entries[entryBlock1] = RAMBase | attributes() | kind(descBlock)
		for _, entry := range []int{entryL2Table, entryL1Table, entryL0Table} {
			if chance(15) {
				c.Entries[entry] |= 1 << (59 + random.IntN(4))
			}
			if chance(2) {
				c.Entries[entry] ^= 1
			}
		}
		base := []uint64{lowHalf, lowHalf, highHalf, 0xffffff8000000000}[random.IntN(4)]
		va := []uint64{pageVA, pageVA, pageVA, block2VA, block1VA, level0VA}[random.IntN(6)]
		c.X[0] = base + va + window + uint64([]int{0, 8, 16, 24, 28, 31, 32, 4, 20}[random.IntN(9)])
		if chance(15) {
			c.X[0] ^= uint64(random.IntN(256)) << 56
		}
		if strings.Contains(code, "r x0") || strings.Contains(code, "t x0") {
			c.X[0] &^= 3
		}
		c.X[3] = 0
		tests = append(tests, c)
	}
	return tests
}
