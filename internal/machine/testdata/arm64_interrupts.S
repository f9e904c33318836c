// Runs cases, one after another, each of which notes what it reads of the interrupt controller, the timers and PSCI. Interrupts are masked unless a
// case says otherwise. CASES is the file that has the code of all, VALUES how many values each may note. The same program runs on the machine and on
// QEMU's virt: see arm64_system.S for how it ends and arm64_interrupts_test.go for what the cases are made of.
//
// x20 is where the next value goes. Of an instruction that raises an exception x9 has the ESR, with bit 63. An interrupt is noted and ended.
        .set    GICD, 0x8000000
        .set    GICR, 0x80a0000
        .set    SGI, 0x80b0000          // the redistributor's second frame
        .set    VALUES_SIZE, VALUES * 8

        .macro  note register
        str     \register, [x20], 8
        .endm
        .macro  put at, value, size=w
        ldr     x10, =\at
        ldr     x9, =\value
        .ifc    \size, b
        strb    w9, [x10]
        .else
        str     \size\()9, [x10]
        .endif
        dsb     sy
        .endm
        .macro  get at, size=w
        mov     x9, 0
        ldr     x10, =\at
        .ifc    \size, b
        ldrb    w9, [x10]
        .else
        ldr     \size\()9, [x10]
        .endif
        note    x9
        .endm
        .macro  set register, value
        ldr     x9, =\value
        msr     \register, x9
        isb
        .endm
        .macro  see register
        isb
        mrs     x9, \register
        note    x9
        .endm
        .macro  case number
        msr     daifset, 15
        ldr     x20, =results + \number * VALUES_SIZE
        bl      reset
        .endm
        .macro  end_case
        b       1f
        .ltorg
1:
        .endm
        .macro  psci function, first=0, second=0, third=0, by=hvc
        ldr     x0, =\function
        ldr     x1, =\first
        ldr     x2, =\second
        ldr     x3, =\third
        mov     x9, 0
        \by     0
        orr     x9, x9, x0
        note    x9
        .endm

        .text
        .globl _start
_start: adr     x1, mode
        str     x0, [x1]
        adr     x0, vectors
        msr     vbar_el1, x0
        isb
        .include CASES
        msr     daifset, 15
        bl      reset

finish: adr     x1, mode
        ldr     x1, [x1]
        cbnz    x1, off
        adr     x1, open
        mov     w0, 1                   // SYS_OPEN
        hlt     0xf000
        adr     x1, write
        str     x0, [x1]
        mov     w0, 5                   // SYS_WRITE
        hlt     0xf000
        adr     x1, exit
        mov     w0, 0x18                // SYS_EXIT
        hlt     0xf000
off:    ldr     w0, =0x84000008         // PSCI SYSTEM_OFF
        hvc     0
        b       off
        .ltorg

// reset makes all that a case changes what every case begins with: interrupts of one priority, in group 1, disabled; nothing active.
reset:  mov     x21, 0
        msr     cntv_ctl_el0, x21
        msr     cntp_ctl_el0, x21
        msr     icc_igrpen1_el1, x21
        .irp    register, icc_eoir1_el1, icc_ctlr_el1, icc_bpr1_el1, icc_ap1r0_el1
        msr     \register, x21
        .endr
        isb
        ldr     x22, =GICD
        ldr     x23, =SGI
        mov     w9, -1
        str     w9, [x23, 0x180]        // enabled, pending, active
        str     w9, [x22, 0x184]
        str     w9, [x23, 0x280]
        str     w9, [x22, 0x284]
        str     w9, [x23, 0x380]
        str     w9, [x22, 0x384]
        str     w9, [x23, 0x80]         // group 1
        str     w9, [x22, 0x84]
        str     wzr, [x23, 0xc04]       // by level
        str     wzr, [x22, 0xc08]
        str     wzr, [x22, 0xc0c]
        ldr     w9, =0xa0a0a0a0
        .irp    at, 0x400, 0x404, 0x408, 0x40c, 0x410, 0x414, 0x418, 0x41c
        str     w9, [x23, \at]
        str     w9, [x22, \at + 32]
        .endr
        ldr     x24, =GICR
        str     wzr, [x24, 0x14]        // awake
        mov     w9, 2
        str     w9, [x22]               // group 1 is on
        dsb     sy
        mov     x9, 0xff
        msr     icc_pmr_el1, x9
        mov     x9, 1
        msr     icc_igrpen1_el1, x9
        isb
        ret

// dump notes all of the state.
dump:   ldr     x22, =GICD
        ldr     x23, =SGI
        .irp    at, 0x80, 0x100, 0x180, 0x200, 0x280, 0x300, 0x380, 0x410, 0xc00, 0xc04
        ldr     w9, [x23, \at]
        note    x9
        .endr
        .irp    at, 0, 0x80, 0x84, 0x104, 0x184, 0x204, 0x284, 0x304, 0x384, 0x400, 0x428, 0x43c, 0xc08, 0xc0c
        ldr     w9, [x22, \at]
        note    x9
        .endr
        .irp    register, icc_pmr_el1, icc_bpr1_el1, icc_igrpen1_el1, icc_rpr_el1, icc_hppir1_el1, icc_ap1r0_el1, isr_el1
        see     \register
        .endr
        ret
        .ltorg

        .balign 8
mode:   .quad   0
open:   .quad   name, 5, 7              // to write a binary file
write:  .quad   0, results, COUNT * VALUES * 8
exit:   .quad   0x20026, 0              // the application ended
name:   .asciz  "results"

        .balign 2048
vectors:
        .space  0x200
        mrs     x9, esr_el1
        orr     x9, x9, 1 << 63
        mrs     x10, elr_el1
        add     x10, x10, 4
        msr     elr_el1, x10
        eret
        .balign 128
        mrs     x12, icc_iar1_el1       // x9 to x11 are in use where it interrupts
        note    x12
        mrs     x13, icc_rpr_el1
        note    x13
        mrs     x13, isr_el1
        note    x13
        msr     cntv_ctl_el0, xzr
        msr     cntp_ctl_el0, xzr
        msr     icc_eoir1_el1, x12
        isb
        eret
        .balign 2048

        .section .results, "aw", %nobits
        .globl  results
results:
        .space  COUNT * VALUES * 8
