// Scalar floating point (DDI 0487, C7.2). A result clears the rest of its vector register.
#include "fp_arm.h"
#include "hart.h"
#include "simd.h"

static bool is_wide(uint32_t w) { return w >> 22 & 1; }

static uint64_t source(unsigned r, bool wide) { return wide ? hart.v[r][0] : (uint32_t)hart.v[r][0]; }

static void write(uint32_t w, uint64_t value) {
    hart.v[rd_of(w)][0] = value;
    hart.v[rd_of(w)][1] = 0;
}

static void one_source(uint32_t w) {
    bool wide = is_wide(w), from_half = field(w, 22, 2) == 3;
    uint64_t a = from_half ? (uint16_t)hart.v[rn_of(w)][0] : source(rn_of(w), wide);
    switch (field(w, 15, 6)) {
    case 0: write(w, a); break;
    case 1: write(w, fp_abs(a, wide)); break;
    case 2: write(w, fp_neg(a, wide)); break;
    case 3: write(w, fp_sqrt(a, wide)); break;
    case 4: write(w, from_half ? fp_from_half(a, false) : fp_narrow(a)); break;
    case 5: write(w, from_half ? fp_from_half(a, true) : fp_widen(a)); break;
    case 7: write(w, fp_to_half(a, wide)); break;
    case 8: write(w, fp_round_int(a, ROUND_NEAREST, false, wide)); break;
    case 9: write(w, fp_round_int(a, ROUND_UP, false, wide)); break;
    case 10: write(w, fp_round_int(a, ROUND_DOWN, false, wide)); break;
    case 11: write(w, fp_round_int(a, ROUND_ZERO, false, wide)); break;
    case 12: write(w, fp_round_int(a, ROUND_AWAY, false, wide)); break;
    case 14: write(w, fp_round_int(a, fp_rounding(), true, wide)); break;
    default: write(w, fp_round_int(a, fp_rounding(), false, wide)); break;
    }
}

static void two_sources(uint32_t w) {
    bool wide = is_wide(w);
    uint64_t a = source(rn_of(w), wide), b = source(rm_of(w), wide);
    switch (field(w, 12, 4)) {
    case 0: write(w, fp_mul(a, b, wide)); break;
    case 1: write(w, fp_div(a, b, wide)); break;
    case 2: write(w, fp_add(a, b, wide)); break;
    case 3: write(w, fp_sub(a, b, wide)); break;
    case 4: write(w, fp_max(a, b, wide)); break;
    case 5: write(w, fp_min(a, b, wide)); break;
    case 6: write(w, fp_maxnm(a, b, wide)); break;
    case 7: write(w, fp_minnm(a, b, wide)); break;
    default: write(w, fp_neg(fp_mul(a, b, wide), wide)); break;
    }
}

static void three_sources(uint32_t w) {
    bool wide = is_wide(w), negate = w >> 21 & 1, subtract = w >> 15 & 1;
    uint64_t n = source(rn_of(w), wide), m = source(rm_of(w), wide), a = source(ra_of(w), wide);
    if (negate) a = fp_neg(a, wide);
    if (negate != subtract) n = fp_neg(n, wide);
    write(w, fp_muladd(a, n, m, wide));
}

static void compare(uint32_t w) {
    bool wide = is_wide(w), with_zero = w >> 3 & 1;
    set_nzcv(fp_compare(source(rn_of(w), wide), with_zero ? 0 : source(rm_of(w), wide), w >> 4 & 1, wide));
}

static void conditional_compare(uint32_t w) {
    bool wide = is_wide(w);
    if (condition_holds(field(w, 12, 4))) set_nzcv(fp_compare(source(rn_of(w), wide), source(rm_of(w), wide), w >> 4 & 1, wide));
    else set_nzcv((uint64_t)field(w, 0, 4) << 28);
}

// move is FMOV between the register files. FMOV to and from the upper half leaves the lower alone.
static void move(unsigned id, uint32_t w) {
    switch (id) {
    case ID_FMOV_W_S: set_xzr(rd_of(w), (uint32_t)hart.v[rn_of(w)][0]); break;
    case ID_FMOV_X_D: set_xzr(rd_of(w), hart.v[rn_of(w)][0]); break;
    case ID_FMOV_X_V1: set_xzr(rd_of(w), hart.v[rn_of(w)][1]); break;
    case ID_FMOV_S_W: write(w, (uint32_t)xzr(rn_of(w))); break;
    case ID_FMOV_D_X: write(w, xzr(rn_of(w))); break;
    default: hart.v[rd_of(w)][1] = xzr(rn_of(w)); break;
    }
}

static void integer(unsigned id, uint32_t w) {
    bool wide = is_wide(w), wide_integer = w >> 31;
    unsigned op = field(w, 16, 3), rmode = field(w, 19, 2), fraction = instruction_rows[id].format == FORMAT_FPFIX ? 64 - field(w, 10, 6) : 0;
    if (op >= 6) {
        move(id, w);
    } else if (op == 2 || op == 3) {
        write(w, fp_from_int(xzr(rn_of(w)), fraction, op & 1, wide, wide_integer));
    } else {
        enum rounding rounding = op >= 4 ? ROUND_AWAY : (enum rounding)rmode;
        set_xzr(rd_of(w), fp_to_int(source(rn_of(w), wide), fraction, op & 1, rounding, wide, wide_integer));
    }
}

bool execute_fp(unsigned id, uint32_t w) {
    if (!fp_enabled()) return false;
    slow(SLOW_FLOAT);
    switch (instruction_rows[id].format) {
    case FORMAT_FP1: one_source(w); break;
    case FORMAT_FP2: two_sources(w); break;
    case FORMAT_FP3: three_sources(w); break;
    case FORMAT_FPC: compare(w); break;
    case FORMAT_FPCC: conditional_compare(w); break;
    case FORMAT_FPSEL: write(w, source(condition_holds(field(w, 12, 4)) ? rn_of(w) : rm_of(w), is_wide(w))); break;
    case FORMAT_FPI: write(w, fp_immediate(field(w, 13, 8), is_wide(w))); break;
    default: integer(id, w); break; // FORMAT_FPINT, FORMAT_FPFIX
    }
    return true;
}
