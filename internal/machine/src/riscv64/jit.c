// Translated code: counting what is hot, and entering it. Go translates (internal/machine/jit.go); here a decoded slot with OP_TRANSLATED
// stands for an entry of a function. It exists as long as the decoded page it is in: a store to the page drops both.
#include "jit.h"

#define EXPORT(name) __attribute__((export_name(#name)))

struct jit_state jit;

// jit_layout is abiJIT of internal/machine/jit_machine.go, in the same order.
static struct jit_layout {
    uint32_t version;
    uint32_t x, f, pc;
    uint32_t mstatus, frm, fflags;
    uint32_t reservation, reserved;
    uint32_t privilege, stvec, sscratch, sepc, scause, stval, mip, mie, user_entries, user_entry;
    uint32_t read, write, code;
    uint32_t entries, entry_size;
    uint32_t tag, addend;
    uint32_t other; // see TLB_OTHER
    uint32_t jumps, generation; // of struct tlb
    uint32_t places; // of struct jit_state
    // What the walk of page tables needs: addresses, offsets in the hart, offsets in the TLB and its entries.
    uint32_t scratch, ram_bytes, code_index, dirty;
    uint32_t satp, slow_left, largest_shift;
    uint32_t frame, filled, noted, max_noted;
    uint32_t slot_size, op_translated, undecoded; // undecoded: the operation of slots that were never executed
    uint32_t code_page_size; // struct code_page
    uint32_t state, functions; // struct jit_state; size of the ring of functions
} layout;

enum { JIT_VERSION = 9 };

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
        .f = offsetof(struct hart_state, f),
        .pc = offsetof(struct hart_state, pc),
        .mstatus = offsetof(struct hart_state, mstatus),
        .frm = offsetof(struct hart_state, frm),
        .fflags = offsetof(struct hart_state, fflags),
        .reservation = offsetof(struct hart_state, reservation),
        .reserved = offsetof(struct hart_state, reserved_value),
        .privilege = offsetof(struct hart_state, privilege),
        .stvec = offsetof(struct hart_state, stvec),
        .sscratch = offsetof(struct hart_state, sscratch),
        .sepc = offsetof(struct hart_state, sepc),
        .scause = offsetof(struct hart_state, scause),
        .stval = offsetof(struct hart_state, stval),
        .mip = offsetof(struct hart_state, mip),
        .mie = offsetof(struct hart_state, mie),
        .user_entries = offsetof(struct hart_state, user_entries),
        .user_entry = offsetof(struct hart_state, user_entry),
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
        .code_index = (uint32_t)(uintptr_t)page_of_frame,
        .dirty = (uint32_t)(uintptr_t)dirty_pages,
        .satp = offsetof(struct hart_state, satp),
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
        .state = (uint32_t)(uintptr_t)&jit,
        .functions = JIT_FUNCTIONS,
    };
    return &layout;
}

static bool live(uint32_t function) { return jit.live[function % JIT_FUNCTIONS] == function; }

bool jit_hot(const struct code_page *page, const struct insn *slot) {
    if (jit.eager) jit.hotness[(uintptr_t)slot / sizeof *slot % JIT_HOTNESS]--;
    if (!jit.enabled || slot->op == OP_TRANSLATED || jit.hot_count == JIT_HOT) return false;
    uint32_t offset = (uint32_t)(slot - page->slot) * 2;
    if (jit.eager && jit.refused_frame == page->frame && jit.refused_offset == offset) return false;
    jit.hot[jit.hot_count++] = (struct jit_hot){page->frame, offset};
    if (jit.eager) hart.stop = RUN_TRANSLATE;
    return jit.eager;
}

void jit_uncount(void) {
    const struct tlb_entry *e = &current_tlb()->code[tlb_index(hart.pc)];
    if (jit.eager || e->tag != (hart.pc & ~(uint64_t)(PAGE_SIZE - 1))) return;
    const struct insn *slot = &((const struct code_page *)(uintptr_t)e->addend)->slot[(hart.pc & (PAGE_SIZE - 1)) >> 1];
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
    __builtin_memcpy(&code_page_for(frame)->slot[offset / 2], &slot, sizeof slot);
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

// Kinds of instructions that regions are left for, see jit_left. Atomic loads and stores are a kind of their own: their operands are different.
enum kind { KIND_LOAD, KIND_STORE, KIND_FLOAT_LOAD, KIND_FLOAT_STORE, KIND_ATOMIC, KIND_FLOAT, KIND_SYSTEM, KIND_UNDECODED, KIND_OTHER };

static enum kind kind_of(unsigned op) {
    switch (op) {
    case OP_LB: case OP_LH: case OP_LBU: case OP_LHU: case OP_LW: case OP_LWU: case OP_LD: case OP_C_LW: case OP_C_LWSP:
    case OP_C_LD: case OP_C_LDSP: case OP_LOAD_X0: return KIND_LOAD;
    case OP_SB: case OP_SH: case OP_SW: case OP_SD: case OP_C_SW: case OP_C_SWSP: case OP_C_SD: case OP_C_SDSP: return KIND_STORE;
    case OP_FLD: case OP_C_FLD: case OP_C_FLDSP: case OP_FLW: return KIND_FLOAT_LOAD;
    case OP_FSD: case OP_C_FSD: case OP_C_FSDSP: case OP_FSW: return KIND_FLOAT_STORE;
    case OP_GROUP_AMO: return KIND_ATOMIC;
    case OP_GROUP_FP: return KIND_FLOAT;
    case OP_GROUP_CSR: case OP_GROUP_SYS: case OP_GROUP_CBO: return KIND_SYSTEM;
    case OP_UNDECODED: return KIND_UNDECODED;
    default: return KIND_OTHER;
    }
}

// access is what a load or store would touch; floating-point ones only while nothing else can stop them.
struct access { bool known, store; uint64_t va; };

static struct access access_of(const struct insn *d) {
    enum kind kind = kind_of(d->op);
    bool is_float = kind == KIND_FLOAT_LOAD || kind == KIND_FLOAT_STORE;
    return (struct access){
        .known = kind <= KIND_FLOAT_STORE && (!is_float || (hart.mstatus & MSTATUS_FS) == MSTATUS_FS),
        .store = kind == KIND_STORE || kind == KIND_FLOAT_STORE,
        .va = hart.x[d->rs1 / 8] + (uint64_t)(int64_t)d->imm,
    };
}

static bool in_tlb(const struct access *a) {
    const struct tlb *tlb = current_tlb();
    const struct tlb_entry *e = &(a->store ? tlb->write : tlb->read)[tlb_index(a->va)];
    return e->tag == (a->va & ~(uint64_t)(PAGE_SIZE - 1));
}

// single decodes the instruction at an entry by itself, with a page end behind it.
static const struct insn *single(const struct code_page *page, const struct insn *slot) {
    enum { FAR_AWAY = 1 << 30 }; // no target is in the same page
    static struct insn alone[3];
    uint32_t index = (uint32_t)(slot - page->slot);
    const uint16_t *code = ram_at(RAM_BASE + (uint64_t)page->frame * PAGE_SIZE, PAGE_SIZE);
    uint32_t word = code[index];
    bool is_long = (word & 3) == 3;
    if (is_long && index + 1 == PAGE_SLOTS) {
        alone[0] = (struct insn){.op = OP_CROSSING};
        return &alone[0];
    }
    if (is_long) word |= (uint32_t)code[index + 1] << 16;
    decode_word(word, &alone[0], FAR_AWAY);
    alone[is_long ? 2 : 1] = (struct insn){.op = OP_PAGE_END};
    return &alone[0];
}

// again is called when a region has executed nothing from an entry on. It is true when another try is worth it, because the TLB now
// has the page that the first instruction accesses. An exception may be pending.
static bool again(const struct insn *d) {
    if (hart.budget < JIT_BUDGET_EXIT) {
        jit.budget_exit++;
        return false;
    }
    struct access a = access_of(d);
    if (a.known && !in_tlb(&a)) return tlb_reach(a.va, a.store) && !hart.recheck;
    jit.no_progress++;
    return false;
}

const struct insn *jit_run(const struct insn *slot) {
    const struct tlb *tlb = current_tlb();
    struct code_page *page = (struct code_page *)(slot - (hart.pc & (PAGE_SIZE - 1)) / 2);
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
        native_enter(HART_ADDRESS, (uint32_t)(uintptr_t)tlb, pc & ~(uint64_t)(PAGE_SIZE - 1), bits & 0xffffffff000000ff, (uint32_t)bits >> 8);
        jit.entered++;
        if (hart.cause != CAUSE_NONE || hart.recheck) break;
        if (hart.budget == before) {
            rest = single(page, slot);
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
        slot = &page->slot[(pc & (PAGE_SIZE - 1)) >> 1];
        if (slot->op != OP_TRANSLATED) {
            jit.left[slot->op]++;
            break;
        }
    }
    jit.executed += (uint64_t)(all - hart.budget);
    return rest;
}

// jit_left sums up for what kinds of instructions regions were left: loads and stores, floating point, system, code that was
// never executed, and others.
EXPORT(jit_left) uint64_t jit_left(uint32_t kind) {
    static const uint8_t sums[] = {
        [KIND_LOAD] = 0, [KIND_STORE] = 0, [KIND_FLOAT_LOAD] = 0, [KIND_FLOAT_STORE] = 0, [KIND_ATOMIC] = 0,
        [KIND_FLOAT] = 1, [KIND_SYSTEM] = 2, [KIND_UNDECODED] = 3, [KIND_OTHER] = 4,
    };
    uint64_t sum = 0;
    for (unsigned op = 0; op < 256; op++)
        if (sums[kind_of(op)] == kind) sum += jit.left[op];
    return sum;
}
