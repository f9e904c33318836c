// ecall, ebreak, xret, wfi, fences and cache-block operations.
#include "hart.h"

static bool illegal(void) {
    raise(CAUSE_ILLEGAL, 0);
    return false;
}

static bool environment_call(void) {
    static const uint8_t causes[] = {CAUSE_ECALL_U, CAUSE_ECALL_S, 0, CAUSE_ECALL_M};
    if (hart.privilege == PRIV_S && hart.sbi_firmware) {
        hart.pc += 4;
        sbi_call();
        return true;
    }
    raise(causes[hart.privilege], 0);
    return false;
}

static bool supervisor_return(void) {
    if (hart.privilege == PRIV_U || (hart.privilege == PRIV_S && (hart.mstatus & MSTATUS_TSR) != 0)) return illegal();
    return_from_trap(PRIV_S);
    return true;
}

static bool machine_return(void) {
    if (hart.privilege != PRIV_M) return illegal();
    return_from_trap(PRIV_M);
    return true;
}

static bool wait_for_interrupt(void) {
    if (hart.privilege == PRIV_U || (hart.privilege == PRIV_S && (hart.mstatus & MSTATUS_TW) != 0)) return illegal();
    hart.pc += 4;
    hart.wait = 1;
    return true;
}

static bool fence_translation(const struct insn *d) {
    if (hart.privilege == PRIV_U || (hart.privilege == PRIV_S && (hart.mstatus & MSTATUS_TVM) != 0)) return illegal();
    if (d->rs1 != 0) tlb_flush_page(hart.x[d->rs1 / 8]);
    else if (d->rs2 == 0) tlb_flush_all();
    else if ((hart.x[d->rs2 / 8] & 0xffff) == (hart.satp >> 44 & 0xffff)) tlb_flush_space();
    hart.pc += 4;
    return true;
}

bool execute_sys(const struct insn *d, uint64_t pc) {
    hart.pc = pc;
    switch (d->imm & 0xff) {
    case ID_ECALL: return environment_call();
    case ID_EBREAK: case ID_C_EBREAK: raise(CAUSE_BREAKPOINT, pc); return false;
    case ID_SRET: return supervisor_return();
    case ID_MRET: return machine_return();
    case ID_WFI: return wait_for_interrupt();
    case ID_SFENCE_VMA: return fence_translation(d);
    default: // fence.i: decoded code follows every store, there is nothing to do
        hart.pc = pc + 4;
        return true;
    }
}

bool execute_cbo(const struct insn *d) {
    enum { CBIE = 3 << 4, CBCFE = 1 << 6, CBZE = 1 << 7 };
    unsigned id = d->imm & 0xff;
    uint64_t needed = id == ID_CBO_ZERO ? CBZE : id == ID_CBO_INVAL ? CBIE : CBCFE, va = hart.x[d->rs1 / 8];
    if (hart.privilege != PRIV_M && (hart.menvcfg & needed) == 0) return illegal();
    if (hart.privilege == PRIV_U && (hart.senvcfg & needed) == 0) return illegal();
    if (id == ID_CBO_ZERO) cbo_zero(va);
    else slow_load(va, 1); // caches do not exist; the address must still be one that can be read
    // These operations fault as stores ("CMO" extensions, chapter "Traps").
    if (hart.cause == CAUSE_LOAD_PAGE || hart.cause == CAUSE_LOAD_ACCESS) hart.cause += CAUSE_STORE_PAGE - CAUSE_LOAD_PAGE;
    return hart.cause == CAUSE_NONE;
}
