// The interpreter: one loop over decoded slots.
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

// Register fields are byte offsets into hart.x, which is at a constant address: one load with an immediate offset.
#define X(offset) (*(uint64_t *)(uintptr_t)(HART_ADDRESS + offsetof(struct hart_state, x) + (offset)))
#define RD X(d->rd)
#define RS1 X(d->rs1)
#define RS2 X(d->rs2)
#define IMM ((int64_t)d->imm)
#define PC() (pc_base + ((uint32_t)(uintptr_t)d >> 2))
#define SEXT32(v) ((uint64_t)(int64_t)(int32_t)(v))
#define LIKELY(c) __builtin_expect(!!(c), 1)

#define PAGE_MASK (~(uint64_t)(PAGE_SIZE - 1))
#define TLB_ENTRY(table, va) (&tlb->table[(va) >> 12 & (TLB_SIZE - 1)])
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

// Unaligned host accesses are fine in WebAssembly; the attribute keeps the compiler honest elsewhere.
typedef uint16_t u16 __attribute__((aligned(1)));
typedef uint32_t u32 __attribute__((aligned(1)));
typedef uint64_t u64 __attribute__((aligned(1)));

#define LOAD_TO(target, type, extend)                                                                                  \
    do {                                                                                                               \
        uint64_t va = RS1 + (uint64_t)IMM;                                                                             \
        const struct tlb_entry *e = TLB_ENTRY(read, va);                                                               \
        uint32_t addend = ADDEND(e);                                                                                   \
        if (TLB_HIT(e, va, type)) {                                                                                    \
            target = (uint64_t)(int64_t)(extend) * HOST(type, addend, va);                                                \
        } else {                                                                                                       \
            hart.budget = n;                                                                                           \
            uint64_t value = slow_load(va, sizeof(type));                                                              \
            if (hart.cause != CAUSE_NONE) goto exception;                                                              \
            target = (uint64_t)(int64_t)(extend)value;                                                                 \
        }                                                                                                              \
    } while (0)
#define LOAD(type, extend) LOAD_TO(RD, type, extend)

// A store may have started a device's work or raised an interrupt only on the slow path; the hart looks at the end
// of the block.
#define STORE_FROM(type, source)                                                                                       \
    do {                                                                                                               \
        uint64_t va = RS1 + (uint64_t)IMM;                                                                             \
        const struct tlb_entry *e = TLB_ENTRY(write, va);                                                              \
        uint32_t addend = ADDEND(e);                                                                                   \
        if (TLB_HIT(e, va, type)) {                                                                                    \
            *HOST(type, addend, va) = (type)(source);                                                                       \
        } else {                                                                                                       \
            hart.budget = n;                                                                                           \
            slow_store(va, source, sizeof(type));                                                                      \
            if (hart.cause != CAUSE_NONE) goto exception;                                                              \
            if (hart.recheck) goto stored;                                                                             \
        }                                                                                                              \
    } while (0)
#define STORE(type) STORE_FROM(type, RS2)

#define BRANCH(op, step, condition)                                                                                    \
    case op:                                                                                                           \
        if (condition) {                                                                                               \
            d = (const struct insn *)((const uint8_t *)d + d->imm);                                                    \
        } else {                                                                                                       \
            d += (step);                                                                                               \
        }                                                                                                              \
        break;

// FP loads and stores need the unit on; the slow check is out of the loop's way.
#define NEED_FP()                                                                                                      \
    if ((hart.mstatus & MSTATUS_FS) == 0) goto illegal

#define F(offset) (*(uint64_t *)(uintptr_t)(HART_ADDRESS + offsetof(struct hart_state, f) + (offset)))

#define FP_LOAD(type, box)                                                                                             \
    do {                                                                                                               \
        NEED_FP();                                                                                                     \
        uint64_t loaded;                                                                                               \
        LOAD_TO(loaded, type, type);                                                                                   \
        F(d->rd) = loaded | (box);                                                                                     \
        hart.mstatus |= MSTATUS_FS;                                                                                    \
    } while (0)

#define FP_STORE(type)                                                                                                 \
    do {                                                                                                               \
        NEED_FP();                                                                                                     \
        STORE_FROM(type, F(d->rs2));                                                                                   \
    } while (0)

static bool branch_taken(unsigned condition, uint64_t a, uint64_t b) {
    switch (condition) {
    case 0: return a == b;
    case 1: return a != b;
    case 4: return (int64_t)a < (int64_t)b;
    case 5: return (int64_t)a >= (int64_t)b;
    case 6: return a < b;
    default: return a >= b;
    }
}

static uint64_t mulhu(uint64_t a, uint64_t b) {
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t middle = ah * bl + (al * bl >> 32), other = al * bh + (uint32_t)middle;
    return ah * bh + (middle >> 32) + (other >> 32);
}

static uint64_t mulhsu(uint64_t a, uint64_t b) { return mulhu(a, b) - ((int64_t)a < 0 ? b : 0); }
static uint64_t mulh(uint64_t a, uint64_t b) { return mulhsu(a, b) - ((int64_t)b < 0 ? a : 0); }

// Division by zero and overflow have results, not exceptions ("M" chapter, table "Semantics for division by zero").
static uint64_t divide(int64_t a, int64_t b) { return b == 0 ? ~0ull : b == -1 ? -(uint64_t)a : (uint64_t)(a / b); }
static uint64_t remainder(int64_t a, int64_t b) { return b == 0 ? (uint64_t)a : b == -1 ? 0 : (uint64_t)(a % b); }

static uint64_t divide32(int32_t a, int32_t b) {
    return b == 0 ? ~0ull : b == -1 ? SEXT32(-(uint32_t)a) : SEXT32(a / b);
}

static uint64_t remainder32(int32_t a, int32_t b) { return b == 0 ? SEXT32(a) : b == -1 ? 0 : SEXT32(a % b); }

// Instructions that cross a page are decoded into their own slots each time, with a page end behind them.
enum { FAR_AWAY = 1 << 30 }; // an offset from which no target is in the same page

static struct insn crossing[3];

static __attribute__((noinline)) bool prepare_crossing(uint64_t pc) {
    uint32_t word;
    if (!fetch_crossing(pc, &word)) return false;
    decode_word(word, &crossing[0], FAR_AWAY);
    crossing[2] = (struct insn){.op = OP_PAGE_END};
    return true;
}

void interpret(void) {
    int64_t n = hart.budget;
    const struct insn *d;
    uint64_t pc, pc_base;
    struct tlb *tlb;

resume:
    hart.recheck = 0;
    if (interrupt_waiting()) {
        hart.wait = 0;
        take_interrupt();
    }
    if (hart.wait || hart.stop) goto leave;
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
    }
    d = &page->slot[(pc & (PAGE_SIZE - 1)) >> 1];
    pc_base = pc - ((uint32_t)(uintptr_t)d >> 2);
}
    for (;;) {
        if (--n < 0) goto spent;
#ifdef NO_PREDECODE // `make bench` measures what decoding only once is worth
        if (d->op != OP_PAGE_END && d != crossing) code_decode(d);
#endif
        // Reading the slot whole makes wazero check its bounds once for all of its fields. The C compiler must not
        // know that it is the same slot, or it would take the fields out of it here, where few operations need them.
        const struct insn *same = d;
        __asm__("" : "+r"(same));
        uint64_t slot = *(const uint64_t *)same;
        switch ((uint8_t)slot) {
#include "interpret_integer.h"
#include "interpret_memory.h"
#include "interpret_control.h"
        case OP_GROUP_FP:
            if (!execute_fp(d)) goto exception;
            d += 2;
            break;
        case OP_GROUP_BIT:
            execute_bit(d);
            d += 2;
            break;
        case OP_GROUP_AMO:
            if (!execute_amo(d)) goto exception;
            if (hart.recheck) goto stored;
            d += 2;
            break;
        case OP_GROUP_CBO:
            if (!execute_cbo(d)) goto exception;
            if (hart.recheck) goto stored;
            d += 2;
            break;
        case OP_GROUP_CSR:
            hart.budget = n + 1; // as if this instruction had not retired yet
            if (!execute_csr(d)) goto exception;
            hart.pc = PC() + 4;
            goto resume;
        case OP_GROUP_SYS:
            hart.budget = n + 1;
            if (execute_sys(d, PC())) goto resume;
            goto exception;
        case OP_C_EBREAK:
            raise(CAUSE_BREAKPOINT, PC());
            goto exception;
        case OP_C_ILLEGAL:
        case OP_ILLEGAL:
            raise(CAUSE_ILLEGAL, (uint32_t)d->imm);
            goto exception;
        default: __builtin_unreachable(); // decode.c makes no others; without a default the branch tree is shallower
        }
    }

illegal:
    raise(CAUSE_ILLEGAL, 0);
exception:
    pc = PC();
    n++;
exception_at_pc: // a trap takes from the budget, so that a program that only traps ends its slice, but is not retired
    n--;
    hart.instret_offset--;
    hart.pc = pc;
    take_exception();
    if (n <= 0) goto leave; // a handler that cannot be fetched traps for ever without executing anything
    goto resume;
stored: // d wrote to a device, or to code: interrupts may be pending and the decoded page may be gone
    hart.pc = PC() + (d->op == OP_C_SW || d->op == OP_C_SD || d->op == OP_C_SWSP || d->op == OP_C_SDSP ||
                              d->op == OP_C_FSD || d->op == OP_C_FSDSP
                          ? 2
                          : 4);
    goto resume;
spent:
    n = 0;
    hart.pc = PC();
leave:
    hart.budget = n;
}
