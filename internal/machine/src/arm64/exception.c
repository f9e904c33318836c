// Exceptions to EL1 and the return from them (DDI 0487, D1.3).
#include "hart.h"

// The stack pointer that x[31] is not: each is kept where it belongs while the other is in use.
static void enter_state(uint32_t el, uint32_t select) {
    bool was_el1 = hart.el == 1 && hart.sp_select != 0, is_el1 = el == 1 && select != 0;
    if (was_el1) hart.sp_el1 = hart.x[31];
    else hart.sp_el0 = hart.x[31];
    hart.x[31] = is_el1 ? hart.sp_el1 : hart.sp_el0;
    hart.el = el;
    hart.sp_select = select;
}

void select_stack(uint32_t select) { enter_state(hart.el, select); }

static uint64_t saved_state(void) {
    uint64_t mode = hart.el == 0 ? 0 : 4 | hart.sp_select;
    return nzcv() | (hart.pstate & (PSTATE_DAIF | PSTATE_PAN | PSTATE_IL)) | mode;
}

static void enter_el1(uint64_t offset) {
    slow(SLOW_TRAP);
    uint64_t from = hart.el == 0 ? 0x400 : hart.sp_select ? 0x200 : 0;
    hart.spsr = saved_state();
    hart.elr = hart.pc;
    hart.pstate = (hart.pstate & PSTATE_PAN) | PSTATE_DAIF;
    if ((hart.sctlr & SCTLR_SPAN) == 0) hart.pstate |= PSTATE_PAN;
    enter_state(1, 1);
    hart.exclusive = ~0ull;
    hart.pc = hart.vbar + from + offset;
}

void take_exception(void) {
    uint32_t class = hart.cause >> 26;
    hart.esr = hart.cause;
    if (class == EC_FETCH || class == EC_FETCH_LOWER || class == EC_DATA || class == EC_DATA_LOWER || class == EC_PC_ALIGNMENT)
        hart.far = hart.fault_address;
    hart.cause = 0;
    enter_el1(0);
}

bool interrupt_waiting(void) { return hart.irq != 0; }

void take_interrupt(void) {
    if ((hart.pstate & PSTATE_I) == 0) enter_el1(0x80);
}

bool exception_return(void) {
    uint64_t state = hart.spsr, mode = state & 31;
    hart.pc = code_address(hart.elr);
    hart.exclusive = ~0ull;
    set_nzcv(state);
    if (mode != 0 && mode != 4 && mode != 5) { // D1.3.4: an illegal return keeps the exception level and sets IL
        hart.pstate = (state & (PSTATE_DAIF | PSTATE_PAN)) | PSTATE_IL;
        return true;
    }
    hart.pstate = state & (PSTATE_DAIF | PSTATE_PAN | PSTATE_IL); // there is no software step
    enter_state(mode == 0 ? 0 : 1, mode & 1);
    return true;
}
