// The interpreter's loop over decoded slots. Its switch becomes a tree of conditional branches (build.sh): what large programs execute
// has no pattern that processors learn, so that each indirect branch of a jump table would be predicted wrongly
// (docs/measurements/machine.md).
//
// Locals of the loop, kept in registers by the compiler:
//   d      the slot being executed; pc = pc_base + (address of d) / 4, because a slot has 8 bytes a halfword of code
//   n      instructions left in the slice, counted down and checked at each instruction
//   tlb    the translation caches of the current privilege level
//
//   resume ──► take pending interrupt ──► enter page (code TLB) ──► loop ──► budget spent ──► return
//     ▲                                        ▲                      │
//     └── privilege, CSR or trap ──────────────┴───── jump ───────────┘
#include "hart.h"
#include "jit.h"
#define SLOT_RD (uint8_t)(slot >> 8)
#define SLOT_RS1 (uint8_t)(slot >> 16)
#define SLOT_RS2 (uint8_t)(slot >> 24)
#define SLOT_IMM (int32_t)((int64_t)slot >> 32)
#include "operands.h"

#define PC() (pc_base + ((uint32_t)(uintptr_t)d >> 2))
#define LIKELY(c) __builtin_expect(!!(c), 1)

#define PAGE_MASK (~(uint64_t)(PAGE_SIZE - 1))
#define TLB_ENTRY(table, va) (&tlb->table[tlb_index(va)])
#define TLB_HIT(e, va, type) LIKELY((e)->tag == (((va) + sizeof(type) - 1) & PAGE_MASK))
#define HOST(type, addend, va) ((type *)(uintptr_t)((uint32_t)(va) + (addend)))
// The addend is read before the tag: its bounds check covers the tag's.
#define ADDEND(e) (*(const volatile uint32_t *)&(e)->addend)

// An operation with a 32-bit form of three registers and a 16-bit form whose destination is its first source.
#define BOTH(long_op, short_op, operator, operand)                                                                     \
    case long_op: RD = RS1 operator(operand); d += 2; break;                                                           \
    case short_op: RD = RD operator(operand); d += 1; break;

#define BOTH_WORD(long_op, short_op, operator, operand)                                                                \
    case long_op: RD = SEXT32(RS1 operator(operand)); d += 2; break;                                                   \
    case short_op: RD = SEXT32(RD operator(operand)); d += 1; break;

#define ALU(op, value)                                                                                                 \
    case op: RD = (value); d += 2; break;

// A miss leaves for the out-of-line path, which does the whole instruction; `length` says where the next one is.
#define MISS(bytes)                                                                                                    \
    do {                                                                                                               \
        length = bytes;                                                                                                \
        goto miss;                                                                                                     \
    } while (0)

#define LOAD_TO(target, type, extend, bytes)                                                                           \
    {                                                                                                                  \
        uint64_t va = RS1 + (uint64_t)IMM;                                                                             \
        const struct tlb_entry *e = TLB_ENTRY(read, va);                                                               \
        uint32_t addend = ADDEND(e);                                                                                   \
        if (TLB_HIT(e, va, type)) {                                                                                    \
            target = (uint64_t)(int64_t)(extend) * HOST(type, addend, va);                                             \
            d += (bytes) / 2;                                                                                          \
            break;                                                                                                     \
        }                                                                                                              \
        MISS(bytes);                                                                                                   \
    }
#define LOAD(op, type, extend, bytes) case op: LOAD_TO(RD, type, extend, bytes)

#define STORE_FROM(type, source, bytes)                                                                                \
    {                                                                                                                  \
        uint64_t va = RS1 + (uint64_t)IMM;                                                                             \
        const struct tlb_entry *e = TLB_ENTRY(write, va);                                                              \
        uint32_t addend = ADDEND(e);                                                                                   \
        if (TLB_HIT(e, va, type)) {                                                                                    \
            *HOST(type, addend, va) = (type)(source);                                                                  \
            d += (bytes) / 2;                                                                                          \
            break;                                                                                                     \
        }                                                                                                              \
        MISS(bytes);                                                                                                   \
    }
#define STORE(op, type, bytes) case op: STORE_FROM(type, RS2, bytes)

// Doubles are loaded and stored here while the unit is on and, for loads, already marked dirty.
#define FP_STATE(wanted) ((hart.mstatus & MSTATUS_FS) >= (wanted))
#define FP_DIRTY MSTATUS_FS
#define FP_INITIAL (1ull << 13)

#define FP_LOAD(op, bytes)                                                                                             \
    case op:                                                                                                           \
        if (!FP_STATE(FP_DIRTY)) MISS(bytes);                                                                          \
        LOAD_TO(F(SLOT_RD), unaligned64, uint64_t, bytes)

#define FP_STORE(op, bytes)                                                                                            \
    case op:                                                                                                           \
        if (!FP_STATE(FP_INITIAL)) MISS(bytes);                                                                        \
        STORE_FROM(unaligned64, F(SLOT_RS2), bytes)

// FOLLOWED_BY moves on to the next slot when that is the operation that mostly comes next: registers are saved and
// restored in runs, for example. A conditional branch costs less than the dispatch, whose target is often not foreseen.
#ifdef NO_PREDECODE
#define FOLLOWED_BY(op) false
#else
#define FOLLOWED_BY(op) (n > 0 && (uint8_t)(slot = *(const volatile uint64_t *)d) == (op) && n-- > 0)
#endif

// Loads and stores of a function's beginning and end.
#define LOAD_RUN(op, type, bytes)                                                                                      \
    case op:                                                                                                           \
        do {                                                                                                           \
            uint64_t va = RS1 + (uint64_t)IMM;                                                                         \
            const struct tlb_entry *e = TLB_ENTRY(read, va);                                                           \
            uint32_t addend = ADDEND(e);                                                                               \
            if (!TLB_HIT(e, va, type)) MISS(bytes);                                                                    \
            RD = *HOST(type, addend, va);                                                                              \
            d += (bytes) / 2;                                                                                          \
        } while (FOLLOWED_BY(op));                                                                                     \
        break;

#define STORE_RUN(op, type, bytes)                                                                                     \
    case op:                                                                                                           \
        do {                                                                                                           \
            uint64_t va = RS1 + (uint64_t)IMM;                                                                         \
            const struct tlb_entry *e = TLB_ENTRY(write, va);                                                          \
            uint32_t addend = ADDEND(e);                                                                               \
            if (!TLB_HIT(e, va, type)) MISS(bytes);                                                                    \
            *HOST(type, addend, va) = (type)RS2;                                                                       \
            d += (bytes) / 2;                                                                                          \
        } while (FOLLOWED_BY(op));                                                                                     \
        break;

#define BRANCH(op, step, condition)                                                                                    \
    case op:                                                                                                           \
        if (condition) {                                                                                               \
            d = (const struct insn *)((const uint8_t *)d + SLOT_IMM);                                                    \
        } else {                                                                                                       \
            d += (step);                                                                                               \
        }                                                                                                              \
        break;

// Instructions that cross a page are decoded into their own slots each time, with a page end behind them.

enum { FAR_AWAY = 1 << 30 }; // an offset from which no target is in the same page

static __attribute__((noinline)) bool prepare_crossing(uint64_t pc, struct insn *slot) {
    uint32_t word;
    if (!fetch_crossing(pc, &word)) return false;
    *slot = (struct insn){.op = OP_CROSSING, .rd = 1, .imm = (int32_t)(word >> 16)}; // for translators: what the second half was
    decode_word(word, &hart.crossing[0], FAR_AWAY);
    hart.crossing[2] = (struct insn){.op = OP_PAGE_END};
    return true;
}

static inline bool branch_taken(unsigned condition, uint64_t a, uint64_t b) {
    switch (condition) {
    case 0: return a == b;
    case 1: return a != b;
    case 4: return (int64_t)a < (int64_t)b;
    case 5: return (int64_t)a >= (int64_t)b;
    case 6: return a < b;
    default: return a >= b;
    }
}

void interpret(void) {
    jit_uncount();
    int64_t n = hart.budget;
    const struct insn *d;
    uint64_t pc, pc_base;
    struct tlb *tlb;
    uint32_t length; // bytes of code that the access at d takes

resume:
    hart.recheck = 0;
    if (interrupt_waiting()) {
        hart.wait = 0;
        take_interrupt();
    }
    if (n <= 0 || hart.wait || hart.stop) goto leave; // traps alone use up the budget, too
    tlb = current_tlb();
    pc = hart.pc;
jump: {
    const struct tlb_entry *e = TLB_ENTRY(code, pc);
    const struct code_page *page;
    if (LIKELY(e->tag == (pc & PAGE_MASK))) {
        page = (const struct code_page *)(uintptr_t)e->addend;
    } else {
        page = fetch_page(pc);
        if (page == NULL) goto exception_at_pc;
        if (hart.stop) { // the TLB knows the page: the next slice continues with it
            hart.pc = pc;
            goto leave;
        }
    }
    d = &page->slot[(pc & (PAGE_SIZE - 1)) >> 1];
    pc_base = pc - ((uint32_t)(uintptr_t)d >> 2);
    if (jit_count(d) && jit_hot(page, d)) {
        hart.pc = pc;
        goto leave;
    }
}
next:
    for (;;) {
        if (--n < 0) goto spent;
#ifdef NO_PREDECODE // `make bench` measures what decoding only once is worth
        if (d->op != OP_PAGE_END && d != hart.crossing) code_decode(d);
#endif
        // One load has all of the slot's fields: wazero checks the bounds of each load for itself, and forgets across a
        // jump table what it has checked. The cases take their operands out of the value with a shift.
        uint64_t slot = *(const volatile uint64_t *)d;
        switch ((uint8_t)slot) {
#include "interpret_integer.h"
#include "interpret_memory.h"
#include "interpret_control.h"
        case OP_GROUP_FP:
            if (!execute_fp(d)) goto exception;
            d += 2;
            break;
        case OP_GROUP_ALU:
            execute_alu(d);
            d += 2;
            break;
        case OP_GROUP_BIT:
            execute_bit(d);
            d += 2;
            break;
        case OP_GROUP_AMO:
            if (!execute_amo(d)) goto exception;
            length = 4;
            goto accessed;
        case OP_GROUP_CBO:
            if (!execute_cbo(d)) goto exception;
            length = 4;
            goto accessed;
        case OP_GROUP_CSR:
            hart.budget = n + 1; // as if this instruction had not retired yet
            if (!execute_csr(d)) goto exception;
            if (hart.recheck || interrupt_waiting()) {
                hart.pc = PC() + 4;
                goto resume;
            }
            d += 2;
            break;
        case OP_GROUP_SYS:
            hart.budget = n + 1;
            if (execute_sys(d, PC())) goto resume;
            goto exception;
        case OP_C_EBREAK:
            raise(CAUSE_BREAKPOINT, PC());
            goto exception;
        case OP_C_ILLEGAL:
        case OP_ILLEGAL:
            raise(CAUSE_ILLEGAL, (uint32_t)SLOT_IMM);
            goto exception;
        default: __builtin_unreachable(); // decode.c makes no others; without a default the branch tree is shallower
        }
    }

counted: // a jump within the page, with translation, or a page end
    if (!jit_count(d) || !jit_hot(code_page_of(d), d)) goto next;
    hart.pc = PC();
    goto leave;
miss: // the TLB has no entry for the access that d makes, or it is none of RAM, or FP must be looked at
    hart.budget = n;
    if (!execute_memory(d)) goto exception;
accessed: // after a store to a device or to code, interrupts may be pending and the decoded page may be gone
    if (hart.recheck) {
        hart.pc = PC() + length;
        goto resume;
    }
    d += length / 2;
    goto next;
exception:
    pc = PC();
    n++; // it was counted when it was dispatched
exception_at_pc: // a trap takes from the budget, so that a program that only traps ends its slice, but is not retired
    n--;
    hart.instret_offset--;
    hart.pc = pc;
    take_exception();
    goto resume;
spent:
    n = 0;
    hart.pc = PC();
leave:
    hart.budget = n;
}
