// Atomics, code that changes, misaligned accesses, instructions across pages.
#include "bare.h"
program
main:
    // LR/SC: a pair succeeds once.
    la a0, word
    li t0, 0x1122334455667788
    sd t0, 0(a0)
    lr.d a1, (a0)
    is a1, 0x1122334455667788
    li t1, 5
    sc.d a2, t1, (a0)
    is a2, 0
    ld a1, 0(a0)
    is a1, 5
    sc.d a2, t0, (a0)
    is a2, 1
    ld a1, 0(a0)
    is a1, 5
    // Another address, and another value in memory.
    lr.w a1, (a0)
    addi a3, a0, 4
    sc.w a2, t0, (a3)
    is a2, 1
    lr.w a1, (a0)
    sw t0, 0(a0)
    sc.w a2, t1, (a0)
    is a2, 1
    // A trap between them.
    lr.w a1, (a0)
    la s10, 1f
    ecall
    .balign 4
1:  sc.w a2, t1, (a0)
    is a2, 1
    lr.w.aq a1, (a0)
    sc.w.rl x0, t1, (a0)
    lw a1, 0(a0)
    is a1, 5
    // Misaligned atomics.
    addi a3, a0, 2
    la s10, 1f
    lr.w a1, (a3)
    j fail
    .balign 4
1:  is s0, 4
    addi gp, gp, 1
    bne s2, a3, fail
    la s10, 1f
    amoadd.d a1, t0, (a3)
    j fail
    .balign 4
1:  is s0, 6
    addi gp, gp, 1
    bne s2, a3, fail
    la s10, 1f
    sc.w a1, t0, (a3)
    j fail
    .balign 4
1:  is s0, 6
    // An atomic on a device, a cache block there.
    li a3, CLINT
    la s10, 1f
    amoadd.w a1, t0, (a3)
    j fail
    .balign 4
1:  is s0, 7

    // Misaligned accesses just work, across pages too.
    la a0, page + 4093
    li t0, 0x8182838485868788
    sd t0, 0(a0)
    ld a1, 0(a0)
    is a1, 0x8182838485868788
    lw a1, 1(a0)
    is a1, 0xffffffff84858687
    lhu a1, 2(a0)
    is a1, 0x8586
    lbu a1, 3(a0)
    is a1, 0x85

    // Code that is written anew, then executed after fence.i.
    li s4, 0
    la a0, patched
    call patched
    is s4, 1
    li t0, 0x00200a13 // li s4, 2
    sw t0, 0(a0)
    fence.i
    call patched
    is s4, 2
    // Without leaving the page, many times.
    li s5, 100
2:  slli t0, s5, 20
    li t1, 0x00000a13
    or t0, t0, t1
    sw t0, 0(a0)
    fence.i
    call patched
    addi gp, gp, 1
    bne s4, s5, fail
    addi s5, s5, -1
    bnez s5, 2b

    // Stores into the page that is being executed, in every encoding: what follows them must run, and their results
    // must arrive.
    la a0, in_code
    li t0, 0x0102030405060708
    li a5, 0
    .option push
    .option rvc
    c.sd x8, 0(x10)
    addi a5, a5, 1
    c.sw x8, 0(x10)
    addi a5, a5, 2
    addi sp, a0, 0
    c.sdsp x8, 0(sp)
    addi a5, a5, 4
    c.swsp x8, 0(sp)
    addi a5, a5, 8
    .option pop
    li t1, 0x2000
    csrs mstatus, t1
    c.fsd fa0, 0(x10)
    addi a5, a5, 16
    fsw fa0, 0(a0)
    addi a5, a5, 32
    sb x0, 0(a0)
    addi a5, a5, 64
    sd t0, 0(a0)
    amoadd.w a1, t0, (a0)
    addi a5, a5, 128
    is a1, 0x05060708
    amoswap.d a1, t0, (a0)
    addi a5, a5, 256
    is a1, 0x010203040a0c0e10
    lr.d a1, (a0)
    sc.d a2, a5, (a0)
    addi a5, a5, 512
    is a1, 0x0102030405060708
    is a2, 0
    ld a1, 0(a0)
    is a1, 511
    is a5, 1023

    // A 32-bit instruction across two pages.
    la a0, page + 4094
    li t0, 0x00300a13 // li s4, 3
    sh t0, 0(a0)
    srli t0, t0, 16
    sh t0, 2(a0)
    li t0, 0x8082 // ret
    sh t0, 4(a0)
    fence.i
    jalr a0
    is s4, 3
    li t0, 0x0040 // its second half: li s4, 4
    sh t0, 2(a0)
    fence.i
    jalr a0
    is s4, 4
    // The end of RAM: the second half is outside.
    li a0, 0x80000000 + RAM - 2
    li t0, 0x0a13
    sh t0, 0(a0)
    la s10, 1f
    jr a0
    .balign 4
1:  is s0, 1
    is s1, 0x80000000 + RAM - 2
    is s2, 0x80000000 + RAM
    // Loads across it leave their register alone.
    li a1, 99
    la s10, 1f
    lw a1, 0(a0)
    .balign 4
1:  is s0, 5
    is s2, 0x80000000 + RAM
    is a1, 99
    j pass

    .balign 4
in_code: .dword 0
    .balign 4
    .option push
    .option norvc
patched:
    li s4, 1
    ret
    .option pop
    .bss
    .balign 8
word: .space 16
    .balign 4096
page: .space 8192
