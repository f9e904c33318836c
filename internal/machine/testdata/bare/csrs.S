// Control and status registers: what they hold, which are read-only, which are absent.
#include "bare.h"
.macro absent number
    la s10, 1f
    csrr a0, \number
    j fail
    .balign 4
1:  is s0, 2
.endm
.macro zero number
    li t0, -1
    csrw \number, t0
    csrr t1, \number
    is t1, 0
.endm
.macro holds number, written, read
    li t0, \written
    csrw \number, t0
    csrr t1, \number
    is t1, \read
.endm
program
main:
    csrr a0, mhartid
    is a0, 0
    csrr a0, misa
    is a0, 0x800000000014112d
    csrw misa, x0
    csrr a1, misa
    addi gp, gp, 1
    bne a0, a1, fail
    .irp number, 0xf11, 0xf12, 0xf13, 0xf15
    csrr a0, \number
    .endr
    holds mscratch, 0x123456789abcdef0, 0x123456789abcdef0
    holds sscratch, -1, -1
    holds mepc, -1, -2
    holds sepc, 3, 2
    holds mtvec, 0x80000101, 0x80000101
    la t0, trapped
    csrw mtvec, t0
    holds medeleg, -1, 0xb3ff
    holds medeleg, 0, 0
    holds mideleg, -1, 0x222
    holds mideleg, 0, 0
    holds mie, -1, 0xaaa
    holds mie, 0, 0
    holds mcause, 0x8000000000000007, 0x8000000000000007
    holds mtval, -1, -1
    holds mcounteren, -1, 7
    holds scounteren, 0, 0
    // S sees the delegated interrupts only.
    li t0, 0xaaa
    csrw mie, t0
    csrr t1, sie
    is t1, 0
    li t0, 0x222
    csrw mideleg, t0
    csrr t1, sie
    is t1, 0x222
    csrw sie, x0
    csrr t1, mie
    is t1, 0x888
    csrw mie, x0
    csrw mideleg, x0
    // satp: Sv39 and bare; other modes leave it alone.
    holds satp, 0, 0
    li t0, 9 << 60 | 5
    csrw satp, t0
    csrr t1, satp
    is t1, 0
    // No protection regions, no triggers, no event counters: zero.
    .irp number, 0x3a0, 0x3a2, 0x3b0, 0x3ef, 0x7a0, 0x7a1, 0x7a2, 0xb03, 0xb1f, 0x323, 0x33f, 0x320
    zero \number
    .endr
    // RV32's and absent extensions'.
    .irp number, 0x3a1, 0x310, 0xb80, 0xc80, 0x744, 0x600, 0x5c0, 0x7b0, 0x015, 0x31a
    absent \number
    .endr
    // Immediate and register forms, with and without a write.
    csrwi mscratch, 21
    csrrsi a0, mscratch, 10
    is a0, 21
    csrrci a0, mscratch, 3
    is a0, 31
    csrr a0, mscratch
    is a0, 28
    csrrs a0, mhartid, x0
    la s10, 1f
    csrrw x0, mhartid, x0
    j fail
    .balign 4
1:  is s0, 2
    la s10, 1f
    csrrsi x0, mhartid, 1
    j fail
    .balign 4
1:  is s0, 2

    // Counters. A write is what the next instruction reads; a trap does not retire.
    li t0, -1
    csrw minstret, t0
    csrr a0, minstret
    is a0, -1
    csrw minstret, t0
    nop
    csrr a0, minstret
    is a0, 0
    csrw minstret, x0
    csrr a0, instret
    is a0, 0
    csrw minstret, x0
    la s10, 1f
    csrr a1, minstret
    ecall
    .balign 4
1:  csrr a0, minstret // la (2), csrr, four of the handler and its jump
    addi gp, gp, 1
    li t0, 8
    bne a0, t0, fail
    csrr a1, minstret
    li t0, 1000000
    csrw mcycle, t0
    csrr a2, minstret
    sub a2, a2, a1
    addi gp, gp, 1
    li t1, 10
    bgtu a2, t1, fail // mcycle is another counter
    csrr a2, mcycle
    addi gp, gp, 1
    bltu a2, t0, fail
    csrr a3, cycle
    addi gp, gp, 1
    bltu a3, a2, fail
    csrr a2, time
    // U needs both enables, S the machine's.
    csrw mcounteren, x0
    to 1, read_cycle
    is s0, 2
    csrwi mcounteren, 1
    to 1, read_cycle
    is s0, 9
    to 0, read_cycle
    is s0, 2
    csrwi scounteren, 1
    to 0, read_cycle
    is s0, 8
    to 0, read_time
    is s0, 2
    // fcsr and its parts.
    li t0, 0x6000
    csrs mstatus, t0
    li t0, -1
    csrw fcsr, t0
    csrr a0, fcsr
    is a0, 0xff
    csrr a0, frm
    is a0, 7
    csrw frm, x0
    csrr a0, fcsr
    is a0, 0x1f
    csrrwi a0, fflags, 4
    is a0, 0x1f
    csrr a0, fcsr
    is a0, 4
    j pass
    .balign 4
read_cycle: csrr a0, cycle
    ecall
    .balign 4
read_time: csrr a0, time
    ecall
