// What a kernel does with CSRs in S-mode: words, sstatus and what follows from its bits in the very next instruction.
#include "bare.h"
#include "paging.h"
#define FS 0x6000

program
main:
    table root, middle, leaf, frames, V | R | W | U | A | D
    la t2, leaf
    ld t0, 0(t2)
    addi t0, t0, 1024
    sd t0, 8(t2)
    addi t0, t0, 1024
    sd t0, 16(t2)
    la t0, user
    srli t0, t0, 2
    ori t0, t0, V | R | X | U | A | D
    sd t0, 24(t2)
    space s6, root, 0
    csrw satp, s6
    sfence.vma
    li s4, WINDOW
    li s6, WINDOW + 0x1000
    li s7, WINDOW + 0x2000
    li s8, SUM
    li s9, FS
    li s5, 3 // rounds, so that what is executed is translated in the end
again:
    li gp, 1
    to 1, words
    is s0, 9
    to 1, bits
    is s0, 9
    // A unit that is switched off.
    to 1, unit
    is s0, 2
    is_address s1, off
    to 1, unit_written
    is s0, 2
    is_address s1, off_written
    // Pages of users, after each way to clear SUM, with one, two and three of them known.
    la s11, one
    to 1, clears
    is s0, 13
    is s2, WINDOW
    la s11, two
    to 1, clears
    is s0, 13
    is s2, WINDOW
    la s11, three
    to 1, clears
    is s0, 13
    is s2, WINDOW
    la s11, one
    to 1, writes
    is s0, 13
    is s2, WINDOW
    la s11, three
    to 1, writes
    is s0, 13
    is s2, WINDOW
    la s11, moved
    to 1, clears
    is s0, 13
    is s2, WINDOW
    la s11, store
    to 1, clears
    is s0, 13
    is s2, WINDOW
    // And stores.
    la s11, one
    to 1, clears_for_store
    is s0, 15
    is s2, WINDOW
    // SUM stays when other bits are cleared.
    to 1, keeps
    is s0, 9
    // An interrupt that is pending comes behind the instruction that enables it.
    li t0, 2
    csrw mideleg, t0
    csrw mie, t0
    la s11, enable_bits
    to 1, interrupted
    is s0, 9
    is_address a4, enabled_bits
    la s11, enable_immediate
    to 1, interrupted
    is s0, 9
    is_address a4, enabled_immediate
    la s11, enable_write
    to 1, interrupted
    is s0, 9
    is_address a4, enabled_write
    csrw mideleg, x0
    csrw mie, x0
    csrw mip, x0
    // From U-mode all of it is illegal.
    li t6, MPP
    csrc mstatus, t6
    li t6, WINDOW + 0x3000
    csrw mepc, t6
    la s10, 1f
    mret
    .balign 4
1:  is s0, 2
    is s1, WINDOW + 0x3008
    addi s5, s5, -1
    bnez s5, again
    j pass

    .balign 4
words:
    li a0, 0x123456789abc
    csrw sscratch, a0
    li a1, 7
    csrrw a1, sscratch, a1
    is a1, 0x123456789abc
    csrr a2, sscratch
    is a2, 7
    li tp, 5
    csrrw tp, sscratch, tp
    is tp, 7
    csrrw a2, sscratch, x0
    is a2, 5
    csrr a2, sscratch
    is a2, 0
    li a0, -1
    csrw sepc, a0
    csrr a1, sepc
    is a1, -2
    csrw stvec, a0
    csrr a1, stvec
    is a1, -3
    csrw scause, a0
    csrr a1, scause
    is a1, -1
    csrrw a0, stval, x0
    csrw stval, a1
    csrr a3, stval
    is a3, -1
    ecall

    .balign 4
bits:
    csrw sstatus, x0
    csrr a0, sstatus
    is a0, 0x200000000
    csrs sstatus, s9
    csrr a0, sstatus
    is a0, 0x8000000200006000
    csrrc a0, sstatus, s9
    is a0, 0x8000000200006000
    csrrw a0, sstatus, s9
    is a0, 0x200000000
    li t0, 0x2000
    csrc sstatus, t0
    csrr s0, sstatus
    is s0, 0x200004000
    li a0, -1
    csrrw a0, sstatus, a0
    csrrw a0, sstatus, x0
    is a0, 0x80000002000c6122
    csrrsi a0, sstatus, 31
    is a0, 0x200000000
    csrrci a0, sstatus, 31
    is a0, 0x200000002
    csrrsi a0, sstatus, 0
    is a0, 0x200000000
    li a0, 0x122
    csrs sstatus, a0
    csrrc a0, sstatus, a0
    is a0, 0x200000122
    ecall

    .balign 4
unit:
    csrs sstatus, s9
    fmv.d.x fa0, s9
    csrc sstatus, s9
off:
    fmv.d.x fa0, s9
    ecall
    .balign 4
unit_written:
    csrs sstatus, s9
    fmv.d.x fa0, s9
    csrw sstatus, x0
off_written:
    fmv.d.x fa0, s9
    ecall

    .balign 4
clears:
    csrs sstatus, s8
    jalr s11
    csrc sstatus, s8
    ld a0, 0(s4)
    ecall
    .balign 4
writes:
    csrs sstatus, s8
    jalr s11
    csrw sstatus, x0
    ld a0, 0(s4)
    ecall
    .balign 4
clears_for_store:
    csrs sstatus, s8
    jalr s11
    csrc sstatus, s8
    sd a0, 0(s4)
    ecall
    .balign 4
keeps:
    csrs sstatus, s8
    ld a0, 0(s4)
    csrci sstatus, 2
    csrc sstatus, s9
    ld a0, 0(s4)
    csrc sstatus, s8
    ecall
moved: // another page takes its place in the TLB
    ld a0, 0(s4)
    li t0, 0x82000000
    ld a0, 0(t0)
    ret
three:
    ld a0, 0(s7)
two:
    ld a0, 0(s6)
one:
    ld a0, 0(s4)
    ret
store:
    sd a0, 0(s4)
    ret

    .balign 4
interrupted:
    csrci sstatus, 2
    la t0, taken
    csrw stvec, t0
    csrsi sip, 2
    li a4, 0
    jr s11
enable_bits:
    li t0, 2
    csrs sstatus, t0
enabled_bits:
    j fail
enable_immediate:
    csrsi sstatus, 2
enabled_immediate:
    j fail
enable_write:
    li t0, 2
    csrw sstatus, t0
enabled_write:
    j fail
    .balign 4
taken:
    csrr a4, sepc
    csrci sip, 2
    ecall

    .data
    .balign 4096
user:
    j 1f
    .balign 8
1:  csrr a0, sscratch
    ecall
    .balign 4096
frames: .space 3 * 4096
root: .space 4096
middle: .space 4096
leaf: .space 4096
