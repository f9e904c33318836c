// Advanced SIMD on lanes that are floating-point numbers (DDI 0487, C7.2).
#include "fp_arm.h"
#include "hart.h"
#include "simd.h"

// operation is U, the upper bit of `size`, and the opcode, which together name an instruction of two or three registers.
static unsigned operation(uint32_t w, unsigned opcode) { return field(w, 29, 1) << 6 | field(w, 23, 1) << 5 | opcode; }

enum { U = 64, A = 32 };

static uint64_t of_two(unsigned op, uint64_t a, uint64_t b, uint64_t d, bool wide) {
    switch (op) {
    case 24: case U | 24: return fp_maxnm(a, b, wide);
    case 25: return fp_muladd(d, a, b, wide);                 // fmla
    case A | 25: return fp_muladd(d, fp_neg(a, wide), b, wide); // fmls
    case 26: case U | 26: return fp_add(a, b, wide);
    case A | 26: return fp_sub(a, b, wide);
    case U | A | 26: return fp_abs(fp_sub(a, b, wide), wide);
    case 27: return fp_mulx(a, b, wide);
    case U | 27: return fp_mul(a, b, wide);
    case 28: return -(uint64_t)fp_equal(a, b, wide);
    case U | 28: return -(uint64_t)fp_greater_or_equal(a, b, wide);
    case U | A | 28: return -(uint64_t)fp_greater(a, b, wide);
    case U | 29: return -(uint64_t)fp_greater_or_equal(fp_abs(a, wide), fp_abs(b, wide), wide);
    case U | A | 29: return -(uint64_t)fp_greater(fp_abs(a, wide), fp_abs(b, wide), wide);
    case 30: case U | 30: return fp_max(a, b, wide);
    case 31: return fp_recip_step(a, b, wide);
    case A | 31: return fp_rsqrt_step(a, b, wide);
    case U | 31: return fp_div(a, b, wide);
    case A | 24: case U | A | 24: return fp_minnm(a, b, wide);
    default: return fp_min(a, b, wide); // A | 30, U | A | 30
    }
}

static bool is_pairwise(unsigned op) {
    switch (op) {
    case U | 24: case U | A | 24: case U | 26: case U | 30: case U | A | 30: return true;
    default: return false;
    }
}

static void three_same(uint32_t w) {
    bool wide = w >> 22 & 1;
    unsigned log = wide ? 3 : 2, op = operation(w, field(w, 11, 5)), count = lanes_of(w, log);
    const uint64_t *n = hart.v[rn_of(w)], *m = hart.v[rm_of(w)], *d = hart.v[rd_of(w)];
    uint64_t result[2] = {0, 0};
    for (unsigned i = 0; i < count; i++) {
        uint64_t a = lane(n, log, i), b = lane(m, log, i);
        if (is_pairwise(op) && !is_scalar(w)) {
            const uint64_t *from = 2 * i < count ? n : m;
            a = lane(from, log, 2 * i % count);
            b = lane(from, log, 2 * i % count + 1);
        }
        set_lane(result, log, i, of_two(op, a, b, lane(d, log, i), wide));
    }
    finish_vector(w, result);
}

static void by_element(uint32_t w) {
    bool wide = w >> 22 & 1;
    unsigned log = wide ? 3 : 2, h = w >> 11 & 1, l = w >> 21 & 1, index = wide ? h : h << 1 | l;
    uint64_t b = lane(hart.v[rm_of(w)], log, index), result[2] = {0, 0};
    for (unsigned i = 0; i < lanes_of(w, log); i++) {
        uint64_t a = lane(hart.v[rn_of(w)], log, i), d = lane(hart.v[rd_of(w)], log, i), r;
        switch (field(w, 12, 4)) {
        case 1: r = fp_muladd(d, a, b, wide); break;
        case 5: r = fp_muladd(d, fp_neg(a, wide), b, wide); break;
        default: r = w >> 29 & 1 ? fp_mulx(a, b, wide) : fp_mul(a, b, wide); break;
        }
        set_lane(result, log, i, r);
    }
    finish_vector(w, result);
}

static uint64_t to_int(uint64_t a, enum rounding rounding, bool is_unsigned, bool wide) { return fp_to_int(a, 0, is_unsigned, rounding, wide, wide); }

static uint64_t of_one(unsigned op, uint64_t a, bool wide) {
    switch (op) {
    case 24: return fp_round_int(a, ROUND_NEAREST, false, wide);
    case 25: return fp_round_int(a, ROUND_DOWN, false, wide);
    case A | 24: return fp_round_int(a, ROUND_UP, false, wide);
    case A | 25: return fp_round_int(a, ROUND_ZERO, false, wide);
    case U | 24: return fp_round_int(a, ROUND_AWAY, false, wide);
    case U | 25: return fp_round_int(a, fp_rounding(), true, wide);
    case U | A | 25: return fp_round_int(a, fp_rounding(), false, wide);
    case 26: case U | 26: return to_int(a, ROUND_NEAREST, op & U, wide);
    case 27: case U | 27: return to_int(a, ROUND_DOWN, op & U, wide);
    case A | 26: case U | A | 26: return to_int(a, ROUND_UP, op & U, wide);
    case A | 27: case U | A | 27: return to_int(a, ROUND_ZERO, op & U, wide);
    case 28: case U | 28: return to_int(a, ROUND_AWAY, op & U, wide);
    case 29: case U | 29: return fp_from_int(a, 0, op & U, wide, wide);
    case A | 12: return -(uint64_t)fp_greater(a, 0, wide);
    case A | 13: return -(uint64_t)fp_equal(a, 0, wide);
    case A | 14: return -(uint64_t)fp_greater(0, a, wide);
    case U | A | 12: return -(uint64_t)fp_greater_or_equal(a, 0, wide);
    case U | A | 13: return -(uint64_t)fp_greater_or_equal(0, a, wide);
    case A | 15: return fp_abs(a, wide);
    case U | A | 15: return fp_neg(a, wide);
    case A | 28: return unsigned_recip_estimate((uint32_t)a);
    case U | A | 28: return unsigned_rsqrt_estimate((uint32_t)a);
    case A | 29: return fp_recip_estimate(a, wide);
    case U | A | 29: return fp_rsqrt_estimate(a, wide);
    case A | 31: return fp_recpx(a, wide);
    default: return fp_sqrt(a, wide); // U | A | 31
    }
}

// convert is FCVTN, FCVTXN and FCVTL: between lanes of one size and of half of it.
static void convert(unsigned id, uint32_t w) {
    bool wide = w >> 22 & 1; // double to single, or single to half
    unsigned log = wide ? 3 : 2, count = is_scalar(w) ? 1 : 16u >> log, upper = is_full(w) && !is_scalar(w) ? 8u >> (log - 1) : 0;
    uint64_t result[2] = {0, 0};
    if (id == ID_FCVTL) {
        for (unsigned i = 0; i < count; i++) {
            uint64_t a = lane(hart.v[rn_of(w)], log - 1, i + upper);
            set_lane(result, log, i, wide ? fp_widen(a) : fp_from_half(a, false));
        }
    } else {
        if (upper != 0) result[0] = hart.v[rd_of(w)][0];
        for (unsigned i = 0; i < count; i++) {
            uint64_t a = lane(hart.v[rn_of(w)], log, i);
            uint64_t r = id != ID_FCVTN ? fp_narrow_odd(a) : wide ? fp_narrow(a) : fp_to_half(a, false);
            set_lane(result, log - 1, i + upper, r);
        }
    }
    finish_vector(w, result);
}

// pair is the scalar forms that combine the two lanes of a register.
static void pair(unsigned id, uint32_t w) {
    bool wide = w >> 22 & 1;
    unsigned log = wide ? 3 : 2;
    uint64_t a = lane(hart.v[rn_of(w)], log, 0), b = lane(hart.v[rn_of(w)], log, 1), r;
    switch (id) {
    case ID_FMAXNMP_S: r = fp_maxnm(a, b, wide); break;
    case ID_FADDP_S: r = fp_add(a, b, wide); break;
    case ID_FMAXP_S: r = fp_max(a, b, wide); break;
    case ID_FMINNMP_S: r = fp_minnm(a, b, wide); break;
    default: r = fp_min(a, b, wide); break;
    }
    finish_vector(w, (uint64_t[]){r, 0});
}

static void two(unsigned id, uint32_t w) {
    switch (id) {
    case ID_FCVTN: case ID_FCVTL: case ID_FCVTXN: case ID_FCVTXN_S: convert(id, w); return;
    case ID_FMAXNMP_S: case ID_FADDP_S: case ID_FMAXP_S: case ID_FMINNMP_S: case ID_FMINP_S: pair(id, w); return;
    default: break;
    }
    bool wide = w >> 22 & 1;
    unsigned log = wide ? 3 : 2, op = operation(w, field(w, 12, 5));
    uint64_t result[2] = {0, 0};
    for (unsigned i = 0; i < lanes_of(w, log); i++) set_lane(result, log, i, of_one(op, lane(hart.v[rn_of(w)], log, i), wide));
    finish_vector(w, result);
}

// across combines four lanes, neighbours first (Reduce).
static void across(unsigned id, uint32_t w) {
    uint64_t v[4];
    for (unsigned i = 0; i < 4; i++) v[i] = lane(hart.v[rn_of(w)], 2, i);
    uint64_t (*combine)(uint64_t, uint64_t, bool) = id == ID_FMAXNMV ? fp_maxnm : id == ID_FMAXV ? fp_max : id == ID_FMINNMV ? fp_minnm : fp_min;
    uint64_t low = combine(v[0], v[1], false), high = combine(v[2], v[3], false);
    finish_vector(w, (uint64_t[]){combine(low, high, false), 0});
}

// fixed is SCVTF, UCVTF, FCVTZS and FCVTZU with a binary point.
static void fixed(uint32_t w) {
    bool wide = w >> 22 & 1, is_unsigned = w >> 29 & 1, to_integer = field(w, 11, 5) == 31;
    unsigned log = wide ? 3 : 2, fraction = (16u << log) - field(w, 16, 7);
    uint64_t result[2] = {0, 0};
    for (unsigned i = 0; i < lanes_of(w, log); i++) {
        uint64_t a = lane(hart.v[rn_of(w)], log, i);
        set_lane(result, log, i, to_integer ? fp_to_int(a, fraction, is_unsigned, ROUND_ZERO, wide, wide) : fp_from_int(a, fraction, is_unsigned, wide, wide));
    }
    finish_vector(w, result);
}

bool execute_vfp(unsigned id, uint32_t w) {
    if (!fp_enabled()) return false;
    slow(4 * SLOW_FLOAT);
    switch (instruction_rows[id].format) {
    case FORMAT_V3F: three_same(w); break;
    case FORMAT_VX: by_element(w); break;
    case FORMAT_VA: across(id, w); break;
    case FORMAT_VSH: fixed(w); break;
    default: two(id, w); break; // FORMAT_V2F
    }
    return true;
}
