// FMUL.
#include "fp_internal.h"
#include "fp_product.h"

static struct fp_number multiply_finite(struct fp_number a, struct fp_number b) {
    struct fp_uint128 product = fp_multiply64(a.significand, b.significand);
    uint64_t significand = product.high | (product.low != 0);
    int shift = !(significand >> 63); // the product of two numbers in [1, 2) is in [1, 4)

    return fp_finite(a.sign != b.sign, a.exponent + b.exponent + 1 - shift, significand << shift);
}

static struct fp_number multiply(struct fp_number a, struct fp_number b, uint32_t *flags) {
    bool sign = a.sign != b.sign;
    bool zero = a.class == FP_CLASS_ZERO || b.class == FP_CLASS_ZERO;

    if (fp_is_nan(a) || fp_is_nan(b))
        return fp_nan_of(a, b, flags);
    if (a.class == FP_CLASS_INFINITY || b.class == FP_CLASS_INFINITY)
        return zero ? fp_invalid(flags) : fp_infinity(sign);
    return zero ? fp_zero(sign) : multiply_finite(a, b);
}

static FP_SOFTWARE uint32_t soft_multiply32(uint32_t a, uint32_t b, unsigned rm, uint32_t *flags) {
    return fp_round32(multiply(fp_unpack32(a), fp_unpack32(b), flags), rm, flags);
}

static FP_SOFTWARE uint64_t soft_multiply64(uint64_t a, uint64_t b, unsigned rm, uint32_t *flags) {
    return fp_round64(multiply(fp_unpack64(a), fp_unpack64(b), flags), rm, flags);
}

// The product of two binary32 numbers is exact in binary64, so the conversion is the only rounding.
uint32_t f32_mul(uint32_t a, uint32_t b, unsigned rm, uint32_t *flags) {
    double product = (double)f32_value(a) * (double)f32_value(b);
    float rounded = (float)product;
    bool exact = (double)rounded == product;
    if (rm == FP_RNE && (exact || (*flags & FP_NX && f32_is_safely_normal(f32_bits(rounded)))))
        return f32_bits(rounded);
    return soft_multiply32(a, b, rm, flags);
}

// Bits of a binary64 significand down to its last one; for a subnormal number an upper bound.
static int significant_bits(uint64_t bits) {
    return 53 - __builtin_ctzll(bits | 1ull << 52);
}

uint64_t f64_mul(uint64_t a, uint64_t b, unsigned rm, uint32_t *flags) {
    uint64_t product = f64_bits(f64_value(a) * f64_value(b));
    if (rm == FP_RNE && f64_is_safely_normal(product) &&
        (*flags & FP_NX || significant_bits(a) + significant_bits(b) <= 53))
        return product;
    return soft_multiply64(a, b, rm, flags);
}
