// Runs the code of one block after another, each with the registers and the memory of its block, which it replaces by what they are behind it. x28
// has the block, so no code may use it; x27 says where the code ended. The same program runs under QEMU's user mode, which starts it with x0 = 0,
// and on the machine, where x0 is 1. BLOCKS is the file that has the blocks, COUNT how many.
#define CODE 0
#define V_AT 16
#define FLAGS 528
#define FPCR_AT 536
#define FPSR_AT 544
#define SP_AT 552
#define X_AT 560
#define MEMORY 808
#define SIZE 1320

        // Where branches lead to: each place of 8 bytes notes itself. The code is in the middle, half of it on the next page.
        .macro  places size
        .rept   \size / 8
        adr     x27, .
        b       after
        .endr
        .endm
        .text
        places  0xfff8
patch:  nop
        nop
        nop
        nop
        adr     x27, .
        b       after
        places  0x10000
        .globl _start
_start:
        ldr     x2, =mode
        str     x0, [x2]
        ldr     x28, =blocks
1:      ldr     x2, =blocks + COUNT * SIZE
        cmp     x28, x2
        b.eq    finish
        ldp     x2, x3, [x28, CODE]
        ldr     x1, =patch
        stp     x2, x3, [x1]
        dc      cvau, x1
        dsb     ish
        ic      ivau, x1
        add     x1, x1, 8
        dc      cvau, x1
        dsb     ish
        ic      ivau, x1
        dsb     ish
        isb
        ldr     x0, =memory
        add     x1, x28, MEMORY
        bl      copy
        .irp    n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
        ldr     q\n, [x28, V_AT + 16 * \n]
        .endr
        ldr     x0, [x28, FPCR_AT]
        msr     fpcr, x0
        ldr     x0, [x28, FPSR_AT]
        msr     fpsr, x0
        ldr     x0, [x28, FLAGS]
        msr     nzcv, x0
        ldr     x0, [x28, SP_AT]
        mov     sp, x0
        .irp    n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 29, 30
        ldr     x\n, [x28, X_AT + 8 * \n]
        .endr
        b       patch
after:
        .irp    n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 29, 30
        str     x\n, [x28, X_AT + 8 * \n]
        .endr
        mov     x0, sp
        str     x0, [x28, SP_AT]
        mrs     x0, nzcv
        str     x0, [x28, FLAGS]
        mrs     x0, fpsr
        str     x0, [x28, FPSR_AT]
        msr     fpcr, xzr
        .irp    n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
        str     q\n, [x28, V_AT + 16 * \n]
        .endr
        add     x0, x28, MEMORY
        ldr     x1, =memory
        bl      copy
        add     x28, x28, SIZE
        b       1b

copy:   mov     x2, 512
2:      ldr     x3, [x1], 8
        str     x3, [x0], 8
        subs    x2, x2, 8
        b.ne    2b
        ret

finish: ldr     x2, =mode
        ldr     x2, [x2]
        cbnz    x2, off
        ldr     x1, =blocks
        ldr     x2, =COUNT * SIZE
write:  mov     x0, 1
        mov     x8, 64                  // write
        svc     0
        cmp     x0, 0
        b.le    fail
        add     x1, x1, x0
        subs    x2, x2, x0
        b.ne    write
        mov     x0, 0
exit:   mov     x8, 94                  // exit_group
        svc     0
fail:   mov     x0, 1
        b       exit
off:    ldr     w0, =0x84000008         // PSCI SYSTEM_OFF
        hvc     0
        b       off
        .ltorg

        .section .data, "aw"
        .balign 4096
mode:   .quad   0
        .space  2048 - 8 + 1792         // so that the memory crosses a page
memory: .space  512
        .balign 16
        .globl  blocks
blocks: .incbin BLOCKS
