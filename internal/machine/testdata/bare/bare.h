// What the bare test programs share: a start, an end through tohost, and a trap handler in M-mode that keeps what it
// received in registers and continues at the address in s10.
//
//   s0 mcause   s1 mepc   s2 mtval   s3 mstatus
//   gp the number of the running check, which becomes the program's code when it fails

#define MPP_S 0x800
#define MPP 0x1800
#define MPRV 0x20000
#define SUM 0x40000
#define MXR 0x80000
#define TVM 0x100000
#define TW 0x200000
#define TSR 0x400000
#define CLINT 0x2000000

.macro program
    .section .text.start, "ax"
    .globl _start
_start:
    la t0, trapped
    csrw mtvec, t0
    la sp, stack_end
    li gp, 1
    j main
    .balign 4
trapped:
    csrr s0, mcause
    csrr s1, mepc
    csrr s2, mtval
    csrr s3, mstatus
    jr s10
fail:
    slli gp, gp, 1
    ori gp, gp, 1
    la t0, tohost
    sd gp, 0(t0)
    j .
pass:
    li gp, 0
    j fail
    .section .tohost, "aw"
    .balign 64
    .globl tohost
tohost: .dword 0
    .balign 64
    .globl fromhost
fromhost: .dword 0
    .bss
    .balign 4096
stack: .space 4096
stack_end:
    .text
.endm

// is REGISTER, VALUE: the next check.
.macro is register, value
    addi gp, gp, 1
    li t6, \value
    bne \register, t6, fail
.endm

.macro is_address register, symbol
    addi gp, gp, 1
    la t6, \symbol
    bne \register, t6, fail
.endm

// traps CAUSE, LABEL, VALUE: the last trap had this cause, came from LABEL and reported VALUE.
.macro traps cause, label, value
    is s0, \cause
    is_address s1, \label
    is s2, \value
.endm

// to MODE, LABEL: continues at LABEL in MODE (0 U, 1 S); after a trap the handler continues behind this macro.
.macro to mode, label
    li t6, MPP
    csrc mstatus, t6
    li t6, \mode << 11
    csrs mstatus, t6
    la t6, \label
    csrw mepc, t6
    la s10, 9f
    mret
    .balign 4
9:
.endm
