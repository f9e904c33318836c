// System registers, and the instructions of the system's group (DDI 0487, chapters C5, D23 and D24).
#include "hart.h"
#include "simd.h"
#include "system.h"
#include "wasi.h"

// An access as MRS, MSR and SYS have it in bits 20 to 5.
#define ENCODING(op0, op1, crn, crm, op2) ((op0) << 14 | (op1) << 11 | (crn) << 7 | (crm) << 3 | (op2))
#define R(op0, op1, crn, crm, op2) ENCODING(op0, op1, crn, crm, op2)

// What the processor has. ID registers that are not here are zero.
#define PFR0 (1ull | 1ull << 4 | 1ull << 24 | 1ull << 56 | 1ull << 60)      // EL0 and EL1 in AArch64, GICv3 registers, CSV2, CSV3
#define DFR0 (6ull | 1ull << 12 | 1ull << 20)                               // Armv8.0 debug, two breakpoints, two watchpoints
#define ISAR0 (2ull << 4 | 1ull << 8 | 1ull << 12 | 1ull << 16 | 2ull << 20 | 1ull << 28 | 1ull << 44) // AES, PMULL, SHA1, SHA256, CRC32, LSE, RDM, DotProd
#define ISAR1 (1ull << 20 | 1ull << 36)                                     // LRCPC, SB
#define MMFR0 (2ull | 2ull << 4 | 15ull << 24)                              // 40-bit physical addresses, 16-bit ASIDs, 4 KiB granule alone
#define MMFR1 (2ull | 1ull << 20)                                           // HAFDBS, PAN
// DIC, of one hart: decoded code follows each of its own stores, and those of others when IC says so.
#define CTR (1ull << 31 | (MAX_HARTS == 1 ? 1ull << 29 : 0) | 1ull << 28 | 4ull << 24 | 4ull << 20 | 4ull << 16 | 3ull << 14 | 4ull) // IDC
enum { DCZID = 4, MIDR = 0x000f0000 };
#define MPIDR (1ull << 31 | hart.number)

static uint64_t pstate_bits(uint64_t bits) { return hart.pstate & bits; }

// timer_control has the condition only of a timer that is on; else it is unknown.
static uint64_t timer_control(uint64_t control, uint64_t compare) {
    bool met = (control & 1) != 0 && guest_time() >= compare;
    return (control & 3) | (met ? 4 : 0);
}

// at_el0 says whether EL0 may use a register or an instruction of op1 3, which the kernel can forbid for some. D24 names the control of each.
static bool at_el0(unsigned r) {
    switch (r) {
    case R(3, 3, 0, 0, 1): return (hart.sctlr & SCTLR_UCT) != 0;
    case R(3, 3, 4, 2, 1): return (hart.sctlr & SCTLR_UMA) != 0;
    case R(3, 3, 14, 0, 0): return (hart.cntkctl & 3) != 0;
    case R(3, 3, 14, 0, 1): return (hart.cntkctl & 1) != 0;
    case R(3, 3, 14, 0, 2): return (hart.cntkctl & 2) != 0;
    case R(3, 3, 14, 2, 0): case R(3, 3, 14, 2, 1): case R(3, 3, 14, 2, 2): return (hart.cntkctl >> 9 & 1) != 0;
    case R(3, 3, 14, 3, 0): case R(3, 3, 14, 3, 1): case R(3, 3, 14, 3, 2): return (hart.cntkctl >> 8 & 1) != 0;
    case R(1, 3, 7, 4, 1): return (hart.sctlr & SCTLR_DZE) != 0;
    case R(1, 3, 7, 5, 1): case R(1, 3, 7, 10, 1): case R(1, 3, 7, 11, 1): case R(1, 3, 7, 12, 1): case R(1, 3, 7, 14, 1):
        return (hart.sctlr & SCTLR_UCI) != 0;
    default: return r >> 11 != (2 << 3 | 3) || (hart.mdscr & MDSCR_TDCC) == 0; // the debug communications channel
    }
}

static bool read_id(unsigned r, uint64_t *v) {
    switch (r) {
    case R(3, 0, 0, 0, 0): *v = MIDR; return true;
    case R(3, 0, 0, 0, 5): *v = MPIDR; return true;
    case R(3, 0, 0, 4, 0): *v = PFR0; return true;
    case R(3, 0, 0, 5, 0): *v = DFR0; return true;
    case R(3, 0, 0, 6, 0): *v = ISAR0; return true;
    case R(3, 0, 0, 6, 1): *v = ISAR1; return true;
    case R(3, 0, 0, 7, 0): *v = MMFR0; return true;
    case R(3, 0, 0, 7, 1): *v = MMFR1; return true;
    case R(3, 3, 0, 0, 1): *v = CTR; return true;
    case R(3, 3, 0, 0, 7): *v = DCZID | ((hart.el == 0 && (hart.sctlr & SCTLR_DZE) == 0) ? 16 : 0); return true;
    case R(3, 1, 0, 0, 0): case R(3, 1, 0, 0, 1): case R(3, 1, 0, 0, 7): *v = 0; return true; // caches: none to clean
    default: *v = 0; return (r & R(3, 7, 15, 8, 0)) == R(3, 0, 0, 0, 0); // the rest of CRm 0 to 7
    }
}

// storage is where a register is that only remembers, NULL: another.
static uint64_t *storage(unsigned r) {
    switch (r) {
    case R(3, 0, 1, 0, 2): return &hart.cpacr;
    case R(3, 0, 4, 0, 0): return &hart.spsr;
    case R(3, 0, 4, 0, 1): return &hart.elr;
    case R(3, 0, 5, 1, 0): return &hart.afsr0;
    case R(3, 0, 5, 1, 1): return &hart.afsr1;
    case R(3, 0, 5, 2, 0): return &hart.esr;
    case R(3, 0, 6, 0, 0): return &hart.far;
    case R(3, 0, 7, 4, 0): return &hart.par;
    case R(3, 0, 10, 2, 0): return &hart.mair;
    case R(3, 0, 10, 3, 0): return &hart.amair;
    case R(3, 0, 12, 0, 0): return &hart.vbar;
    case R(3, 0, 13, 0, 1): return &hart.contextidr;
    case R(3, 0, 13, 0, 4): return &hart.tpidr_el1;
    case R(3, 0, 14, 1, 0): return &hart.cntkctl;
    case R(3, 2, 0, 0, 0): return &hart.csselr;
    case R(3, 3, 13, 0, 2): return &hart.tpidr_el0;
    case R(3, 3, 13, 0, 3): return &hart.tpidrro_el0;
    case R(2, 0, 0, 2, 2): return &hart.mdscr;
    default: return NULL;
    }
}

// is_debug tells the breakpoints' and watchpoints' registers and the OS lock, which read as zero: nothing stops the processor.
static bool is_debug(unsigned r) { return r >> 14 == 2 && (r >> 7 & 0x7f) <= 1; }

static bool read_register(unsigned r, uint64_t *v) {
    const uint64_t *at = storage(r);
    if (at != NULL) {
        *v = *at;
        return true;
    }
    switch (r) {
    case R(3, 0, 1, 0, 0): *v = hart.sctlr; return true;
    case R(3, 0, 1, 0, 1): *v = 0; return true; // ACTLR_EL1
    case R(3, 0, 2, 0, 0): *v = hart.ttbr0; return true;
    case R(3, 0, 2, 0, 1): *v = hart.ttbr1; return true;
    case R(3, 0, 2, 0, 2): *v = hart.tcr; return true;
    case R(3, 0, 4, 1, 0): *v = hart.sp_el0; return hart.sp_select != 0;
    case R(3, 0, 4, 2, 0): *v = hart.sp_select; return true;
    case R(3, 0, 4, 2, 2): *v = hart.el << 2; return true;
    case R(3, 0, 4, 2, 3): *v = pstate_bits(PSTATE_PAN); return true;
    case R(3, 0, 12, 1, 0): *v = hart.irq ? PSTATE_I : 0; return true; // ISR_EL1
    case R(3, 3, 4, 2, 0): *v = nzcv(); return true;
    case R(3, 3, 4, 2, 1): *v = pstate_bits(PSTATE_DAIF); return true;
    case R(3, 3, 4, 4, 0): *v = hart.fpcr; return true;
    case R(3, 3, 4, 4, 1): *v = hart.fpsr; return true;
    case R(3, 3, 14, 0, 0): *v = TIMEBASE; return true;
    case R(3, 3, 14, 0, 1): case R(3, 3, 14, 0, 2): *v = guest_time(); return true;
    case R(3, 3, 14, 2, 0): *v = (uint32_t)(hart.cntp_cval - guest_time()); return true;
    case R(3, 3, 14, 2, 1): *v = timer_control(hart.cntp_ctl, hart.cntp_cval); return true;
    case R(3, 3, 14, 2, 2): *v = hart.cntp_cval; return true;
    case R(3, 3, 14, 3, 0): *v = (uint32_t)(hart.cntv_cval - guest_time()); return true;
    case R(3, 3, 14, 3, 1): *v = timer_control(hart.cntv_ctl, hart.cntv_cval); return true;
    case R(3, 3, 14, 3, 2): *v = hart.cntv_cval; return true;
    case R(2, 0, 1, 1, 4): *v = 8; return true; // OSLSR_EL1: the lock is there, and open
    default:
        if (is_debug(r)) *v = 0;
        return is_debug(r) || gic_register_read(r, v) || read_id(r, v);
    }
}

static void set_control(uint64_t v) {
    uint64_t changed = hart.sctlr ^ v;
    hart.sctlr = v;
    if ((changed & (SCTLR_M | SCTLR_WXN)) != 0) tlb_flush_all();
}

// set_table leaves entries of the kernel's half alone: they are global, or `local_entries` has them dropped.
static void set_table(uint64_t *table, uint64_t v) {
    if (*table == v) return;
    *table = v;
    tlb_flush_space();
}

static bool write_timer(uint64_t *target, uint64_t v) {
    *target = v;
    timer_update();
    return true;
}

static bool write_register(unsigned r, uint64_t v) {
    uint64_t *at = storage(r);
    if (at != NULL) {
        if (r == R(3, 3, 13, 0, 3) && hart.el == 0) return false; // TPIDRRO_EL0
        *at = v;
        return true;
    }
    switch (r) {
    case R(3, 0, 1, 0, 0): set_control(v); return true;
    case R(3, 0, 1, 0, 1): return true;
    case R(3, 0, 2, 0, 0): set_table(&hart.ttbr0, v); return true;
    case R(3, 0, 2, 0, 1):
        if (((hart.ttbr1 ^ v) & 0x0000ffffffffffffull) != 0) tlb_flush_all(); // else the ASID alone
        set_table(&hart.ttbr1, v);
        return true;
    case R(3, 0, 2, 0, 2):
        if (hart.tcr != v) tlb_flush_all();
        hart.tcr = v;
        return true;
    case R(3, 0, 4, 1, 0): hart.sp_el0 = v; return hart.sp_select != 0;
    case R(3, 0, 4, 2, 0): select_stack(v & 1); return true;
    case R(3, 0, 4, 2, 3): hart.pstate = (hart.pstate & ~PSTATE_PAN) | (v & PSTATE_PAN); return true;
    case R(3, 3, 4, 2, 0): set_nzcv(v); return true;
    case R(3, 3, 4, 2, 1): hart.pstate = (hart.pstate & ~PSTATE_DAIF) | (v & PSTATE_DAIF); return true;
    case R(3, 3, 4, 4, 0): hart.fpcr = (uint32_t)v & (FPCR_AHP | FPCR_DN | FPCR_FZ | 3u << 22); return true;
    case R(3, 3, 4, 4, 1): hart.fpsr = (uint32_t)v & (FPSR_QC | 0x9f); return true;
    case R(3, 3, 14, 0, 0): return hart.el == 1; // CNTFRQ_EL0
    case R(3, 3, 14, 2, 0): return write_timer(&hart.cntp_cval, guest_time() + (uint64_t)(int64_t)(int32_t)v);
    case R(3, 3, 14, 2, 1): return write_timer(&hart.cntp_ctl, v & 3);
    case R(3, 3, 14, 2, 2): return write_timer(&hart.cntp_cval, v);
    case R(3, 3, 14, 3, 0): return write_timer(&hart.cntv_cval, guest_time() + (uint64_t)(int64_t)(int32_t)v);
    case R(3, 3, 14, 3, 1): return write_timer(&hart.cntv_ctl, v & 3);
    case R(3, 3, 14, 3, 2): return write_timer(&hart.cntv_cval, v);
    default: return is_debug(r) || gic_register_write(r, v);
    }
}

// What TLBI forgets, as it is posted to other harts: its kind in bits 46 to 44, which hold no address and no ASID.
enum { KIND_BIT = 44 };

void forget_translation(uint64_t what) {
    uint64_t va = (uint64_t)((int64_t)(what << 20) >> 8); // bits 55 to 12
    switch (what >> KIND_BIT & 7) {
    case 0: tlb_flush_all(); break; // VMALLE1
    case 2: // ASIDE1: the caches have one address space
        if (what >> 48 == ((hart.tcr >> 22 & 1 ? hart.ttbr1 : hart.ttbr0) >> 48)) tlb_flush_space();
        break;
    default: tlb_invalidate_address(va); break;
    }
}

static void translation_invalidate(unsigned r, uint64_t v) {
    enum { INNER_SHAREABLE = 3 };
    uint64_t what = (v & ~(15ull << KIND_BIT)) | (uint64_t)(r & 7) << KIND_BIT;
    forget_translation(what);
    if ((r >> 3 & 15) == INNER_SHAREABLE) harts_post_translation(what);
}

// code_invalidate is IC IVAU. Code of this hart follows its own stores.
static bool code_invalidate(uint64_t va) {
    uint32_t frame = 0;
    if (MAX_HARTS == 1) return true;
    if (!frame_at(va, &frame)) return hart.cause == 0;
    code_drop(frame);
    harts_post_code(frame);
    return true;
}

static bool code_invalidate_all(bool everywhere) {
    if (MAX_HARTS == 1) return true;
    code_drop_all();
    if (everywhere) harts_post_code(ALL_CODE);
    return true;
}

// system_operation is SYS: caches, which do not exist, address translation, TLBs.
static bool system_operation(unsigned r, uint64_t v) {
    switch (r) {
    case R(1, 3, 7, 4, 1): zero_block(v); return true;
    case R(1, 0, 7, 1, 0): return code_invalidate_all(true);
    case R(1, 0, 7, 5, 0): return code_invalidate_all(false);
    case R(1, 3, 7, 5, 1): return code_invalidate(v);
    case R(1, 0, 7, 6, 1): case R(1, 0, 7, 6, 2): case R(1, 0, 7, 10, 2): case R(1, 0, 7, 14, 2):   // DC by set and way, IVAC
    case R(1, 3, 7, 10, 1): case R(1, 3, 7, 11, 1): case R(1, 3, 7, 12, 1): case R(1, 3, 7, 14, 1): // DC by address
        return true;
    case R(1, 0, 7, 8, 0): hart.par = address_translate(v, false, 1); return true;
    case R(1, 0, 7, 8, 1): hart.par = address_translate(v, true, 1); return true;
    case R(1, 0, 7, 8, 2): hart.par = address_translate(v, false, 0); return true;
    case R(1, 0, 7, 8, 3): hart.par = address_translate(v, true, 0); return true;
    default:
        if ((r & R(3, 7, 15, 0, 0)) != R(1, 0, 8, 0, 0)) return false;
        unsigned crm = r >> 3 & 15, op2 = r & 7;
        if ((crm != 3 && crm != 7) || op2 == 4 || op2 == 6) return false;
        translation_invalidate(r, v);
        return true;
    }
}

// trapped is the exception that tells the kernel of an access that it forbids (D24.2.40, ISS of EC 0x18).
static bool trapped(uint32_t w, bool is_read) {
    uint32_t iss = field(w, 19, 2) << 20 | field(w, 5, 3) << 17 | field(w, 16, 3) << 14 | field(w, 12, 4) << 10 | rd_of(w) << 5 | field(w, 8, 4) << 1 | is_read;
    return raise(SYNDROME(EC_SYSTEM, iss), 0);
}

static bool system_access(unsigned id, uint32_t w) {
    unsigned r = w >> 5 & 0xffff;
    bool is_read = id == ID_MRS || id == ID_SYSL;
    if (hart.el == 0) {
        if ((r >> 11 & 7) != 3) return undefined();
        if (!at_el0(r)) return trapped(w, is_read);
    }
    if ((r == R(3, 3, 4, 4, 0) || r == R(3, 3, 4, 4, 1)) && !fp_enabled()) return false; // FPCR, FPSR
    if (id == ID_SYSL) return undefined();
    if (id == ID_SYS) return system_operation(r, xzr(rd_of(w))) ? hart.cause == 0 : undefined();
    uint64_t v = 0;
    if (is_read) {
        if (!read_register(r, &v)) return undefined();
        set_xzr(rd_of(w), v);
        return true;
    }
    return write_register(r, xzr(rd_of(w))) || undefined();
}

// set_pstate_field is MSR (immediate).
static bool set_pstate_field(uint32_t w) {
    unsigned op = field(w, 16, 3) << 3 | field(w, 5, 3), value = field(w, 8, 4);
    uint64_t bits = (uint64_t)value << 6;
    switch (op) {
    case 3 << 3 | 6: // DAIFSet
    case 3 << 3 | 7: // DAIFClr
        if (hart.el == 0 && (hart.sctlr & SCTLR_UMA) == 0) return trapped(w, false);
        hart.pstate = op & 1 ? hart.pstate & ~bits : hart.pstate | bits;
        return true;
    case 0 << 3 | 5: // SPSel
        if (hart.el == 0) return undefined();
        select_stack(value & 1);
        return true;
    case 0 << 3 | 4: // PAN
        if (hart.el == 0) return undefined();
        hart.pstate = (hart.pstate & ~PSTATE_PAN) | (value & 1 ? PSTATE_PAN : 0);
        return true;
    default: return undefined();
    }
}

static bool wait(bool for_event) {
    if (hart.el == 0 && (hart.sctlr & (for_event ? SCTLR_NTWE : SCTLR_NTWI)) == 0) return raise(SYNDROME(EC_WFX, 1u << 24 | 0xe << 20 | for_event), 0);
    if (!for_event) hart.wait = 1;
    return true;
}

// semihosting is HLT 0xf000 with SYS_WRITEC, by which the kernel prints before it has found a console (`earlycon=smh`). The machine has none of
// the other calls. Source: Arm, Semihosting for AArch32 and AArch64, 5.1 and 7.18.
static bool semihosting(uint32_t w) {
    enum { SEMIHOSTING = 0xf000, SYS_WRITEC = 3 };
    if (hart.el == 0 || field(w, 5, 16) != SEMIHOSTING || (uint32_t)hart.x[0] != SYS_WRITEC) return undefined();
    uint8_t byte = (uint8_t)load(hart.x[1], 1, false);
    if (hart.cause != 0) return false;
    struct wasi_iovec iov = {(uint32_t)(uintptr_t)&byte, 1};
    uint32_t written = 0;
    if (config.console_out_fd < 0) return true;
    machine_lock();
    work_done(WORK_CALL + 1);
    if (work_left() == 0) machine_yield();
    wasi_fd_write(config.console_out_fd, &iov, 1, &written);
    machine_unlock();
    return true;
}

bool execute_system(unsigned id, uint32_t w, uint64_t pc) {
    slow(SLOW_SYSTEM);
    hart.pc = pc + 4; // the preferred return of SVC and HVC; all others that raise an exception return to themselves
    switch (id) {
    case ID_SVC: return raise(SYNDROME(EC_SVC, field(w, 5, 16)), 0);
    case ID_HVC:
        if (hart.el == 0) break;
        psci_call();
        return true;
    case ID_ERET:
        if (hart.el == 0) break;
        return exception_return();
    case ID_BRK:
        hart.pc = pc;
        return raise(SYNDROME(EC_BRK, field(w, 5, 16)), 0);
    case ID_WFE: case ID_WFI:
        if (wait(id == ID_WFE)) return true;
        hart.pc = pc;
        return false;
    case ID_CLREX: hart.exclusive = ~0ull; return true;
    case ID_ISB: return true;
    case ID_DSB: harts_wait(); __attribute__((fallthrough)); // what TLBI and IC have begun is done
    case ID_DMB: __atomic_thread_fence(__ATOMIC_SEQ_CST); return true;
    case ID_MSR_I:
        if (set_pstate_field(w)) return true;
        hart.pc = pc;
        return false;
    case ID_HLT:
        if (semihosting(w)) return true;
        hart.pc = pc;
        return false;
    default:
        if (system_access(id, w)) return true;
        hart.pc = pc;
        return false;
    }
    hart.pc = pc;
    return undefined();
}
