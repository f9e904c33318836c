// What the translator knows of this processor, see jit.h.
#include "jit.h"

void jit_describe(struct jit_layout *layout) {
    layout->f = offsetof(struct hart_state, f);
    layout->mstatus = offsetof(struct hart_state, mstatus);
    layout->frm = offsetof(struct hart_state, frm);
    layout->fflags = offsetof(struct hart_state, fflags);
    layout->reservation = offsetof(struct hart_state, reservation);
    layout->reserved = offsetof(struct hart_state, reserved_value);
    layout->privilege = offsetof(struct hart_state, privilege);
    layout->stvec = offsetof(struct hart_state, stvec);
    layout->sscratch = offsetof(struct hart_state, sscratch);
    layout->sepc = offsetof(struct hart_state, sepc);
    layout->scause = offsetof(struct hart_state, scause);
    layout->stval = offsetof(struct hart_state, stval);
    layout->mip = offsetof(struct hart_state, mip);
    layout->mie = offsetof(struct hart_state, mie);
    layout->user_entries = offsetof(struct hart_state, user_entries);
    layout->user_entry = offsetof(struct hart_state, user_entry);
    layout->satp = offsetof(struct hart_state, satp);
}

// Atomic loads and stores are a kind of their own: their operands are different.
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

const struct insn *jit_single(const struct code_page *page, const struct insn *slot) {
    enum { FAR_AWAY = 1 << 30 }; // no target is in the same page
    struct insn *alone = hart.alone;
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

bool jit_reach(const struct insn *d) {
    struct access a = access_of(d);
    return a.known && !in_tlb(&a) && tlb_reach(a.va, a.store);
}

enum jit_kind jit_kind(unsigned op) {
    static const uint8_t kinds[] = {
        [KIND_LOAD] = JIT_MEMORY, [KIND_STORE] = JIT_MEMORY, [KIND_FLOAT_LOAD] = JIT_MEMORY, [KIND_FLOAT_STORE] = JIT_MEMORY, [KIND_ATOMIC] = JIT_MEMORY,
        [KIND_FLOAT] = JIT_FLOAT, [KIND_SYSTEM] = JIT_SYSTEM, [KIND_UNDECODED] = JIT_UNDECODED, [KIND_OTHER] = JIT_OTHER,
    };
    return kinds[kind_of(op)];
}
