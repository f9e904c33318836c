// What the TLB does not have: tables that were just changed, of each kind, with loads and stores from the same two places, and pages that want the
// same entries of the TLB.
#include "bare.h"
#include "paging.h"
#define PAGE V | R | W | A | D | G
#define OF_USER V | R | W | A | D | U
#define AT(n) (WINDOW + (n) * 0x1000)
#define EIGHT (WINDOW + 0x800000)     // the second place of WINDOW's pages
#define SIXTEEN (WINDOW + 0x1000000)  // the same place
#define LARGE (WINDOW + 0x2000000)    // a superpage
#define UPPER (-0x40000000)

// pte TABLE, INDEX, FRAME, FLAGS: without a fence.
.macro pte table, index, frame, flags
    la t0, \frame
    srli t0, t0, 2
    li t1, \flags
    or t0, t0, t1
    la t1, \table
    sd t0, 8 * \index(t1)
.endm

// superpage TABLE, INDEX, ADDRESS: a leaf.
.macro superpage table, index, address
    li t0, (\address >> 2) | PAGE | X
    la t1, \table
    sd t0, 8 * \index(t1)
.endm

// word SYMBOL, VALUE: by M-mode, in RAM.
.macro word symbol, value
    la t0, \symbol
    li t1, \value
    sd t1, 0(t0)
.endm

.macro word_is symbol, value
    la t0, \symbol
    ld t1, 0(t0)
    is t1, \value
.endm

.macro word_at address, value
    li t0, \address
    li t1, \value
    sd t1, 0(t0)
.endm

.macro loads address, value
    li s4, \address
    to 1, load
    is s0, 9
    is a0, \value
.endm

.macro stores address, value
    li s4, \address
    li a1, \value
    to 1, store
    is s0, 9
.endm

// faults MODE, WHAT, ADDRESS, CAUSE
.macro faults mode, what, address, cause
    li s4, \address
    to \mode, \what
    is s0, \cause
    is s2, \address
.endm

.macro user_does what, address
    li s4, \address
    li t6, MPP
    csrc mstatus, t6
    la t0, \what
    la t1, of_user
    sub t0, t0, t1
    li t1, AT(15)
    add t0, t0, t1
    csrw mepc, t0
    la s10, 9f
    mret
    .balign 4
9:
.endm

program
main:
    table root, middle, leaf, frame0, PAGE
    pte middle, 4, leaf8, V
    pte middle, 8, leaf16, V
    pte middle, 20, leaf, V | A
    la t1, root + 2048
    la t0, upper
    srli t0, t0, 2
    ori t0, t0, V
    sd t0, 2040(t1)
    li t2, 512 // entries of leaf8 and leaf16
    la t3, leaf8
    la t0, frame1
    srli t0, t0, 2
    li t1, PAGE
    or t0, t0, t1
1:  sd t0, 0(t3)
    li t1, 4096
    add t1, t1, t3
    sd t0, 0(t1)
    addi t3, t3, 8
    addi t2, t2, -1
    bnez t2, 1b
    space s6, root, 0
    csrw satp, s6
    li s5, 3 // rounds, so that what is executed is translated in the end
again:
    li gp, 1
    word frame0, 0x10
    word frame1, 0x11
    word frame2, 0x12
    word frame3, 0x13
    la t0, frame0 + 0xffc
    li t1, 1
    sw t1, 0(t0)
    pte leaf, 0, frame0, PAGE
    pte leaf, 1, frame2, PAGE
    pte leaf8, 0, frame1, PAGE
    pte leaf16, 0, frame2, PAGE
    sfence.vma

    // Pages that want the same place, each twice, and an access in two of them.
    loads AT(0), 0x10
    loads SIXTEEN, 0x12
    loads AT(0), 0x10
    loads EIGHT, 0x11
    loads SIXTEEN, 0x12
    loads EIGHT, 0x11
    loads AT(0), 0x10
    loads AT(0) + 0xffc, 0x1200000001

    // What has moved to the second place is found by a fence, too.
    sfence.vma
    loads AT(0), 0x10
    loads SIXTEEN, 0x12
    pte leaf, 0, frame3, PAGE
    sfence.vma
    loads AT(0), 0x13
    pte leaf, 0, frame0, PAGE
    sfence.vma
    stores AT(0), 0x77
    stores SIXTEEN, 0x76
    pte leaf, 0, frame3, PAGE
    sfence.vma
    stores AT(0), 0x78
    word_is frame0, 0x77
    word_is frame2, 0x76
    word_is frame3, 0x78

    // More pages than are noted.
    sfence.vma
    to 1, sweep
    is s0, 9
    pte leaf8, 0, frame0, PAGE
    la t1, leaf16 + 2048
    la t0, frame3
    srli t0, t0, 2
    ori t0, t0, PAGE
    sd t0, 2040(t1)
    sfence.vma
    loads EIGHT, 0x77
    loads SIXTEEN + 511 * 0x1000, 0x78

    // Bits of entries: what the hart sets, and what it refuses.
    pte leaf, 2, frame1, V | R | W | A | G
    pte leaf, 3, frame1, V | R | W | D | G
    pte leaf, 4, frame1, V | X | A | D | G
    pte leaf, 5, frame1, V | R | A | D | G
    pte leaf, 6, frame1, (1 << 54) | V | R | W | A | D | G
    pte leaf, 7, frame1, R | W | A | D | G
    pte leaf, 8, frame1, (1 << 63) | V | R | W | A | D | G
    sfence.vma
    stores AT(2), 0x11
    loads AT(3), 0x11
    la t0, leaf
    ld a0, 16(t0)
    andi a0, a0, D
    is a0, D
    ld a0, 24(t0)
    andi a0, a0, A
    is a0, A
    faults 1, load, AT(4), 13
    faults 1, store, AT(5), 15
    loads AT(5), 0x11
    faults 1, store, AT(5), 15
    faults 1, load, AT(6), 13
    faults 1, load, AT(7), 13
    faults 1, load, AT(8), 13
    faults 1, load, WINDOW + 0x2800000, 13
    faults 1, load, WINDOW + (1 << 40), 13

    // Pages, and a table, that are not in RAM, before and behind it.
    superpage leaf, 9, 0x60000000
    superpage leaf, 10, 0x80000000 + RAM
    li t0, (0x60000000 >> 2) | V
    la t1, middle
    sd t0, 8 * 24(t1)
    li t0, ((0x80000000 + RAM) >> 2) | V
    sd t0, 8 * 25(t1)
    sfence.vma
    .irp address, AT(9), AT(10)
    faults 1, load, \address, 5
    faults 1, store, \address, 7
    .endr
    faults 1, load, WINDOW + 0x3000000, 5
    faults 1, load, WINDOW + 0x3200000, 5

    // M-mode has physical addresses, whatever satp is.
    loads AT(3), 0x11
    faults 3, load, AT(3), 5

    // Of users: with SUM one page, the same by a store, two and three; and from U-mode.
    pte leaf, 12, frame1, OF_USER
    pte leaf, 13, frame2, OF_USER
    pte leaf, 14, frame3, OF_USER
    pte leaf, 15, of_user, V | R | X | A | D | U
    superpage upper, 1, 0x80400000
    sfence.vma
    li s8, SUM
    li s7, AT(12)
    li s9, AT(13)
    li s11, AT(14)
    .irp page, 12, 13, 14
    li s4, AT(\page)
    to 1, load_summed
    is s0, 13
    is s2, AT(\page)
    to 1, store_summed
    is s0, 15
    is s2, AT(\page)
    to 1, load_three
    is s0, 13
    is s2, AT(\page)
    .endr
    to 1, load_two
    is s0, 13
    is s2, AT(14)
    user_does user_load, AT(12)
    is s0, 8
    is a0, 0x11
    user_does user_store, AT(12)
    is s0, 8
    user_does user_load, AT(0)
    is s0, 13
    is s2, AT(0)
    user_does user_store, AT(0)
    is s0, 15
    user_does user_load, UPPER + 0x200000
    is s0, 13

    // Superpages, in both halves. A fence by any of their addresses is for all of them.
    word_at 0x80403000, 0x43
    word_at 0x80404000, 0x44
    word_at 0x80603000, 0x63
    superpage upper, 2, 0x80401000
    sfence.vma
    loads UPPER + 0x203000, 0x43
    loads UPPER + 0x204000, 0x44
    stores UPPER + 0x204000, 0x45
    li t0, 0x80404000
    ld t1, 0(t0)
    is t1, 0x45
    faults 1, load, UPPER + 0x400000, 13
    li t0, (0x80400000 >> 2) | PAGE | U
    la t1, upper
    sd t0, 8 * 3(t1)
    faults 1, load, UPPER + 0x600000, 13
    user_does user_load, UPPER + 0x203000
    is s0, 13
    .irp address, UPPER + 0x200000, LARGE
    superpage upper, 1, 0x80400000
    superpage middle, 16, 0x80400000
    sfence.vma
    loads UPPER + 0x204000, 0x45
    loads \address + 0x3000, 0x43
    superpage upper, 1, 0x80600000
    superpage middle, 16, 0x80600000
    li t0, \address + 0x5000
    sfence.vma t0
    loads \address + 0x3000, 0x63
    .endr

    // Code that is stored to by another address: before it is executed, and between.
    pte leaf, 11, code, PAGE
    word code, 0x0000806700100513 // li a0, 1; ret
    fence.i
    sfence.vma
    stores AT(11) + 0x800, 1
    to 1, call
    is s0, 9
    is a0, 1
    stores AT(11), 0x0000806700200513
    to 1, call
    is a0, 2
    sfence.vma
    stores AT(11), 0x0000806700300513
    to 1, call
    is a0, 3

    // Without paging; the number of the root stays.
    slli t0, s6, 4
    srli t0, t0, 4
    csrw satp, t0
    faults 1, load, AT(0), 5
    csrw satp, s6
    addi s5, s5, -1
    bnez s5, again
    j pass

    .balign 4
load:
    ld a0, 0(s4)
    ecall
    .balign 4
store:
    sd a1, 0(s4)
    ecall
    .balign 4
sweep:
    li t0, EIGHT
    li t1, 512
1:  ld a0, 0(t0)
    li t2, 0x800000
    add t2, t0, t2
    ld a0, 0(t2)
    li t2, 0x1000
    add t0, t0, t2
    addi t1, t1, -1
    bnez t1, 1b
    ecall
    .balign 4
load_summed:
    csrs sstatus, s8
    ld a0, 0(s4)
    csrc sstatus, s8
    ld a0, 0(s4)
    ecall
    .balign 4
store_summed:
    csrs sstatus, s8
    ld a0, 0(s4)
    sd a0, 0(s4)
    csrc sstatus, s8
    sd a0, 0(s4)
    ecall
    .balign 4
load_two:
    csrs sstatus, s8
    ld a0, 0(s9)
    ld a0, 0(s11)
    csrc sstatus, s8
    ld a0, 0(s11)
    ecall
    .balign 4
load_three:
    csrs sstatus, s8
    ld a0, 0(s7)
    ld a0, 0(s9)
    ld a0, 0(s11)
    csrc sstatus, s8
    ld a0, 0(s4)
    ecall
    .balign 4
call:
    fence.i
    la t0, code
    jalr t0
    ecall

    .data
    .balign 4096
of_user:
user_load:
    ld a0, 0(s4)
    ecall
    .balign 4
user_store:
    sd a0, 0(s4)
    ecall
    .balign 4096
code: .space 4096
frame0: .space 4096
frame1: .space 4096
frame2: .space 4096
frame3: .space 4096
root: .space 4096
middle: .space 4096
upper: .space 4096
leaf: .space 4096
leaf8: .space 4096
leaf16: .space 4096
