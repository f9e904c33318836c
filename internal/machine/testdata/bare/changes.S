// Code that changes under the processor: a thousand address spaces with different code at the same addresses, pages that
// lose and regain their permission, pages that are exchanged, and timers that interrupt a loop wherever it is. It does the
// same whether its code is interpreted or translated.
#include "bare.h"
#define V 1
#define R 2
#define X 8
#define A 64
#define WINDOW 0x40000000
#define ROUNDS 50

// map INDEX, FRAME REGISTER, FLAGS: page INDEX of the window.
.macro map index, frame, flags
    srli t0, \frame, 2
    ori t0, t0, \flags
    la t1, leaf + 8 * \index
    sd t0, 0(t1)
.endm

// window: runs the window's code in S-mode. It counts in a0, ROUNDS times; the trap that ends it is the caller's.
.macro window
    li t6, MPP
    csrc mstatus, t6
    li t6, MPP_S
    csrs mstatus, t6
    li t6, WINDOW
    csrw mepc, t6
    li a0, 0
    li a1, ROUNDS
    la s10, 9f
    mret
    .balign 4
9:
.endm

// counts REGISTER: what the window's code left in a0. The check's number stays: there are too many of them.
.macro counts register
    bne a0, \register, fail
.endm

program
main:
    la t0, middle
    srli t0, t0, 2
    ori t0, t0, V
    la t1, root
    sd t0, 8(t1)
    la t0, leaf
    srli t0, t0, 2
    ori t0, t0, V
    la t2, middle
    sd t0, 0(t2)
    srli s4, t1, 12
    li t0, 8
    slli t0, t0, 60
    or s4, s4, t0 // satp without an identifier

    // A thousand spaces. Number n adds n in its loop, in the first page, and n modulo 8 in the second.
    li gp, 2
    li s5, 0
spaces:
    andi t0, s5, 7
    slli t0, t0, 13
    la s6, frames
    add s6, s6, t0 // the first frame
    li t1, 4096
    add s7, s6, t1 // the second
    la t1, first
    ld t2, 0(t1)
    ld t3, 8(t1)
    slli t4, s5, 20
    add t2, t2, t4
    sd t2, 0(s6)
    sd t3, 8(s6)
    la t1, second
    ld t2, 0(t1)
    andi t4, s5, 7
    slli t4, t4, 20
    add t2, t2, t4
    sd t2, 0(s7)
    fence.i
    map 0, s6, (V | X | A)
    map 1, s7, (V | X | A)
    andi t0, s5, 63 // identifiers come back, as they do for processes
    slli t0, t0, 44
    or t0, t0, s4
    csrw satp, t0
    sfence.vma
    window
    li t0, 9
    bne s0, t0, fail
    li t0, ROUNDS
    mul t0, t0, s5
    andi t1, s5, 7
    add t0, t0, t1
    counts t0
    addi s5, s5, 1
    li t0, 1000
    bne s5, t0, spaces

    // The second page loses its permission, gets it back, and is another one each time. Nothing is stored to code.
    li gp, 3
    la s6, frames
    li s5, 0
flips:
    andi t0, s5, 7
    slli t0, t0, 13
    add s7, s6, t0
    li t1, 4096
    add s7, s7, t1
    map 1, s7, (V | R | A)
    sfence.vma
    window
    li t0, 12
    bne s0, t0, fail
    li t0, WINDOW + 4096
    bne s1, t0, fail
    bne s2, t0, fail
    li t0, ROUNDS * 999 // the first page is still that of the last space
    counts t0
    map 1, s7, (V | X | A)
    li t0, WINDOW + 4096
    sfence.vma t0
    window
    li t0, 9
    bne s0, t0, fail
    li t0, ROUNDS * 999
    andi t1, s5, 7
    add t0, t0, t1
    counts t0
    addi s5, s5, 1
    li t0, 100
    bne s5, t0, flips

    // A loop that a timer interrupts, whose handler changes a register of it, as one for a signal may.
    li gp, 4
    li s8, 0 // interrupts
    li s11, CLINT + 0x4000
    sd zero, 0(s11)
    li t0, 0x80
    csrs mie, t0
    li t6, MPP
    csrc mstatus, t6
    li t6, MPP_S
    csrs mstatus, t6
    csrw satp, zero
    la t6, counting
    csrw mepc, t6
    la s10, interrupted
    li a0, 0
    li a1, 400000
    mret
    .balign 4
interrupted:
    li t6, 9
    beq s0, t6, counted
    li t6, 1
    slli t6, t6, 63
    ori t6, t6, 7
    bne s0, t6, fail
    addi s8, s8, 1
    addi a0, a0, 1000
    li t6, CLINT + 0xbff8
    ld t6, 0(t6)
    addi t6, t6, 20
    sd t6, 0(s11)
    mret
counted:
    li t0, 1000
    mul t0, t0, s8
    li t1, 400000
    add t0, t0, t1
    counts t0
    li gp, 5
    li t0, 20
    blt s8, t0, fail
    j pass

    .balign 4
counting:
    addi a0, a0, 1
    addi a1, a1, -1
    bnez a1, counting
    ecall

    .data
    .option norvc
    .balign 8
first:
    addi a0, a0, 0
    addi a1, a1, -1
    bnez a1, first
    jal x0, first + 4096
second:
    addi a0, a0, 0
    ecall

    .bss
    .balign 4096
root: .space 4096
middle: .space 4096
leaf: .space 4096
frames: .space 65536
