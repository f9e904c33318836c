// The interpreter's loop over decoded slots.
//
// Locals of the loop, kept in registers by the compiler:
//   d      the slot being executed; pc = pc_base + (address of d) / 2, because a slot has 8 bytes for 4 of code
//   n      instructions left in the slice, counted down and checked at each instruction
//   tlb    the translation caches of the current exception level
//
//   resume ──► take pending interrupt ──► enter page (code TLB) ──► loop ──► budget spent ──► return
//     ▲                                        ▲                      │
//     └── system instruction or exception ─────┴───── jump ───────────┘
#include "jit.h"

#define PC() (pc_base + ((uint32_t)(uintptr_t)d >> 1))
#define LIKELY(c) __builtin_expect(!!(c), 1)
#define PAGE_MASK (~(uint64_t)(PAGE_SIZE - 1))
#define TLB_ENTRY(table, va) (&tlb->table[tlb_index(va)])

// Register fields are byte offsets into hart.x, which is at a constant address: one load with an immediate offset.
#define X(offset) (*(uint64_t *)((uintptr_t)&hart + offsetof(struct hart_state, x) + (offset)))
#define SLOT_RD (uint8_t)(slot >> 8)
#define SLOT_RN (uint8_t)(slot >> 16)
#define SLOT_RM (uint8_t)(slot >> 24)
#define SLOT_IMM (int32_t)((int64_t)slot >> 32)
#define RD X(SLOT_RD)
#define RN X(SLOT_RN)
#define RM X(SLOT_RM)
#define IMM ((uint64_t)(int64_t)SLOT_IMM)
#define LINK hart.x[30]

// The number of an instruction of a group, and its word.
#define SLOT_ID (uint16_t)(slot >> 8)
#define SLOT_WORD (uint32_t)(slot >> 32)

// A branch within the page, and the one to another.
#define BRANCH(op, condition)                                                                                          \
    case op:                                                                                                           \
        if (condition) {                                                                                               \
            d = (const struct insn *)((const uint8_t *)d + SLOT_IMM * 2);                                              \
        } else {                                                                                                       \
            d += 1;                                                                                                    \
        }                                                                                                              \
        break;                                                                                                         \
    case op##_FAR:                                                                                                     \
        if (condition) {                                                                                               \
            pc = PC() + (uint64_t)(int64_t)SLOT_IMM;                                                                   \
            goto jump;                                                                                                 \
        }                                                                                                              \
        d += 1;                                                                                                        \
        break;

// A branch by the flags: a comparison of what they are of when that is one of the kinds up to `last`, else of the flags themselves.
#define COMPARE_BRANCH(op, condition, last, type, operator)                                                            \
    case op:                                                                                                           \
        if (LIKELY(hart.flags <= (last)) ? (type)hart.flag_a operator (type)hart.flag_b : condition_holds(condition))  \
            d = (const struct insn *)((const uint8_t *)d + SLOT_IMM * 2);                                              \
        else d += 1;                                                                                                   \
        break;

#define ALU(op, destination, value)                                                                                    \
    case op:                                                                                                           \
        destination = (value);                                                                                         \
        d += 1;                                                                                                        \
        break;

// COMPARISON sets the flags of a - b, of both as 64 bits.
#define COMPARISON(op, kind, a, b, rest)                                                                               \
    case op: {                                                                                                         \
        uint64_t first = (a), second = (b);                                                                            \
        hart.flags = kind;                                                                                             \
        hart.flag_a = first;                                                                                           \
        hart.flag_b = second;                                                                                          \
        rest;                                                                                                          \
        d += 1;                                                                                                        \
        break;                                                                                                         \
    }

#define SEXT(v) ((uint64_t)(int64_t)(int32_t)(v))
#define SHIFTED_X (RM << SLOT_IMM)
#define SHIFTED_W ((uint32_t)RM << SLOT_IMM)

// Accesses. What is not in the TLB, crosses a page or finds SP misaligned is left to the instruction's group.
#define MISS                                                                                                           \
    {                                                                                                                  \
        hart.budget = n;                                                                                               \
        if (!execute_access(d, PC())) goto exception;                                                                  \
        goto accessed;                                                                                                 \
    }
#define STACK_ALIGNED(rn) ((rn) != 31 * 8 || (hart.x[31] & 15) == 0)
#define FIND(table, type, count)                                                                                       \
    const struct tlb_entry *e = TLB_ENTRY(table, va);                                                                  \
    if (!LIKELY(e->tag == ((va + sizeof(type) * (count) - 1) & PAGE_MASK))) MISS                                       \
    type *at = (type *)(uintptr_t)((uint32_t)va + e->addend)

#define LOAD(op, type, extend, address)                                                                                \
    case op: {                                                                                                         \
        uint64_t va = (address);                                                                                       \
        FIND(read, type, 1);                                                                                           \
        RD = (uint64_t)(extend)*at;                                                                                    \
        d += 1;                                                                                                        \
        break;                                                                                                         \
    }
#define STORE(op, type, value, address)                                                                                \
    case op: {                                                                                                         \
        uint64_t va = (address);                                                                                       \
        FIND(write, type, 1);                                                                                          \
        *at = (type)(value);                                                                                           \
        d += 1;                                                                                                        \
        break;                                                                                                         \
    }
#define SP_ACCESS(sp_op, body)                                                                                         \
    case sp_op:                                                                                                        \
        if ((hart.x[31] & 15) != 0) MISS                                                                               \
        __attribute__((fallthrough));                                                                                  \
    body

// Before and after: the base is changed when the access has been made.
#define LOAD_MOVING(op, type, address)                                                                                 \
    case op: {                                                                                                         \
        uint64_t moved = RN + IMM, va = (address);                                                                     \
        if (!STACK_ALIGNED(SLOT_RN)) MISS                                                                              \
        FIND(read, type, 1);                                                                                           \
        uint64_t value = *at;                                                                                          \
        RD = value;                                                                                                    \
        RN = moved;                                                                                                    \
        d += 1;                                                                                                        \
        break;                                                                                                         \
    }
#define STORE_MOVING(op, type, address)                                                                                \
    case op: {                                                                                                         \
        uint64_t moved = RN + IMM, va = (address);                                                                     \
        if (!STACK_ALIGNED(SLOT_RN)) MISS                                                                              \
        FIND(write, type, 1);                                                                                          \
        *at = (type)RD;                                                                                                \
        RN = moved;                                                                                                    \
        d += 1;                                                                                                        \
        break;                                                                                                         \
    }
#define PAIR(op, table, address, transfer, write_back)                                                                 \
    case op: {                                                                                                         \
        uint64_t moved = RN + IMM, va = (address);                                                                     \
        if (!STACK_ALIGNED(SLOT_RN)) MISS                                                                              \
        FIND(table, unaligned64, 2);                                                                                   \
        transfer;                                                                                                      \
        write_back;                                                                                                    \
        (void)moved;                                                                                                   \
        d += 1;                                                                                                        \
        break;                                                                                                         \
    }
#define LOAD_PAIR uint64_t first = at[0], second = at[1]
#define SET_PAIR RD = first, RM = second

#define GROUP(op, call)                                                                                                \
    case op:                                                                                                           \
        hart.budget = n;                                                                                               \
        if (!(call)) goto exception;                                                                                   \
        goto accessed;

// execute_access executes a load or store that the loop has no short way for.
static bool execute_access(const struct insn *d, uint64_t pc) {
    uint32_t w = *(const uint32_t *)ram_at(RAM_BASE + (uint64_t)code_page_of(d)->frame * PAGE_SIZE + (pc & (PAGE_SIZE - 1)), 4);
    return execute_memory((unsigned)instruction_of(w), w, pc);
}

void interpret(void) {
    jit_uncount();
    int64_t n = hart.budget;
    const struct insn *d;
    uint64_t pc, pc_base;
    struct tlb *tlb;

resume:
    hart.recheck = 0;
    if (hart.irq) {
        hart.wait = 0;
        take_interrupt();
    }
    if (n <= 0 || hart.wait || hart.stop) goto leave; // exceptions alone use up the budget, too
    tlb = current_tlb();
    pc = hart.pc;
    if ((hart.pstate & PSTATE_IL) != 0 && (pc & 3) == 0) { // what is wrong with the address comes first (D1.3.5.5)
        if (fetch_page(pc) != NULL) raise(SYNDROME(EC_ILLEGAL_STATE, 0), 0);
        goto exception_at_pc;
    }
jump: {
    const struct tlb_entry *e = TLB_ENTRY(code, pc);
    const struct code_page *page;
    if ((pc & 3) != 0) {
        pc = code_address(pc);
        raise(SYNDROME(EC_PC_ALIGNMENT, 0), pc);
        goto exception_at_pc;
    }
    if (LIKELY(e->tag == (pc & PAGE_MASK))) {
        page = (const struct code_page *)(uintptr_t)e->addend;
    } else {
        pc = code_address(pc); // the TLB has none of code with a tag
        page = fetch_page(pc);
        if (page == NULL) goto exception_at_pc;
        if (hart.stop) { // the TLB knows the page: the next slice continues with it
            hart.pc = pc;
            goto leave;
        }
    }
    d = &page->slot[(pc & (PAGE_SIZE - 1)) >> 2];
    pc_base = pc - ((uint32_t)(uintptr_t)d >> 1);
    if (jit_count(d) && jit_hot(page, d)) {
        hart.pc = pc;
        goto leave;
    }
}
next:
    for (;;) {
        if (--n < 0) goto spent;
        uint64_t slot = *(const volatile uint64_t *)d;
        switch ((uint8_t)slot) {
        BRANCH(OP_B, true)
        BRANCH(OP_B_COND, condition_holds(SLOT_RM))
        BRANCH(OP_CBZ_W, (uint32_t)RD == 0)
        BRANCH(OP_CBZ_X, RD == 0)
        BRANCH(OP_CBNZ_W, (uint32_t)RD != 0)
        BRANCH(OP_CBNZ_X, RD != 0)
        BRANCH(OP_TBZ, (RD >> SLOT_RM & 1) == 0)
        BRANCH(OP_TBNZ, (RD >> SLOT_RM & 1) != 0)
        case OP_BL:
            LINK = PC() + 4;
            d = (const struct insn *)((const uint8_t *)d + SLOT_IMM * 2);
            break;
        case OP_BL_FAR:
            pc = PC();
            LINK = pc + 4;
            pc += (uint64_t)(int64_t)SLOT_IMM;
            goto jump;
        case OP_BR:
            pc = RN;
            goto jump;
        case OP_BLR:
            pc = RN;
            LINK = PC() + 4;
            goto jump;
        case OP_BR_ZERO:
            if (SLOT_IMM) LINK = PC() + 4;
            pc = 0;
            goto jump;
        case OP_ADR:
            RD = PC() + (uint64_t)(int64_t)SLOT_IMM;
            d += 1;
            break;
        case OP_ADRP:
            RD = (PC() & PAGE_MASK) + ((uint64_t)(int64_t)SLOT_IMM << 12);
            d += 1;
            break;
        COMPARE_BRANCH(OP_B_EQ, 0, FLAGS_LOGIC, uint64_t, ==)
        COMPARE_BRANCH(OP_B_NE, 1, FLAGS_LOGIC, uint64_t, !=)
        COMPARE_BRANCH(OP_B_HS, 2, FLAGS_SUB32, uint64_t, >=)
        COMPARE_BRANCH(OP_B_LO, 3, FLAGS_SUB32, uint64_t, <)
        COMPARE_BRANCH(OP_B_HI, 8, FLAGS_SUB32, uint64_t, >)
        COMPARE_BRANCH(OP_B_LS, 9, FLAGS_SUB32, uint64_t, <=)
        COMPARE_BRANCH(OP_B_GE, 10, FLAGS_LOGIC, int64_t, >=)
        COMPARE_BRANCH(OP_B_LT, 11, FLAGS_LOGIC, int64_t, <)
        COMPARE_BRANCH(OP_B_GT, 12, FLAGS_LOGIC, int64_t, >)
        COMPARE_BRANCH(OP_B_LE, 13, FLAGS_LOGIC, int64_t, <=)
#include "interpret_integer.h"
#include "interpret_memory.h"
        case OP_NOP: d += 1; break;
        case OP_PAGE_END:
            n++; // not an instruction
            pc = PC();
            goto jump;
        case OP_UNDECODED:
            n++;
            code_decode(d);
            break;
        case OP_TRANSLATED:
            hart.budget = n + 1;
            hart.pc = PC();
            d = jit_run(d);
            n = hart.budget;
            pc = hart.pc;
            if (exception_pending()) goto exception_at_pc;
            if (d == NULL && hart.recheck) goto resume;
            if (d == NULL) goto jump;
            pc_base = pc - ((uint32_t)(uintptr_t)d >> 1);
            break;
        case OP_UNDEFINED:
            undefined();
            goto exception;
        GROUP(OP_GROUP_ALU, execute_alu(SLOT_ID, SLOT_WORD))
        GROUP(OP_GROUP_MEMORY, execute_memory(SLOT_ID, SLOT_WORD, PC()))
        GROUP(OP_GROUP_VMEMORY, execute_vmemory(SLOT_ID, SLOT_WORD, PC()))
        GROUP(OP_GROUP_STRUCTURE, execute_structure(SLOT_ID, SLOT_WORD))
        GROUP(OP_GROUP_EXCLUSIVE, execute_exclusive(SLOT_ID, SLOT_WORD))
        GROUP(OP_GROUP_ATOMIC, execute_atomic(SLOT_ID, SLOT_WORD))
        GROUP(OP_GROUP_FP, execute_fp(SLOT_ID, SLOT_WORD))
        GROUP(OP_GROUP_SIMD, execute_simd(SLOT_ID, SLOT_WORD))
        GROUP(OP_GROUP_VFP, execute_vfp(SLOT_ID, SLOT_WORD))
        GROUP(OP_GROUP_CRYPTO, execute_crypto(SLOT_ID, SLOT_WORD))
        case OP_GROUP_SYSTEM:
            hart.budget = n + 1; // as if this instruction had not retired yet
            if (execute_system(SLOT_ID, SLOT_WORD, PC())) goto resume;
            pc = hart.pc; // of SVC, the next instruction
            n++;
            goto exception_at_pc;
        default: __builtin_unreachable(); // decode.c makes no others
        }
    }

accessed: // after a store to a device or to code, interrupts may be pending and the decoded page may be gone
    if (hart.recheck) {
        hart.pc = PC() + 4;
        goto resume;
    }
    d += 1;
    goto next;
exception:
    pc = PC();
    n++; // it was counted when it was dispatched
exception_at_pc: // an exception takes from the budget, so that a program that only faults ends its slice
    n--;
    hart.pc = pc;
    take_exception();
    goto resume;
spent:
    n = 0;
    hart.pc = PC();
leave:
    hart.budget = n;
}
