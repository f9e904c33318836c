// Traps: exceptions and interrupts into S and M mode, and the returns from them.
// Source: Privileged Architecture, chapters "Machine-Level ISA" and "Supervisor-Level ISA".
#include "hart.h"

static uint64_t vector(uint64_t tvec, uint64_t cause) {
    uint64_t base = tvec & ~3ull;
    if ((tvec & 1) != 0 && (cause & CAUSE_INTERRUPT) != 0) return base + 4 * (cause & ~CAUSE_INTERRUPT);
    return base;
}

static void trap_to_s(uint64_t cause, uint64_t tval) {
    hart.sepc = hart.pc;
    hart.scause = cause;
    hart.stval = tval;
    uint64_t status = hart.mstatus & ~(MSTATUS_SPP | MSTATUS_SPIE | MSTATUS_SIE);
    if (hart.privilege == PRIV_S) status |= MSTATUS_SPP;
    if ((hart.mstatus & MSTATUS_SIE) != 0) status |= MSTATUS_SPIE;
    hart.mstatus = status;
    hart.privilege = PRIV_S;
    hart.pc = vector(hart.stvec, cause);
}

// M-mode's translations depend on MPP while MPRV is set.
static void mpp_changes(void) {
    if ((hart.mstatus & MSTATUS_MPRV) != 0) tlb_flush_machine();
}

static void trap_to_m(uint64_t cause, uint64_t tval) {
    mpp_changes();
    hart.mepc = hart.pc;
    hart.mcause = cause;
    hart.mtval = tval;
    uint64_t status = hart.mstatus & ~(MSTATUS_MPP | MSTATUS_MPIE | MSTATUS_MIE);
    status |= (uint64_t)hart.privilege << 11;
    if ((hart.mstatus & MSTATUS_MIE) != 0) status |= MSTATUS_MPIE;
    hart.mstatus = status;
    hart.privilege = PRIV_M;
    hart.pc = vector(hart.mtvec, cause);
}

// illegal_word is what mtval tells of an illegal instruction: its bits.
static uint64_t illegal_word(void) {
    uint32_t word = 0;
    fetch_crossing(hart.pc, &word); // its second half may fault: then there was no second half
    return (word & 3) == 3 ? word : word & 0xffff;
}

void take_exception(void) {
    slow(SLOW_TRAP);
    uint32_t cause = hart.cause;
    if (cause == CAUSE_ILLEGAL) hart.tval = illegal_word();
    hart.cause = CAUSE_NONE;
    hart.reservation = ~0ull;
    if (hart.privilege != PRIV_M && (hart.medeleg >> cause & 1) != 0) trap_to_s(cause, hart.tval);
    else trap_to_m(cause, hart.tval);
}

bool interrupt_waiting(void) { return (hart.mip & hart.mie) != 0; }

// highest picks the interrupt with the highest priority: MEI, MSI, MTI, SEI, SSI, STI.
static unsigned highest(uint64_t pending) {
    static const uint8_t order[] = {IRQ_MEI, IRQ_MSI, IRQ_MTI, IRQ_SEI, IRQ_SSI, IRQ_STI};
    for (unsigned i = 0; i < sizeof order; i++)
        if ((pending >> order[i] & 1) != 0) return order[i];
    return 0;
}

bool take_interrupt(void) {
    uint64_t pending = hart.mip & hart.mie;
    if (pending == 0) return false;
    slow(SLOW_TRAP);
    uint64_t for_m = pending & ~hart.mideleg, for_s = pending & hart.mideleg;
    if (for_m != 0 && (hart.privilege < PRIV_M || (hart.mstatus & MSTATUS_MIE) != 0)) {
        trap_to_m(CAUSE_INTERRUPT | highest(for_m), 0);
        return true;
    }
    if (for_s != 0 && (hart.privilege < PRIV_S || (hart.privilege == PRIV_S && (hart.mstatus & MSTATUS_SIE) != 0))) {
        trap_to_s(CAUSE_INTERRUPT | highest(for_s), 0);
        return true;
    }
    return false;
}

static void return_from_s(void) {
    mpp_changes();
    uint64_t status = hart.mstatus & ~(MSTATUS_SIE | MSTATUS_SPP);
    if ((hart.mstatus & MSTATUS_SPIE) != 0) status |= MSTATUS_SIE;
    unsigned to = (hart.mstatus & MSTATUS_SPP) != 0 ? PRIV_S : PRIV_U;
    hart.mstatus = (status | MSTATUS_SPIE) & ~MSTATUS_MPRV;
    hart.pc = hart.sepc;
    hart.privilege = to;
}

static void return_from_m(void) {
    mpp_changes();
    uint64_t status = hart.mstatus & ~(MSTATUS_MIE | MSTATUS_MPP);
    if ((hart.mstatus & MSTATUS_MPIE) != 0) status |= MSTATUS_MIE;
    unsigned to = (unsigned)(hart.mstatus >> 11 & 3);
    if (to != PRIV_M) status &= ~MSTATUS_MPRV;
    hart.mstatus = status | MSTATUS_MPIE;
    hart.pc = hart.mepc;
    hart.privilege = to;
}

void return_from_trap(uint32_t from) {
    hart.reservation = ~0ull;
    if (from == PRIV_S) return_from_s();
    else return_from_m();
}
