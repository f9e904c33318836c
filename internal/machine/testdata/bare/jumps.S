// Jumps to a page that was jumped to before, when other code is there now: after each fence, each change of the space, and each store.
#include "bare.h"
#include "paging.h"

// finds VALUE: what the code at WINDOW gives, called again and again.
.macro finds value
    to 1, calls
    is s0, 9
    is a0, \value
.endm

program
main:
    li s5, 3 // rounds: in the first ones more code gets translated, which forgets jumps
again:
    la t0, frame1
    li t1, 0x00100513 // li a0, 1
    sw t1, 0(t0)
    fence.i
    table root1, middle1, leaf1, frame1, V | R | X | A | D
    table root2, middle2, leaf2, frame3, V | R | X | A | D
    space s6, root1, 0
    space s7, root2, 0
    li s4, WINDOW
    li gp, 1
    csrw satp, s6
    sfence.vma
    finds 1
    // A fence by address, of all, and by identifier.
    entry leaf1, frame2, V | R | X | A | D
    sfence.vma s4
    finds 2
    entry leaf1, frame1, V | R | X | A | D
    sfence.vma
    finds 1
    entry leaf1, frame2, V | R | X | A | D
    sfence.vma x0, x0
    finds 2
    entry leaf1, frame1, V | R | X | A | D
    li t0, 0
    sfence.vma x0, t0
    finds 1
    // Another space, and back.
    csrw satp, s7
    sfence.vma
    finds 3
    csrw satp, s6
    sfence.vma
    finds 1
    // Another code in the same page, which is stored at its place in RAM.
    la t0, frame1
    ld t1, frame2
    sd t1, 0(t0)
    fence.i
    finds 2
    li t1, 0x00700513 // li a0, 7
    sw t1, 0(t0)
    fence.i
    finds 7
    // A page that no code may be in any more, and one that is not there.
    entry leaf1, frame1, V | R | A | D
    sfence.vma s4
    to 1, calls
    is s0, 12
    is s2, WINDOW
    entry leaf1, frame2, V | R | X | A | D
    sfence.vma s4
    finds 2
    entry leaf1, frame2, 0
    sfence.vma s4
    to 1, calls
    is s0, 12
    is s2, WINDOW
    // An address with the same lower bits, which no page has: bit 38 is not repeated above it.
    entry leaf1, frame2, V | R | X | A | D
    sfence.vma s4
    finds 2
    li t0, 1
    slli t0, t0, 60
    or s4, s4, t0
    to 1, calls
    is s0, 12
    is s2, WINDOW | 1 << 60
    addi s5, s5, -1
    bnez s5, again
    j pass

    .balign 4
calls:
    li t3, 6
1:  jalr s4
    addi t3, t3, -1
    bnez t3, 1b
    ecall

    .data
    .balign 4096
frame1:
    .option push
    .option norvc
    li a0, 1
    ret
    .balign 4096
frame2:
    li a0, 2
    ret
    .balign 4096
frame3:
    li a0, 3
    ret
    .option pop
    .balign 4096
root1: .space 4096
middle1: .space 4096
leaf1: .space 4096
root2: .space 4096
middle2: .space 4096
leaf2: .space 4096
