# Calls main, then asks SBI for a shutdown.
.globl _start
.section .text.start
_start:
    la sp, stack_top
    call main
1:  li a7, 0x53525354
    li a6, 0
    li a0, 0
    li a1, 0
    ecall
    j 1b
.bss
.align 4
.space 16384
stack_top:
