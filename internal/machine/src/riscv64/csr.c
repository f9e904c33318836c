// Control and status registers. Source: Privileged Architecture, chapter "Control and Status Registers (CSRs)";
// Zicsr and Zicntr of the unprivileged manual.
#include "hart.h"

enum {
    CSR_FFLAGS = 0x001, CSR_FRM, CSR_FCSR,
    CSR_CYCLE = 0xc00, CSR_TIME, CSR_INSTRET, CSR_HPMCOUNTER3 = 0xc03, CSR_HPMCOUNTER31 = 0xc1f,
    CSR_SSTATUS = 0x100, CSR_SIE = 0x104, CSR_STVEC, CSR_SCOUNTEREN, CSR_SENVCFG = 0x10a,
    CSR_SSCRATCH = 0x140, CSR_SEPC, CSR_SCAUSE, CSR_STVAL, CSR_SIP, CSR_STIMECMP = 0x14d, CSR_SATP = 0x180,
    CSR_MVENDORID = 0xf11, CSR_MARCHID, CSR_MIMPID, CSR_MHARTID, CSR_MCONFIGPTR,
    CSR_MSTATUS = 0x300, CSR_MISA, CSR_MEDELEG, CSR_MIDELEG, CSR_MIE, CSR_MTVEC, CSR_MCOUNTEREN, CSR_MENVCFG = 0x30a,
    CSR_MCOUNTINHIBIT = 0x320, CSR_MHPMEVENT3 = 0x323, CSR_MHPMEVENT31 = 0x33f,
    CSR_MSCRATCH = 0x340, CSR_MEPC, CSR_MCAUSE, CSR_MTVAL, CSR_MIP,
    CSR_PMPCFG0 = 0x3a0, CSR_PMPCFG15 = 0x3af, CSR_PMPADDR63 = 0x3ef,
    CSR_TSELECT = 0x7a0, CSR_TDATA3 = 0x7a3,
    CSR_MCYCLE = 0xb00, CSR_MINSTRET = 0xb02, CSR_MHPMCOUNTER3 = 0xb03, CSR_MHPMCOUNTER31 = 0xb1f,
};

#define MISA_VALUE (2ull << 62 | 1 << 0 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 8 | 1 << 12 | 1 << 18 | 1 << 20) // ACDFIMSU
#define MSTATUS_UXL_SXL (2ull << 32 | 2ull << 34)
#define MSTATUS_SD (1ull << 63)
#define SSTATUS_MASK (MSTATUS_SIE | MSTATUS_SPIE | MSTATUS_SPP | MSTATUS_FS | MSTATUS_SUM | MSTATUS_MXR)
#define MSTATUS_MASK                                                                                                   \
    (SSTATUS_MASK | MSTATUS_MIE | MSTATUS_MPIE | MSTATUS_MPP | MSTATUS_MPRV | MSTATUS_TVM | MSTATUS_TW | MSTATUS_TSR)
#define S_INTERRUPTS (1ull << IRQ_SSI | 1ull << IRQ_STI | 1ull << IRQ_SEI)
#define ALL_INTERRUPTS (S_INTERRUPTS | 1ull << IRQ_MSI | 1ull << IRQ_MTI | 1ull << IRQ_MEI)
#define DELEGABLE_EXCEPTIONS 0xb3ffull // all but ecall from M
#define ENVCFG_FIOM 1ull
#define ENVCFG_CBIE (3ull << 4)
#define ENVCFG_CBCFE (1ull << 6)
#define ENVCFG_CBZE (1ull << 7)
#define MENVCFG_STCE (1ull << 63)
#define SENVCFG_MASK (ENVCFG_FIOM | ENVCFG_CBIE | ENVCFG_CBCFE | ENVCFG_CBZE)

static uint64_t cycle_offset; // mcycle minus the count of instructions, those that trapped included

void processor_reset(bool start_m) {
    hart.mstatus = MSTATUS_UXL_SXL;
    hart.privilege = start_m ? PRIV_M : PRIV_S;
    hart.sbi_firmware = !start_m;
    hart.cause = CAUSE_NONE;
    hart.reservation = hart.stimecmp = hart.mtimecmp = ~0ull;
    hart.medeleg = start_m ? 0 : DELEGABLE_EXCEPTIONS & ~(1ull << CAUSE_ECALL_S);
    hart.mideleg = start_m ? 0 : S_INTERRUPTS;
    hart.mcounteren = hart.scounteren = start_m ? 0 : 7; // firmware opens the counters; Linux leaves scounteren alone
    hart.menvcfg = start_m ? 0 : MENVCFG_STCE | SENVCFG_MASK;
    hart.senvcfg = 0;
}

static bool adopt_privilege(const struct hart_state *from) {
    bool known = from->privilege == PRIV_U || from->privilege == PRIV_S || from->privilege == PRIV_M;
    uint64_t mode = from->satp >> 60;
    if (!known || (from->mstatus & MSTATUS_MPP) == 2ull << 11 || (mode != 0 && mode != 8)) return false;
    hart.privilege = from->privilege;
    hart.mstatus = (from->mstatus & MSTATUS_MASK) | MSTATUS_UXL_SXL;
    hart.satp = from->satp;
    return true;
}

static void adopt_machine(const struct hart_state *from) {
    hart.medeleg = from->medeleg & DELEGABLE_EXCEPTIONS;
    hart.mideleg = from->mideleg & S_INTERRUPTS;
    hart.mie = from->mie & ALL_INTERRUPTS;
    hart.mip = from->mip & ALL_INTERRUPTS;
    hart.mtvec = from->mtvec & ~2ull;
    hart.mcounteren = from->mcounteren & 7;
    hart.mscratch = from->mscratch;
    hart.mepc = from->mepc & ~1ull;
    hart.mcause = from->mcause;
    hart.mtval = from->mtval;
    hart.menvcfg = from->menvcfg & (SENVCFG_MASK | MENVCFG_STCE);
    hart.mtimecmp = from->mtimecmp;
}

static void adopt_supervisor(const struct hart_state *from) {
    hart.stvec = from->stvec & ~2ull;
    hart.scounteren = from->scounteren & 7;
    hart.senvcfg = from->senvcfg & SENVCFG_MASK;
    hart.sscratch = from->sscratch;
    hart.sepc = from->sepc & ~1ull;
    hart.scause = from->scause;
    hart.stval = from->stval;
    hart.stimecmp = from->stimecmp;
}

struct memory_range registers_state(void) { return memory_range(&hart, offsetof(struct hart_state, user_entries)); }

// registers_adopt: between two slices no exception is pending and no budget left. Who answers SBI calls is the configuration's.
bool registers_adopt(const void *other) {
    const struct hart_state *from = other;
    if (!adopt_privilege(from)) return false;
    __builtin_memcpy(&hart.x[1], &from->x[1], sizeof hart.x - sizeof *hart.x);
    __builtin_memcpy(hart.f, from->f, sizeof hart.f);
    hart.pc = from->pc & ~1ull;
    hart.retired_end = from->retired_end - (uint64_t)from->budget;
    hart.instret_offset = from->instret_offset;
    hart.tval = from->tval;
    hart.wait = from->wait != 0;
    hart.stop_code = from->stop_code;
    hart.frm = from->frm & 7;
    hart.fflags = from->fflags & 31;
    hart.reservation = from->reservation;
    hart.reserved_value = from->reserved_value;
    adopt_machine(from);
    adopt_supervisor(from);
    return true;
}

struct memory_range cycle_state(void) { return memory_range(&cycle_offset, sizeof cycle_offset); }

bool cycle_adopt(const void *from) {
    __builtin_memcpy(&cycle_offset, from, sizeof cycle_offset);
    return true;
}

static uint64_t mstatus_value(void) {
    return hart.mstatus | ((hart.mstatus & MSTATUS_FS) == MSTATUS_FS ? MSTATUS_SD : 0);
}

static bool counter_allowed(uint32_t number) {
    uint64_t bit = 1ull << (number & 31);
    if (hart.privilege < PRIV_M && (hart.mcounteren & bit) == 0) return false;
    return hart.privilege != PRIV_U || (hart.scounteren & bit) != 0;
}

static bool fp_enabled(void) { return (hart.mstatus & MSTATUS_FS) != 0; }

static bool satp_allowed(void) { return hart.privilege == PRIV_M || (hart.mstatus & MSTATUS_TVM) == 0; }

static bool stimecmp_allowed(void) {
    return hart.privilege == PRIV_M || ((hart.menvcfg & MENVCFG_STCE) != 0 && (hart.mcounteren & 2) != 0);
}

// is_zero tells which machine-level registers read as zero and ignore writes: there are no PMP entries, event
// counters and triggers, and counters cannot be inhibited. RV64 has no odd pmpcfg registers.
static bool is_zero(uint32_t n) {
    if (n >= CSR_PMPCFG0 && n <= CSR_PMPCFG15) return (n & 1) == 0;
    return (n > CSR_PMPCFG15 && n <= CSR_PMPADDR63) || (n >= CSR_TSELECT && n <= CSR_TDATA3) ||
           (n >= CSR_MHPMCOUNTER3 && n <= CSR_MHPMCOUNTER31) || (n >= CSR_MHPMEVENT3 && n <= CSR_MHPMEVENT31) ||
           n == CSR_MCOUNTINHIBIT;
}

static bool read_user(uint32_t n, uint64_t *v) {
    switch (n) {
    case CSR_FFLAGS: *v = hart.fflags; return fp_enabled();
    case CSR_FRM: *v = hart.frm; return fp_enabled();
    case CSR_FCSR: *v = hart.frm << 5 | hart.fflags; return fp_enabled();
    case CSR_CYCLE: *v = retired() + cycle_offset; return counter_allowed(n);
    case CSR_INSTRET: *v = retired() + hart.instret_offset; return counter_allowed(n);
    case CSR_TIME: *v = guest_time(); return counter_allowed(n);
    default:
        *v = 0;
        return n >= CSR_HPMCOUNTER3 && n <= CSR_HPMCOUNTER31 && counter_allowed(n);
    }
}

static bool read_supervisor(uint32_t n, uint64_t *v) {
    switch (n) {
    case CSR_SSTATUS: *v = mstatus_value() & (SSTATUS_MASK | MSTATUS_SD | 3ull << 32); return true;
    case CSR_SIE: *v = hart.mie & hart.mideleg; return true;
    case CSR_STVEC: *v = hart.stvec; return true;
    case CSR_SCOUNTEREN: *v = hart.scounteren; return true;
    case CSR_SENVCFG: *v = hart.senvcfg; return true;
    case CSR_SSCRATCH: *v = hart.sscratch; return true;
    case CSR_SEPC: *v = hart.sepc; return true;
    case CSR_SCAUSE: *v = hart.scause; return true;
    case CSR_STVAL: *v = hart.stval; return true;
    case CSR_SIP: *v = hart.mip & hart.mideleg; return true;
    case CSR_STIMECMP: *v = hart.stimecmp; return stimecmp_allowed();
    case CSR_SATP: *v = hart.satp; return satp_allowed();
    default: return false;
    }
}

static bool read_machine(uint32_t n, uint64_t *v) {
    switch (n) {
    case CSR_MVENDORID: case CSR_MARCHID: case CSR_MIMPID: case CSR_MHARTID: case CSR_MCONFIGPTR: *v = 0; return true;
    case CSR_MSTATUS: *v = mstatus_value(); return true;
    case CSR_MISA: *v = MISA_VALUE; return true;
    case CSR_MEDELEG: *v = hart.medeleg; return true;
    case CSR_MIDELEG: *v = hart.mideleg; return true;
    case CSR_MIE: *v = hart.mie; return true;
    case CSR_MTVEC: *v = hart.mtvec; return true;
    case CSR_MCOUNTEREN: *v = hart.mcounteren; return true;
    case CSR_MENVCFG: *v = hart.menvcfg; return true;
    case CSR_MSCRATCH: *v = hart.mscratch; return true;
    case CSR_MEPC: *v = hart.mepc; return true;
    case CSR_MCAUSE: *v = hart.mcause; return true;
    case CSR_MTVAL: *v = hart.mtval; return true;
    case CSR_MIP: *v = hart.mip; return true;
    case CSR_MCYCLE: *v = retired() + cycle_offset; return true;
    case CSR_MINSTRET: *v = retired() + hart.instret_offset; return true;
    default:
        *v = 0;
        return is_zero(n);
    }
}

bool csr_read(uint32_t n, uint64_t *v) {
    switch (n >> 8 & 3) {
    case 0: return read_user(n, v);
    case 1: return read_supervisor(n, v);
    default: return read_machine(n, v);
    }
}

// set replaces the bits of *target that `mask` selects.
static bool set(uint64_t *target, uint64_t value, uint64_t mask) {
    *target = (*target & ~mask) | (value & mask);
    return true;
}

static void write_status(uint64_t value, uint64_t mask) {
    uint64_t old = hart.mstatus;
    if ((mask & MSTATUS_MPP) != 0 && (value & MSTATUS_MPP) == 2ull << 11) mask &= ~MSTATUS_MPP; // 2 is reserved
    set(&hart.mstatus, value, mask);
    uint64_t changed = old ^ hart.mstatus;
    if ((changed & MSTATUS_SUM) != 0 && (old & MSTATUS_SUM) != 0) tlb_sum_cleared();
    if ((changed & MSTATUS_MXR) != 0) tlb_flush_all();
    if ((changed & (MSTATUS_MPRV | MSTATUS_MPP | MSTATUS_SUM)) != 0 && ((old | hart.mstatus) & MSTATUS_MPRV) != 0)
        tlb_flush_machine();
}

static void fp_dirty(void) { hart.mstatus |= MSTATUS_FS; }

static bool write_user(uint32_t n, uint64_t v) {
    if (n < CSR_FFLAGS || n > CSR_FCSR || !fp_enabled()) return false;
    if (n == CSR_FFLAGS || n == CSR_FCSR) hart.fflags = v & 31;
    if (n == CSR_FRM) hart.frm = v & 7;
    if (n == CSR_FCSR) hart.frm = v >> 5 & 7;
    fp_dirty();
    return true;
}

// write_satp ignores modes that are not there, which is how the kernel finds out which there are.
static bool write_satp(uint64_t v) {
    if (!satp_allowed()) return false;
    if (v >> 60 != 0 && v >> 60 != 8) return true;
    uint64_t old = hart.satp;
    hart.satp = v;
    if (old >> 60 != v >> 60) tlb_flush_all();
    else if (old != v) tlb_flush_space();
    hart.recheck = 1; // the next instruction may be elsewhere
    return true;
}

static bool write_stimecmp(uint64_t v) {
    if (!stimecmp_allowed()) return false;
    hart.stimecmp = v;
    timer_update();
    return true;
}

static bool write_supervisor(uint32_t n, uint64_t v) {
    switch (n) {
    case CSR_SSTATUS: write_status(v, SSTATUS_MASK); return true;
    case CSR_SIE: return set(&hart.mie, v, hart.mideleg);
    case CSR_STVEC: hart.stvec = v & ~2ull; return true;
    case CSR_SCOUNTEREN: hart.scounteren = v & 7; return true;
    case CSR_SENVCFG: hart.senvcfg = v & SENVCFG_MASK; return true;
    case CSR_SSCRATCH: hart.sscratch = v; return true;
    case CSR_SEPC: hart.sepc = v & ~1ull; return true;
    case CSR_SCAUSE: hart.scause = v; return true;
    case CSR_STVAL: hart.stval = v; return true;
    case CSR_SIP: return set(&hart.mip, v, hart.mideleg & (1ull << IRQ_SSI));
    case CSR_STIMECMP: return write_stimecmp(v);
    case CSR_SATP: return write_satp(v);
    default: return false;
    }
}

static bool write_machine(uint32_t n, uint64_t v) {
    switch (n) {
    case CSR_MSTATUS: write_status(v, MSTATUS_MASK); return true;
    case CSR_MISA: return true;
    case CSR_MEDELEG: hart.medeleg = v & DELEGABLE_EXCEPTIONS; return true;
    case CSR_MIDELEG: hart.mideleg = v & S_INTERRUPTS; return true;
    case CSR_MIE: hart.mie = v & ALL_INTERRUPTS; return true;
    case CSR_MTVEC: hart.mtvec = v & ~2ull; return true;
    case CSR_MCOUNTEREN: hart.mcounteren = v & 7; return true;
    case CSR_MENVCFG:
        hart.menvcfg = v & (SENVCFG_MASK | MENVCFG_STCE);
        timer_update();
        return true;
    case CSR_MSCRATCH: hart.mscratch = v; return true;
    case CSR_MEPC: hart.mepc = v & ~1ull; return true;
    case CSR_MCAUSE: hart.mcause = v; return true;
    case CSR_MTVAL: hart.mtval = v; return true;
    case CSR_MIP:
        set(&hart.mip, v, S_INTERRUPTS);
        timer_update();
        return true;
    // A write takes the place of the increment that this instruction would have made.
    case CSR_MCYCLE: cycle_offset = v - retired() - 1; return true;
    case CSR_MINSTRET: hart.instret_offset = v - retired() - 1; return true;
    default: return is_zero(n);
    }
}

bool csr_write(uint32_t n, uint64_t v) {
    if (n >> 10 == 3) return false; // read-only
    switch (n >> 8 & 3) {
    case 0: return write_user(n, v);
    case 1: return write_supervisor(n, v);
    default: return write_machine(n, v);
    }
}

// execute_csr does one Zicsr instruction. csrrs and csrrc with x0 do not write; csrrw with x0 does not read.
bool execute_csr(const struct insn *d) {
    unsigned id = d->imm & 0xff, number = (unsigned)d->imm >> 8;
    bool immediate = id >= ID_CSRRWI, plain = id == ID_CSRRW || id == ID_CSRRWI;
    uint64_t operand = immediate ? d->rs1 / 8u : hart.x[d->rs1 / 8], old = 0;
    bool writes = plain || d->rs1 != 0, reads = !plain || d->rd != 0;
    if ((number >> 8 & 3) > hart.privilege) goto illegal;
    if (writes && number >> 10 == 3) goto illegal;
    if ((reads || writes) && !csr_read(number, &old)) goto illegal;
    uint64_t value = plain ? operand : id == ID_CSRRS || id == ID_CSRRSI ? old | operand : old & ~operand;
    if (writes && !csr_write(number, value)) goto illegal;
    if (d->rd != 0) hart.x[d->rd / 8] = old;
    return true;
illegal:
    raise(CAUSE_ILLEGAL, 0);
    return false;
}
