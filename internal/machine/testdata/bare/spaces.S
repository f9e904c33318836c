// Address spaces: a change of satp holds for the very next instruction; sfence.vma in all its forms; global pages.
#include "bare.h"
#include "paging.h"
#define NOWHERE 0x40001000

// user_program LEAF: at NOWHERE is what U executes.
.macro user_program leaf
    la t0, user_code
    srli t0, t0, 2
    ori t0, t0, V | R | X | U | A | D
    la t1, \leaf
    sd t0, 8(t1)
.endm

// user_reads VALUE: what U finds at s4.
.macro user_reads value
    li a0, 0
    li t6, MPP
    csrc mstatus, t6
    li t6, NOWHERE
    csrw mepc, t6
    la s10, 9f
    mret
    .balign 4
9:  is s0, 8
    is a0, \value
.endm

.macro reads value
    to 1, load
    is s0, 9
    is a0, \value
.endm

program
main:
    table root1, middle1, leaf1, frame1, V | R | W | X | A | D
    table root2, middle2, leaf2, frame2, V | R | W | X | A | D
    space s6, root1, 1
    space s7, root2, 2
    li s4, WINDOW

    // The instruction behind the one that changes satp is already the other space's.
    csrw satp, s6
    sfence.vma
    li a1, 0
    la s8, frame1_code
    li s9, WINDOW
    la t0, frame1
    sub s8, s8, t0
    add s9, s9, s8
    to 1, enter
    is s0, 9
    is a1, 2
    // And back; both have been executed before now.
    csrw satp, s7
    mv s11, s7
    mv s7, s6
    li a1, 0
    to 1, enter
    is a1, 1
    csrw satp, s6
    mv s7, s11
    li a1, 0
    to 1, enter
    is a1, 2

    // Data of the two spaces, with a fence for each change of an entry.
    csrw satp, s6
    reads 0x11
    csrw satp, s7
    reads 0x22
    csrw satp, s6
    reads 0x11
    // By address, by identifier, by both, and all.
    entry leaf1, frame3, V | R | W | X | A | D
    sfence.vma s4
    reads 0x33
    entry leaf1, frame1, V | R | W | X | A | D
    li t0, 1
    sfence.vma x0, t0
    reads 0x11
    entry leaf1, frame3, V | R | W | X | A | D
    li t0, 1
    sfence.vma s4, t0
    reads 0x33
    entry leaf1, frame1, V | R | W | X | A | D
    sfence.vma
    reads 0x11
    // An entry of the other space changes while this one is running.
    csrw satp, s7
    reads 0x22
    csrw satp, s6
    reads 0x11
    entry leaf2, frame3, V | R | W | X | A | D
    li t0, 2
    sfence.vma s4, t0
    reads 0x11
    csrw satp, s7
    reads 0x33
    entry leaf2, frame2, V | R | W | X | A | D
    sfence.vma x0, t0
    // The fence by identifier was for what t0 says now: that of the code of `entry`. All of them, to be sure.
    sfence.vma
    reads 0x22

    // An address of the middle of a page, and one whose neighbour must not matter.
    entry leaf2, frame3, V | R | W | X | A | D
    li t0, WINDOW + 0x7f8
    sfence.vma t0
    reads 0x33
    // A page that goes away.
    entry leaf2, frame3, 0
    sfence.vma s4
    to 1, load
    is s0, 13
    is s2, WINDOW
    // A global page is fenced by address and by all.
    entry leaf2, frame2, V | R | W | X | A | D | G
    sfence.vma s4
    reads 0x22
    entry leaf2, frame3, V | R | W | X | A | D | G
    sfence.vma s4
    reads 0x33
    entry leaf2, frame2, V | R | W | X | A | D | G
    sfence.vma
    reads 0x22

    // Stores: an entry that loses W, then is another page.
    li s5, 0x44
    to 1, store
    is s0, 9
    ld t0, frame2
    is t0, 0x44
    entry leaf2, frame2, V | R | X | A | D
    sfence.vma s4
    to 1, store
    is s0, 15
    entry leaf2, frame3, V | R | W | A | D
    sfence.vma s4
    to 1, store
    is s0, 9
    ld t0, frame3
    is t0, 0x44
    ld t0, frame2
    is t0, 0x44
    // Users' pages, as a user sees them and as S does while SUM is set.
    entry leaf2, frame3, V | R | W | U | A | D
    user_program leaf2
    entry leaf1, frame1, V | R | W | U | A | D
    user_program leaf1
    sfence.vma
    user_reads 0x44
    csrw satp, s6
    user_reads 0x11
    li t0, SUM
    csrs mstatus, t0
    reads 0x11
    csrw satp, s7
    reads 0x44
    csrw satp, s6
    reads 0x11
    csrw satp, s7
    user_reads 0x44
    // A fence for this space alone, and one for another space.
    entry leaf2, frame1, V | R | W | U | A | D
    li t0, 2
    sfence.vma x0, t0
    user_reads 0x11
    reads 0x11
    entry leaf1, frame3, V | R | W | U | A | D
    li t0, 1
    sfence.vma x0, t0
    user_reads 0x11
    csrw satp, s6
    user_reads 0x44
    reads 0x44
    // A global page in both spaces; what stands for it changes with a fence by address.
    entry leaf1, frame1, V | R | W | X | A | D | G
    entry leaf2, frame1, V | R | W | X | A | D | G
    sfence.vma
    reads 0x11
    csrw satp, s7
    reads 0x11
    entry leaf1, frame3, V | R | W | X | A | D | G
    entry leaf2, frame3, V | R | W | X | A | D | G
    sfence.vma s4
    reads 0x44
    csrw satp, s6
    reads 0x44
    // Without translation there are no pages.
    csrw satp, x0
    to 1, load
    is s0, 5
    csrw satp, s7

    // Tables themselves change: another leaf table below the same middle one.
    entry leaf1, frame1, V | R | W | X | A | D
    la t0, leaf1
    srli t0, t0, 2
    ori t0, t0, V
    la t1, middle2
    sd t0, 0(t1)
    sfence.vma
    reads 0x11
    j pass

    .balign 4
load:
    ld a0, 0(s4)
    ecall
    .balign 4
store:
    sd s5, 0(s4)
    ecall
    .balign 4
enter:
    jr s9
    .data
    .balign 4096
frame1: .dword 0x11
    .balign 64
frame1_code:
    csrw satp, s7
    li a1, 1
    ecall
    .balign 4096
frame2: .dword 0x22
    .balign 64
    csrw satp, s7
    li a1, 2
    ecall
    .balign 4096
frame3: .dword 0x33
    .balign 4096
user_code:
    ld a0, 0(s4)
    ecall
    .balign 4096
root1: .space 4096
middle1: .space 4096
leaf1: .space 4096
root2: .space 4096
middle2: .space 4096
leaf2: .space 4096
