// The contract between the interpreter and translated code, which docs/internals/translator.md explains.
#ifndef AGENTVM_JIT_H
#define AGENTVM_JIT_H

#include "hart.h"

#define jit hart.translated

// jit_layout is abiJIT of internal/machine/jit_machine.go, in the same order: addresses of what is not the hart's, offsets in the hart, and in the
// TLB and its entries. What the other processor has is 0.
struct jit_layout {
    uint32_t version;
    uint32_t x, f, pc;
    uint32_t mstatus, frm, fflags;
    uint32_t reservation, reserved; // address and value of the last exclusive load
    uint32_t privilege, stvec, sscratch, sepc, scause, stval, mip, mie, user_entries, user_entry;
    struct { uint32_t flags, flag_a, flag_b, fpcr, fpsr, cpacr, sctlr, el, irq, sp_select, pstate, tpidr_el0, tpidrro_el0, tpidr_el1, sp_el0, elr, spsr, esr, far, user_tlb, ttbr0, ttbr1, tcr; } arm64;
    uint32_t read, write, code;
    uint32_t entries, entry_size;
    uint32_t tag, addend;
    uint32_t other; // see TLB_OTHER
    uint32_t jumps, generation; // of struct tlb
    uint32_t places; // of struct jit_state
    // What the walk of page tables needs.
    uint32_t scratch, ram_bytes, code_index, dirty;
    uint32_t satp, slow_left, largest_shift;
    uint32_t frame, filled, noted, max_noted;
    uint32_t slot_size, op_translated, undecoded; // undecoded: the operation of slots that were never executed
    uint32_t code_page_size, code_pool; // struct code_page, address of the first one
    uint32_t state, functions; // struct jit_state; size of the ring of functions
};

// What each processor has of it (translated.c) -------------------------------------------------------------------------

// jit_describe adds what is the processor's own.
void jit_describe(struct jit_layout *layout);

// jit_single decodes the instruction at an entry by itself, with a page end behind it.
const struct insn *jit_single(const struct code_page *page, const struct insn *slot);

// jit_reach has the TLB know the page that an instruction of jit_single's accesses. true: it did not, and does now.
bool jit_reach(const struct insn *d);

// Kinds of instructions that regions are left for.
enum jit_kind { JIT_MEMORY, JIT_FLOAT, JIT_SYSTEM, JIT_UNDECODED, JIT_OTHER };

enum jit_kind jit_kind(unsigned op);

// ------------------------------------------------------------------------------------------------------------------

// jit_count counts a jump to the slot: true when it has become hot.
static inline bool jit_count(const struct insn *slot) {
    return ++jit.hotness[(uintptr_t)slot / sizeof *slot % JIT_HOTNESS] % JIT_THRESHOLD == 0;
}

// jit_uncount takes back the count of the jump with which each slice begins.
void jit_uncount(void);

// jit_hot notes hot code. true: the slice must end before it.
bool jit_hot(const struct code_page *page, const struct insn *slot);

// jit_run executes translated code from the slot on, where hart.pc is, and what follows it as long as that is translated.
// It returns with pc, budget and cause in the hart. The result is NULL, or the slot with which to continue
// interpreting: the instruction at pc, which translated code could not execute.
const struct insn *jit_run(const struct insn *slot);

#endif
