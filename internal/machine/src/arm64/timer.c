// The generic timer's two timers of EL1 (DDI 0487, D11.2). common/clock.c has the clock that they compare with.
#include "hart.h"
#include "system.h"

enum { ENABLE = 1, MASKED = 2, VIRTUAL_INTERRUPT = 27, PHYSICAL_INTERRUPT = 30 };

static bool armed(uint64_t control) { return (control & (ENABLE | MASKED)) == ENABLE; }

void timer_update(void) {
    bool virtual = armed(hart.cntv_ctl), physical = armed(hart.cntp_ctl);
    uint64_t now = virtual || physical ? guest_time() : 0;
    gic_set_private(VIRTUAL_INTERRUPT, virtual && now >= hart.cntv_cval);
    gic_set_private(PHYSICAL_INTERRUPT, physical && now >= hart.cntp_cval);
}

// next_tick leaves out a timer that has raised its line: it ends no wait that the line does not end.
uint64_t next_tick(void) {
    uint64_t tick = ~0ull;
    if (armed(hart.cntv_ctl) && !gic_private(VIRTUAL_INTERRUPT)) tick = hart.cntv_cval;
    if (armed(hart.cntp_ctl) && !gic_private(PHYSICAL_INTERRUPT) && hart.cntp_cval < tick) tick = hart.cntp_cval;
    return tick;
}
