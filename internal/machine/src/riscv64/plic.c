// Platform-level interrupt controller with 31 sources and one context: S-mode of hart 0.
// Source: RISC-V Platform-Level Interrupt Controller Specification 1.0.0, chapters 3 to 9.
#include "hart.h"

enum {
    SOURCES = 32,
    PRIORITY_BASE = 0x000000,
    PENDING_BASE = 0x001000,
    ENABLE_BASE = 0x002000,
    THRESHOLD = 0x200000,
    CLAIM = 0x200004,
    MAX_PRIORITY = 7,
};

static struct {
    uint32_t priority[SOURCES];
    uint32_t level;   // lines that devices hold high
    uint32_t claimed; // between claim and completion
    uint32_t enabled;
    uint32_t threshold;
} plic;

// best is the pending, enabled, unclaimed source of highest priority above the threshold; 0 is none.
static unsigned best(void) {
    uint32_t candidates = plic.level & ~plic.claimed & plic.enabled;
    unsigned found = 0;
    uint32_t priority = plic.threshold;
    for (unsigned i = 1; candidates >> i != 0 && i < SOURCES; i++) {
        if ((candidates >> i & 1) != 0 && plic.priority[i] > priority) {
            found = i;
            priority = plic.priority[i];
        }
    }
    return found;
}

static void update(void) {
    if (best() != 0) hart.mip |= 1ull << IRQ_SEI;
    else hart.mip &= ~(1ull << IRQ_SEI);
    hart.recheck = 1;
}

void interrupt_set_level(unsigned source, bool level) {
    if (level) plic.level |= 1u << source;
    else plic.level &= ~(1u << source);
    update();
}

static uint32_t claim(void) {
    unsigned source = best();
    if (source != 0) plic.claimed |= 1u << source;
    update();
    return source;
}

uint64_t plic_read(uint32_t offset) {
    if (offset < PRIORITY_BASE + SOURCES * 4) return plic.priority[offset / 4];
    switch (offset) {
    case PENDING_BASE: return plic.level & ~plic.claimed;
    case ENABLE_BASE: return plic.enabled;
    case THRESHOLD: return plic.threshold;
    case CLAIM: return claim();
    default: return 0;
    }
}

void plic_write(uint32_t offset, uint64_t value) {
    if (offset < PRIORITY_BASE + SOURCES * 4 && offset >= 4) plic.priority[offset / 4] = value & MAX_PRIORITY;
    else if (offset == ENABLE_BASE) plic.enabled = (uint32_t)value & ~1u;
    else if (offset == THRESHOLD) plic.threshold = value & MAX_PRIORITY;
    else if (offset == CLAIM && value < SOURCES) plic.claimed &= ~(1u << value);
    update();
}

struct memory_range interrupts_state(void) { return memory_range(&plic, sizeof plic); }

// interrupts_adopt leaves out which lines are high: the devices say so.
bool interrupts_adopt(const void *other) {
    const __typeof__(plic) *from = other;
    for (unsigned i = 1; i < SOURCES; i++) plic.priority[i] = from->priority[i] & MAX_PRIORITY;
    plic.claimed = from->claimed & ~1u;
    plic.enabled = from->enabled & ~1u;
    plic.threshold = from->threshold & MAX_PRIORITY;
    update();
    return true;
}
