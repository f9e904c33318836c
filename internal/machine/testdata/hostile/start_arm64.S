// Calls main with x0, then asks PSCI for a shutdown. Behind an exception the next instruction is executed; interrupts are left pending.
.globl _start
.section .text.start, "ax"
_start:
    ldr x1, =stack_top
    mov sp, x1
    adr x1, vectors
    msr vbar_el1, x1
    isb
    bl main
1:  ldr w0, =0x84000008
    hvc 0
    b 1b
    .ltorg
.balign 2048
.globl vectors
vectors:
    .space 0x200
    mrs x16, elr_el1
    add x16, x16, 4
    msr elr_el1, x16
    eret
    .balign 128
    eret
.balign 2048
.bss
.balign 16
.space 16384
stack_top:
