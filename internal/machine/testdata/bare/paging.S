// Sv39: permissions, SUM, MXR, accessed and dirty bits, superpages, MPRV, fetches across pages, stale translations.
#include "bare.h"
#include "paging.h"

// The root maps RAM onto itself with one superpage for S, and through `middle` and `leaf` pages from 0x40000000 on.

// map INDEX, FRAME, FLAGS: page INDEX of the window is the 4 KiB page at FRAME.
.macro map index, frame, flags
    la t0, \frame
    srli t0, t0, 2
    li t1, \flags
    or t0, t0, t1
    la t1, leaf + 8 * \index
    sd t0, 0(t1)
    sfence.vma
.endm

// faults MODE, LABEL, CAUSE, VALUE: running LABEL in MODE ends with this fault.
.macro faults mode, label, cause, value
    to \mode, \label
    is s0, \cause
    is s2, \value
.endm

.macro works mode, label
    to \mode, \label
    is s0, (8 + \mode)
.endm

program
main:
    la t0, middle
    srli t0, t0, 2
    ori t0, t0, V
    la t1, root
    sd t0, 8(t1)
    li t0, (0x80000000 >> 2) | V | R | W | X | A | D
    sd t0, 16(t1)
    la t0, leaf
    srli t0, t0, 2
    ori t0, t0, V
    la t2, middle
    sd t0, 0(t2)
    srli t1, t1, 12
    li t0, 8
    slli t0, t0, 60
    or t0, t0, t1
    csrw satp, t0
    sfence.vma
    li s4, WINDOW
    li s5, 0x73 // ecall

    // Nothing there.
    faults 1, load, 13, WINDOW
    faults 1, store, 15, WINDOW
    faults 1, fetch, 12, WINDOW
    // A supervisor's page.
    map 0, frame, V | R | W | X | A | D
    works 1, load
    works 1, store
    works 1, fetch
    // Read-only, execute-only, write-only is reserved.
    map 0, frame, V | R | A | D
    works 1, load
    faults 1, store, 15, WINDOW
    faults 1, amo, 15, WINDOW
    works 1, load_reserved
    faults 1, fetch, 12, WINDOW
    map 0, frame, V | X | A | D
    faults 1, load, 13, WINDOW
    works 1, fetch
    li t0, MXR
    csrs mstatus, t0
    works 1, load
    faults 1, store, 15, WINDOW
    li t0, MXR
    csrc mstatus, t0
    faults 1, load, 13, WINDOW
    map 0, frame, V | W | A | D
    faults 1, load, 13, WINDOW
    map 0, frame, R | W | X | A | D
    faults 1, load, 13, WINDOW
    // A user's page: S needs SUM for data and never executes it.
    map 0, frame, V | R | W | X | U | A | D
    faults 1, load, 13, WINDOW
    faults 1, store, 15, WINDOW
    faults 1, fetch, 12, WINDOW
    li t0, SUM
    csrs mstatus, t0
    works 1, load
    works 1, store
    faults 1, fetch, 12, WINDOW
    li t0, SUM
    csrc mstatus, t0
    faults 1, load, 13, WINDOW
    faults 1, store, 15, WINDOW
    // Reserved bits of an entry.
    la t1, leaf
    ld t0, 0(t1)
    li t2, 1 << 54
    or t2, t2, t0
    sd t2, 0(t1)
    sfence.vma
    faults 1, load, 13, WINDOW
    li t2, 1
    slli t2, t2, 63
    la t1, leaf
    ld t0, 0(t1)
    or t2, t2, t0
    sd t2, 0(t1)
    sfence.vma
    faults 1, load, 13, WINDOW
    // A leaf's pointer form at the last level.
    map 0, frame, V
    faults 1, load, 13, WINDOW

    // Accessed and dirty are set, dirty only by stores.
    map 0, frame, V | R | W | X
    works 1, load
    la t1, leaf
    ld t0, 0(t1)
    andi t0, t0, A | D
    is t0, A
    works 1, store
    la t1, leaf
    ld t0, 0(t1)
    andi t0, t0, A | D
    is t0, A | D
    map 0, frame, V | R | X
    faults 1, store, 15, WINDOW
    la t1, leaf
    ld t0, 0(t1)
    andi t0, t0, A | D
    is t0, 0
    map 0, frame, V | R | X
    works 1, fetch
    la t1, leaf
    ld t0, 0(t1)
    andi t0, t0, A | D
    is t0, A

    // Superpages: 2 MiB, aligned and not; the same of 1 GiB.
    la t2, middle
    li t0, (0x80200000 >> 2) | V | R | W | A | D
    sd t0, 8(t2)
    sfence.vma
    li t0, 0x80200000 + 0x12340
    li t1, 0x5678
    sd t1, 0(t0)
    li s4, WINDOW + 0x200000 + 0x12340
    works 1, load
    is a0, 0x5678
    // sfence.vma by any address of a superpage is for all of it.
    li t0, 0x80400000 + 0x12340
    li t1, 0x1abc
    sd t1, 0(t0)
    la t2, middle
    li t0, (0x80400000 >> 2) | V | R | W | A | D
    sd t0, 8(t2)
    li t0, WINDOW + 0x200000
    sfence.vma t0
    works 1, load
    is a0, 0x1abc
    la t2, middle
    li t0, (0x80201000 >> 2) | V | R | W | A | D
    sd t0, 8(t2)
    sfence.vma
    faults 1, load, 13, (WINDOW + 0x200000 + 0x12340)
    la t1, root
    li t0, (0x80200000 >> 2) | V | R | W | A | D
    sd t0, 24(t1)
    sfence.vma
    li s4, 0xc0000000
    faults 1, load, 13, 0xc0000000
    // Pointers with U, A or D are reserved; tables outside of memory are access faults.
    la t1, root
    la t0, middle
    srli t0, t0, 2
    ori t0, t0, V | A
    sd t0, 24(t1)
    sfence.vma
    faults 1, load, 13, 0xc0000000
    la t1, root
    li t0, (0x40000000 >> 2) | V
    sd t0, 24(t1)
    sfence.vma
    faults 1, load, 5, 0xc0000000
    faults 1, store, 7, 0xc0000000
    faults 1, fetch, 1, 0xc0000000
    // Addresses must be sign-extended from bit 38.
    li s4, 1 << 38
    faults 1, load, 13, (1 << 38)
    li s4, 0x0100000080000000
    faults 1, store, 15, 0x0100000080000000

    // MPRV: M's data accesses by the rules of MPP; fetches stay its own. Its translations end with it.
    li s4, WINDOW
    map 0, frame, V | R | W | U | A | D
    la a1, frame
    li t0, 0x77
    sd t0, 0(a1)
    li t0, MPP
    csrc mstatus, t0
    li t0, MPRV // as U
    csrs mstatus, t0
    ld a0, 0(s4)
    csrc mstatus, t0
    is a0, 0x77
    li t0, MPP_S | MPRV
    csrs mstatus, t0
    la s10, 1f
    li a0, 1
    ld a0, 0(s4) // as S, without SUM
    .balign 4
1:  li t0, MPRV
    csrc mstatus, t0
    is s0, 13
    is a0, 1
    // In the handler MPP is M, so that the same address is another place: outside of RAM.
    li t0, MPP
    csrc mstatus, t0
    li t0, MPP_S | MPRV | SUM
    csrs mstatus, t0
    ld a0, 0(s4)
    la s10, 1f
    ecall
    .balign 4
1:  la s10, 1f
    ld a0, 0(s4)
    .balign 4
1:  li t0, MPRV | SUM
    csrc mstatus, t0
    is s0, 5

    // sfence.vma by address; satp's change takes effect at once in M's next entry to S.
    map 0, frame, V | R | W | A | D
    works 1, load
    is a0, 0x77
    la t0, frame2
    li t1, 0x99
    sd t1, 0(t0)
    srli t0, t0, 2
    ori t0, t0, V | R | W | A | D
    la t1, leaf
    sd t0, 0(t1)
    sfence.vma s4
    works 1, load
    is a0, 0x99
    // Two names of one page: what is written through one is executed through the other.
    map 0, frame, V | R | W | A | D
    map 1, frame, V | R | X | A | D
    li s5, 0x00000073 // ecall
    works 1, store
    li s4, WINDOW + 0x1000
    works 1, fetch
    is s1, WINDOW + 0x1000
    li s4, WINDOW
    li s5, 0x00100073 // ebreak
    works 1, store
    li s4, WINDOW + 0x1000
    to 1, fetch_fenced
    is s0, 3

    // U executes a user's page; a 32-bit instruction whose second half is not mapped faults there.
    map 0, user_code, V | R | X | U | A | D
    map 1, frame, 0
    li t6, MPP
    csrc mstatus, t6
    li t6, WINDOW
    csrw mepc, t6
    la s10, 1f
    mret
    .balign 4
1:  is s0, 8
    is s1, WINDOW
    li t6, MPP
    csrc mstatus, t6
    li t6, WINDOW + 0xffe
    csrw mepc, t6
    la s10, 1f
    mret
    .balign 4
1:  is s0, 12
    is s1, WINDOW + 0xffe
    is s2, WINDOW + 0x1000
    map 1, zeros, V | R | X | U | A | D
    li t6, MPP
    csrc mstatus, t6
    li t6, WINDOW + 0xffe
    csrw mepc, t6
    la s10, 1f
    mret // 0x0073 and 0x0000: ecall
    .balign 4
1:  is s0, 8
    is s1, WINDOW + 0xffe
    // A misaligned load or store into an unmapped page: the address of the part that failed, nothing is done.
    map 0, frame, V | R | W | A | D
    map 1, frame, 0
    li s4, WINDOW + 0xffc
    la t0, frame + 0xffc
    sw x0, 0(t0)
    li s5, -1
    faults 1, store, 15, (WINDOW + 0x1000)
    la t0, frame + 0xffc
    lw t0, 0(t0)
    is t0, 0
    faults 1, load, 13, (WINDOW + 0x1000)

    // A page table in the page of the code that is running: setting the accessed bit there must not disturb it.
    la t0, table_and_code
    srli t0, t0, 2
    ori t0, t0, V
    la t1, middle
    sd t0, 16(t1)
    la t0, frame2
    srli t0, t0, 2
    ori t0, t0, V | R | W
    la t1, table_and_code
    sd t0, 0(t1)
    sfence.vma
    li s4, WINDOW + 0x400000
    li a0, 0
    works 1, table_and_code + 2048
    is a0, 0x99
    ld t0, table_and_code
    andi t0, t0, A | D
    is t0, A
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
amo:
    amoadd.w x0, s5, (s4)
    ecall
    .balign 4
load_reserved:
    lr.w x0, (s4)
    ecall
    .balign 4
fetch:
    jr s4
    .balign 4
fetch_fenced:
    fence.i
    jr s4
    .balign 4096
table_and_code:
    .space 2048
    ld a0, 0(s4)
    ecall
    .data
    .balign 4096
user_code:
    .4byte 0x00000073
    .space 4096 - 6
    .2byte 0x0073
frame:
    .4byte 0x00000073
    .space 4092
frame2: .space 4096
zeros: .space 4096
root: .space 4096
middle: .space 4096
leaf: .space 4096
