// Translated code: counting what is hot, and entering it. Go translates (internal/machine/jit.go); here a decoded slot with OP_TRANSLATED
// stands for an entry of a function. It exists as long as the decoded page it is in: a store to the page drops both.
#include "jit.h"

#define EXPORT(name) __attribute__((export_name(#name)))

static struct jit_layout layout;

enum { JIT_VERSION = 12 };

_Static_assert(TLB_JUMPS == 1024 && sizeof(struct tlb_jump) == 16, "native/blocks has these numbers");

// jit_configure must be called before the first slice, and again after a restore, when the old functions do not exist any more.
EXPORT(jit_configure) struct jit_layout *jit_configure(uint32_t enabled, uint32_t eager) {
    jit.enabled = enabled;
    jit.eager = eager;
    jit.hot_count = 0;
    if (jit.next != 0) __builtin_memset(jit.live, 0, sizeof jit.live);
    else jit.next = 1;
    tlb_forget_jumps();
    if (eager) __builtin_memset(jit.hotness, 0xff, sizeof jit.hotness); // one more is a multiple of the threshold
    layout = (struct jit_layout){
        .version = JIT_VERSION,
        .x = offsetof(struct hart_state, x),
        .pc = offsetof(struct hart_state, pc),
        .read = offsetof(struct tlb, read),
        .write = offsetof(struct tlb, write),
        .code = offsetof(struct tlb, code),
        .entries = TLB_SIZE,
        .entry_size = sizeof(struct tlb_entry),
        .tag = offsetof(struct tlb_entry, tag),
        .addend = offsetof(struct tlb_entry, addend),
        .other = TLB_OTHER,
        .jumps = offsetof(struct tlb, jumps),
        .generation = offsetof(struct tlb, generation),
        .places = (uint32_t)(uintptr_t)&jit.places,
        .scratch = (uint32_t)(uintptr_t)&jit.scratch,
        .ram_bytes = (uint32_t)(uintptr_t)&ram_bytes,
        .code_index = (uint32_t)(uintptr_t)hart.code.page_of_frame,
        .dirty = (uint32_t)(uintptr_t)dirty_pages,
        .slow_left = offsetof(struct hart_state, slow_left),
        .largest_shift = offsetof(struct hart_state, largest_shift),
        .frame = offsetof(struct tlb_entry, frame),
        .filled = offsetof(struct tlb, filled),
        .noted = offsetof(struct tlb, noted),
        .max_noted = TLB_NOTED,
        .slot_size = sizeof(struct insn),
        .op_translated = OP_TRANSLATED,
        .undecoded = OP_UNDECODED,
        .code_page_size = sizeof(struct code_page),
        .code_pool = (uint32_t)(uintptr_t)hart.code.pool,
        .state = (uint32_t)(uintptr_t)&jit,
        .functions = JIT_FUNCTIONS,
    };
    jit_describe(&layout);
    return &layout;
}

static bool live(uint32_t function) { return jit.live[function % JIT_FUNCTIONS] == function; }

bool jit_hot(const struct code_page *page, const struct insn *slot) {
    if (jit.eager) jit.hotness[(uintptr_t)slot / sizeof *slot % JIT_HOTNESS]--;
    if (!jit.enabled || slot->op == OP_TRANSLATED || jit.hot_count == JIT_HOT) return false;
    uint32_t offset = (uint32_t)(slot - page->slot) * SLOT_CODE;
    if (jit.eager && jit.refused_frame == page->frame && jit.refused_offset == offset) return false;
    jit.hot[jit.hot_count++] = (struct jit_hot){page->frame, offset};
    if (jit.eager) hart.stop = RUN_TRANSLATE;
    return jit.eager;
}

void jit_uncount(void) {
    const struct tlb_entry *e = &current_tlb()->code[tlb_index(hart.pc)];
    if (jit.eager || e->tag != (hart.pc & ~(uint64_t)(PAGE_SIZE - 1))) return;
    const struct insn *slot = &((const struct code_page *)(uintptr_t)e->addend)->slot[(hart.pc & (PAGE_SIZE - 1)) / SLOT_CODE];
    uint16_t *hotness = &jit.hotness[(uintptr_t)slot / sizeof *slot % JIT_HOTNESS];
    if (*hotness % JIT_THRESHOLD != 0) --*hotness; // from zero on, it would be hot at once
}

// jit_reserve gives the number of a new function. Numbers are never used again, so that a slot that was left behind
// somewhere cannot mean another function.
EXPORT(jit_reserve) uint32_t jit_reserve(void) {
    jit.live[jit.next % JIT_FUNCTIONS] = jit.next;
    return jit.next++;
}

// jit_install makes the slot at an offset of a RAM page an entry of a function. false: the page is not code any more.
EXPORT(jit_install) uint32_t jit_install(uint32_t frame, uint32_t offset, uint32_t function, uint32_t entry) {
    if (frame >= ram_frames() || offset >= PAGE_SIZE || !code_present(frame)) return false;
    uint64_t slot = OP_TRANSLATED | (uint64_t)entry << 8 | (uint64_t)function << 32;
    __builtin_memcpy(&code_page_for(frame)->slot[offset / SLOT_CODE], &slot, sizeof slot);
    return true;
}

// jit_remove says that a function is not in the table any more. Its entries become ordinary slots when they are reached.
EXPORT(jit_remove) void jit_remove(uint32_t function) {
    if (live(function)) jit.live[function % JIT_FUNCTIONS] = 0;
    tlb_forget_jumps();
}

// Entering -------------------------------------------------------------------------------------------------------

// native_enter executes native code when the entry is that of the slot `self`, without the entry: otherwise nothing.
#ifdef AGENTVM_STANDALONE
static void native_enter(uint32_t hart_at, uint32_t tlb, uint64_t page, uint64_t self, uint32_t entry) {
    (void)hart_at, (void)tlb, (void)page, (void)self, (void)entry;
}
#else
__attribute__((import_module("native"), import_name("enter")))
void native_enter(uint32_t hart_at, uint32_t tlb, uint64_t page, uint64_t self, uint32_t entry);
#endif

// again is called when a region has executed nothing from an entry on. It is true when another try is worth it, because the TLB now
// has the page that the first instruction accesses. An exception may be pending.
static bool again(const struct insn *d) {
    if (hart.budget < JIT_BUDGET_EXIT) {
        jit.budget_exit++;
        return false;
    }
    if (jit_reach(d)) return !hart.recheck;
    if (!exception_pending()) jit.no_progress++;
    return false;
}

const struct insn *jit_run(const struct insn *slot) {
    const struct tlb *tlb = current_tlb();
    struct code_page *page = (struct code_page *)(slot - (hart.pc & (PAGE_SIZE - 1)) / SLOT_CODE);
    uint64_t pc = hart.pc;
    int64_t before = hart.budget, all = before;
    const struct insn *rest = NULL, *tried = NULL;
    bool chained = false;
    for (;;) {
        uint64_t bits;
        __builtin_memcpy(&bits, slot, sizeof bits);
        uint32_t function = (uint32_t)(bits >> 32);
        if (!live(function)) {
            page->slot[slot - page->slot] = (struct insn){.op = OP_UNDECODED};
            rest = slot;
            break;
        }
        jit.chained += chained;
        chained = true;
        native_enter((uint32_t)(uintptr_t)&hart, (uint32_t)(uintptr_t)tlb, pc & ~(uint64_t)(PAGE_SIZE - 1), bits & 0xffffffff000000ff, (uint32_t)bits >> 8);
        jit.entered++;
        if (exception_pending() || hart.recheck) break;
        if (hart.budget == before) {
#ifdef AGENTVM_HARTS
            // Quanta are short: the last instructions of each are not interpreted, but the next one begins.
            int64_t more = hart.budget < JIT_BUDGET_EXIT ? next_quantum() : 0;
            if (more != 0) {
                before = hart.budget;
                all += more;
                chained = false;
                if (hart.recheck) break;
                continue;
            }
#endif
            rest = jit_single(page, slot);
            if (slot != tried && again(rest)) {
                tried = slot;
                rest = NULL;
                chained = false;
                continue;
            }
            break;
        }
        before = hart.budget;
        pc = hart.pc;
        const struct tlb_entry *e = tlb_find(tlb->code, pc);
        if (e == NULL) {
            jit.unmapped++;
            break;
        }
        page = (struct code_page *)(uintptr_t)e->addend;
        slot = &page->slot[(pc & (PAGE_SIZE - 1)) / SLOT_CODE];
        if (slot->op != OP_TRANSLATED) {
            jit.left[slot->op]++;
            break;
        }
    }
    jit.executed += (uint64_t)(all - hart.budget);
    return rest;
}

// jit_left sums up for what kinds of instructions regions were left, by enum jit_kind.
EXPORT(jit_left) uint64_t jit_left(uint32_t kind) {
    uint64_t sum = 0;
    for (unsigned op = 0; op < 256; op++)
        if (jit_kind(op) == kind) sum += jit.left[op];
    return sum;
}
