// The processor as it starts, and as it is taken from an image.
#include "hart.h"
#include "system.h"

// processor_reset: the kernel starts in EL1 with all interrupts masked and no translation (D1.3.3, Documentation/arch/arm64/booting.rst). Bare
// programs start as Linux does.
void processor_reset(bool start_m) {
    (void)start_m;
    hart.el = hart.sp_select = 1;
    hart.pstate = PSTATE_DAIF;
    hart.flags = FLAGS_PACKED;
    hart.exclusive = ~0ull;
    hart.cpacr = CPACR_FPEN;
    if (hart.number == 0) gic_reset();
}

// processor_start is CPU_ON: the state is that of a reset, whatever the hart was before (DEN 0022, 6.4).
void processor_start(uint64_t pc, uint64_t argument) {
    uint64_t end = retired();
    uint32_t irq = hart.irq;
    __builtin_memset(&hart, 0, offsetof(struct hart_state, user_entries));
    hart.retired_end = end;
    hart.irq = irq;
    tlb_flush_all();
    processor_reset(false);
    hart.pc = pc;
    hart.x[0] = argument;
}

struct memory_range registers_state(void) { return memory_range(&hart, offsetof(struct hart_state, user_entries)); }

// flags_adopt has the flags' operands be such as the processor makes them, see enum flags.
static void flags_adopt(void) {
    if (hart.flags == FLAGS_SUB32) hart.flag_a = (uint64_t)(int32_t)hart.flag_a, hart.flag_b = (uint64_t)(int32_t)hart.flag_b;
    if (hart.flags == FLAGS_PACKED) hart.flag_a &= PSTATE_NZCV;
    if (hart.flags >= FLAGS_LOGIC) hart.flag_b = 0;
}

// registers_adopt: between two slices no exception is pending and no budget left.
bool registers_adopt(const void *other) {
    const struct hart_state *from = other;
    if (from->el > 1 || from->sp_select > 1 || from->flags > FLAGS_PACKED) return false;
    if (from->power > (hart.number == 0 ? HART_ON : HART_STARTING)) return false;
    __builtin_memcpy(&hart, from, offsetof(struct hart_state, user_entries));
    hart.retired_end = from->retired_end - (uint64_t)from->budget;
    hart.budget = 0;
    hart.cause = hart.recheck = hart.stop = hart.irq = 0;
    hart.wait = from->wait != 0;
    flags_adopt();
    hart.pstate &= PSTATE_DAIF | PSTATE_PAN | PSTATE_IL;
    hart.fpcr &= FPCR_AHP | FPCR_DN | FPCR_FZ | 3u << 22;
    hart.fpsr &= FPSR_QC | 0x9f;
    hart.cntv_ctl &= 3;
    hart.cntp_ctl &= 3;
    return true;
}
