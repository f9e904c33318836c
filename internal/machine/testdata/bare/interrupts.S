// Software, timer and injected interrupts, vectored and not, by priority; wfi.
#include "bare.h"
program
main:
    // wfi continues when an enabled interrupt is pending, though interrupts are off.
    csrwi mie, 2
    csrwi mip, 2
    wfi
    csrwi mip, 0
    // Nothing is taken in M-mode while MIE is clear.
    li t0, CLINT
    li t1, 1
    sw t1, 0(t0)
    csrr t2, mip
    andi t2, t2, 8
    is t2, 8
    csrwi mie, 8
    la s10, 1f
    csrsi mstatus, 8
    nop
    j fail
1:  is s0, 0x8000000000000003
    is s2, 0
    lw t3, 0(t0)
    is t3, 1
    sw x0, 0(t0)
    csrr t2, mip
    andi t2, t2, 8
    is t2, 0

    // The machine timer.
    csrwi mie, 0
    li t0, 0x80
    csrw mie, t0
    li t0, CLINT + 0xbff8
    ld t1, 0(t0)
    addi t1, t1, 100
    li t0, CLINT + 0x4000
    sd t1, 0(t0)
    la s10, 1f
    csrsi mstatus, 8
2:  wfi
    j 2b
1:  is s0, 0x8000000000000007
    li t0, CLINT + 0xbff8
    ld t2, 0(t0)
    addi gp, gp, 1
    bltu t2, t1, fail
    // Halves of mtimecmp, the lower one last.
    li t0, CLINT + 0x4000
    li t1, -1
    sd t1, 0(t0)
    li t1, 0x12
    sw t1, 4(t0)
    li t1, 0x34
    sw t1, 0(t0)
    ld t1, 0(t0)
    is t1, 0x1200000034
    csrr t2, mip
    andi t2, t2, 0x80
    is t2, 0

    // Vectored: the base plus four times the number; exceptions go to the base.
    la t0, vectors
    ori t0, t0, 1
    csrw mtvec, t0
    csrr t1, mtvec
    addi gp, gp, 1
    bne t0, t1, fail
    csrwi mie, 8
    li s4, 0
    la s10, 1f
    li t0, CLINT
    li t1, 1
    sw t1, 0(t0)
    csrsi mstatus, 8
    nop
    j fail
1:  is s4, 3
    sw x0, 0(t0)
    la s10, 1f
    ecall
1:  is s4, 100
    la t0, trapped
    csrw mtvec, t0

    // An S interrupt that M injects, not delegated: M takes it from S-mode whatever MIE is.
    csrwi mie, 2
    csrwi mip, 2
    csrci mstatus, 8
    to 1, spin
    is s0, 0x8000000000000001
    // Delegated, M-mode ignores it; S takes it with SIE, U always.
    csrwi mideleg, 2
    csrsi mstatus, 8
    nop
    nop
    la t0, s_handler
    csrw stvec, t0
    li s4, 0
    csrci sstatus, 2
    to 1, s_enables
    is s0, 9
    li t0, 0x8000000000000001
    is s4, 0x8000000000000001
    is_address s5, s_enabled
    csrwi mip, 2
    csrci sstatus, 2
    li s4, 0
    to 0, spin
    is s4, 0x8000000000000001
    is_address s5, spin
    // S clears SSIP itself; it cannot set STIP.
    csrwi mip, 2
    to 1, s_clears
    is s0, 9
    csrr t0, mip
    andi t0, t0, 0x22
    is t0, 0

    // STIP is M's to write unless menvcfg.STCE gives it to stimecmp.
    csrw mideleg, x0
    csrw menvcfg, x0
    li t0, 0x20
    csrs mip, t0
    csrr t1, mip
    and t1, t1, t0
    is t1, 0x20
    csrc mip, t0
    to 1, read_stimecmp
    is s0, 2
    li t0, 1
    slli t0, t0, 63
    csrw menvcfg, t0
    li t0, 2
    csrw mcounteren, t0
    to 1, set_stimecmp
    is s0, 9
    csrr t1, mip
    andi t1, t1, 0x20
    is t1, 0x20
    li t1, -1
    csrw 0x14d, t1
    csrr t1, mip
    andi t1, t1, 0x20
    is t1, 0
    // The supervisor's timer, delegated, in vectored mode.
    li t0, 0x20
    csrw mideleg, t0
    csrw mie, t0
    la t0, s_vectors
    ori t0, t0, 1
    csrw stvec, t0
    csrci sstatus, 2
    li s4, 0
    to 1, wait_timer
    is s0, 9
    is s4, 5

    // Priority: external, software, timer; the machine's before the supervisor's.
    csrw mideleg, x0
    csrw menvcfg, x0
    li t0, CLINT
    li t1, 1
    sw t1, 0(t0)
    li t0, CLINT + 0x4000
    sd x0, 0(t0)
    li t0, 0x222
    csrs mip, t0
    li t0, 0xaaa
    csrw mie, t0
    .irp number, 3, 7, 9, 1, 5
    la s10, 1f
    csrsi mstatus, 8
    nop
    j fail
    .balign 4
1:  is s0, (0x8000000000000000 + \number)
    li t0, 1 << \number
    csrc mie, t0
    .endr
    j pass

    .balign 4
spin: nop
    j spin
s_enables: csrsi sstatus, 2
s_enabled: nop
    j spin
s_clears: csrci sip, 2
    csrsi sip, 0x10
    li t0, 0x20
    csrs sip, t0
    ecall
read_stimecmp: csrr a0, 0x14d
    ecall
set_stimecmp: csrw 0x14d, x0
    ecall
wait_timer:
    csrr t0, time
    addi t0, t0, 200
    csrw 0x14d, t0
    csrsi sstatus, 2
1:  wfi
    j 1b
    .balign 4
s_handler:
    csrr s4, scause
    csrr s5, sepc
    csrci sip, 2
    ecall
    .balign 4
    .option push
    .option norvc
vectors:
    j vector_exception
    .rept 2
    j fail
    .endr
    j vector_software
    .rept 8
    j fail
    .endr
s_vectors:
    .rept 5
    j fail
    .endr
    j s_timer
    .option pop
vector_exception:
    li s4, 100
    jr s10
vector_software:
    li s4, 3
    jr s10
s_timer:
    li s4, 5
    ecall
