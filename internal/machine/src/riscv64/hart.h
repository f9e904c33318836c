// The hart: registers, translation caches, decoded code. Everything here is plain data in linear memory.
#ifndef AGENTVM_HART_H
#define AGENTVM_HART_H

#include "instructions.h"
#include "hart_caches.h"
#include "tlb.h"

enum privilege { PRIV_U = 0, PRIV_S = 1, PRIV_M = 3 };

// Exception causes (Privileged Architecture, table "mcause values after trap").
enum cause {
    CAUSE_FETCH_MISALIGNED = 0,
    CAUSE_FETCH_ACCESS = 1,
    CAUSE_ILLEGAL = 2,
    CAUSE_BREAKPOINT = 3,
    CAUSE_LOAD_MISALIGNED = 4,
    CAUSE_LOAD_ACCESS = 5,
    CAUSE_STORE_MISALIGNED = 6,
    CAUSE_STORE_ACCESS = 7,
    CAUSE_ECALL_U = 8,
    CAUSE_ECALL_S = 9,
    CAUSE_ECALL_M = 11,
    CAUSE_FETCH_PAGE = 12,
    CAUSE_LOAD_PAGE = 13,
    CAUSE_STORE_PAGE = 15,
    CAUSE_NONE = 64, // ours: no exception is pending
};

#define CAUSE_INTERRUPT (1ull << 63)

// Interrupt numbers, also bit positions in mip and mie.
enum { IRQ_SSI = 1, IRQ_MSI = 3, IRQ_STI = 5, IRQ_MTI = 7, IRQ_SEI = 9, IRQ_MEI = 11 };

#define MSTATUS_SIE (1ull << 1)
#define MSTATUS_MIE (1ull << 3)
#define MSTATUS_SPIE (1ull << 5)
#define MSTATUS_MPIE (1ull << 7)
#define MSTATUS_SPP (1ull << 8)
#define MSTATUS_MPP (3ull << 11)
#define MSTATUS_FS (3ull << 13)
#define MSTATUS_MPRV (1ull << 17)
#define MSTATUS_SUM (1ull << 18)
#define MSTATUS_MXR (1ull << 19)
#define MSTATUS_TVM (1ull << 20)
#define MSTATUS_TW (1ull << 21)
#define MSTATUS_TSR (1ull << 22)

// Decoded code ---------------------------------------------------------------------------------------------------

// One decoded instruction. Register fields hold the byte offset of the register in hart.x (8 times its number), so
// that the interpreter indexes without a shift. What imm holds is the operation's business; see decode.c.
struct insn {
    uint8_t op, rd, rs1, rs2;
    int32_t imm;
};

enum { SLOT_CODE = 2, PAGE_SLOTS = 2048, PAGE_TAIL = 2, CODE_PAGES = 8192 };

// The decoded form of one 4 KiB page of guest code: a slot for each halfword, filled when first executed. The tail
// catches execution that runs off the page's end.
struct code_page {
    struct insn slot[PAGE_SLOTS + PAGE_TAIL];
    uint32_t frame;   // RAM page number it decodes
    uint32_t in_use;
};

// Operations that are not in the instruction table.
enum {
    OP_UNDECODED = OP_TABLE_COUNT, // decode this slot, then execute it
    OP_CROSSING,                   // a 32-bit instruction whose second half is in the next page
    OP_PAGE_END,                   // continue at the next page
    OP_ILLEGAL,
    OP_NOP,
    OP_C_NOP2,
    OP_J,          // jump without link within the page
    OP_JUMP_FAR,   // jal to another page; imm is the distance, rd may be x0
    OP_BRANCH_FAR, // branch to another page; imm is distance << 4 | long << 3 | funct3
    OP_JUMP_COUNTED,   // with translation, within the page: jal, c.j back; imm as for OP_JUMP_FAR
    OP_BRANCH_COUNTED, // the same: a branch back; imm as for OP_BRANCH_FAR
    OP_JR,         // jalr without link
    OP_LOAD_X0,    // load whose result is discarded; rs2 is the size's funct3
    OP_LI, // addi from x0
    // The commoner ones of OP_GROUP_ALU, with the operand in imm by itself.
    OP_SLTI,
    OP_ORI,
    OP_SRAI,
    OP_SRAIW,
    OP_SLT,
    OP_SLL,
    OP_SRL,
    OP_SRA,
    OP_TRANSLATED, // an entry of a translated region, see jit.h
};

enum { TLB_SETS = 3 };

struct hart_state {
    uint64_t x[32];
    uint64_t f[32];
    uint64_t pc;
    int64_t budget;       // instructions left in this slice; may go slightly below zero
    uint64_t retired_end;    // instructions retired since init when budget reaches zero
    uint64_t instret_offset; // minstret minus that count
    uint32_t privilege;
    uint32_t cause; // pending exception while an out-of-line function returns to the interpreter
    uint64_t tval;
    uint32_t wait; // wfi was executed
    uint32_t recheck; // the interpreter must look at interrupts, stop and its page before the next instruction
    uint32_t stop; // reason to leave `run`, see enum run_reason
    uint32_t stop_code;
    uint32_t frm, fflags;

    uint64_t mstatus, medeleg, mideleg, mie, mip, mtvec, mcounteren, mscratch, mepc, mcause, mtval;
    uint64_t menvcfg, senvcfg;
    uint64_t stvec, scounteren, sscratch, sepc, scause, stval, satp;
    uint64_t stimecmp, mtimecmp;
    uint64_t reservation; // virtual address of the last LR, or ~0; SC also compares the value
    uint64_t reserved_value;
    uint64_t sbi_firmware; // 1: SBI calls are answered here, there is no M-mode program
    uint64_t user_entries; // number of supervisor TLB entries that need SUM; above the array's size: unknown
    uint16_t user_entry[16];
    int64_t slow_left; // see slow
    // The largest page of which the TLB may have entries, for addresses of each half, as a shift: Linux has its own memory in superpages always,
    // that of programs rarely. An entry has 4 KiB of it, but sfence.vma by any address of a superpage is for all of it.
    uint64_t largest_shift[2];

    struct tlb tlb[TLB_SETS] __attribute__((aligned(64))); // U, S, M
    bool local_entries; // see mmu.c
    struct insn alone[3]; // see jit_single
    struct insn crossing[3]; // see prepare_crossing
    struct code_cache code;
    struct machine_result result;
    int64_t slice_left; // instructions of this slice behind the quantum
    uint32_t number;
    uint32_t power; // enum hart_power
    uint64_t start_pc, start_argument; // HART_STARTING
    struct hart_mail mail;
    struct jit_state translated;
};

// The hart is at a constant address, below which build.sh puts the stack and above which it puts everything else: a
// register access is then one load with a constant offset, and translated code can have the address built in.
#define HART_ADDRESS 0x10000u
#ifdef AGENTVM_HARTS
// Each instance of a module for several harts has its own (hart_base.s), which Go sets. It does not change as long as a function runs.
static inline struct hart_state *hart_self(void) {
    struct hart_state *self;
    __asm__(".globaltype hart_base, i32\n\tglobal.get hart_base\n\tlocal.set %0" : "=r"(self));
    return self;
}
#define hart (*hart_self())
#else
#define hart (*(struct hart_state *)(uintptr_t)HART_ADDRESS)
#endif

// Registers of registers.go has the same order.
_Static_assert(offsetof(struct hart_state, x) == 0 && offsetof(struct hart_state, f) == 256 &&
                   offsetof(struct hart_state, pc) == 512,
               "Go reads the registers at the start of the hart");
_Static_assert(offsetof(struct hart_state, budget) == 520 && offsetof(struct hart_state, fflags) == 580,
               "native/enter_amd64.s has these offsets");
_Static_assert(sizeof(struct hart_state) <= 0xf0000, "build.sh keeps 960 KiB for the hart");

static inline bool exception_pending(void) { return hart.cause != CAUSE_NONE; }

static inline struct tlb *current_tlb(void) { return &hart.tlb[hart.privilege == PRIV_M ? 2 : hart.privilege]; }

static inline uint64_t retired(void) { return hart.retired_end - (uint64_t)hart.budget; }

// raise records an exception for the interpreter to take; it returns 0 for the caller's convenience.
static inline uint64_t raise(uint32_t cause, uint64_t tval) {
    hart.cause = cause;
    hart.tval = tval;
    return 0;
}

static inline void slow(uint32_t nanoseconds) {
    hart.slow_left -= (int64_t)nanoseconds;
    if (hart.slow_left < 0) slow_ended();
}

// decode.c
void decode_slot(struct code_page *page, uint32_t index);
bool decode_word(uint32_t word, struct insn *out, uint32_t offset);

// code.c: the pool of decoded pages.
struct code_page *code_page_for(uint32_t frame);
struct code_page *code_page_of(const struct insn *slot); // slot of the pool
void code_decode(const struct insn *slot); // decodes an undecoded slot of the pool

// mmu.c. The slow_ functions do a whole access, device registers and page crossings included; after an exception
// hart.cause is not CAUSE_NONE and their result is meaningless.
uint64_t slow_load(uint64_t va, uint32_t size);
void slow_store(uint64_t va, uint64_t value, uint32_t size);
bool tlb_reach(uint64_t va, bool store);
uint8_t *atomic_pointer(uint64_t va, uint32_t size); // for SC and AMOs; NULL after an exception
struct code_page *fetch_page(uint64_t va);           // NULL after an exception
bool fetch_crossing(uint64_t va, uint32_t *word);
void cbo_zero(uint64_t va);
void tlb_flush_all(void);
void tlb_forget_jumps(void);
void tlb_flush_space(void); // all but global pages
void tlb_flush_page(uint64_t va);
void tlb_forget_writes(uint32_t frame); // called when `frame` becomes code
void tlb_forget_code(const struct code_page *page);
void tlb_sum_cleared(void);
void tlb_flush_machine(void); // M-mode's set, when MPRV changes

// csr.c. Both raise CAUSE_ILLEGAL for registers that do not exist or are out of reach.
bool csr_read(uint32_t number, uint64_t *value);
bool csr_write(uint32_t number, uint64_t value);

// trap.c
void take_exception(void); // uses hart.pc, cause, tval; clears cause
bool take_interrupt(void); // if one is pending and enabled
void return_from_trap(uint32_t from);

// Out-of-line instruction groups. They return false after an exception.
bool execute_sys(const struct insn *d, uint64_t pc); // sets hart.pc to the next instruction itself
bool execute_csr(const struct insn *d);
bool execute_cbo(const struct insn *d);
bool execute_amo(const struct insn *d);
bool execute_fp(const struct insn *d);
bool execute_bit(const struct insn *d);
void execute_alu(const struct insn *d);
bool execute_memory(const struct insn *d);

// sbi.c
void sbi_call(void);

// plic.c, clint.c
uint64_t plic_read(uint32_t offset);
void plic_write(uint32_t offset, uint64_t value);
uint64_t clint_read(uint32_t offset);
void clint_write(uint32_t offset, uint64_t value);

#endif
