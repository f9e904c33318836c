// The timers of supervisor and machine mode. common/clock.c has the clock that they compare with.
#include "hart.h"

static void set_pending(unsigned irq, bool level) {
    if (level) hart.mip |= 1ull << irq;
    else hart.mip &= ~(1ull << irq);
}

// Without menvcfg.STCE, STIP is an ordinary bit that M-mode writes ("Sstc" extension).
static bool sstc(void) { return (hart.menvcfg >> 63 & 1) != 0; }

void timer_update(void) {
    bool never = hart.stimecmp == ~0ull && hart.mtimecmp == ~0ull;
    uint64_t now = never ? 0 : guest_time();
    if (sstc()) set_pending(IRQ_STI, !never && now >= hart.stimecmp);
    set_pending(IRQ_MTI, !never && now >= hart.mtimecmp);
}

uint64_t next_tick(void) {
    uint64_t tick = ~0ull;
    if (sstc() && (hart.mie >> IRQ_STI & 1) != 0) tick = hart.stimecmp;
    if ((hart.mie >> IRQ_MTI & 1) != 0 && hart.mtimecmp < tick) tick = hart.mtimecmp;
    return tick;
}
