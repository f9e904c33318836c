// F and D except loads and stores: operands, rounding mode, NaN boxing and flags around the arithmetic of fp.h.
#include "fp.h"
#include "hart.h"

#define BOX 0xffffffff00000000ull
#define SIGN32 0x80000000u
#define SIGN64 0x8000000000000000ull

// unbox gives the canonical NaN for a register that does not hold a boxed single.
static uint32_t unbox(uint64_t v) { return v >= BOX ? (uint32_t)v : F32_CANONICAL_NAN; }

// rounding resolves a rm field; 5 and above are reserved, also when they come from frm.
static bool rounding(unsigned *rm) {
    if (*rm == 7) *rm = hart.frm;
    return *rm <= FP_RMM;
}

static uint32_t single(unsigned id, uint32_t a, uint32_t b, unsigned rm, uint32_t *flags) {
    switch (id) {
    case ID_FADD_S: return f32_add(a, b, rm, flags);
    case ID_FSUB_S: return f32_sub(a, b, rm, flags);
    case ID_FMUL_S: return f32_mul(a, b, rm, flags);
    case ID_FDIV_S: return f32_div(a, b, rm, flags);
    case ID_FSQRT_S: return f32_sqrt(a, rm, flags);
    case ID_FSGNJ_S: return (a & ~SIGN32) | (b & SIGN32);
    case ID_FSGNJN_S: return (a & ~SIGN32) | (~b & SIGN32);
    case ID_FSGNJX_S: return a ^ (b & SIGN32);
    case ID_FMIN_S: return f32_min(a, b, flags);
    default: return f32_max(a, b, flags);
    }
}

static uint64_t twice(unsigned id, uint64_t a, uint64_t b, unsigned rm, uint32_t *flags) {
    switch (id) {
    case ID_FADD_D: return f64_add(a, b, rm, flags);
    case ID_FSUB_D: return f64_sub(a, b, rm, flags);
    case ID_FMUL_D: return f64_mul(a, b, rm, flags);
    case ID_FDIV_D: return f64_div(a, b, rm, flags);
    case ID_FSQRT_D: return f64_sqrt(a, rm, flags);
    case ID_FSGNJ_D: return (a & ~SIGN64) | (b & SIGN64);
    case ID_FSGNJN_D: return (a & ~SIGN64) | (~b & SIGN64);
    case ID_FSGNJX_D: return a ^ (b & SIGN64);
    case ID_FMIN_D: return f64_min(a, b, flags);
    case ID_FMAX_D: return f64_max(a, b, flags);
    default: return f32_to_f64(unbox(a), flags); // fcvt.d.s
    }
}

static uint64_t fused(const struct insn *d, unsigned id, unsigned rm, uint32_t *flags) {
    uint64_t a = hart.f[d->rs1 / 8], b = hart.f[d->rs2 / 8], c = hart.f[(unsigned)d->imm >> 11];
    uint32_t s = unbox(a), t = unbox(c);
    switch (id) {
    case ID_FMADD_S: return BOX | f32_fma(s, unbox(b), t, rm, flags);
    case ID_FMSUB_S: return BOX | f32_fma(s, unbox(b), t ^ SIGN32, rm, flags);
    case ID_FNMSUB_S: return BOX | f32_fma(s ^ SIGN32, unbox(b), t, rm, flags);
    case ID_FNMADD_S: return BOX | f32_fma(s ^ SIGN32, unbox(b), t ^ SIGN32, rm, flags);
    case ID_FMADD_D: return f64_fma(a, b, c, rm, flags);
    case ID_FMSUB_D: return f64_fma(a, b, c ^ SIGN64, rm, flags);
    case ID_FNMSUB_D: return f64_fma(a ^ SIGN64, b, c, rm, flags);
    default: return f64_fma(a ^ SIGN64, b, c ^ SIGN64, rm, flags); // fnmadd.d
    }
}

// to_integer does what writes an x register.
static uint64_t to_integer(unsigned id, uint64_t a, uint64_t b, unsigned rm, uint32_t *flags) {
    switch (id) {
    case ID_FCVT_W_S: return (uint64_t)f32_to_i32(unbox(a), rm, flags);
    case ID_FCVT_WU_S: return (uint64_t)f32_to_u32(unbox(a), rm, flags);
    case ID_FCVT_L_S: return (uint64_t)f32_to_i64(unbox(a), rm, flags);
    case ID_FCVT_LU_S: return f32_to_u64(unbox(a), rm, flags);
    case ID_FCVT_W_D: return (uint64_t)f64_to_i32(a, rm, flags);
    case ID_FCVT_WU_D: return (uint64_t)f64_to_u32(a, rm, flags);
    case ID_FCVT_L_D: return (uint64_t)f64_to_i64(a, rm, flags);
    case ID_FCVT_LU_D: return f64_to_u64(a, rm, flags);
    case ID_FMV_X_W: return (uint64_t)(int64_t)(int32_t)a;
    case ID_FMV_X_D: return a;
    case ID_FCLASS_S: return f32_classify(unbox(a));
    case ID_FCLASS_D: return f64_classify(a);
    case ID_FEQ_S: return f32_eq(unbox(a), unbox(b), flags);
    case ID_FLT_S: return f32_lt(unbox(a), unbox(b), flags);
    case ID_FLE_S: return f32_le(unbox(a), unbox(b), flags);
    case ID_FEQ_D: return f64_eq(a, b, flags);
    case ID_FLT_D: return f64_lt(a, b, flags);
    default: return f64_le(a, b, flags);
    }
}

static uint64_t from_integer(unsigned id, uint64_t a, unsigned rm, uint32_t *flags) {
    switch (id) {
    case ID_FCVT_S_W: return BOX | i32_to_f32((int32_t)a, rm, flags);
    case ID_FCVT_S_WU: return BOX | u32_to_f32((uint32_t)a, rm, flags);
    case ID_FCVT_S_L: return BOX | i64_to_f32((int64_t)a, rm, flags);
    case ID_FCVT_S_LU: return BOX | u64_to_f32(a, rm, flags);
    case ID_FMV_W_X: return BOX | (uint32_t)a;
    case ID_FCVT_D_W: return i32_to_f64((int32_t)a);
    case ID_FCVT_D_WU: return u32_to_f64((uint32_t)a);
    case ID_FCVT_D_L: return i64_to_f64((int64_t)a, rm, flags);
    case ID_FCVT_D_LU: return u64_to_f64(a, rm, flags);
    default: return a; // fmv.d.x
    }
}

enum kind { KIND_FUSED, KIND_SINGLE, KIND_DOUBLE, KIND_NARROW, KIND_TO_X, KIND_FROM_X };

// classify relies on the order of the F and D rows in the instruction table.
static enum kind classify(unsigned id) {
    if ((id >= ID_FMADD_S && id <= ID_FNMADD_S) || (id >= ID_FMADD_D && id <= ID_FNMADD_D)) return KIND_FUSED;
    if (id >= ID_FADD_S && id <= ID_FMAX_S) return KIND_SINGLE;
    if (id == ID_FCVT_S_D) return KIND_NARROW;
    if (id >= ID_FADD_D && id <= ID_FCVT_D_S) return KIND_DOUBLE;
    if ((id >= ID_FCVT_S_W && id <= ID_FMV_W_X) || (id >= ID_FCVT_D_W && id <= ID_FMV_D_X)) return KIND_FROM_X;
    return KIND_TO_X;
}

// has_rounding tells whether the word's bits 14..12 are a rounding mode; otherwise they select the instruction.
static bool has_rounding(unsigned id) {
    static const uint8_t with[] = {FORMAT_R4, FORMAT_FRM, FORMAT_FXM, FORMAT_XFM};
    for (unsigned i = 0; i < sizeof with; i++)
        if (instruction_rows[id].format == with[i]) return true;
    return false;
}

bool execute_fp(const struct insn *d) {
    unsigned id = d->imm & 0xff, rm = (unsigned)d->imm >> 8 & 7;
    if ((hart.mstatus & MSTATUS_FS) == 0 || (has_rounding(id) && !rounding(&rm))) {
        raise(CAUSE_ILLEGAL, 0);
        return false;
    }
    uint64_t a = hart.f[d->rs1 / 8], b = hart.f[d->rs2 / 8], *fd = &hart.f[d->rd / 8];
    uint32_t *flags = &hart.fflags;
    switch (classify(id)) {
    case KIND_FUSED: *fd = fused(d, id, rm, flags); break;
    case KIND_SINGLE: *fd = BOX | single(id, unbox(a), unbox(b), rm, flags); break;
    case KIND_DOUBLE: *fd = twice(id, a, b, rm, flags); break;
    case KIND_NARROW: *fd = BOX | f64_to_f32(a, rm, flags); break;
    case KIND_FROM_X: *fd = from_integer(id, hart.x[d->rs1 / 8], rm, flags); break;
    case KIND_TO_X: {
        uint64_t value = to_integer(id, a, b, rm, flags);
        if (d->rd != 0) hart.x[d->rd / 8] = value;
        break;
    }
    }
    hart.mstatus |= MSTATUS_FS;
    return true;
}
