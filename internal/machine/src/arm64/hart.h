// The hart: registers, translation caches, decoded code. Everything here is plain data in linear memory.
// Section and register names are those of the Arm Architecture Reference Manual for A-profile architecture (DDI 0487).
#ifndef AGENTVM_HART_H
#define AGENTVM_HART_H

#include "instructions.h"
#include "hart_caches.h"
#include "tlb.h"
#include "operations.h"

// Exception classes, ESR_EL1.EC (D24.2.40).
enum exception_class {
    EC_UNKNOWN = 0x00,
    EC_WFX = 0x01,
    EC_FP = 0x07,
    EC_ILLEGAL_STATE = 0x0e,
    EC_SVC = 0x15,
    EC_SYSTEM = 0x18,
    EC_FETCH_LOWER = 0x20,
    EC_FETCH = 0x21,
    EC_PC_ALIGNMENT = 0x22,
    EC_DATA_LOWER = 0x24,
    EC_DATA = 0x25,
    EC_SP_ALIGNMENT = 0x26,
    EC_BRK = 0x3c,
};

#define ESR_IL (1u << 25)
#define SYNDROME(class, iss) ((uint32_t)(class) << 26 | ESR_IL | (uint32_t)(iss))
#define ESR_WNR (1u << 6)

// Fault status codes (D24.2.40, DFSC); the level is added to the first four.
enum fault { FAULT_ADDRESS_SIZE = 0x00, FAULT_TRANSLATION = 0x04, FAULT_ACCESS_FLAG = 0x08, FAULT_PERMISSION = 0x0c, FAULT_EXTERNAL = 0x10, FAULT_ALIGNMENT = 0x21 };

#define SCTLR_M (1ull << 0)
#define SCTLR_SA (1ull << 3)
#define SCTLR_SA0 (1ull << 4)
#define SCTLR_UMA (1ull << 9)
#define SCTLR_DZE (1ull << 14)
#define SCTLR_UCT (1ull << 15)
#define SCTLR_NTWI (1ull << 16)
#define SCTLR_NTWE (1ull << 18)
#define SCTLR_WXN (1ull << 19)
#define SCTLR_SPAN (1ull << 23)
#define SCTLR_UCI (1ull << 26)

#define MDSCR_TDCC (1ull << 12)

#define CPACR_FPEN (3ull << 20)

#define PSTATE_N (1ull << 31)
#define PSTATE_Z (1ull << 30)
#define PSTATE_C (1ull << 29)
#define PSTATE_V (1ull << 28)
#define PSTATE_NZCV (15ull << 28)
#define PSTATE_PAN (1ull << 22)
#define PSTATE_IL (1ull << 20)
#define PSTATE_I (1ull << 7)
#define PSTATE_DAIF (15ull << 6)

#define FPSR_QC (1u << 27)
#define FPCR_AHP (1u << 26)
#define FPCR_DN (1u << 25)
#define FPCR_FZ (1u << 24)

// Decoded code ---------------------------------------------------------------------------------------------------

// One decoded instruction. Register fields hold the byte offset of the register in hart.x (8 times its number): the last is SP, and what uses
// XZR is another operation or one of a group. What imm holds is the operation's business; see decode.c.
struct insn {
    uint8_t op, rd, rn, rm;
    int32_t imm;
};

enum { SLOT_CODE = 4, PAGE_SLOTS = 1024, PAGE_TAIL = 1, CODE_PAGES = 16384 };

// The decoded form of one 4 KiB page of guest code: a slot for each instruction, filled when first executed. The tail catches execution that
// runs off the page's end.
struct code_page {
    struct insn slot[PAGE_SLOTS + PAGE_TAIL];
    uint32_t frame; // RAM page number it decodes
    uint32_t in_use;
};

// The flags are kept as what they follow from. N, Z, C and V are computed when something other than a comparison's branch wants them. Nearly all
// values that they may have are those of some subtraction, and kept as one: see set_nzcv.
enum flags {
    FLAGS_SUB64,  // of a - b
    FLAGS_SUB32,  // of the 32-bit a - b, both sign-extended
    FLAGS_LOGIC,  // of a, sign-extended; C and V are clear, b is 0
    FLAGS_PACKED, // a has them at the places of PSTATE
};

enum { TLB_SETS = 2 }; // EL0, EL1

struct hart_state {
    uint64_t x[32]; // the last is the stack pointer in use
    uint64_t v[32][2];
    uint64_t pc;
    int64_t budget;         // instructions left in this slice; may go slightly below zero
    uint64_t retired_end;   // instructions retired since init when budget reaches zero
    uint64_t flag_a, flag_b;
    uint64_t flags;         // enum flags; of this size so that translated code sets it with one store of a constant
    uint32_t el;            // 0 or 1
    uint32_t cause;         // ESR of the pending exception while an out-of-line function returns to the interpreter, or 0
    uint64_t fault_address; // FAR of that exception
    uint32_t wait;          // wfi was executed
    uint32_t recheck;       // the interpreter must look at interrupts, stop and its page before the next instruction
    uint32_t stop;          // reason to leave `run`, see enum run_reason
    uint32_t stop_code;
    uint32_t fpcr, fpsr;
    uint32_t irq;           // the interrupt controller's line
    uint64_t pstate;        // DAIF, PAN and IL; the flags and the exception level are above
    uint64_t sp_el0, sp_el1; // of the stack pointer that is not in use; SPSel says which is
    uint32_t sp_select, unused;

    uint64_t elr, spsr, esr, far, vbar, sctlr, ttbr0, ttbr1, tcr, mair, amair, contextidr, par;
    uint64_t tpidr_el0, tpidrro_el0, tpidr_el1, cpacr, mdscr, csselr, cntkctl, afsr0, afsr1;
    uint64_t cntv_ctl, cntv_cval, cntp_ctl, cntp_cval;
    uint64_t exclusive; // virtual address of the last exclusive load, or ~0; the store also compares the values
    uint64_t exclusive_value[2];
    uint32_t power, unused_power; // enum hart_power
    uint64_t start_pc, start_argument; // HART_STARTING
    uint64_t user_entries; // what follows is no state of the guest's
    int64_t slow_left; // see slow
    uint64_t largest_shift[2]; // of a page that the TLB has an entry of, for addresses of each half

    struct tlb tlb[TLB_SETS] __attribute__((aligned(64)));
    bool local_entries, tagged_entries; // see mmu.c
    struct insn alone[3]; // see jit_single
    struct code_cache code;
    struct machine_result result;
    int64_t slice_left; // instructions of this slice behind the quantum
    uint32_t number;
    struct hart_mail mail;
    struct jit_state translated;
};

// The hart is at a constant address, below which build.sh puts the stack and above which it puts everything else: a register access is then one
// load with a constant offset, and translated code can have the address built in.
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

_Static_assert(sizeof(struct hart_state) <= 0xf0000, "build.sh keeps 960 KiB for the hart");

static inline bool exception_pending(void) { return hart.cause != 0; }

static inline struct tlb *current_tlb(void) { return &hart.tlb[hart.el]; }

static inline uint64_t retired(void) { return hart.retired_end - (uint64_t)hart.budget; }

// raise records an exception for the interpreter to take; it returns false for the caller's convenience.
static inline bool raise(uint32_t syndrome, uint64_t address) {
    hart.cause = syndrome;
    hart.fault_address = address;
    return false;
}

static inline bool undefined(void) { return raise(SYNDROME(EC_UNKNOWN, 0), 0); }

// stack_misaligned raises the exception of an access by SP that is no multiple of 16 (D1.3.9.2), if the kernel wants it.
static inline bool stack_misaligned(unsigned base) {
    if (base != 31 || (hart.x[31] & 15) == 0 || (hart.sctlr & (hart.el == 0 ? SCTLR_SA0 : SCTLR_SA)) == 0) return false;
    raise(SYNDROME(EC_SP_ALIGNMENT, 0), 0);
    return true;
}

// misaligned raises the exception of an access that must be aligned. A fault that a load would have is a load's, of what loads and stores, too
// (D24.2.40, WnR).
static inline bool misaligned(uint64_t va, uint32_t size, bool writes) {
    if ((va & (size - 1)) == 0) return false;
    raise(SYNDROME(hart.el == 0 ? EC_DATA_LOWER : EC_DATA, FAULT_ALIGNMENT | (writes ? ESR_WNR : 0)), va);
    return true;
}

static inline void slow(uint32_t nanoseconds) {
    hart.slow_left -= (int64_t)nanoseconds;
    if (hart.slow_left < 0) slow_ended();
}

// Operands of an instruction word ---------------------------------------------------------------------------------

static inline uint32_t field(uint32_t w, unsigned low, unsigned width) { return w >> low & ((1u << width) - 1); }

static inline int64_t signed_field(uint32_t w, unsigned low, unsigned width) {
    return (int64_t)((uint64_t)w << (64 - low - width)) >> (64 - width);
}

static inline unsigned rd_of(uint32_t w) { return w & 31; }
static inline unsigned rn_of(uint32_t w) { return w >> 5 & 31; }
static inline unsigned rm_of(uint32_t w) { return w >> 16 & 31; }
static inline unsigned ra_of(uint32_t w) { return w >> 10 & 31; }

// Register 31 is XZR for most operands.
static inline uint64_t xzr(unsigned r) { return r == 31 ? 0 : hart.x[r]; }

static inline void set_xzr(unsigned r, uint64_t value) {
    if (r != 31) hart.x[r] = value;
}

// offset_register is Rm as the address has it: extended by `option`, shifted by the access's size if bit 12 says so (C6.2, B.ExtendReg).
static inline uint64_t offset_register(uint32_t w, unsigned scale) {
    uint64_t m = xzr(rm_of(w));
    switch (field(w, 13, 3)) {
    case 2: m = (uint32_t)m; break;
    case 6: m = (uint64_t)(int64_t)(int32_t)m; break;
    default: break;
    }
    return w >> 12 & 1 ? m << scale : m;
}

// decode.c
void decode_slot(struct code_page *page, uint32_t index);
void decode_whole(uint32_t word, struct insn *d, uint32_t at); // without the interpreter's operations for what is in the page
int instruction_of(uint32_t word); // its number, -1: none
bool logical_immediate(uint32_t word, uint64_t *value);

// code.c
struct code_page *code_page_for(uint32_t frame);
struct code_page *code_page_of(const struct insn *slot);
void code_decode(const struct insn *slot);

// flags.c
uint64_t nzcv(void); // at the places of PSTATE
void set_nzcv(uint64_t packed);
bool set_sum_flags(uint64_t a, uint64_t b, bool wide);
bool condition_holds(unsigned condition);

// mmu.c. After an exception hart.cause is not 0 and results are meaningless. `unprivileged` accesses are checked as EL0's.
uint64_t load(uint64_t va, uint32_t size, bool unprivileged);
void store(uint64_t va, uint64_t value, uint32_t size, bool unprivileged);
uint8_t *atomic_pointer(uint64_t va, bool loads); // to write; NULL after an exception
bool can_write(uint64_t va, uint32_t size);          // of several registers none is stored unless all can be
struct code_page *fetch_page(uint64_t va);           // NULL after an exception
uint64_t code_address(uint64_t va);                  // what the processor makes of an address that it branches to
void zero_block(uint64_t va);
void tlb_flush_all(void);
void tlb_forget_jumps(void);
void tlb_flush_space(void); // all but global pages
void tlb_flush_page(uint64_t va);
void tlb_forget_writes(uint32_t frame); // called when `frame` becomes code
void tlb_forget_code(const struct code_page *page);

// Out-of-line groups: the function of each row's group in instructions.tbl. They return false after an exception. pc is the instruction's.
bool execute_alu(unsigned id, uint32_t word);
bool execute_memory(unsigned id, uint32_t word, uint64_t pc);
bool execute_vmemory(unsigned id, uint32_t word, uint64_t pc);
bool execute_structure(unsigned id, uint32_t word);
bool execute_exclusive(unsigned id, uint32_t word);
bool execute_atomic(unsigned id, uint32_t word);
bool execute_fp(unsigned id, uint32_t word);
bool execute_simd(unsigned id, uint32_t word);
bool execute_vfp(unsigned id, uint32_t word);
bool execute_crypto(unsigned id, uint32_t word);
bool execute_system(unsigned id, uint32_t word, uint64_t pc); // sets hart.pc to the next instruction itself

// exception.c
void take_exception(void); // uses hart.pc, cause, fault_address; clears cause
void take_interrupt(void);
bool exception_return(void);
void select_stack(uint32_t select);

#endif
