// The host-target interface: console output by device and by system call, and the end by system call.
#include "bare.h"
program
main:
    la a0, letters
    la a1, tohost
    li a2, 0x0101 << 48
1:  lbu a3, 0(a0)
    beqz a3, 2f
    or a3, a3, a2
    sd a3, 0(a1)
3:  ld a3, 0(a1)
    bnez a3, 3b
    addi a0, a0, 1
    j 1b
    // write(1, text, 6)
2:  la a0, block
    li a2, 64
    sd a2, 0(a0)
    li a2, 1
    sd a2, 8(a0)
    la a2, text
    sd a2, 16(a0)
    li a2, 5
    sd a2, 24(a0)
    sd a0, 0(a1)
    la a2, fromhost
4:  ld a3, 0(a2)
    beqz a3, 4b
    sd x0, 0(a2)
    ld a3, 0(a0)
    is a3, 5
    // exit(0)
    li a2, 93
    sd a2, 0(a0)
    sd x0, 8(a0)
    sd a0, 0(a1)
    j .
letters: .asciz "hello, "
text: .ascii "host\n"
    .bss
    .balign 64
block: .space 64
