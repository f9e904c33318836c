package machine

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// interruptTest is a case of testdata/arm64_interrupts.S: macros of it and instructions, one a line. Behind a line's "//" stands what of the value
// that it notes is compared, if not all: a mask, or `=` and the value itself, whatever QEMU has.
type interruptTest struct {
	name, code string
}

const interruptValues = 64

// Registers of the first 32 interrupts are in the redistributor's second frame, of the others in the distributor.
var interruptTests = []interruptTest{
	{"identity", `
		get GICD
		get GICD+4 // 0x3c00000
		get GICD+0xffe8 // 0xf0
		get GICR // 0xfffffffd
		get GICR+8 // 0xfe
		get GICR+0xc
		get GICR+8, x // 0xffffffff000000fe
		get GICR+0x14
		put GICR+0x14, 2
		get GICR+0x14
		get GICR+0xffe8 // 0xf0
		see icc_sre_el1
		see icc_ctlr_el1 // 0x703
		see mpidr_el1 // 0xff00ffffff
		see id_aa64pfr0_el1 // 0xf000000`},
	{"registers of both frames that are not there", `
		put GICD+0x100, 0xffffffff
		get GICD+0x100
		put GICD+0x80, 0
		get GICD+0x80
		put GICD+0x400, 0x10203040
		get GICD+0x400
		put GICD+0xc00, 0xffffffff
		get GICD+0xc00
		put GICD+0xc04, 0xffffffff
		get GICD+0xc04
		get SGI+0xc04
		put GICD+0x800, 0x01010101
		get GICD+0x800
		put SGI+0x104, 0xffffffff
		get GICD+0x104
		put SGI+0x428, 0x40404040
		get GICD+0x428
		bl dump`},
	{"control of the distributor", `
		put GICD, 0
		get GICD
		put GICD, 0xffffff2f
		get GICD // 0x7f
		put GICD, 2
		get GICD`},
	{"enabling", `
		put GICD+0x104, 0x80000001
		put GICD+0x104, 0x10
		get GICD+0x104
		get GICD+0x184
		put GICD+0x184, 1
		get GICD+0x104
		put SGI+0x100, 0x8000ffff
		put SGI+0x180, 0x1
		get SGI+0x100
		get SGI+0x180`},
	{"groups and configuration", `
		put GICD+0x84, 0x5555aaaa
		get GICD+0x84
		put SGI+0x80, 0x12345678
		get SGI+0x80
		put GICD+0xc08, 0xffffffff
		get GICD+0xc08
		put GICD+0xc0c, 0x55555555
		get GICD+0xc0c
		put SGI+0xc00, 0
		get SGI+0xc00
		put SGI+0xc00, 0xffffffff
		get SGI+0xc00
		put SGI+0xc04, 0xffffffff
		get SGI+0xc04`},
	{"priorities", `
		put GICD+0x420, 0xffffffff
		get GICD+0x420 // 0xf8f8f8f8
		put GICD+0x424, 0x12345678
		get GICD+0x424 // 0xf8f8f8f8
		put GICD+0x425, 0xab, b
		get GICD+0x424 // 0xf8f8f8f8
		get GICD+0x425, b // 0xf8
		put SGI+0x400, 0x04081020
		get SGI+0x400 // 0xf8f8f8f8
		get SGI+0x403, b // 0xf8
		put SGI+0x41f, 0xf7, b
		get SGI+0x41c // 0xf8f8f8f8`},
	{"priority mask", `
		set icc_pmr_el1, 0x12345
		see icc_pmr_el1 // 0xff
		set icc_pmr_el1, 0xff
		see icc_pmr_el1
		set icc_pmr_el1, 7
		see icc_pmr_el1`},
	{"binary point", `
		see icc_bpr1_el1
		set icc_bpr1_el1, 0
		see icc_bpr1_el1
		set icc_bpr1_el1, 2
		see icc_bpr1_el1
		set icc_bpr1_el1, 3
		see icc_bpr1_el1
		set icc_bpr1_el1, 6
		see icc_bpr1_el1
		set icc_bpr1_el1, 7
		see icc_bpr1_el1
		set icc_bpr1_el1, 15
		see icc_bpr1_el1`},
	{"other registers of the processor's interface", `
		see icc_rpr_el1
		set icc_igrpen1_el1, 0xfe
		see icc_igrpen1_el1
		set icc_igrpen1_el1, 0xff
		see icc_igrpen1_el1
		set icc_sre_el1, 0
		see icc_sre_el1
		set icc_ctlr_el1, 2
		see icc_ctlr_el1 // 0x703
		set icc_ctlr_el1, 0xffffff00
		see icc_ctlr_el1 // 0x703
		set icc_iar1_el1, 0
		note x9
		see icc_eoir1_el1
		see icc_dir_el1
		see icc_sgi1r_el1
		see icc_ap1r1_el1
		see icc_ap1r3_el1`},
	{"nothing is pending", `
		see icc_hppir1_el1
		see icc_iar1_el1
		see icc_rpr_el1
		see isr_el1
		set icc_eoir1_el1, 1023
		set icc_eoir1_el1, 40
		see icc_rpr_el1
		bl dump`},
	{"pending, and masked by each of what masks", `
		put GICD+0x204, 0x100
		see isr_el1
		see icc_hppir1_el1
		put GICD+0x104, 0x100
		see isr_el1
		see icc_hppir1_el1
		set icc_pmr_el1, 0xa0
		see isr_el1
		see icc_hppir1_el1
		see icc_iar1_el1
		set icc_pmr_el1, 0xa8
		see isr_el1
		set icc_igrpen1_el1, 0
		see isr_el1
		see icc_iar1_el1
		see icc_hppir1_el1
		set icc_igrpen1_el1, 1
		see isr_el1
		put GICD, 0
		see isr_el1
		see icc_iar1_el1
		see icc_hppir1_el1
		put GICD, 2
		see isr_el1
		put GICD+0x84, 0
		see isr_el1
		see icc_iar1_el1
		put GICD+0x84, 0xffffffff
		put GICD+0x304, 0x100
		see isr_el1
		see icc_hppir1_el1
		put GICD+0x384, 0x100
		see isr_el1
		put GICD+0x284, 0x100
		see isr_el1
		bl dump`},
	{"priority 0xff is never taken", `
		put GICD+0x428, 0xf8
		put GICD+0x204, 0x100
		put GICD+0x104, 0x100
		see isr_el1
		see icc_hppir1_el1
		set icc_pmr_el1, 0xf8
		see isr_el1`},
	{"one from its beginning to its end", `
		put GICD+0x104, 0x100
		put GICD+0x204, 0x100
		see icc_iar1_el1
		see icc_rpr_el1
		see icc_ap1r0_el1
		see isr_el1
		see icc_hppir1_el1
		get GICD+0x204
		get GICD+0x304
		put GICD+0x204, 0x100
		see isr_el1
		see icc_hppir1_el1
		see icc_iar1_el1
		set icc_eoir1_el1, 40
		see icc_rpr_el1
		see icc_ap1r0_el1
		see isr_el1
		get GICD+0x304
		see icc_iar1_el1
		set icc_eoir1_el1, 40
		bl dump`},
	{"ended in two steps", `
		set icc_ctlr_el1, 2
		put GICD+0x104, 0x300
		put GICD+0x204, 0x100
		see icc_iar1_el1
		put GICD+0x204, 0x300
		see isr_el1
		set icc_eoir1_el1, 40
		see icc_rpr_el1
		get GICD+0x304
		see isr_el1
		see icc_iar1_el1
		set icc_eoir1_el1, 41
		see icc_iar1_el1
		set icc_dir_el1, 40
		get GICD+0x304
		see icc_iar1_el1
		set icc_eoir1_el1, 40
		set icc_dir_el1, 41
		set icc_dir_el1, 40
		bl dump`},
	{"DIR without two steps", `
		put GICD+0x104, 0x100
		put GICD+0x204, 0x100
		see icc_iar1_el1
		set icc_eoir1_el1, 40
		put GICD+0x304, 0x200
		get GICD+0x304`},
	{"of equal priority the lowest number, then by priority", `
		put GICD+0x104, 0xff00
		put GICD+0x204, 0xff00
		see icc_hppir1_el1
		put GICD+0x42d, 0x50, b
		see icc_hppir1_el1
		put GICD+0x42f, 0x48, b
		see icc_iar1_el1
		see icc_hppir1_el1
		see isr_el1
		set icc_eoir1_el1, 47
		see icc_iar1_el1
		set icc_eoir1_el1, 45
		see icc_iar1_el1
		set icc_eoir1_el1, 40
		see icc_iar1_el1
		set icc_eoir1_el1, 41
		bl dump`},
	{"preemption", `
		put GICD+0x428, 0x406080a0
		put GICD+0x104, 0xf00
		put GICD+0x204, 0x100
		see icc_iar1_el1
		put GICD+0x204, 0x200
		see isr_el1
		see icc_iar1_el1
		see icc_rpr_el1
		put GICD+0x204, 0xc00
		see icc_iar1_el1
		see icc_rpr_el1
		see icc_ap1r0_el1
		see isr_el1
		see icc_iar1_el1
		see icc_hppir1_el1
		set icc_eoir1_el1, 43
		see icc_rpr_el1
		see isr_el1
		see icc_iar1_el1
		set icc_eoir1_el1, 42
		see icc_rpr_el1
		set icc_eoir1_el1, 41
		set icc_eoir1_el1, 40
		see icc_rpr_el1
		bl dump`},
	{"SGIs", `
		put SGI+0x100, 0xffff
		set icc_sgi1r_el1, 0x5000001
		get SGI+0x200
		see icc_hppir1_el1
		see icc_iar1_el1
		see icc_rpr_el1
		get SGI+0x200
		get SGI+0x300
		set icc_eoir1_el1, 5
		set icc_sgi1r_el1, 0x5000002
		get SGI+0x200
		set icc_sgi1r_el1, 0x10005000001
		get SGI+0x200
		set icc_sgi1r_el1, 0x5010001
		get SGI+0x200
		set icc_sgi1r_el1, 0x105000001
		get SGI+0x200
		set icc_sgi1r_el1, 0x1000005000001
		get SGI+0x200
		set icc_sgi1r_el1, 0x100005000001
		get SGI+0x200
		set icc_sgi1r_el1, 0xf00ffff
		get SGI+0x200
		put SGI+0x280, 0xffff
		get SGI+0x200
		put SGI+0x200, 0x8
		see icc_iar1_el1
		set icc_eoir1_el1, 3
		put SGI+0x80, 0xfffffffe
		set icc_sgi1r_el1, 1
		get SGI+0x200
		bl dump`},
	{"an SGI while it is active", `
		put SGI+0x100, 0xffff
		set icc_sgi1r_el1, 0x2000001
		see icc_iar1_el1
		set icc_sgi1r_el1, 0x2000001
		get SGI+0x200
		get SGI+0x300
		see isr_el1
		see icc_iar1_el1
		set icc_eoir1_el1, 2
		see icc_iar1_el1
		set icc_eoir1_el1, 2
		see icc_iar1_el1`},
	{"interrupts are taken when they may be", `
		put SGI+0x100, 0x7
		set icc_sgi1r_el1, 0x1000001
		note x9
		msr daifclr, 2
		note x9
		set icc_sgi1r_el1, 0x2000001
		note x9
		msr daifset, 2
		set icc_sgi1r_el1, 1
		see isr_el1
		mrs x9, daif
		note x9
		wfi
		msr daif, xzr
		nop
		msr daifset, 2
		see isr_el1`},
	{"a timer far away", `
		set cntv_cval_el0, 0x7fffffffffffffff
		set cntv_ctl_el0, 1
		see cntv_ctl_el0
		see cntv_cval_el0
		get SGI+0x200
		set cntv_cval_el0, 0xffffffffffffffff
		see cntv_ctl_el0
		set cntv_cval_el0, 0x8000000000000000
		see cntv_ctl_el0
		get SGI+0x200
		set cntp_cval_el0, 0xffffffffffffffff
		set cntp_ctl_el0, 1
		see cntp_ctl_el0
		get SGI+0x200
		set cntv_ctl_el0, 0xfffffffe
		see cntv_ctl_el0
		set cntv_ctl_el0, 3
		see cntv_ctl_el0`},
	{"a timer that is due", `
		put SGI+0x100, 0x48000000
		set cntv_cval_el0, 0
		set cntv_ctl_el0, 0
		see cntv_ctl_el0
		get SGI+0x200
		set cntv_ctl_el0, 1
		see cntv_ctl_el0
		get SGI+0x200
		see isr_el1
		see icc_hppir1_el1
		set cntv_ctl_el0, 3
		see cntv_ctl_el0
		get SGI+0x200
		see isr_el1
		set cntv_ctl_el0, 2
		see cntv_ctl_el0
		set cntv_ctl_el0, 1
		put SGI+0x280, 0x8000000
		get SGI+0x200
		see icc_iar1_el1
		get SGI+0x200
		see isr_el1
		set cntv_ctl_el0, 0
		get SGI+0x200
		set icc_eoir1_el1, 27
		see isr_el1
		set cntp_cval_el0, 0
		set cntp_ctl_el0, 1
		get SGI+0x200
		see icc_iar1_el1
		set icc_eoir1_el1, 30
		see icc_iar1_el1
		set cntp_ctl_el0, 0
		set icc_eoir1_el1, 30
		bl dump`},
	{"a timer by its value", `
		set cntv_tval_el0, 0
		set cntv_ctl_el0, 1
		see cntv_ctl_el0
		set cntv_tval_el0, 0x7fffffff
		see cntv_ctl_el0
		see cntv_tval_el0 // 0xffffffff80000000
		set cntv_tval_el0, 0xffffffff
		see cntv_ctl_el0
		see cntv_tval_el0 // 0xffffffff80000000
		see cntv_cval_el0 // 0xffff000000000000
		mrs x11, cntvct_el0
		set cntv_tval_el0, 0xffffffff00000010
		mrs x12, cntv_cval_el0
		mrs x10, cntvct_el0
		cmp x12, x11
		cset x9, hi
		note x9
		add x10, x10, 16
		cmp x12, x10
		cset x9, ls
		note x9
		set cntp_cval_el0, 0x123456789abcdef0
		see cntp_cval_el0
		set cntp_cval_el0, 0xffffffffffffffff
		mrs x11, cntpct_el0
		mrs x12, cntp_tval_el0
		add w9, w11, w12
		cmp w12, 0
		cset x9, le
		note x9
		set cntp_tval_el0, 0x80000000
		see cntp_tval_el0 // 0xffffffff80000000
		see cntp_cval_el0 // 0x8000000000000000`},
	{"a timer at its boundary", `
		mrs x11, cntvct_el0
		add x11, x11, 1000
		msr cntv_cval_el0, x11
		mov x9, 1
		msr cntv_ctl_el0, x9
		mov x9, 0
	1:	isb
		mrs x13, cntvct_el0
		isb
		mrs x14, cntv_ctl_el0
		isb
		mrs x15, cntvct_el0
		tbz x14, 2, 2f
		cmp x15, x11 // it was met too early
		cinc x9, x9, lo
		b 3f
	2:	cmp x13, x11 // or too late
		cinc x9, x9, hs
	3:	cmp x13, x11
		b.lo 1b
		note x9 // =0`},
	{"a timer ends a wait, taken or not", `
		put SGI+0x100, 0x48000000
		set cntv_tval_el0, 1000
		set cntv_ctl_el0, 1
		wfi
		see isr_el1
		see cntv_ctl_el0
		msr daifclr, 2
		nop
		see cntv_ctl_el0
		set cntp_tval_el0, 1000
		set cntp_ctl_el0, 1
	1:	mrs x9, cntp_ctl_el0
		tbnz x9, 0, 1b
		msr daifset, 2`},
	{"a timer by edge", `
		put SGI+0xc04, 0x800000
		get SGI+0xc04
		put SGI+0x100, 0x8000000
		set cntv_cval_el0, 0
		set cntv_ctl_el0, 1
		see icc_iar1_el1
		set cntv_ctl_el0, 3
		set icc_eoir1_el1, 27
		see isr_el1`},
	{"PSCI", `
		psci 0x84000000
		psci 0x84000006
		psci 0x84000004, 0
		psci 0x84000004, 1
		psci 0x84000004, 0x100
		psci 0xc4000004, 0
		psci 0xc4000004, 0x100000000
		psci 0x84000004, 0xffffffff00000000 // =0
		psci 0x84000003, 0, 0x80000000
		psci 0xc4000003, 0, 0x80000000
		psci 0xc4000003, 1, 0x80000000
		psci 0xc4000003, 0x100, 0x80000000
		psci 0x84000005
		psci 0x84000007
		psci 0xc4000007
		psci 0xffffffff84000000 // =0x10001
		psci 0xc4000000
		psci 0xc4000008
		psci 0x8400000c
		psci 0x84000000, by=smc
		psci 0x84000008, by=smc`},
	{"features of PSCI", `
		psci 0x8400000a, 0x84000000
		psci 0x8400000a, 0x84000001
		psci 0x8400000a, 0xc4000001
		psci 0x8400000a, 0x84000002
		psci 0x8400000a, 0x84000003
		psci 0x8400000a, 0xc4000003
		psci 0x8400000a, 0x84000004
		psci 0x8400000a, 0xc4000004
		psci 0x8400000a, 0x84000005
		psci 0x8400000a, 0x84000006
		psci 0x8400000a, 0x84000008
		psci 0x8400000a, 0x84000009
		psci 0x8400000a, 0x8400000a
		psci 0x8400000a, 0x84000012
		psci 0x8400000a, 0x80000000 // =0
		psci 0x80000000 // =0x10001
		psci 0x8400000a, 0xffffffff`},
	{"unknown functions", `
		psci 0
		psci 0x83000000
		psci 0x85000000
		psci 0xc6000000
		psci 0xffffffff
		psci 0x80008000
		psci 0x8400000f
		psci 0xdeadbeef00000000`},
	{"PSCI suspends, until an interrupt comes", `
		put SGI+0x100, 0x8000000
		set cntv_tval_el0, 1000
		set cntv_ctl_el0, 1
		psci 0x84000001
		see isr_el1
		psci 0xc4000001, 0xffffffff
		psci 0x84000001, 0x20000`},
}

// interruptRandomTests change and read registers as they come.
func interruptRandomTests(random *rand.Rand, count int) []interruptTest {
	any32 := func() uint64 { return uint64(random.Uint32()) }
	few := func() uint64 { return any32() & random.Uint64() & random.Uint64() }
	priorities := func() uint64 { return any32() & 0xf8f8f8f8 }
	number := func() uint64 { return []uint64{0, 3, 5, 16, 27, 30, 33, 40, 44, 50, 63, 1023}[random.IntN(12)] }
	changes := []func() string{
		func() string { return fmt.Sprintf("put GICD+0x104, %#x", any32()) },
		func() string { return fmt.Sprintf("put GICD+0x184, %#x", few()) },
		func() string { return fmt.Sprintf("put GICD+0x204, %#x", few()) },
		func() string { return fmt.Sprintf("put GICD+0x284, %#x", few()) },
		func() string { return fmt.Sprintf("put GICD+0x304, %#x", few()) },
		func() string { return fmt.Sprintf("put GICD+0x384, %#x", few()) },
		func() string { return fmt.Sprintf("put GICD+%#x, %#x", 0x420+4*random.IntN(8), priorities()) },
		func() string { return fmt.Sprintf("put GICD+0xc08, %#x", any32()) },
		func() string { return fmt.Sprintf("put SGI+0x100, %#x", any32()) },
		func() string { return fmt.Sprintf("put SGI+0x180, %#x", few()) },
		func() string { return fmt.Sprintf("put SGI+0x200, %#x", few()) },
		func() string { return fmt.Sprintf("put SGI+0x280, %#x", few()) },
		func() string { return fmt.Sprintf("put SGI+0x300, %#x", few()) },
		func() string { return fmt.Sprintf("put SGI+0x380, %#x", few()) },
		func() string { return fmt.Sprintf("put SGI+%#x, %#x", 0x400+4*random.IntN(8), priorities()) },
		func() string { return fmt.Sprintf("put SGI+0xc04, %#x", any32()) },
		func() string { return fmt.Sprintf("set icc_sgi1r_el1, %#x", any32()&0xf000003) },
		func() string { return fmt.Sprintf("set icc_pmr_el1, %#x", any32()&0xff|0x80) },
		func() string { return fmt.Sprintf("set icc_bpr1_el1, %#x", random.IntN(8)) },
		func() string { return fmt.Sprintf("set icc_eoir1_el1, %d", number()) },
		func() string { return fmt.Sprintf("set icc_ctlr_el1, %d", random.IntN(2)*2) },
		func() string { return fmt.Sprintf("set cntv_ctl_el0, %d", random.IntN(4)) },
		func() string { return fmt.Sprintf("set cntp_ctl_el0, %d", random.IntN(4)) },
		func() string { return fmt.Sprintf("set cntv_cval_el0, %#x", []uint64{0, 1 << 62}[random.IntN(2)]) },
		func() string { return "see icc_iar1_el1" },
		func() string { return "see icc_hppir1_el1" },
		func() string { return "see icc_rpr_el1" },
		func() string { return "see icc_ap1r0_el1" },
		func() string { return "see isr_el1" },
		func() string { return "see icc_iar1_el1" },
	}
	var tests []interruptTest
	for i := range count {
		lines := []string{fmt.Sprintf("put GICD+0x104, %#x", any32()), fmt.Sprintf("put SGI+0x100, %#x", any32())}
		for range 24 {
			lines = append(lines, changes[random.IntN(len(changes))]())
		}
		tests = append(tests, interruptTest{fmt.Sprint("random ", i), strings.Join(append(lines, "bl dump"), "\n")})
	}
	return tests
}

// TestArm64InterruptsLikeQEMU compares the interrupt controller, the timers and PSCI with QEMU's virt. What the machine does not have is in neither:
// group 0, and so FIQs.
func TestArm64InterruptsLikeQEMU(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a machine")
	}
	p := arm64TestProgram(t)
	t.Run("by hand", func(t *testing.T) { arm64CompareInterrupts(t, p, interruptTests) })
	t.Run("random", func(t *testing.T) {
		for round := range max(1, arm64Rounds(t)) {
			arm64CompareInterrupts(t, p, interruptRandomTests(rand.New(rand.NewPCG(11, uint64(round))), 200))
		}
	})
}

func arm64CompareInterrupts(t *testing.T, p *Program, tests []interruptTest) {
	t.Helper()
	program := arm64InterruptProgram(t, tests)
	size := len(tests) * interruptValues
	want := interruptNotes(t, arm64RunQEMU(t, program), size)
	var got []uint64
	arm64RunProgram(t, p, program, func(_ *elf.File, ram []byte) { got = interruptNotes(t, ram[systemResults-RAMBase:], size) })
	differences := 0
	for i, c := range tests {
		at := i * interruptValues
		if difference := interruptDifference(c.code, want[at:at+interruptValues], got[at:at+interruptValues]); difference != "" {
			t.Errorf("%s: %s", c.name, difference)
			if strings.HasPrefix(c.name, "random") {
				t.Log(c.code)
			}
			if differences++; differences > 40 {
				t.FailNow()
			}
		}
	}
	t.Logf("%d cases", len(tests))
}

func interruptNotes(t *testing.T, data []byte, count int) []uint64 {
	t.Helper()
	notes := make([]uint64, count)
	if err := binary.Read(bytes.NewReader(data), binary.LittleEndian, notes); err != nil {
		t.Fatal(err)
	}
	return notes
}

// interruptDifference names values by the line that notes them, which is another one behind an interrupt that is taken.
func interruptDifference(code string, want, got []uint64) string {
	var noted []string
	for line := range strings.Lines(code) {
		line = strings.TrimSpace(line)
		switch line[:min(4, len(line))] {
		case "see ", "get ", "note", "psci":
			noted = append(noted, line)
		}
	}
	var b strings.Builder
	for i := range want {
		line := fmt.Sprint("value ", i)
		w, mask := want[i], ^uint64(0)
		if i < len(noted) {
			line = noted[i]
		}
		if _, rest, ok := strings.Cut(line, "// ="); ok {
			_, _ = fmt.Sscan(rest, &w)
		} else if _, rest, ok := strings.Cut(line, "// "); ok {
			_, _ = fmt.Sscan(rest, &mask)
		}
		if (w^got[i])&mask != 0 {
			fmt.Fprintf(&b, "\n\t%s (value %d): %#x, want %#x", line, i, got[i]&mask, w&mask)
		}
	}
	return b.String()
}

func arm64InterruptProgram(t *testing.T, tests []interruptTest) string {
	t.Helper()
	gcc := arm64Tool(t, "aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
	dir := t.TempDir()
	var source strings.Builder
	for i, c := range tests {
		fmt.Fprintf(&source, "case %d\n%s\nend_case\n", i, c.code)
	}
	if err := os.WriteFile(filepath.Join(dir, "cases"), []byte(source.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "interrupts")
	out, err := exec.Command(gcc, "-nostdlib", "-static", "-Wa,--no-warn", "-Wl,-N", "-Wl,--build-id=none", fmt.Sprintf("-Wl,-Ttext=%#x", uint64(arm64Text)),
		fmt.Sprintf("-Wl,--section-start=.results=%#x", uint64(systemResults)), fmt.Sprintf("-DCOUNT=%d", len(tests)), fmt.Sprintf("-DVALUES=%d", interruptValues),
		fmt.Sprintf("-DCASES=%q", filepath.Join(dir, "cases")), "-o", program, "testdata/arm64_interrupts.S").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}
