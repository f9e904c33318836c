// Exceptions from every mode, delegation, and the ways back.
#include "bare.h"
program
main:
    // M-mode: cause, address, value; MPP tells where from; interrupts go off and MPIE keeps what they were.
    csrsi mstatus, 8
    la s10, 1f
ecall_m: ecall
1:  traps 11, ecall_m, 0
    li t0, 0x1888
    and t1, s3, t0
    is t1, 0x1880
    la s10, 1f
break_m: ebreak
1:  is s0, 3
    is_address s1, break_m
    is_address s2, break_m
    la s10, 1f
    .option push
    .option norvc
bad_m: .4byte 0xffffffff
1:  traps 2, bad_m, 0xffffffff
    la s10, 1f
bad_csr: .4byte 0xc0001073 // csrw cycle, x0
1:  traps 2, bad_csr, 0xc0001073
    la s10, 1f
no_csr: csrrs x0, 0x744, x0
1:  traps 2, no_csr, 0x74402073
    .option pop
    la s10, 1f
short: .2byte 0
1:  traps 2, short, 0
    la s10, 1f
reserved: .2byte 0x8002 // c.jr x0
1:  traps 2, reserved, 0x8002

    // The floating-point unit is off: illegal, mtval is the word.
    la s10, 1f
float_off: .4byte 0x00007053 // fadd.s ft0, ft0, ft0
1:  traps 2, float_off, 0x00007053
    la s10, 1f
float_load: .2byte 0x2108 // c.fld
1:  traps 2, float_load, 0x2108
    la s10, 1f
float_csr: .4byte 0x00202573 // csrr a0, frm
1:  traps 2, float_csr, 0x00202573
    li t0, 0x2000
    csrs mstatus, t0
    fmv.w.x ft0, x0
    csrr t0, mstatus
    srli t1, t0, 63
    is t1, 1
    // A reserved rounding mode in frm makes `dyn` illegal, and only that.
    csrwi frm, 5
    fadd.s ft0, ft0, ft0, rne
    la s10, 1f
bad_frm: .4byte 0x00007053
1:  traps 2, bad_frm, 0x00007053
    csrwi frm, 0

    // S- and U-mode ecalls.
    to 1, ecall_s
    traps 9, ecall_s, 0
    li t0, MPP
    and t1, s3, t0
    is t1, MPP_S
    to 0, ecall_u
    traps 8, ecall_u, 0
    and t1, s3, t0
    is t1, 0

    // What S and U may not do.
    .irp mode, 0, 1
    to \mode, do_mret
    traps 2, do_mret, 0x30200073
    to \mode, read_mstatus
    is s0, 2
    .endr
    to 0, do_sret
    traps 2, do_sret, 0x10200073
    to 0, read_satp
    is s0, 2
    to 0, do_sfence
    is s0, 2
    // TSR, TVM and TW.
    to 1, read_satp_ok
    is s0, 9
    li t0, TVM
    csrs mstatus, t0
    to 1, read_satp
    traps 2, read_satp, 0x18002573
    to 1, do_sfence
    traps 2, do_sfence, 0x12000073
    csrc mstatus, t0
    to 1, sfence_ok
    is s0, 9
    li t0, TW
    csrs mstatus, t0
    to 1, do_wfi
    traps 2, do_wfi, 0x10500073
    csrc mstatus, t0
    to 0, do_wfi
    is s0, 2
    li t0, TSR
    csrs mstatus, t0
    to 1, do_sret
    traps 2, do_sret, 0x10200073
    csrc mstatus, t0

    // Delegation: U's breakpoint goes to S, M's own does not.
    li t0, 1 << 3 | 1 << 8
    csrw medeleg, t0
    la t0, s_handler
    csrw stvec, t0
    li s4, 0
    to 0, break_u
    is s0, 9 // the handler's ecall
    is s4, 3
    is_address s5, break_u
    is_address s6, break_u
    is s7, 0 // SPP: from U
    to 1, break_s
    is s4, 3
    is_address s5, break_s
    is s7, 0x100 // SPP: from S
    la s10, 1f
    li s4, 99
break_again: ebreak
1:  is s0, 3
    is_address s1, break_again
    is s4, 99

    // sret: SPP, SPIE and SIE; MPRV goes away.
    li t0, 0x122
    csrc sstatus, t0
    li t0, 0x20
    csrs sstatus, t0
    la t0, ecall_u2
    csrw sepc, t0
    csrw medeleg, x0
    li t0, MPRV
    csrs mstatus, t0
    la s10, 1f
    sret
1:  traps 8, ecall_u2, 0
    li t0, MPRV | MPP | 0x122
    and t1, s3, t0
    is t1, 0x22
    // mret to M keeps MPRV and leaves MPP = U.
    li t0, MPP
    csrs mstatus, t0
    la t0, 1f
    csrw mepc, t0
    mret
1:  csrr t1, mstatus
    li t0, MPP
    and t1, t1, t0
    is t1, 0
    // MPP = 2 is reserved and not stored.
    li t0, MPP
    csrc mstatus, t0
    li t0, 0x1000
    csrs mstatus, t0
    csrr t1, mstatus
    li t0, MPP
    and t1, t1, t0
    addi gp, gp, 1
    li t0, 0x1000
    beq t1, t0, fail
    // Faults outside of memory.
    li a0, 0x40000000
    li a1, 77
    la s10, 1f
load_hole: lw a1, 4(a0)
1:  traps 5, load_hole, 0x40000004
    is a1, 77
    la s10, 1f
store_hole: sd a1, 8(a0)
1:  traps 7, store_hole, 0x40000008
    la s10, 1f
    jr a0
1:  is s0, 1
    is s1, 0x40000000
    is s2, 0x40000000
    j pass

    .balign 4
    .option push
    .option norvc
ecall_s: ecall
ecall_u: ecall
ecall_u2: ecall
do_mret: mret
    ecall
do_sret: sret
    ecall
do_wfi: wfi
    ecall
do_sfence: sfence.vma
    ecall
sfence_ok: sfence.vma
    ecall
read_mstatus: csrr a0, mstatus
    ecall
read_satp: csrr a0, satp
    ecall
read_satp_ok: csrr a0, satp
    ecall
break_u: ebreak
break_s: ebreak
    .option pop
    .balign 4
s_handler:
    csrr s4, scause
    csrr s5, sepc
    csrr s6, stval
    csrr s7, sstatus
    andi s7, s7, 0x100
    ecall
