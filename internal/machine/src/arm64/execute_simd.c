// Advanced SIMD on integers, and what moves lanes (DDI 0487, C7.2). execute_vfp.c has the lanes that are floating-point numbers.
//
// A result is made aside and then takes the place of the destination, so that sources may be the destination. What a form does not write of the
// register is zero.
#include "fp_arm.h"
#include "hart.h"
#include "simd.h"

static bool is_unsigned(uint32_t w) { return w >> 29 & 1; }

static int64_t signed_lane(const uint64_t *v, unsigned log, unsigned i) {
    unsigned unused = 64 - (8u << log);
    return (int64_t)(lane(v, log, i) << unused) >> unused;
}

// value is a lane with or without sign, as the instruction says.
static uint64_t value(const uint64_t *v, unsigned log, unsigned i, bool without_sign) {
    return without_sign ? lane(v, log, i) : (uint64_t)signed_lane(v, log, i);
}

// Saturation ------------------------------------------------------------------------------------------------------

static uint64_t ones(unsigned bits) { return bits == 64 ? ~0ull : (1ull << bits) - 1; }

static uint64_t saturated(void) {
    hart.fpsr |= FPSR_QC;
    return 0;
}

static uint64_t signed_limit(bool negative, unsigned bits) {
    saturated();
    return negative ? ~ones(bits - 1) : ones(bits - 1);
}

static uint64_t unsigned_limit(bool negative, unsigned bits) {
    saturated();
    return negative ? 0 : ones(bits);
}

// Of values that fit 64 bits with their sign.
static uint64_t saturate_signed(int64_t v, unsigned bits) {
    if (bits == 64 || (v >= -(1ll << (bits - 1)) && v < 1ll << (bits - 1))) return (uint64_t)v;
    return signed_limit(v < 0, bits);
}

static uint64_t saturate_unsigned(int64_t v, unsigned bits) {
    if (v >= 0 && (bits == 64 || (uint64_t)v <= ones(bits))) return (uint64_t)v;
    return unsigned_limit(v < 0, bits);
}

static uint64_t add_saturating(uint64_t a, uint64_t b, unsigned bits, bool without_sign) {
    if (bits < 64) return without_sign ? saturate_unsigned((int64_t)(a + b), bits) : saturate_signed((int64_t)(a + b), bits);
    uint64_t sum = a + b;
    if (without_sign) return sum < a ? unsigned_limit(false, 64) : sum;
    return (int64_t)(~(a ^ b) & (a ^ sum)) < 0 ? signed_limit((int64_t)a < 0, 64) : sum;
}

static uint64_t subtract_saturating(uint64_t a, uint64_t b, unsigned bits, bool without_sign) {
    if (bits < 64) return without_sign ? saturate_unsigned((int64_t)(a - b), bits) : saturate_signed((int64_t)(a - b), bits);
    uint64_t difference = a - b;
    if (without_sign) return a < b ? unsigned_limit(true, 64) : difference;
    return (int64_t)((a ^ b) & (a ^ difference)) < 0 ? signed_limit((int64_t)a < 0, 64) : difference;
}

// add_mixed is SUQADD, a signed number and one without a sign to a signed result, and USQADD, the other way round.
static uint64_t add_mixed(uint64_t old, uint64_t v, unsigned bits, bool result_unsigned) {
    if (bits < 64) return result_unsigned ? saturate_unsigned((int64_t)(old + v), bits) : saturate_signed((int64_t)(old + v), bits);
    uint64_t sum = old + v;
    if (result_unsigned) {
        if ((int64_t)v >= 0) return sum < old ? unsigned_limit(false, 64) : sum;
        return sum > old ? unsigned_limit(true, 64) : sum;
    }
    return (int64_t)sum < (int64_t)old ? signed_limit(false, 64) : sum;
}

// left_saturating shifts a signed or unsigned number left, to a signed or unsigned result.
static uint64_t left_saturating(uint64_t v, unsigned shift, unsigned bits, bool from_unsigned, bool to_unsigned) {
    bool negative = !from_unsigned && (int64_t)v < 0;
    if (v == 0) return 0;
    if (to_unsigned) {
        if (negative || shift >= bits || v > ones(bits) >> shift) return unsigned_limit(negative, bits);
        return v << shift;
    }
    if (shift >= bits) return signed_limit(negative, bits);
    int64_t shifted = (int64_t)(v << shift), unused = 64 - bits;
    int64_t kept = (int64_t)((uint64_t)shifted << unused) >> unused;
    return kept >> shift == (int64_t)v ? (uint64_t)kept : signed_limit(negative, bits);
}

// right shifts a number right, rounded half up or towards minus infinity; `shift` from 1 to any.
static uint64_t right(uint64_t v, unsigned shift, unsigned bits, bool without_sign, bool round) {
    if (without_sign) {
        if (!round) return shift >= bits ? 0 : v >> shift;
        if (shift > bits) return 0;
        return ((v >> (shift - 1)) + 1) >> 1 | ((shift == 1 && v == ~0ull) ? 1ull << 63 : 0);
    }
    int64_t s = (int64_t)v;
    if (!round) return (uint64_t)(shift >= bits ? s >> 63 : s >> shift);
    if (shift > bits) return 0;
    s >>= shift - 1;
    return (uint64_t)((s >> 1) + (s & 1));
}

// shift_by_register is SSHL and its kin: left by a lane's signed lowest byte, right when that is negative.
static uint64_t shift_by_register(uint64_t v, int8_t by, unsigned bits, bool without_sign, bool saturates, bool round) {
    if (by < 0) return right(v, (unsigned)-by, bits, without_sign, round);
    if (saturates) return left_saturating(v, (unsigned)by, bits, without_sign, without_sign);
    return (unsigned)by >= bits ? 0 : v << by;
}

// doubled_high is SQDMULH and SQRDMULH: the upper half of twice the product; with an accumulator, SQRDMLAH and SQRDMLSH.
static uint64_t doubled_high(int64_t a, int64_t b, int64_t accumulator, unsigned bits, bool subtract, bool round) {
    int64_t product = a * b;
    if (subtract) product = -product;
    return saturate_signed((accumulator * (1ll << (bits - 1)) + product + (round ? 1ll << (bits - 2) : 0)) >> (bits - 1), bits);
}

// doubled_long is SQDMULL and its kin: twice the product, in double width.
static uint64_t doubled_long(int64_t a, int64_t b, unsigned bits) {
    int64_t product = a * b;
    if (bits == 32 && product == 1ll << 62) return signed_limit(false, 64);
    return saturate_signed(product * 2, 2 * bits);
}

// Bits --------------------------------------------------------------------------------------------------------------

static uint64_t leading_zeros(uint64_t v, unsigned bits) { return v == 0 ? bits : (uint64_t)__builtin_clzll(v) - (64 - bits); }

static uint64_t leading_signs(int64_t v, unsigned bits) {
    uint64_t differ = (uint64_t)(v ^ v >> 63) & ones(bits);
    return leading_zeros(differ, bits) - 1;
}

static uint64_t carryless(uint64_t a, uint64_t b, unsigned bits) {
    uint64_t product = 0;
    for (unsigned i = 0; i < bits; i++)
        if (b >> i & 1) product ^= a << i;
    return product;
}

static uint64_t reversed_bits(uint8_t v) {
    uint64_t r = 0;
    for (unsigned i = 0; i < 8; i++) r |= (uint64_t)(v >> i & 1) << (7 - i);
    return r;
}

static uint64_t distance(uint64_t a, uint64_t b, bool without_sign) {
    bool below = without_sign ? a < b : (int64_t)a < (int64_t)b;
    return below ? b - a : a - b;
}

// Three registers of one kind ---------------------------------------------------------------------------------------

static void bitwise(uint32_t w) {
    const uint64_t *n = hart.v[rn_of(w)], *m = hart.v[rm_of(w)], *d = hart.v[rd_of(w)];
    uint64_t result[2];
    for (unsigned i = 0; i < 2; i++) {
        uint64_t a = n[i], b = m[i], c = d[i], r;
        switch ((unsigned)is_unsigned(w) << 2 | field(w, 22, 2)) {
        case 0: r = a & b; break;
        case 1: r = a & ~b; break;
        case 2: r = a | b; break;
        case 3: r = a | ~b; break;
        case 4: r = a ^ b; break;
        case 5: r = (a & c) | (b & ~c); break; // bsl
        case 6: r = (a & b) | (c & ~b); break; // bit
        default: r = (a & ~b) | (c & b); break; // bif
        }
        result[i] = i == 0 || is_full(w) ? r : 0;
    }
    finish_vector(w, result);
}

static uint64_t same(unsigned op, uint64_t a, uint64_t b, uint64_t d, unsigned bits, bool u) {
    switch (op) {
    case 0: return bits == 64 ? 0 : (uint64_t)((int64_t)(a + b) >> 1);                           // hadd
    case 1: return add_saturating(a, b, bits, u);
    case 2: return (uint64_t)((int64_t)(a + b + 1) >> 1);                                        // rhadd
    case 4: return (uint64_t)((int64_t)(a - b) >> 1);                                            // hsub
    case 5: return subtract_saturating(a, b, bits, u);
    case 6: return u ? -(uint64_t)(a > b) : -(uint64_t)((int64_t)a > (int64_t)b);                // cmgt, cmhi
    case 7: return u ? -(uint64_t)(a >= b) : -(uint64_t)((int64_t)a >= (int64_t)b);              // cmge, cmhs
    case 8: case 9: case 10: case 11: return shift_by_register(a, (int8_t)b, bits, u, op & 1, op & 2);
    case 12: return u ? (a > b ? a : b) : ((int64_t)a > (int64_t)b ? a : b);                     // max
    case 13: return u ? (a < b ? a : b) : ((int64_t)a < (int64_t)b ? a : b);                     // min
    case 14: return distance(a, b, u);
    case 15: return d + distance(a, b, u);
    case 16: return u ? a - b : a + b;
    case 17: return u ? -(uint64_t)(a == b) : -(uint64_t)((a & b & ones(bits)) != 0);            // cmeq, cmtst
    case 18: return u ? d - a * b : d + a * b;
    case 19: return u ? carryless(a, b, 8) : a * b;
    default: return doubled_high((int64_t)a, (int64_t)b, 0, bits, false, u);                     // 22
    }
}

// pairwise takes neighbours of both registers.
static void pairwise(uint32_t w, unsigned op, unsigned log) {
    uint64_t result[2] = {0, 0};
    unsigned count = lanes_of(w, log);
    bool u = is_unsigned(w), maximum = op == 20;
    for (unsigned i = 0; i < count; i++) {
        const uint64_t *from = hart.v[2 * i < count ? rn_of(w) : rm_of(w)];
        unsigned k = 2 * i % count;
        uint64_t a = value(from, log, k, u), b = value(from, log, k + 1, u);
        set_lane(result, log, i, op == 23 ? a + b : same(maximum ? 12 : 13, a, b, 0, 8u << log, u));
    }
    finish_vector(w, result);
}

static void dot_product(uint32_t w, const uint64_t *n, const uint64_t *m, int fixed) {
    uint64_t result[2] = {0, 0};
    bool u = is_unsigned(w);
    for (unsigned i = 0; i < lanes_of(w, 2); i++) {
        uint64_t sum = lane(hart.v[rd_of(w)], 2, i);
        for (unsigned k = 0; k < 4; k++) sum += value(n, 0, 4 * i + k, u) * value(m, 0, 4 * (fixed < 0 ? i : (unsigned)fixed) + k, u);
        set_lane(result, 2, i, sum);
    }
    finish_vector(w, result);
}

static void permute(uint32_t w) {
    unsigned log = field(w, 22, 2), count = lanes_of(w, log), op = field(w, 12, 3), second = op >> 2, half = count / 2;
    const uint64_t *n = hart.v[rn_of(w)], *m = hart.v[rm_of(w)];
    uint64_t result[2] = {0, 0};
    for (unsigned i = 0; i < count; i++) {
        uint64_t v;
        switch (op & 3) {
        case 1: v = i < half ? lane(n, log, 2 * i + second) : lane(m, log, 2 * (i - half) + second); break; // uzp
        case 2: v = lane(i & 1 ? m : n, log, (i & ~1u) + second); break;                                   // trn
        default: v = lane(i & 1 ? m : n, log, i / 2 + second * half); break;                               // zip
        }
        set_lane(result, log, i, v);
    }
    finish_vector(w, result);
}

static void look_up(uint32_t w) {
    unsigned registers = field(w, 13, 2) + 1;
    bool extends = w >> 12 & 1; // tbx leaves what is out of range
    uint64_t result[2] = {0, 0};
    for (unsigned i = 0; i < lanes_of(w, 0); i++) {
        uint64_t index = lane(hart.v[rm_of(w)], 0, i), v = extends ? lane(hart.v[rd_of(w)], 0, i) : 0;
        if (index < 16 * registers) v = lane(hart.v[(rn_of(w) + index / 16) & 31], 0, index % 16);
        set_lane(result, 0, i, v);
    }
    finish_vector(w, result);
}

static void three_same(unsigned id, uint32_t w) {
    unsigned log = field(w, 22, 2), op = field(w, 11, 5), bits = 8u << log;
    bool u = is_unsigned(w);
    switch (id) {
    case ID_UZP1: case ID_UZP2: case ID_TRN1: case ID_TRN2: case ID_ZIP1: case ID_ZIP2: permute(w); return;
    case ID_TBL1: case ID_TBL2: case ID_TBL3: case ID_TBL4: case ID_TBX1: case ID_TBX2: case ID_TBX3: case ID_TBX4: look_up(w); return;
    case ID_SDOT_V: case ID_UDOT_V: dot_product(w, hart.v[rn_of(w)], hart.v[rm_of(w)], -1); return;
    default: break;
    }
    if ((w >> 21 & 1) != 0 && op == 3) {
        bitwise(w);
        return;
    }
    if ((w >> 21 & 1) != 0 && (op == 20 || op == 21 || op == 23)) {
        pairwise(w, op, log);
        return;
    }
    bool accumulates = (w >> 21 & 1) == 0; // sqrdmlah, sqrdmlsh
    bool sign_free = op >= 22 || accumulates ? false : u;
    const uint64_t *n = hart.v[rn_of(w)], *m = hart.v[rm_of(w)], *d = hart.v[rd_of(w)];
    uint64_t result[2] = {0, 0};
    for (unsigned i = 0; i < lanes_of(w, log); i++) {
        uint64_t a = value(n, log, i, sign_free), b = value(m, log, i, sign_free);
        if (accumulates) set_lane(result, log, i, doubled_high((int64_t)a, (int64_t)b, signed_lane(d, log, i), bits, op & 1, true));
        else set_lane(result, log, i, same(op, a, b, lane(d, log, i), bits, u));
    }
    finish_vector(w, result);
}

// Three registers of different sizes: the second half of the narrow ones is used, or written, with bit 30 ------------

static uint64_t different(unsigned op, uint64_t a, uint64_t b, uint64_t d, unsigned bits, bool u) {
    switch (op) {
    case 0: case 1: return a + b;
    case 2: case 3: return a - b;
    case 5: return d + distance(a, b, u);
    case 7: return distance(a, b, u);
    case 8: return d + a * b;
    case 9: return add_saturating(d, doubled_long((int64_t)a, (int64_t)b, bits), 2 * bits, false);
    case 10: return d - a * b;
    case 11: return subtract_saturating(d, doubled_long((int64_t)a, (int64_t)b, bits), 2 * bits, false);
    case 12: return a * b;
    case 13: return doubled_long((int64_t)a, (int64_t)b, bits);
    default: return carryless((uint8_t)a, (uint8_t)b, 8); // pmull
    }
}

// wide_lane is the accumulator of SQDMLAL, with its sign, and any other as it is.
static uint64_t wide_lane(const uint64_t *v, unsigned log, unsigned i) { return (uint64_t)signed_lane(v, log, i); }

static void three_different(uint32_t w) {
    unsigned log = field(w, 22, 2), op = field(w, 12, 4), bits = 8u << log, count = is_scalar(w) ? 1 : 8u >> log;
    unsigned upper = is_full(w) && !is_scalar(w) ? 8u >> log : 0;
    bool u = is_unsigned(w);
    const uint64_t *n = hart.v[rn_of(w)], *m = hart.v[rm_of(w)], *d = hart.v[rd_of(w)];
    uint64_t result[2] = {0, 0};
    if (op == 4 || op == 6) { // addhn, subhn: to narrow lanes
        if (upper != 0) result[0] = d[0];
        for (unsigned i = 0; i < count; i++) {
            uint64_t a = lane(n, log + 1, i), b = lane(m, log + 1, i), sum = op == 4 ? a + b : a - b;
            set_lane(result, log, i + upper, (sum + (u ? 1ull << (bits - 1) : 0)) >> bits);
        }
        finish_vector(w, result);
        return;
    }
    bool wide_first = op == 1 || op == 3;
    for (unsigned i = 0; i < count; i++) {
        uint64_t a = wide_first ? lane(n, log + 1, i) : value(n, log, i + upper, u), b = value(m, log, i + upper, u);
        set_lane(result, log + 1, i, different(op, a, b, wide_lane(d, log + 1, i), bits, u));
    }
    finish_vector(w, result);
}

// By an element -----------------------------------------------------------------------------------------------------

static void by_element(unsigned id, uint32_t w) {
    unsigned log = field(w, 22, 2), op = field(w, 12, 4), bits = 8u << log;
    unsigned h = w >> 11 & 1, l = w >> 21 & 1, m_bit = w >> 20 & 1;
    unsigned index = log == 1 ? h << 2 | l << 1 | m_bit : h << 1 | l, rm = log == 1 ? rm_of(w) & 15 : rm_of(w);
    const uint64_t *n = hart.v[rn_of(w)], *m = hart.v[rm], *d = hart.v[rd_of(w)];
    bool u = is_unsigned(w);
    uint64_t result[2] = {0, 0};
    if (id == ID_SDOT_E || id == ID_UDOT_E) {
        dot_product(w, n, m, (int)index);
        return;
    }
    bool is_long = (op == 2 || op == 6 || op == 10) || (!u && (op == 3 || op == 7 || op == 11));
    if (is_long) {
        unsigned count = is_scalar(w) ? 1 : 8u >> log, upper = is_full(w) && !is_scalar(w) ? 8u >> log : 0;
        static const uint8_t as_different[] = {[2] = 8, [3] = 9, [6] = 10, [7] = 11, [10] = 12, [11] = 13};
        uint64_t b = value(m, log, index, u);
        for (unsigned i = 0; i < count; i++)
            set_lane(result, log + 1, i, different(as_different[op], value(n, log, i + upper, u), b, wide_lane(d, log + 1, i), bits, u));
        finish_vector(w, result);
        return;
    }
    int64_t b = signed_lane(m, log, index);
    for (unsigned i = 0; i < lanes_of(w, log); i++) {
        int64_t a = signed_lane(n, log, i), old = signed_lane(d, log, i);
        uint64_t r;
        switch (op) {
        case 0: r = (uint64_t)old + (uint64_t)(a * b); break;
        case 4: r = (uint64_t)old - (uint64_t)(a * b); break;
        case 8: r = (uint64_t)(a * b); break;
        case 12: r = doubled_high(a, b, 0, bits, false, false); break;
        case 13: r = doubled_high(a, b, u ? old : 0, bits, false, true); break; // sqrdmulh, sqrdmlah
        default: r = doubled_high(a, b, old, bits, true, true); break;          // 15: sqrdmlsh
        }
        set_lane(result, log, i, r);
    }
    finish_vector(w, result);
}

// Two registers -----------------------------------------------------------------------------------------------------

// narrow has XTN, SQXTN, UQXTN and SQXTUN.
static uint64_t narrow(uint64_t v, int64_t s, unsigned op, unsigned bits, bool u) {
    if (op == 18) return u ? saturate_unsigned(s, bits) : v;
    if (!u) return saturate_signed(s, bits);
    return v > ones(bits) ? unsigned_limit(false, bits) : v;
}

static void to_narrow(uint32_t w, unsigned op, unsigned log) {
    unsigned count = is_scalar(w) ? 1 : 8u >> log, upper = is_full(w) && !is_scalar(w) ? 8u >> log : 0;
    uint64_t result[2] = {upper ? hart.v[rd_of(w)][0] : 0, 0};
    for (unsigned i = 0; i < count; i++)
        set_lane(result, log, i + upper, narrow(lane(hart.v[rn_of(w)], log + 1, i), signed_lane(hart.v[rn_of(w)], log + 1, i), op, 8u << log, is_unsigned(w)));
    finish_vector(w, result);
}

// long_pairs is SADDLP and SADALP.
static void long_pairs(uint32_t w, unsigned log, bool accumulates) {
    uint64_t result[2] = {0, 0};
    const uint64_t *n = hart.v[rn_of(w)];
    for (unsigned i = 0; i < lanes_of(w, log + 1); i++) {
        uint64_t sum = value(n, log, 2 * i, is_unsigned(w)) + value(n, log, 2 * i + 1, is_unsigned(w));
        if (accumulates) sum += lane(hart.v[rd_of(w)], log + 1, i);
        set_lane(result, log + 1, i, sum);
    }
    finish_vector(w, result);
}

static void reverse(uint32_t w, unsigned log, unsigned container) {
    uint64_t result[2] = {0, 0};
    unsigned mask = (1u << (container - log)) - 1;
    for (unsigned i = 0; i < lanes_of(w, log); i++) set_lane(result, log, i, lane(hart.v[rn_of(w)], log, i ^ mask));
    finish_vector(w, result);
}

static uint64_t absolute_saturating(int64_t v, unsigned bits, bool negate) {
    bool least = (uint64_t)v == ~ones(bits - 1);
    if (least) return signed_limit(false, bits);
    return (uint64_t)(negate || v < 0 ? -v : v);
}

static uint64_t of_one(unsigned op, uint64_t v, int64_t s, uint64_t old, unsigned bits, bool u, unsigned size) {
    switch (op) {
    case 3: return add_mixed(old, u ? (uint64_t)s : v, bits, u);
    case 4: return u ? leading_zeros(v, bits) : leading_signs(s, bits);
    case 5:
        if (!u) return (uint64_t)__builtin_popcountll(v);
        return size == 0 ? ~v : reversed_bits((uint8_t)v);
    case 7: return absolute_saturating(s, bits, u);
    case 8: return -(uint64_t)(u ? s >= 0 : s > 0);
    case 9: return -(uint64_t)(u ? s <= 0 : s == 0);
    case 10: return -(uint64_t)(s < 0);
    default: return (uint64_t)(u || s < 0 ? -(uint64_t)s : (uint64_t)s); // 11: neg, abs
    }
}

static void two(unsigned id, uint32_t w) {
    unsigned size = field(w, 22, 2), log = size, op = field(w, 12, 5);
    bool u = is_unsigned(w);
    if (id == ID_ADDP_S) {
        finish_vector(w, (uint64_t[]){hart.v[rn_of(w)][0] + hart.v[rn_of(w)][1], 0});
        return;
    }
    switch (op) {
    case 0: reverse(w, log, u ? 2 : 3); return;
    case 1: reverse(w, log, 1); return;
    case 2: long_pairs(w, log, false); return;
    case 6: long_pairs(w, log, true); return;
    case 18: case 20: to_narrow(w, op, log); return;
    default: break;
    }
    uint64_t result[2] = {0, 0};
    const uint64_t *n = hart.v[rn_of(w)];
    if (op == 19) { // shll
        for (unsigned i = 0; i < 8u >> log; i++) set_lane(result, log + 1, i, lane(n, log, i + (is_full(w) ? 8u >> log : 0)) << (8u << log));
        finish_vector(w, result);
        return;
    }
    if (op == 5) log = 0;
    for (unsigned i = 0; i < lanes_of(w, log); i++) {
        uint64_t old = u ? lane(hart.v[rd_of(w)], log, i) : (uint64_t)signed_lane(hart.v[rd_of(w)], log, i);
        set_lane(result, log, i, of_one(op, lane(n, log, i), signed_lane(n, log, i), old, 8u << log, u, size));
    }
    finish_vector(w, result);
}

static void across(uint32_t w) {
    unsigned log = field(w, 22, 2), op = field(w, 12, 5);
    bool u = is_unsigned(w), is_long = op == 3;
    const uint64_t *n = hart.v[rn_of(w)];
    uint64_t all = value(n, log, 0, u), result[2] = {0, 0};
    for (unsigned i = 1; i < lanes_of(w, log); i++) {
        uint64_t v = value(n, log, i, u);
        if (op == 3 || op == 27) all += v;
        else all = same(op == 10 ? 12 : 13, all, v, 0, 8u << log, u);
    }
    set_lane(result, is_long ? log + 1 : log, 0, all);
    finish_vector(w, result);
}

// Copies, immediates, shifts ----------------------------------------------------------------------------------------

static void copy(unsigned id, uint32_t w) {
    unsigned imm5 = field(w, 16, 5), log = (unsigned)__builtin_ctz(imm5), index = imm5 >> (log + 1);
    const uint64_t *n = hart.v[rn_of(w)];
    uint64_t result[2] = {0, 0};
    switch (id) {
    case ID_UMOV_W: case ID_UMOV_X: set_xzr(rd_of(w), lane(n, log, index)); return;
    case ID_SMOV_W: set_xzr(rd_of(w), (uint32_t)signed_lane(n, log, index)); return;
    case ID_SMOV_X: set_xzr(rd_of(w), (uint64_t)signed_lane(n, log, index)); return;
    case ID_INS_R: set_lane(hart.v[rd_of(w)], log, index, xzr(rn_of(w))); return;
    case ID_INS_E: set_lane(hart.v[rd_of(w)], log, index, lane(n, log, field(w, 11, 4) >> log)); return;
    default: break;
    }
    uint64_t v = id == ID_DUP_R ? xzr(rn_of(w)) : lane(n, log, index);
    for (unsigned i = 0; i < lanes_of(w, log); i++) set_lane(result, log, i, v);
    finish_vector(w, result);
}

static void extract(uint32_t w) {
    unsigned count = lanes_of(w, 0), first = field(w, 11, 4);
    uint64_t result[2] = {0, 0};
    for (unsigned i = 0; i < count; i++) set_lane(result, 0, i, first + i < count ? lane(hart.v[rn_of(w)], 0, first + i) : lane(hart.v[rm_of(w)], 0, first + i - count));
    finish_vector(w, result);
}

// immediate_of is AdvSIMDExpandImm.
static uint64_t immediate_of(uint32_t w) {
    uint64_t imm8 = field(w, 16, 3) << 5 | field(w, 5, 5), v = imm8;
    unsigned cmode = field(w, 12, 4), op = w >> 29 & 1;
    switch (cmode >> 1) {
    case 0: case 1: case 2: case 3: v = imm8 << 8 * (cmode >> 1); return v << 32 | v;
    case 4: case 5: v = imm8 << 8 * (cmode >> 1 & 1); return v * 0x0001000100010001ull;
    case 6: v = cmode & 1 ? imm8 << 16 | 0xffff : imm8 << 8 | 0xff; return v << 32 | v;
    default: break;
    }
    if ((cmode & 1) == 0) {
        if (!op) return imm8 * 0x0101010101010101ull;
        v = 0;
        for (unsigned i = 0; i < 8; i++) v |= (imm8 >> i & 1 ? 0xffull : 0) << 8 * i;
        return v;
    }
    v = fp_immediate((unsigned)imm8, op);
    return op ? v : v << 32 | v;
}

static void immediate(uint32_t w) {
    uint64_t v = immediate_of(w), *d = hart.v[rd_of(w)];
    unsigned cmode = field(w, 12, 4);
    bool op = w >> 29 & 1, combines = (cmode & 1) != 0 && cmode < 12; // orr and bic
    if (op && cmode < 14) v = ~v;
    d[0] = !combines ? v : op ? d[0] & v : d[0] | v;
    d[1] = !is_full(w) ? 0 : !combines ? v : op ? d[1] & v : d[1] | v;
}

// narrow_shifted is SHRN and its kin: right, then narrow.
static void narrow_shifted(uint32_t w, unsigned op, unsigned log, unsigned shift) {
    unsigned count = is_scalar(w) ? 1 : 8u >> log, upper = is_full(w) && !is_scalar(w) ? 8u >> log : 0, bits = 8u << log;
    bool u = is_unsigned(w), round = op & 1, saturates = op >= 18 || u, from_unsigned = op >= 18 && u;
    uint64_t result[2] = {upper ? hart.v[rd_of(w)][0] : 0, 0};
    for (unsigned i = 0; i < count; i++) {
        uint64_t v = right(value(hart.v[rn_of(w)], log + 1, i, from_unsigned), shift, 2 * bits, from_unsigned, round);
        if (saturates && from_unsigned) v = v > ones(bits) ? unsigned_limit(false, bits) : v;
        else if (saturates) v = op >= 18 ? saturate_signed((int64_t)v, bits) : saturate_unsigned((int64_t)v, bits);
        set_lane(result, log, i + upper, v);
    }
    finish_vector(w, result);
}

static void shift_immediate(uint32_t w) {
    unsigned immh = field(w, 19, 4), immhb = field(w, 16, 7), op = field(w, 11, 5), log = 31 - (unsigned)__builtin_clz(immh), bits = 8u << log;
    unsigned to_right = 2 * bits - immhb, to_left = immhb - bits;
    bool u = is_unsigned(w);
    const uint64_t *n = hart.v[rn_of(w)], *d = hart.v[rd_of(w)];
    uint64_t result[2] = {0, 0};
    if (op >= 16 && op <= 19) {
        narrow_shifted(w, op, log, to_right);
        return;
    }
    if (op == 20) { // sshll
        for (unsigned i = 0; i < 8u >> log; i++) set_lane(result, log + 1, i, value(n, log, i + (is_full(w) ? 8u >> log : 0), u) << to_left);
        finish_vector(w, result);
        return;
    }
    for (unsigned i = 0; i < lanes_of(w, log); i++) {
        uint64_t v = value(n, log, i, u), old = lane(d, log, i), r;
        switch (op) {
        case 0: r = right(v, to_right, bits, u, false); break;
        case 2: r = old + right(v, to_right, bits, u, false); break;
        case 4: r = right(v, to_right, bits, u, true); break;
        case 6: r = old + right(v, to_right, bits, u, true); break;
        case 8: { // sri
            uint64_t mask = to_right >= bits ? 0 : ones(bits) >> to_right;
            r = (old & ~mask) | ((to_right >= bits ? 0 : v >> to_right) & mask);
            break;
        }
        case 10: r = u ? (old & ones(to_left)) | v << to_left : v << to_left; break; // sli, shl
        case 12: r = left_saturating((uint64_t)signed_lane(n, log, i), to_left, bits, false, true); break; // sqshlu
        default: r = left_saturating(v, to_left, bits, u, u); break; // 14
        }
        set_lane(result, log, i, r);
    }
    finish_vector(w, result);
}

bool execute_simd(unsigned id, uint32_t w) {
    if (!fp_enabled()) return false;
    slow(SLOW_VECTOR);
    switch (instruction_rows[id].format) {
    case FORMAT_V3: three_same(id, w); break;
    case FORMAT_V3L: three_different(w); break;
    case FORMAT_VX: by_element(id, w); break;
    case FORMAT_V2: two(id, w); break;
    case FORMAT_VA: across(w); break;
    case FORMAT_VC: copy(id, w); break;
    case FORMAT_VEXT: extract(w); break;
    case FORMAT_VI: immediate(w); break;
    default: shift_immediate(w); break; // FORMAT_VSH
    }
    return true;
}
