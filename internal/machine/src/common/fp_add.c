// FADD and FSUB.
#include "fp_internal.h"

// a + b for finite a and b with a's exponent at least b's, or equal exponents in any order. Both move down a bit to
// make room for the carry; that leaves ten bits below binary64's precision, and bits are jammed only when the
// exponents differ by more than that, where cancellation costs at most one of them.
static struct fp_number add_aligned(struct fp_number a, struct fp_number b, unsigned rm) {
    uint64_t large = a.significand >> 1;
    uint64_t small = fp_shift_right_jam(b.significand >> 1, a.exponent - b.exponent);
    uint64_t sum = a.sign == b.sign ? large + small : large - small;
    bool sign = a.sign;

    if (a.sign != b.sign && small > large) {
        sum = small - large;
        sign = b.sign;
    }
    if (sum == 0)
        return fp_zero(rm == FP_RDN);
    int leading_zeros = __builtin_clzll(sum);
    return fp_finite(sign, a.exponent + 1 - leading_zeros, sum << leading_zeros);
}

static struct fp_number add(struct fp_number a, struct fp_number b, unsigned rm, uint32_t *flags) {
    if (fp_is_nan(a) || fp_is_nan(b))
        return fp_nan_of(a, b, flags);
    if (a.class == FP_CLASS_INFINITY && b.class == FP_CLASS_INFINITY && a.sign != b.sign)
        return fp_invalid(flags);
    if (a.class == FP_CLASS_ZERO && b.class == FP_CLASS_ZERO)
        return fp_zero(a.sign == b.sign ? a.sign : rm == FP_RDN);
    if (a.class == FP_CLASS_INFINITY || b.class == FP_CLASS_ZERO)
        return a;
    if (b.class == FP_CLASS_INFINITY || a.class == FP_CLASS_ZERO)
        return b;
    return a.exponent >= b.exponent ? add_aligned(a, b, rm) : add_aligned(b, a, rm);
}

static FP_SOFTWARE uint32_t soft_add32(uint32_t a, uint32_t b, unsigned rm, uint32_t *flags) {
    return fp_round32(add(fp_unpack32(a), fp_unpack32(b), rm, flags), rm, flags);
}

static FP_SOFTWARE uint64_t soft_add64(uint64_t a, uint64_t b, unsigned rm, uint32_t *flags) {
    return fp_round64(add(fp_unpack64(a), fp_unpack64(b), rm, flags), rm, flags);
}

// A finite sum raises at most NX: one below the normal range is always exact.
uint32_t f32_add(uint32_t a, uint32_t b, unsigned rm, uint32_t *flags) {
    float x = f32_value(a), y = f32_value(b), sum = x + y;
    if (rm == FP_RNE && f32_is_finite(f32_bits(sum)) && (*flags & FP_NX || f32_sum_error(x, y, sum) == 0))
        return f32_bits(sum);
    return soft_add32(a, b, rm, flags);
}

uint64_t f64_add(uint64_t a, uint64_t b, unsigned rm, uint32_t *flags) {
    double x = f64_value(a), y = f64_value(b), sum = x + y;
    if (rm == FP_RNE && f64_is_finite(f64_bits(sum)) && (*flags & FP_NX || f64_sum_error(x, y, sum) == 0))
        return f64_bits(sum);
    return soft_add64(a, b, rm, flags);
}

uint32_t f32_sub(uint32_t a, uint32_t b, unsigned rm, uint32_t *flags) {
    return f32_add(a, b ^ F32_SIGN, rm, flags);
}

uint64_t f64_sub(uint64_t a, uint64_t b, unsigned rm, uint32_t *flags) {
    return f64_add(a, b ^ F64_SIGN, rm, flags);
}
