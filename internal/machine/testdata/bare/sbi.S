// A program without tohost starts in S-mode on the built-in SBI, with the hart's number and a device tree.
    .section .text.start, "ax"
    .globl _start
_start:
    bnez a0, fail
    lwu t0, 0(a1)
    li t1, 0xedfe0dd0 // the device tree's magic, big-endian
    bne t0, t1, fail
    la s0, text
1:  lbu a0, 0(s0)
    beqz a0, 2f
    li a7, 1 // legacy console_putchar
    ecall
    addi s0, s0, 1
    j 1b
2:  li a7, 0x10 // base: specification version
    li a6, 0
    ecall
    bnez a0, fail
    li t0, 0x2000000
    bne a1, t0, fail
    // The timer, by SBI, wakes wfi.
    rdtime a0
    addi a0, a0, 100
    li a7, 0x54494d45
    li a6, 0
    ecall
    bnez a0, fail
    li t0, 0x20
    csrw sie, t0
    wfi
    csrr t0, sip
    andi t0, t0, 0x20
    beqz t0, fail
    li a0, 0 // shutdown
    li a1, 0 // no reason
    li a7, 0x53525354
    li a6, 0
    ecall
fail:
    li a0, 0
    li a1, 1 // system failure
    li a7, 0x53525354
    li a6, 0
    ecall
    j .
text: .asciz "hello, SBI\n"
