// Interrupt controller: GICv3 with one redistributor, no LPIs, one security state and group 1 for all that Linux enables.
// Source: Arm Generic Interrupt Controller Architecture Specification, GIC architecture version 3 and version 4 (IHI 0069), chapters 4 and 12.
#include "hart.h"
#include "system.h"

enum { SGIS = 16, SGI_BITS = 0xffff, PRIVATE = 32, INTERRUPTS = 64, NONE = 1023 };
enum { PRIORITY_MASK = 0xf8, LEAST_BINARY_POINT = 3 }; // 32 levels
enum { CTLR_GROUP1 = 2, CTLR_ARE = 1 << 4, CTLR_DS = 1 << 6 };
enum { CPU_EOIMODE = 2 };

static struct {
    uint64_t level;   // lines that devices and timers hold high
    uint64_t latched; // software-generated, by edge, and set by registers
    uint64_t edge;    // what is configured to be latched when its line rises
    uint64_t enabled, active, group1;
    uint32_t control, cpu_control, group1_enabled, mask, binary_point, sleeping;
    uint32_t active_priorities; // a bit for each level
    uint8_t priority[INTERRUPTS];
} gic;

static uint64_t pending(void) { return (gic.level & ~gic.edge) | gic.latched; }

// preemption is the part of a priority that decides whether one interrupt stops another (4.8.3, of ICC_BPR1_EL1).
static unsigned preemption(unsigned priority) { return priority & ~((1u << gic.binary_point) - 1) & PRIORITY_MASK; }

static unsigned running(void) { return gic.active_priorities == 0 ? 0xff : (unsigned)__builtin_ctz(gic.active_priorities) << 3; }

// highest is the pending interrupt that comes first, NONE: none.
static unsigned highest(void) {
    if ((gic.control & CTLR_GROUP1) == 0 || !gic.group1_enabled) return NONE;
    uint64_t candidates = pending() & gic.enabled & gic.group1 & ~gic.active;
    unsigned found = NONE, priority = 0x100;
    while (candidates != 0) {
        unsigned i = (unsigned)__builtin_ctzll(candidates);
        candidates &= candidates - 1;
        if (gic.priority[i] < priority) found = i, priority = gic.priority[i];
    }
    return found;
}

// best is the interrupt that the processor would take, NONE: none.
static unsigned best(void) {
    unsigned i = highest();
    if (i == NONE || gic.priority[i] >= gic.mask) return NONE;
    return gic.active_priorities == 0 || preemption(gic.priority[i]) < preemption(running()) ? i : NONE;
}

static void update(void) {
    hart.irq = best() != NONE;
    hart.recheck = 1;
}

static void set_level(unsigned interrupt, bool level) {
    uint64_t bit = 1ull << interrupt;
    if (level) gic.latched |= bit & gic.edge & ~gic.level;
    gic.level = level ? gic.level | bit : gic.level & ~bit;
    update();
}

void interrupt_set_level(unsigned source, bool level) { set_level(PRIVATE + source, level); } // 1 to 31, of the board: the shared ones from 32 on

bool gic_private(unsigned interrupt) { return gic.level >> interrupt & 1; }

void gic_set_private(unsigned interrupt, bool level) {
    if (gic_private(interrupt) != level) set_level(interrupt, level);
}

void gic_reset(void) {
    gic.control = CTLR_ARE | CTLR_DS;
    gic.group1 = ~0ull;
    gic.edge = SGI_BITS;
    gic.binary_point = LEAST_BINARY_POINT;
    gic.sleeping = 1;
}

// CPU interface -------------------------------------------------------------------------------------------------

static unsigned acknowledge(void) {
    unsigned i = best();
    if (i == NONE) return NONE;
    gic.active |= 1ull << i;
    gic.latched &= ~(1ull << i);
    gic.active_priorities |= 1u << (preemption(gic.priority[i]) >> 3);
    update();
    return i;
}

static void deactivate(uint64_t value) {
    if (value < INTERRUPTS) gic.active &= ~(1ull << value);
    update();
}

static void end(uint64_t value) {
    if (value >= INTERRUPTS || gic.active_priorities == 0) return;
    gic.active_priorities &= gic.active_priorities - 1;
    if ((gic.cpu_control & CPU_EOIMODE) == 0) deactivate(value);
    update();
}

// generate is ICC_SGI1R_EL1: to the processors of a list, of which there is 0.0.0.0, or to all others, of which there are none.
static void generate(uint64_t value) {
    const uint64_t affinities = 0xffull << 48 | 0xffull << 32 | 0xffull << 16, others = 1ull << 40;
    if ((value & (affinities | others)) == 0 && (value & 1) != 0) gic.latched |= 1ull << (value >> 24 & 15) & gic.group1;
    update();
}

static void set_binary_point(uint32_t value) { gic.binary_point = value < LEAST_BINARY_POINT ? LEAST_BINARY_POINT : value; }

#define ICC(crm, op2) (3 << 14 | 12 << 7 | (crm) << 3 | (op2))
#define ICC_PMR (3 << 14 | 4 << 7 | 6 << 3)

bool gic_register_read(unsigned r, uint64_t *v) {
    slow(SLOW_REGISTER);
    switch (r) {
    case ICC_PMR: *v = gic.mask; return true;
    case ICC(12, 0): *v = acknowledge(); return true;
    case ICC(12, 2): *v = highest(); return true;
    case ICC(12, 3): *v = gic.binary_point; return true;
    case ICC(12, 4): *v = gic.cpu_control | 4 << 8 /* PRIbits */ | 1 << 15 /* A3V */; return true;
    case ICC(12, 5): *v = 7; return true; // ICC_SRE_EL1: system registers alone
    case ICC(12, 6): *v = 0; return true;
    case ICC(12, 7): *v = gic.group1_enabled; return true;
    case ICC(11, 3): *v = running(); return true;
    case ICC(9, 0): *v = gic.active_priorities; return true;
    case ICC(8, 4): *v = 0; return true; // ICC_AP0R0_EL1
    case ICC(8, 3): *v = 0; return true;
    default: return false;
    }
}

bool gic_register_write(unsigned r, uint64_t v) {
    slow(SLOW_REGISTER);
    switch (r) {
    case ICC_PMR: gic.mask = v & PRIORITY_MASK; update(); return true;
    case ICC(12, 1): end(v); return true;
    case ICC(11, 1): deactivate(v); return true;
    case ICC(12, 3): set_binary_point(v & 7); update(); return true;
    case ICC(12, 4): gic.cpu_control = v & CPU_EOIMODE; return true;
    case ICC(12, 7): gic.group1_enabled = v & 1; update(); return true;
    case ICC(11, 5): generate(v); return true;
    case ICC(9, 0): gic.active_priorities = (uint32_t)v; update(); return true;
    case ICC(12, 5): case ICC(12, 6): case ICC(8, 4): case ICC(8, 3): return true;
    default: return false;
    }
}

// Distributor and redistributor: the registers for interrupts `first` to `first` + 31 are the same in both -------------

enum {
    GROUP = 0x80, SET_ENABLE = 0x100, CLEAR_ENABLE = 0x180, SET_PENDING = 0x200, CLEAR_PENDING = 0x280, SET_ACTIVE = 0x300, CLEAR_ACTIVE = 0x380,
    PRIORITY = 0x400, CONFIGURATION = 0xc00, PIDR2 = 0xffe8, ARCHITECTURE_3 = 0x30,
};

static uint32_t word_of(uint64_t bits, unsigned first) { return (uint32_t)(bits >> first); }

// bank_read and bank_write have the registers of 32 interrupts, whose offsets are those of the first bank.
static uint32_t bank_read(uint32_t offset, unsigned first) {
    switch (offset) {
    case GROUP: return word_of(gic.group1, first);
    case SET_ENABLE: case CLEAR_ENABLE: return word_of(gic.enabled, first);
    case SET_PENDING: case CLEAR_PENDING: return word_of(pending(), first);
    case SET_ACTIVE: case CLEAR_ACTIVE: return word_of(gic.active, first);
    default: return 0;
    }
}

static void bank_write(uint32_t offset, uint32_t value, unsigned first) {
    uint64_t bits = (uint64_t)value << first, all = 0xffffffffull << first;
    switch (offset) {
    case GROUP: gic.group1 = (gic.group1 & ~all) | bits; break;
    case SET_ENABLE: gic.enabled |= bits; break;
    case CLEAR_ENABLE: gic.enabled &= ~bits; break;
    case SET_PENDING: gic.latched |= bits; break;
    case CLEAR_PENDING: gic.latched &= ~bits; break;
    case SET_ACTIVE: gic.active |= bits; break;
    case CLEAR_ACTIVE: gic.active &= ~bits; break;
    default: break;
    }
}

static uint64_t priorities(uint32_t first, uint32_t size) {
    uint64_t v = 0;
    for (uint32_t i = 0; i < size && first + i < INTERRUPTS; i++) v |= (uint64_t)gic.priority[first + i] << (8 * i);
    return v;
}

static void set_priorities(uint32_t first, uint64_t value, uint32_t size) {
    for (uint32_t i = 0; i < size && first + i < INTERRUPTS; i++) gic.priority[first + i] = value >> (8 * i) & PRIORITY_MASK;
}

// configuration_read has two bits for each of the 16 interrupts from `first` on, of which the upper one says that it is by edge.
static uint32_t configuration_read(unsigned first) {
    uint32_t v = 0;
    for (unsigned i = 0; i < 16; i++) v |= (uint32_t)(gic.edge >> (first + i) & 1) << (2 * i + 1);
    return v;
}

// configuration_write is not for SGIs, which are by edge.
static void configuration_write(unsigned first, uint32_t value) {
    for (unsigned i = 0; i < 16; i++) {
        uint64_t bit = 1ull << (first + i);
        gic.edge = value >> (2 * i + 1) & 1 ? gic.edge | bit : gic.edge & ~bit;
    }
}

// registers_read has what a distributor and a redistributor share, with interrupts from `from` to `to`.
static uint64_t registers_read(uint32_t offset, uint32_t size, unsigned from, unsigned to) {
    if (offset >= PRIORITY && offset < PRIORITY + INTERRUPTS) {
        uint32_t i = offset - PRIORITY;
        return i >= from && i < to ? priorities(i, size) : 0;
    }
    if (offset >= CONFIGURATION && offset < CONFIGURATION + INTERRUPTS / 4) {
        unsigned first = (offset - CONFIGURATION) / 4 * 16;
        return first >= from && first < to ? configuration_read(first) : 0;
    }
    unsigned first = (offset & 0x7f) * 8;
    return first >= from && first < to ? bank_read(offset & ~0x7fu, first) : 0;
}

static void registers_write(uint32_t offset, uint64_t value, uint32_t size, unsigned from, unsigned to) {
    if (offset >= PRIORITY && offset < PRIORITY + INTERRUPTS) {
        uint32_t i = offset - PRIORITY;
        if (i >= from && i < to) set_priorities(i, value, size);
    } else if (offset >= CONFIGURATION && offset < CONFIGURATION + INTERRUPTS / 4) {
        unsigned first = (offset - CONFIGURATION) / 4 * 16;
        if (first >= SGIS && first >= from && first < to) configuration_write(first, (uint32_t)value);
    } else {
        unsigned first = (offset & 0x7f) * 8;
        if (first >= from && first < to) bank_write(offset & ~0x7fu, (uint32_t)value, first);
    }
    update();
}

uint64_t gic_distributor_read(uint32_t offset, uint32_t size) {
    enum { TYPER = (INTERRUPTS / 32 - 1) | 9 << 19 | 3 << 24 }; // 10 bits of numbers, four affinities, each interrupt has its processor
    switch (offset) {
    case 0: return gic.control;
    case 4: return TYPER;
    case PIDR2: return ARCHITECTURE_3;
    default: return registers_read(offset, size, PRIVATE, INTERRUPTS); // routes: all lead to the only processor
    }
}

void gic_distributor_write(uint32_t offset, uint64_t value, uint32_t size) {
    if (offset == 0) {
        gic.control = (value & 3) | CTLR_ARE | CTLR_DS;
        update();
    } else {
        registers_write(offset, value, size, PRIVATE, INTERRUPTS);
    }
}

enum { SGI_FRAME = 0x10000, WAKER = 0x14, TYPER_LAST = 1 << 4 };

uint64_t gic_redistributor_read(uint32_t offset, uint32_t size) {
    switch (offset) {
    case 8: return TYPER_LAST;
    case WAKER: return gic.sleeping ? 6 : 0;
    case PIDR2: return ARCHITECTURE_3;
    default: return offset >= SGI_FRAME ? registers_read(offset - SGI_FRAME, size, 0, PRIVATE) : 0;
    }
}

void gic_redistributor_write(uint32_t offset, uint64_t value, uint32_t size) {
    if (offset == WAKER) gic.sleeping = value >> 1 & 1;
    else if (offset >= SGI_FRAME) registers_write(offset - SGI_FRAME, value, size, 0, PRIVATE);
}

struct memory_range interrupts_state(void) { return memory_range(&gic, sizeof gic); }

// interrupts_adopt leaves out which lines are high: the devices and timers say so.
bool interrupts_adopt(const void *other) {
    const __typeof__(gic) *from = other;
    uint64_t level = gic.level;
    gic = *from;
    gic.level = level;
    gic.control = (gic.control & 3) | CTLR_ARE | CTLR_DS;
    gic.cpu_control &= CPU_EOIMODE;
    gic.group1_enabled &= 1;
    gic.mask &= PRIORITY_MASK;
    set_binary_point(gic.binary_point & 7);
    gic.edge |= SGI_BITS;
    gic.sleeping &= 1;
    for (unsigned i = 0; i < INTERRUPTS; i++) gic.priority[i] &= PRIORITY_MASK;
    update();
    return true;
}
