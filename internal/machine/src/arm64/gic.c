// Interrupt controller: GICv3 with a redistributor for each processor, no LPIs, one security state and group 1 for all that Linux enables.
// Source: Arm Generic Interrupt Controller Architecture Specification, GIC architecture version 3 and version 4 (IHI 0069), chapters 4 and 12.
#include "hart.h"
#include "system.h"

enum { SGIS = 16, SGI_BITS = 0xffff, BANK = 32, INTERRUPTS = 64, NONE = 1023 };
enum { PRIORITY_MASK = 0xf8, LEAST_BINARY_POINT = 3 }; // 32 levels
enum { CTLR_GROUP1 = 2, CTLR_ARE = 1 << 4, CTLR_DS = 1 << 6 };
enum { CPU_EOIMODE = 2 };

// A bank is of 32 interrupts.
struct bank {
    uint32_t level;   // lines that devices and timers hold high
    uint32_t latched; // software-generated, by edge, and set by registers
    uint32_t edge;    // what is configured to be latched when its line rises
    uint32_t enabled, active, group1;
    uint8_t priority[BANK];
};

// interface is what each processor has: interrupts 0 to 31, and the registers of its CPU interface.
struct interface {
    struct bank own;
    uint32_t control, group1_enabled, mask, binary_point, sleeping;
    uint32_t active_priorities; // a bit for each level
};

static struct {
    struct bank shared; // interrupts 32 to 63
    uint32_t control;
    uint8_t route[BANK]; // the processor that gets each of them
    struct interface of[MAX_HARTS];
} gic;

static struct interface *mine(void) { return &gic.of[hart.number]; }

static struct bank *bank_of(unsigned interrupt) { return interrupt < BANK ? &mine()->own : &gic.shared; }

static uint32_t pending(const struct bank *b) { return (b->level & ~b->edge) | b->latched; }

// preemption is the part of a priority that decides whether one interrupt stops another (4.8.3, of ICC_BPR1_EL1).
static unsigned preemption(const struct interface *c, unsigned priority) { return priority & ~((1u << c->binary_point) - 1) & PRIORITY_MASK; }

static unsigned running(const struct interface *c) {
    return c->active_priorities == 0 ? 0xff : (unsigned)__builtin_ctz(c->active_priorities) << 3;
}

struct candidate {
    unsigned interrupt, priority;
};

static void consider(struct candidate *found, const struct bank *b, unsigned first, uint32_t among) {
    for (uint32_t left = pending(b) & b->enabled & b->group1 & ~b->active & among; left != 0; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctz(left);
        if (b->priority[i] < found->priority) *found = (struct candidate){first + i, b->priority[i]};
    }
}

// highest is the pending interrupt of a processor that comes first, NONE: none.
static struct candidate highest(unsigned processor) {
    const struct interface *c = &gic.of[processor];
    struct candidate found = {NONE, 0x100};
    if ((gic.control & CTLR_GROUP1) == 0 || !c->group1_enabled) return found;
    uint32_t routed = 0;
    for (unsigned i = 0; i < BANK; i++) routed |= (uint32_t)(gic.route[i] == processor) << i;
    consider(&found, &c->own, 0, ~0u);
    consider(&found, &gic.shared, BANK, routed);
    return found;
}

// best is the interrupt that a processor would take.
static struct candidate best(unsigned processor) {
    const struct interface *c = &gic.of[processor];
    struct candidate i = highest(processor);
    bool taken = i.interrupt != NONE && i.priority < c->mask && (c->active_priorities == 0 || preemption(c, i.priority) < preemption(c, running(c)));
    return taken ? i : (struct candidate){NONE, 0x100};
}

static void update(void) {
    for (unsigned k = 0; k < hart_count(); k++) {
        struct hart_state *h = hart_numbered(k);
        bool rises = best(k).interrupt != NONE, is_new = rises && !h->irq;
        h->irq = rises;
        if (is_new && k != hart.number) harts_interrupt(k);
    }
    hart.recheck = 1;
}

static void set_level(unsigned interrupt, bool level) {
    struct bank *b = bank_of(interrupt);
    uint32_t bit = 1u << interrupt % BANK;
    if (level) b->latched |= bit & b->edge & ~b->level;
    b->level = level ? b->level | bit : b->level & ~bit;
    update();
}

void interrupt_set_level(unsigned source, bool level) { set_level(BANK + source, level); } // 1 to 31, of the board: the shared ones from 32 on

bool gic_private(unsigned interrupt) { return mine()->own.level >> interrupt & 1; }

void gic_set_private(unsigned interrupt, bool level) {
    if (gic_private(interrupt) == level) return;
    machine_lock();
    set_level(interrupt, level);
    machine_unlock();
}

static void reset_bank(struct bank *b, uint32_t edge) {
    b->group1 = ~0u;
    b->edge = edge;
}

void gic_reset(void) {
    gic.control = CTLR_ARE | CTLR_DS;
    reset_bank(&gic.shared, 0);
    for (unsigned k = 0; k < MAX_HARTS; k++) {
        reset_bank(&gic.of[k].own, SGI_BITS);
        gic.of[k].binary_point = LEAST_BINARY_POINT;
        gic.of[k].sleeping = 1;
    }
}

// CPU interface -------------------------------------------------------------------------------------------------

static unsigned acknowledge(void) {
    struct interface *c = mine();
    struct candidate found = best(hart.number);
    if (found.interrupt == NONE) return NONE;
    struct bank *b = bank_of(found.interrupt);
    b->active |= 1u << found.interrupt % BANK;
    b->latched &= ~(1u << found.interrupt % BANK);
    c->active_priorities |= 1u << (preemption(c, found.priority) >> 3);
    update();
    return found.interrupt;
}

static void deactivate(uint64_t value) {
    if (value < INTERRUPTS) bank_of((unsigned)value)->active &= ~(1u << value % BANK);
    update();
}

static void end(uint64_t value) {
    struct interface *c = mine();
    if (value >= INTERRUPTS || c->active_priorities == 0) return;
    c->active_priorities &= c->active_priorities - 1;
    if ((c->control & CPU_EOIMODE) == 0) deactivate(value);
    update();
}

// generate is ICC_SGI1R_EL1: to the processors of a list, whose affinities are 0.0.0 and their number, or to all others.
static void generate(uint64_t value) {
    const uint64_t affinities = 0xffull << 48 | 0xffull << 32 | 0xffull << 16, others = 1ull << 40;
    for (unsigned k = 0; k < hart_count(); k++) {
        bool listed = (value & affinities) == 0 && (value >> k & 1) != 0;
        if ((value & others) != 0 ? k != hart.number : listed) gic.of[k].own.latched |= 1u << (value >> 24 & 15) & gic.of[k].own.group1;
    }
    update();
}

static void set_binary_point(struct interface *c, uint32_t value) { c->binary_point = value < LEAST_BINARY_POINT ? LEAST_BINARY_POINT : value; }

#define ICC(crm, op2) (3 << 14 | 12 << 7 | (crm) << 3 | (op2))
#define ICC_PMR (3 << 14 | 4 << 7 | 6 << 3)

static bool read_register(unsigned r, uint64_t *v) {
    struct interface *c = mine();
    switch (r) {
    case ICC_PMR: *v = c->mask; return true;
    case ICC(12, 0): *v = acknowledge(); return true;
    case ICC(12, 2): *v = highest(hart.number).interrupt; return true;
    case ICC(12, 3): *v = c->binary_point; return true;
    case ICC(12, 4): *v = c->control | 4 << 8 /* PRIbits */ | 1 << 15 /* A3V */; return true;
    case ICC(12, 5): *v = 7; return true; // ICC_SRE_EL1: system registers alone
    case ICC(12, 6): *v = 0; return true;
    case ICC(12, 7): *v = c->group1_enabled; return true;
    case ICC(11, 3): *v = running(c); return true;
    case ICC(9, 0): *v = c->active_priorities; return true;
    case ICC(8, 4): *v = 0; return true; // ICC_AP0R0_EL1
    case ICC(8, 3): *v = 0; return true;
    default: return false;
    }
}

static bool write_register(unsigned r, uint64_t v) {
    struct interface *c = mine();
    switch (r) {
    case ICC_PMR: c->mask = v & PRIORITY_MASK; update(); return true;
    case ICC(12, 1): end(v); return true;
    case ICC(11, 1): deactivate(v); return true;
    case ICC(12, 3): set_binary_point(c, v & 7); update(); return true;
    case ICC(12, 4): c->control = v & CPU_EOIMODE; return true;
    case ICC(12, 7): c->group1_enabled = v & 1; update(); return true;
    case ICC(11, 5): generate(v); return true;
    case ICC(9, 0): c->active_priorities = (uint32_t)v; update(); return true;
    case ICC(12, 5): case ICC(12, 6): case ICC(8, 4): case ICC(8, 3): return true;
    default: return false;
    }
}

bool gic_register_read(unsigned r, uint64_t *v) {
    slow(SLOW_REGISTER);
    machine_lock();
    bool found = read_register(r, v);
    machine_unlock();
    return found;
}

bool gic_register_write(unsigned r, uint64_t v) {
    slow(SLOW_REGISTER);
    machine_lock();
    bool found = write_register(r, v);
    machine_unlock();
    return found;
}

// Distributor and redistributor: the registers of a bank are the same in both, and its number is in their offsets -------

enum {
    GROUP = 0x80, SET_ENABLE = 0x100, CLEAR_ENABLE = 0x180, SET_PENDING = 0x200, CLEAR_PENDING = 0x280, SET_ACTIVE = 0x300, CLEAR_ACTIVE = 0x380,
    PRIORITY = 0x400, CONFIGURATION = 0xc00, ROUTER = 0x6000, PIDR2 = 0xffe8, ARCHITECTURE_3 = 0x30,
};

static uint32_t bits_read(const struct bank *b, uint32_t offset) {
    switch (offset) {
    case GROUP: return b->group1;
    case SET_ENABLE: case CLEAR_ENABLE: return b->enabled;
    case SET_PENDING: case CLEAR_PENDING: return pending(b);
    case SET_ACTIVE: case CLEAR_ACTIVE: return b->active;
    default: return 0;
    }
}

static void bits_write(struct bank *b, uint32_t offset, uint32_t bits) {
    switch (offset) {
    case GROUP: b->group1 = bits; break;
    case SET_ENABLE: b->enabled |= bits; break;
    case CLEAR_ENABLE: b->enabled &= ~bits; break;
    case SET_PENDING: b->latched |= bits; break;
    case CLEAR_PENDING: b->latched &= ~bits; break;
    case SET_ACTIVE: b->active |= bits; break;
    case CLEAR_ACTIVE: b->active &= ~bits; break;
    default: break;
    }
}

static uint64_t priorities(const struct bank *b, uint32_t first, uint32_t size) {
    uint64_t v = 0;
    for (uint32_t i = 0; i < size && first + i < BANK; i++) v |= (uint64_t)b->priority[first + i] << (8 * i);
    return v;
}

static void set_priorities(struct bank *b, uint32_t first, uint64_t value, uint32_t size) {
    for (uint32_t i = 0; i < size && first + i < BANK; i++) b->priority[first + i] = value >> (8 * i) & PRIORITY_MASK;
}

// configuration_read has two bits for each of the 16 interrupts from `first` on, of which the upper one says that it is by edge.
static uint32_t configuration_read(const struct bank *b, unsigned first) {
    uint32_t v = 0;
    for (unsigned i = 0; i < 16; i++) v |= (b->edge >> (first + i) & 1) << (2 * i + 1);
    return v;
}

static void configuration_write(struct bank *b, unsigned first, uint32_t value) {
    for (unsigned i = 0; i < 16; i++) {
        uint32_t bit = 1u << (first + i);
        b->edge = value >> (2 * i + 1) & 1 ? b->edge | bit : b->edge & ~bit;
    }
}

// bank_read has the registers of the bank whose first interrupt is `first`.
static uint64_t bank_read(const struct bank *b, uint32_t offset, uint32_t size, unsigned first) {
    if (offset >= PRIORITY && offset < PRIORITY + INTERRUPTS)
        return (offset - PRIORITY) / BANK == first / BANK ? priorities(b, (offset - PRIORITY) % BANK, size) : 0;
    if (offset >= CONFIGURATION && offset < CONFIGURATION + INTERRUPTS / 4)
        return (offset - CONFIGURATION) / 8 == first / BANK ? configuration_read(b, (offset - CONFIGURATION) % 8 / 4 * 16) : 0;
    return (offset & 0x7f) * 8 / BANK == first / BANK ? bits_read(b, offset & ~0x7fu) : 0;
}

static void bank_write(struct bank *b, uint32_t offset, uint64_t value, uint32_t size, unsigned first) {
    if (offset >= PRIORITY && offset < PRIORITY + INTERRUPTS) {
        if ((offset - PRIORITY) / BANK == first / BANK) set_priorities(b, (offset - PRIORITY) % BANK, value, size);
    } else if (offset >= CONFIGURATION && offset < CONFIGURATION + INTERRUPTS / 4) {
        unsigned from = (offset - CONFIGURATION) / 4 * 16; // SGIs are by edge
        if (from >= SGIS && from / BANK == first / BANK) configuration_write(b, from % BANK, (uint32_t)value);
    } else if ((offset & 0x7f) * 8 / BANK == first / BANK) {
        bits_write(b, offset & ~0x7fu, (uint32_t)value);
    }
    update();
}

// routed tells whether an offset is of a GICD_IROUTER, of which there is one for each shared interrupt.
static bool routed(uint32_t offset, unsigned *interrupt) {
    *interrupt = (offset - ROUTER) / 8 % BANK;
    return offset >= ROUTER + 8 * BANK && offset < ROUTER + 8 * INTERRUPTS;
}

uint64_t gic_distributor_read(uint32_t offset, uint32_t size) {
    enum { TYPER = (INTERRUPTS / 32 - 1) | 9 << 19 | 3 << 24 }; // 10 bits of numbers, four affinities, each interrupt has its processor
    unsigned i;
    if (routed(offset, &i)) return offset % 8 == 0 ? gic.route[i] : 0;
    switch (offset) {
    case 0: return gic.control;
    case 4: return TYPER | (hart_count() - 1) << 5;
    case PIDR2: return ARCHITECTURE_3;
    default: return bank_read(&gic.shared, offset, size, BANK);
    }
}

void gic_distributor_write(uint32_t offset, uint64_t value, uint32_t size) {
    unsigned i;
    if (routed(offset, &i)) { // to a processor that is not there, or to any of them: to the first
        if (offset % 8 == 0) gic.route[i] = value < hart_count() ? (uint8_t)value : 0;
        update();
    } else if (offset == 0) {
        gic.control = (value & 3) | CTLR_ARE | CTLR_DS;
        update();
    } else {
        bank_write(&gic.shared, offset, value, size, BANK);
    }
}

enum { FRAMES = 0x20000, SGI_FRAME = 0x10000, WAKER = 0x14, TYPER_LAST = 1 << 4 };

static struct interface *interface_at(uint32_t offset) { return offset / FRAMES < hart_count() ? &gic.of[offset / FRAMES] : NULL; }

uint64_t gic_redistributor_read(uint32_t offset, uint32_t size) {
    const struct interface *c = interface_at(offset);
    uint64_t number = offset / FRAMES;
    offset %= FRAMES;
    if (c == NULL) return 0;
    switch (offset) {
    case 8: return number << 32 | number << 8 | (number + 1 == hart_count() ? TYPER_LAST : 0);
    case 12: return number; // its upper half
    case WAKER: return c->sleeping ? 6 : 0;
    case PIDR2: return ARCHITECTURE_3;
    default: return offset >= SGI_FRAME ? bank_read(&c->own, offset - SGI_FRAME, size, 0) : 0;
    }
}

void gic_redistributor_write(uint32_t offset, uint64_t value, uint32_t size) {
    struct interface *c = interface_at(offset);
    offset %= FRAMES;
    if (c == NULL) return;
    if (offset == WAKER) c->sleeping = value >> 1 & 1;
    else if (offset >= SGI_FRAME) bank_write(&c->own, offset - SGI_FRAME, value, size, 0);
}

struct memory_range interrupts_state(void) { return memory_range(&gic, sizeof gic); }

static void adopt_bank(struct bank *to, const struct bank *from, uint32_t edge) {
    uint32_t level = to->level;
    *to = *from;
    to->level = level;
    to->edge |= edge;
    for (unsigned i = 0; i < BANK; i++) to->priority[i] &= PRIORITY_MASK;
}

// interrupts_adopt leaves out which lines are high: the devices and timers say so.
bool interrupts_adopt(const void *other) {
    const __typeof__(gic) *from = other;
    gic.control = (from->control & 3) | CTLR_ARE | CTLR_DS;
    adopt_bank(&gic.shared, &from->shared, 0);
    for (unsigned i = 0; i < BANK; i++) gic.route[i] = from->route[i] < hart_count() ? from->route[i] : 0;
    for (unsigned k = 0; k < hart_count(); k++) {
        struct interface *c = &gic.of[k];
        const struct interface *f = &from->of[k];
        adopt_bank(&c->own, &f->own, SGI_BITS);
        c->control = f->control & CPU_EOIMODE;
        c->group1_enabled = f->group1_enabled & 1;
        c->mask = f->mask & PRIORITY_MASK;
        set_binary_point(c, f->binary_point & 7);
        c->sleeping = f->sleeping & 1;
        c->active_priorities = f->active_priorities;
    }
    update();
    return true;
}
