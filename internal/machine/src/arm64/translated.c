// What the translator knows of this processor, see jit.h.
#include "jit.h"

_Static_assert(offsetof(struct hart_state, pc) == 768 && offsetof(struct hart_state, budget) == 776 && offsetof(struct hart_state, fpsr) == 852,
    "internal/machine/native/enter_amd64.s has these numbers");

void jit_describe(struct jit_layout *layout) {
    layout->f = offsetof(struct hart_state, v);
    layout->reservation = offsetof(struct hart_state, exclusive);
    layout->reserved = offsetof(struct hart_state, exclusive_value);
    layout->arm64.flags = offsetof(struct hart_state, flags);
    layout->arm64.flag_a = offsetof(struct hart_state, flag_a);
    layout->arm64.flag_b = offsetof(struct hart_state, flag_b);
    layout->arm64.fpcr = offsetof(struct hart_state, fpcr);
    layout->arm64.fpsr = offsetof(struct hart_state, fpsr);
    layout->arm64.cpacr = offsetof(struct hart_state, cpacr);
    layout->arm64.sctlr = offsetof(struct hart_state, sctlr);
    layout->arm64.el = offsetof(struct hart_state, el);
    layout->arm64.irq = offsetof(struct hart_state, irq);
    layout->arm64.sp_select = offsetof(struct hart_state, sp_select);
    layout->arm64.pstate = offsetof(struct hart_state, pstate);
    layout->arm64.tpidr_el0 = offsetof(struct hart_state, tpidr_el0);
    layout->arm64.tpidrro_el0 = offsetof(struct hart_state, tpidrro_el0);
    layout->arm64.tpidr_el1 = offsetof(struct hart_state, tpidr_el1);
    layout->arm64.sp_el0 = offsetof(struct hart_state, sp_el0);
    layout->arm64.elr = offsetof(struct hart_state, elr);
    layout->arm64.spsr = offsetof(struct hart_state, spsr);
    layout->arm64.esr = offsetof(struct hart_state, esr);
    layout->arm64.far = offsetof(struct hart_state, far);
    layout->arm64.user_tlb = offsetof(struct hart_state, tlb[0]);
    layout->arm64.ttbr0 = offsetof(struct hart_state, ttbr0);
    layout->arm64.ttbr1 = offsetof(struct hart_state, ttbr1);
    layout->arm64.tcr = offsetof(struct hart_state, tcr);
}

const struct insn *jit_single(const struct code_page *page, const struct insn *slot) {
    enum { FAR_AWAY = 1 << 30 }; // no target is in the same page
    struct insn *alone = hart.alone;
    const uint32_t *code = ram_at(RAM_BASE + (uint64_t)page->frame * PAGE_SIZE, PAGE_SIZE);
    decode_whole(code[slot - page->slot], &alone[0], FAR_AWAY);
    alone[1] = (struct insn){.op = OP_PAGE_END};
    return &alone[0];
}

bool jit_reach(const struct insn *d) {
    (void)d;
    return false; // what the walk of translated code does not find, the interpreter has to
}

enum jit_kind jit_kind(unsigned op) {
    switch (op) {
    case OP_UNDECODED: return JIT_UNDECODED;
    case OP_GROUP_MEMORY: case OP_GROUP_VMEMORY: case OP_GROUP_STRUCTURE: case OP_GROUP_EXCLUSIVE: case OP_GROUP_ATOMIC: return JIT_MEMORY;
    case OP_GROUP_FP: case OP_GROUP_SIMD: case OP_GROUP_VFP: case OP_GROUP_CRYPTO: return JIT_FLOAT;
    case OP_GROUP_SYSTEM: return JIT_SYSTEM;
    default: return op >= OP_LDRB && op <= OP_STP_X_Z ? JIT_MEMORY : JIT_OTHER;
    }
}
