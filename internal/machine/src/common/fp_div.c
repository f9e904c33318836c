// FDIV and FSQRT.
#include "fp_internal.h"

// Long division in base 2^11: a remainder below 2^53 times 2^11 still fits 64 bits. The quotient has 55 or 56
// bits, two more than binary64 needs, so the remainder can be jammed into the last one.
static struct fp_number divide_finite(struct fp_number a, struct fp_number b) {
    uint64_t divisor = b.significand >> 11, remainder = a.significand >> 11;
    uint64_t quotient = 0;

    for (int digit = 0; digit < 6; digit++) {
        quotient = quotient << 11 | remainder / divisor;
        remainder = remainder % divisor << 11;
    }
    quotient |= remainder != 0;
    int leading_zeros = __builtin_clzll(quotient); // 8 when a's significand is at least b's, else 9
    return fp_finite(a.sign != b.sign, a.exponent - b.exponent + 8 - leading_zeros, quotient << leading_zeros);
}

static struct fp_number divide(struct fp_number a, struct fp_number b, uint32_t *flags) {
    bool sign = a.sign != b.sign;

    if (fp_is_nan(a) || fp_is_nan(b))
        return fp_nan_of(a, b, flags);
    if (a.class == b.class && a.class != FP_CLASS_FINITE) // inf/inf, 0/0
        return fp_invalid(flags);
    if (a.class == FP_CLASS_INFINITY)
        return fp_infinity(sign);
    if (a.class == FP_CLASS_ZERO || b.class == FP_CLASS_INFINITY)
        return fp_zero(sign);
    if (b.class == FP_CLASS_ZERO) {
        *flags |= FP_DZ;
        return fp_infinity(sign);
    }
    return divide_finite(a, b);
}

static FP_SOFTWARE uint32_t soft_divide32(uint32_t a, uint32_t b, unsigned rm, uint32_t *flags) {
    return fp_round32(divide(fp_unpack32(a), fp_unpack32(b), flags), rm, flags);
}

static FP_SOFTWARE uint64_t soft_divide64(uint64_t a, uint64_t b, unsigned rm, uint32_t *flags) {
    return fp_round64(divide(fp_unpack64(a), fp_unpack64(b), flags), rm, flags);
}

// quotient * divisor is exact in binary64 and equals the dividend only if the quotient is exact; the comparison
// fails for every operand that raises NV or DZ, because inf * 0 is not a number.
uint32_t f32_div(uint32_t a, uint32_t b, unsigned rm, uint32_t *flags) {
    float x = f32_value(a), y = f32_value(b), quotient = x / y;
    bool exact = (double)quotient * (double)y == (double)x;
    if (rm == FP_RNE && (exact || (*flags & FP_NX && f32_is_safely_normal(f32_bits(quotient)))))
        return f32_bits(quotient);
    return soft_divide32(a, b, rm, flags);
}

uint64_t f64_div(uint64_t a, uint64_t b, unsigned rm, uint32_t *flags) {
    uint64_t quotient = f64_bits(f64_value(a) / f64_value(b));
    if (rm == FP_RNE && *flags & FP_NX && f64_is_safely_normal(quotient))
        return quotient;
    return soft_divide64(a, b, rm, flags);
}

// Digit by digit, a bit of the root for two of the radicand. The radicand is the 53-bit significand, doubled when
// the exponent is odd, times 2^56: its root has 55 bits.
static struct fp_number root_of_finite(struct fp_number a) {
    uint64_t radicand = a.significand >> 11 << (a.exponent & 1);
    uint64_t root = 0, remainder = 0;

    for (int pair = 26; pair >= -28; pair--) {
        uint64_t trial = root << 2 | 1;
        remainder = remainder << 2 | (pair < 0 ? 0 : radicand >> (2 * pair) & 3);
        root <<= 1;
        if (remainder >= trial) {
            remainder -= trial;
            root |= 1;
        }
    }
    return fp_finite(false, (a.exponent - (a.exponent & 1)) / 2, root << 9 | (remainder != 0));
}

static struct fp_number square_root(struct fp_number a, uint32_t *flags) {
    if (fp_is_nan(a))
        return fp_nan_of(a, a, flags);
    if (a.class == FP_CLASS_ZERO)
        return a;
    if (a.sign)
        return fp_invalid(flags);
    return a.class == FP_CLASS_INFINITY ? a : root_of_finite(a);
}

static FP_SOFTWARE uint32_t soft_root32(uint32_t a, unsigned rm, uint32_t *flags) {
    return fp_round32(square_root(fp_unpack32(a), flags), rm, flags);
}

static FP_SOFTWARE uint64_t soft_root64(uint64_t a, unsigned rm, uint32_t *flags) {
    return fp_round64(square_root(fp_unpack64(a), flags), rm, flags);
}

uint32_t f32_sqrt(uint32_t a, unsigned rm, uint32_t *flags) {
    float x = f32_value(a), root = __builtin_sqrtf(x);
    bool exact = (double)root * (double)root == (double)x;
    if (rm == FP_RNE && (exact || (*flags & FP_NX && f32_is_finite(f32_bits(root)))))
        return f32_bits(root);
    return soft_root32(a, rm, flags);
}

// A root is never subnormal and never overflows: when it is finite it raises at most NX.
uint64_t f64_sqrt(uint64_t a, unsigned rm, uint32_t *flags) {
    uint64_t root = f64_bits(__builtin_sqrt(f64_value(a)));
    if (rm == FP_RNE && *flags & FP_NX && f64_is_finite(root))
        return root;
    return soft_root64(a, rm, flags);
}
