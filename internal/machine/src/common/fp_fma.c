// FMADD and its three relatives, which differ by the signs of operands: a * b + c rounded once.
#include "fp_internal.h"
#include "fp_product.h"

// A finite number, (-1)^sign * high:low * 2^(exponent - 127) with bit 63 of high set.
struct wide {
    struct fp_uint128 significand;
    int32_t exponent;
    bool sign;
};

static struct fp_uint128 shift_left(struct fp_uint128 v, int count) {
    if (count == 0)
        return v;
    if (count > 63)
        return (struct fp_uint128){.high = v.low << (count - 64)};
    return (struct fp_uint128){.high = v.high << count | v.low >> (64 - count), .low = v.low << count};
}

static struct fp_uint128 shift_right_jam(struct fp_uint128 v, int32_t count) {
    if (count == 0)
        return v;
    if (count > 63)
        return (struct fp_uint128){.low = fp_shift_right_jam(v.high, count - 64) | (v.low != 0)};
    uint64_t lost = v.low << (64 - count);
    return (struct fp_uint128){.high = v.high >> count, .low = v.high << (64 - count) | v.low >> count | (lost != 0)};
}

static struct fp_uint128 sum_of(struct fp_uint128 a, struct fp_uint128 b) {
    uint64_t low = a.low + b.low;
    return (struct fp_uint128){.high = a.high + b.high + (low < a.low), .low = low};
}

static struct fp_uint128 difference_of(struct fp_uint128 a, struct fp_uint128 b) {
    return (struct fp_uint128){.high = a.high - b.high - (a.low < b.low), .low = a.low - b.low};
}

static bool less(struct fp_uint128 a, struct fp_uint128 b) {
    return a.high < b.high || (a.high == b.high && a.low < b.low);
}

static struct fp_number narrow(bool sign, int32_t exponent, struct fp_uint128 v) {
    int leading_zeros = v.high != 0 ? __builtin_clzll(v.high) : 64 + __builtin_clzll(v.low);
    v = shift_left(v, leading_zeros);
    return fp_finite(sign, exponent - leading_zeros, v.high | (v.low != 0));
}

// a + b with a's exponent at least b's. The product fills 106 bits, so 21 are free after making room for the carry;
// bits are jammed only when the exponents differ by more, where cancellation costs at most one bit.
static struct fp_number add_wide(struct wide a, struct wide b, unsigned rm) {
    struct fp_uint128 large = shift_right_jam(a.significand, 1);
    struct fp_uint128 small = shift_right_jam(b.significand, a.exponent - b.exponent + 1);

    if (a.sign == b.sign)
        return narrow(a.sign, a.exponent + 1, sum_of(large, small));
    if (less(small, large))
        return narrow(a.sign, a.exponent + 1, difference_of(large, small));
    if (less(large, small))
        return narrow(b.sign, a.exponent + 1, difference_of(small, large));
    return fp_zero(rm == FP_RDN);
}

static struct wide product_of(struct fp_number a, struct fp_number b) {
    struct wide p = {fp_multiply64(a.significand, b.significand), a.exponent + b.exponent + 1, a.sign != b.sign};
    if (p.significand.high >> 63 == 0) {
        p.significand = shift_left(p.significand, 1);
        p.exponent--;
    }
    return p;
}

static struct fp_number multiply_add_finite(struct fp_number a, struct fp_number b, struct fp_number c, unsigned rm) {
    struct wide product = product_of(a, b);
    if (c.class == FP_CLASS_ZERO)
        return narrow(product.sign, product.exponent, product.significand);
    struct wide addend = {{.high = c.significand}, c.exponent, c.sign};
    return product.exponent >= addend.exponent ? add_wide(product, addend, rm) : add_wide(addend, product, rm);
}

// Infinity times zero is invalid even when the addend is a quiet NaN (RISC-V F chapter, FMADD).
static struct fp_number multiply_add(struct fp_number a, struct fp_number b, struct fp_number c, unsigned rm,
                                     uint32_t *flags) {
    bool zero = a.class == FP_CLASS_ZERO || b.class == FP_CLASS_ZERO;
    bool infinite = a.class == FP_CLASS_INFINITY || b.class == FP_CLASS_INFINITY;
    bool sign = a.sign != b.sign;

    if (fp_is_nan(a) || fp_is_nan(b)) {
        fp_nan_of(a, b, flags);
        return fp_nan_of(c, c, flags);
    }
    if (zero && infinite)
        return fp_invalid(flags);
    if (fp_is_nan(c))
        return fp_nan_of(c, c, flags);
    if (infinite)
        return c.class == FP_CLASS_INFINITY && c.sign != sign ? fp_invalid(flags) : fp_infinity(sign);
    if (zero && c.class == FP_CLASS_ZERO)
        return fp_zero(c.sign == sign ? sign : rm == FP_RDN);
    if (zero || c.class == FP_CLASS_INFINITY)
        return c;
    return multiply_add_finite(a, b, c, rm);
}

static FP_SOFTWARE uint32_t soft_fma32(uint32_t a, uint32_t b, uint32_t c, unsigned rm, uint32_t *flags) {
    return fp_round32(multiply_add(fp_unpack32(a), fp_unpack32(b), fp_unpack32(c), rm, flags), rm, flags);
}

static FP_SOFTWARE uint64_t soft_fma64(uint64_t a, uint64_t b, uint64_t c, unsigned rm, uint32_t *flags) {
    return fp_round64(multiply_add(fp_unpack64(a), fp_unpack64(b), fp_unpack64(c), rm, flags), rm, flags);
}

// sum + error rounded to odd: an inexact result gets an odd last bit, so rounding it again to fewer bits gives what
// rounding the exact value would. error is less than half a unit in the last place of sum.
static double round_to_odd(double sum, double error) {
    uint64_t bits = f64_bits(sum);
    if (error == 0 || bits & 1)
        return sum;
    return f64_value((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

// The product is exact in binary64. Its sum with c, rounded to odd, decides the binary32 result.
uint32_t f32_fma(uint32_t a, uint32_t b, uint32_t c, unsigned rm, uint32_t *flags) {
    double product = (double)f32_value(a) * (double)f32_value(b), z = (double)f32_value(c);
    double sum = product + z, error = f64_sum_error(product, z, sum);
    float rounded = (float)round_to_odd(sum, error);
    bool exact = error == 0 && (double)rounded == sum;
    if (rm == FP_RNE && (exact || (*flags & FP_NX && f32_is_safely_normal(f32_bits(rounded)))))
        return f32_bits(rounded);
    return soft_fma32(a, b, c, rm, flags);
}

// Whether the magnitude is in [2^-400, 2^401).
static bool is_moderate(uint64_t bits) {
    return (bits >> 52 & 0x7ff) - 623 <= 800;
}

// a * b - product, exactly, where product is a * b rounded to nearest (Dekker's product on Veltkamp's halves).
static double product_error(double a, double b, double product) {
    const double split = 0x1p27 + 1;
    double a_scaled = split * a, b_scaled = split * b;
    double a_high = a_scaled - (a_scaled - a), a_low = a - a_high;
    double b_high = b_scaled - (b_scaled - b), b_low = b - b_high;
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
}

// a * b + c rounded to nearest, for moderate a and b and finite c: no step overflows or loses bits (a product below
// 2^802 cannot carry the largest number over). The exact value is sum + (sum_error + product_error). The parenthesis
// is inexact only without cancellation in the sum (else sum_error is 0), and then its last place lies more than fifty
// bits below the result's, so rounding it to odd changes nothing. An exact zero is +0, as it should be to nearest.
static double fma_to_nearest(double a, double b, double c) {
    double product = a * b, low = product_error(a, b, product);
    double sum = product + c, sum_error = f64_sum_error(product, c, sum);
    double rest = sum_error + low, rest_error = f64_sum_error(sum_error, low, rest);
    return sum + round_to_odd(rest, rest_error);
}

uint64_t f64_fma(uint64_t a, uint64_t b, uint64_t c, unsigned rm, uint32_t *flags) {
    if (rm == FP_RNE && *flags & FP_NX && is_moderate(a) && is_moderate(b) && f64_is_finite(c))
        return f64_bits(fma_to_nearest(f64_value(a), f64_value(b), f64_value(c)));
    return soft_fma64(a, b, c, rm, flags);
}
