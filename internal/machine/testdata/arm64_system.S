// Runs the code of one case after another in the state that the case says, each until its first exception, and notes what that exception finds. It
// itself runs in EL1 without translation. The same program runs on the machine, which starts it with x0 = 1, and on QEMU's virt, where x0 is 0: there
// it writes its results by semihosting. RECORDS is the file that has the cases, COUNT how many, TABLES the translation tables. arm64_system_test.go
// has both structures and the map of memory.
#define CODE 0
#define SCTLR 64
#define TCR 72
#define TTBR0 80
#define TTBR1 88
#define CPACR 96
#define CNTKCTL 104
#define MDSCR 112
#define PC 120
#define SPSR 128
#define SP_EL0 136
#define SP_EL1 144
#define ENTRIES 152
#define X 280
#define RECORD_SIZE 576

#define VECTOR 0
#define ESR 8
#define FAR 16
#define ELR 24
#define R_SPSR 32
#define PAR 40
#define R_SP_EL0 48
#define R_SP_EL1 56
#define R_ENTRIES 64
#define R_X 192
#define DATA 440
#define PAN 504
#define RESULT_SIZE 512

#define WINDOW 0x80800fe0       // the data that cases access, across two pages
#define FILL 0xd40000e1d40000e1 // and are, when they are executed: svc 7
#define HIGH 0xffffffff00000000 // what this program's addresses have added under translation

        .text
        .globl _start
_start: adr     x1, mode
        str     x0, [x1]
        ldr     x20, =results
case:   ldr     x0, =results            // of the case x20 - results
        sub     x0, x20, x0
        mov     x1, RESULT_SIZE
        udiv    x0, x0, x1
        mov     x1, RECORD_SIZE
        ldr     x19, =records
        madd    x19, x0, x1, x19
        cmp     x0, COUNT
        b.eq    finish
        ldr     x0, =WINDOW
        ldr     x1, =FILL
        .irp    n, 0, 16, 32, 48
        stp     x1, x1, [x0, \n]
        .endr
        mov     x0, 3 << 20
        msr     cpacr_el1, x0
        isb
        .irp    n, 0, 1, 2, 3           // else what an earlier case has loaded in part, which need not be the same
        movi    v\n\().16b, \n + 1
        .endr
        ldr     x0, =list
        add     x1, x19, ENTRIES
        mov     x2, 16
1:      ldr     x3, [x0], 8
        ldr     x4, [x1], 8
        str     x4, [x3]
        subs    x2, x2, 1
        b.ne    1b
        dsb     sy
        tlbi    vmalle1
        dsb     sy
        ldr     x0, [x19, CPACR]
        msr     cpacr_el1, x0
        ldr     x0, [x19, CNTKCTL]
        msr     cntkctl_el1, x0
        ldr     x0, [x19, MDSCR]
        msr     mdscr_el1, x0
        ldr     x0, =0x440004ff         // normal memory, two kinds of devices, normal memory that is not cached
        msr     mair_el1, x0
        ldr     x0, [x19, TCR]
        msr     tcr_el1, x0
        ldr     x0, [x19, TTBR0]
        msr     ttbr0_el1, x0
        ldr     x0, [x19, TTBR1]
        msr     ttbr1_el1, x0
        isb
        ldr     x0, [x19, SCTLR]
        tbz     x0, 0, flat
        ldr     x1, =HIGH               // the next instruction's address has no translation, so that the exception goes to launch
        add     x19, x19, x1
        add     x20, x20, x1
        adr     x2, launch_vectors
        add     x2, x2, x1
        msr     vbar_el1, x2
        isb
        msr     sctlr_el1, x0
        isb
        b       .
flat:   msr     sctlr_el1, x0
        isb
launch: adr     x0, vectors
        msr     vbar_el1, x0
        msr     tpidrro_el0, x20
        msr     esr_el1, xzr
        msr     far_el1, xzr
        msr     par_el1, xzr
        ldr     x0, [x19, PC]
        msr     elr_el1, x0
        ldr     x0, [x19, SPSR]
        msr     spsr_el1, x0
        ldr     x0, [x19, SP_EL0]
        msr     sp_el0, x0
        ldr     x0, [x19, SP_EL1]
        mov     sp, x0
        isb
        mov     x0, x19
        .irp    n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30
        ldr     x\n, [x0, X + 8 * \n]
        .endr
        ldr     x0, [x0, X]
        eret

save:   str     x1, [x0, VECTOR]
        .irp    n, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30
        str     x\n, [x0, R_X + 8 * \n]
        .endr
        .macro  note register, place
        mrs     x1, \register
        str     x1, [x0, \place]
        .endm
        note    tpidr_el1, R_X
        note    esr_el1, ESR
        note    far_el1, FAR
        note    elr_el1, ELR
        note    spsr_el1, R_SPSR
        note    par_el1, PAR
        note    S3_0_C4_C2_3, PAN
        note    sp_el0, R_SP_EL0
        mov     x1, sp
        str     x1, [x0, R_SP_EL1]
        mov     x20, x0
        mrs     x0, sctlr_el1
        ldr     x1, =0x30d00800         // what is always one, and no translation
        tbz     x0, 0, 1f
        ldr     x2, =HIGH
        sub     x20, x20, x2
        adr     x3, return_vectors
        sub     x3, x3, x2
        msr     vbar_el1, x3
        isb
        msr     sctlr_el1, x1           // nothing is at the next instruction's address
        isb
        b       .
1:      msr     sctlr_el1, x1
        isb
return: ldr     x0, =list
        add     x1, x20, R_ENTRIES
        mov     x2, 16
1:      ldr     x3, [x0], 8
        ldr     x3, [x3]
        str     x3, [x1], 8
        subs    x2, x2, 1
        b.ne    1b
        ldr     x0, =WINDOW
        mov     x2, 8
1:      ldr     x3, [x0], 8
        str     x3, [x1, DATA - R_ENTRIES - 128]
        add     x1, x1, 8
        subs    x2, x2, 1
        b.ne    1b
        add     x20, x20, RESULT_SIZE
        b       case

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
        .balign 8
mode:   .quad   0
open:   .quad   name, 5, 7              // to write a binary file
write:  .quad   0, results, RESULT_SIZE * COUNT
exit:   .quad   0x20026, 0              // the application ended
name:   .asciz  "results"

        .balign 2048
vectors:
        .irp    n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        .balign 128
        msr     tpidr_el1, x0
        mrs     x0, tpidrro_el0
        str     x1, [x0, R_X + 8]
        mov     x1, 128 * \n
        b       save
        .endr
        .balign 2048
launch_vectors:
        .space  0x200
        b       launch
        .balign 2048
return_vectors:
        .space  0x200
        b       return

        .section .records, "a"
records:
        .incbin RECORDS
        .section .tables, "aw"
list:   .incbin TABLES
        .section .results, "aw", %nobits
        .globl  results
results:
        .space  RESULT_SIZE * COUNT
