// Translated code: counting what is hot, entering it, and what it calls. Go translates (internal/machine/jit.go) and puts the
// functions into this module's table; here a decoded slot with OP_TRANSLATED stands for one. It exists as long as the
// decoded page it is in: a store to the page drops both.
#include "jit.h"

#define EXPORT(name) __attribute__((export_name(#name)))

struct jit_state jit;

// jit_layout is Layout of internal/machine/jit/jit.go, in the same order; then what only the emulator needs.
static struct jit_layout {
    uint32_t x, f, pc, budget;
    uint32_t mstatus, frm, fflags;
    uint32_t reservation, reserved;
    uint32_t read, write, code;
    uint32_t entries, entry_size;
    uint32_t tag, addend;
    uint32_t slot_size, op_translated;
    uint32_t version;
    uint32_t state, functions;          // struct jit_state; size of the ring of functions
    uint32_t undecoded, code_page_size; // the operation of slots that were never executed; struct code_page
    uint32_t edge, edge_threshold, threshold, split_access;
    uint32_t other; // see TLB_OTHER
} layout;

enum { JIT_VERSION = 5 };

// jit_configure must be called before the first slice, and again after a restore: the table no longer has the old
// functions. Function n is at table + n modulo JIT_FUNCTIONS.
EXPORT(jit_configure) struct jit_layout *jit_configure(uint32_t enabled, uint32_t eager, uint32_t table) {
    jit.enabled = enabled;
    jit.eager = eager;
    jit.table = table;
    jit.hot_count = 0;
    if (jit.next != 0) __builtin_memset(jit.live, 0, sizeof jit.live);
    else jit.next = 1;
    if (eager) __builtin_memset(jit.hotness, 0xff, sizeof jit.hotness); // one more is a multiple of the threshold
    layout = (struct jit_layout){
        .x = offsetof(struct hart_state, x),
        .f = offsetof(struct hart_state, f),
        .pc = offsetof(struct hart_state, pc),
        .budget = offsetof(struct hart_state, budget),
        .mstatus = offsetof(struct hart_state, mstatus),
        .frm = offsetof(struct hart_state, frm),
        .fflags = offsetof(struct hart_state, fflags),
        .reservation = offsetof(struct hart_state, reservation),
        .reserved = offsetof(struct hart_state, reserved_value),
        .read = offsetof(struct tlb, read),
        .write = offsetof(struct tlb, write),
        .code = offsetof(struct tlb, code),
        .entries = TLB_SIZE,
        .entry_size = sizeof(struct tlb_entry),
        .tag = offsetof(struct tlb_entry, tag),
        .addend = offsetof(struct tlb_entry, addend),
        .slot_size = sizeof(struct insn),
        .op_translated = OP_TRANSLATED,
        .version = JIT_VERSION,
        .state = (uint32_t)(uintptr_t)&jit,
        .functions = JIT_FUNCTIONS,
        .undecoded = OP_UNDECODED,
        .code_page_size = sizeof(struct code_page),
        .edge = JIT_EDGE,
        .edge_threshold = JIT_EDGE_THRESHOLD,
        .threshold = JIT_THRESHOLD,
        .split_access = JIT_SPLIT_ACCESS,
        .other = TLB_OTHER,
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
}

// Entering -------------------------------------------------------------------------------------------------------

typedef void (*region)(uint32_t hart_at, uint32_t tlb, uint64_t page, uint64_t self, uint32_t entry);

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

// count_split_access notes that a region was left for an access whose page the TLB has: it shares its look-up with
// others, which are in another page.
static void count_split_access(const struct code_page *page, const struct insn *slot, uint32_t function) {
    if (++jit.split_access[(uintptr_t)slot / sizeof *slot % JIT_EDGES] % JIT_THRESHOLD != 0 || jit.hot_count == JIT_HOT) return;
    uint32_t offset = (uint32_t)(slot - page->slot) * 2;
    jit.hot[jit.hot_count++] = (struct jit_hot){page->frame | JIT_SPLIT_ACCESS, offset | function % JIT_FUNCTIONS << 12};
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

// again is called when a region has executed nothing from the entry at `slot`. It is true when another try is worth it, because the TLB now
// has the page that the first instruction accesses. An exception may be pending.
static bool again(const struct code_page *page, const struct insn *slot, const struct insn *d, uint32_t function) {
    if (hart.budget < JIT_BUDGET_EXIT) {
        jit.budget_exit++;
        return false;
    }
    struct access a = access_of(d);
    if (a.known && !in_tlb(&a)) return tlb_reach(a.va, a.store) && !hart.recheck;
    jit.no_progress++;
    if (a.known) count_split_access(page, slot, function);
    return false;
}

// count_edge notes that a region was left for another one.
static void count_edge(uint32_t from, uint32_t to) {
    jit.chained++;
    if (++jit.edges[(from * 0x9e3779b1u ^ to) % JIT_EDGES] % JIT_EDGE_THRESHOLD != 0 || jit.hot_count == JIT_HOT) return;
    jit.hot[jit.hot_count++] = (struct jit_hot){from | JIT_EDGE, to};
}

const struct insn *jit_run(const struct insn *slot) {
    const struct tlb *tlb = current_tlb();
    struct code_page *page = (struct code_page *)(slot - (hart.pc & (PAGE_SIZE - 1)) / 2);
    uint64_t pc = hart.pc;
    int64_t before = hart.budget, all = before;
    const struct insn *rest = NULL, *tried = NULL;
    uint32_t last = 0;
    for (;;) {
        uint64_t bits;
        __builtin_memcpy(&bits, slot, sizeof bits);
        uint32_t function = (uint32_t)(bits >> 32);
        if (!live(function)) {
            page->slot[slot - page->slot] = (struct insn){.op = OP_UNDECODED};
            rest = slot;
            break;
        }
        if (last != 0) count_edge(last, function);
        last = function;
        ((region)(uintptr_t)(jit.table + function % JIT_FUNCTIONS))(
            HART_ADDRESS, (uint32_t)(uintptr_t)tlb, pc & ~(uint64_t)(PAGE_SIZE - 1),
            bits & 0xffffffff000000ff, (uint32_t)bits >> 8);
        jit.entered++;
        if (hart.cause != CAUSE_NONE || hart.recheck) break;
        if (hart.budget == before) {
            rest = single(page, slot);
            if (slot != tried && again(page, slot, rest, function)) {
                tried = slot;
                rest = NULL;
                last = 0;
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
            struct access a = access_of(slot);
            if (a.known && hart.budget >= JIT_BUDGET_EXIT && in_tlb(&a)) count_split_access(page, slot, function);
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

// What translated code calls -----------------------------------------------------------------------------------------

enum outcome { OUTCOME_DONE, OUTCOME_EXCEPTION, OUTCOME_LEAVE };

// csr executes a CSR instruction. OUTCOME_LEAVE: the next one is not for the region before the interpreter has looked at interrupts, or at
// where it is.
static enum outcome csr(uint32_t word) {
    static const uint8_t ids[8] = {0, ID_CSRRW, ID_CSRRS, ID_CSRRC, 0, ID_CSRRWI, ID_CSRRSI, ID_CSRRCI};
    struct insn d = {
        .op = OP_GROUP_CSR,
        .rd = (uint8_t)((word >> 7 & 31) * 8),
        .rs1 = (uint8_t)((word >> 15 & 31) * 8),
        .imm = (int32_t)(word >> 20 << 8 | ids[word >> 12 & 7]),
    };
    if (!execute_csr(&d)) return OUTCOME_EXCEPTION;
    if (!hart.recheck && !interrupt_waiting()) return OUTCOME_DONE;
    hart.recheck = 1;
    return OUTCOME_LEAVE;
}

// jit_float executes a floating-point or CSR instruction whose operands are in the hart, with the budget before it.
EXPORT(jit_float) uint32_t jit_float(uint32_t word) {
    if ((word & 0x7f) == 0x73) return csr(word);
    struct insn d;
    decode_word(word, &d, 0);
    return execute_fp(&d) ? OUTCOME_DONE : OUTCOME_EXCEPTION;
}
