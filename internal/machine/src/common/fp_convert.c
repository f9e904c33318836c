// FCVT: between the formats, to integers and from integers.
#include "fp_internal.h"

static FP_SOFTWARE uint64_t soft_widen_nan(uint32_t a, uint32_t *flags) {
    struct fp_number n = fp_unpack32(a);
    return fp_round64(fp_nan_of(n, n, flags), FP_RNE, flags);
}

static FP_SOFTWARE uint32_t soft_narrow(uint64_t a, unsigned rm, uint32_t *flags) {
    struct fp_number n = fp_unpack64(a);
    return fp_round32(fp_is_nan(n) ? fp_nan_of(n, n, flags) : n, rm, flags);
}

uint64_t f32_to_f64(uint32_t a, uint32_t *flags) {
    float x = f32_value(a);
    if (x == x)
        return f64_bits((double)x); // always exact
    return soft_widen_nan(a, flags);
}

uint32_t f64_to_f32(uint64_t a, unsigned rm, uint32_t *flags) {
    double x = f64_value(a);
    uint32_t rounded = f32_bits((float)x);
    bool exact = (double)f32_value(rounded) == x;
    if (exact || (rm == FP_RNE && *flags & FP_NX && f32_is_safely_normal(rounded)))
        return rounded;
    return soft_narrow(a, rm, flags);
}

// To integers ----------------------------------------------------------------------------------------------------

// The largest magnitudes an integer type holds on either side of zero.
struct limits {
    uint64_t positive, negative;
};

static const struct limits limits_i32 = {INT32_MAX, 1ull << 31}, limits_u32 = {UINT32_MAX, 0};
static const struct limits limits_i64 = {INT64_MAX, 1ull << 63}, limits_u64 = {UINT64_MAX, 0};

static uint64_t with_sign(bool negative, uint64_t magnitude) {
    return negative ? 0 - magnitude : magnitude;
}

// Saturation raises NV alone. NaN, which is unpacked without a sign, counts as above every integer.
static uint64_t saturate(struct fp_number n, struct limits limits, uint32_t *flags) {
    *flags |= FP_NV;
    return n.sign ? with_sign(true, limits.negative) : limits.positive;
}

// Rounds a finite number below 2^63 to an integral magnitude.
static uint64_t round_to_integer(struct fp_number n, unsigned rm, bool *inexact) {
    int32_t fraction_bits = 63 - n.exponent;
    uint64_t whole, fraction;

    if (fraction_bits < 64) {
        whole = n.significand >> fraction_bits;
        fraction = n.significand << (64 - fraction_bits);
    } else {
        whole = 0;
        fraction = fp_shift_right_jam(n.significand, fraction_bits - 64);
    }
    *inexact = fraction != 0;
    return whole + fp_rounds_up(rm, n.sign, whole & 1, fraction);
}

// The value modulo 2^64. A number of 2^63 or more that fits is an integer: truncation has served it already.
static FP_SOFTWARE uint64_t soft_to_integer(uint64_t bits, struct limits limits, unsigned rm, uint32_t *flags) {
    struct fp_number n = fp_unpack64(bits);
    if (n.class == FP_CLASS_ZERO)
        return 0;
    if (n.class != FP_CLASS_FINITE || n.exponent > 62)
        return saturate(n, limits, flags);
    bool inexact;
    uint64_t magnitude = round_to_integer(n, rm, &inexact);
    if (magnitude > (n.sign ? limits.negative : limits.positive))
        return saturate(n, limits, flags);
    if (inexact)
        *flags |= FP_NX;
    return with_sign(n.sign, magnitude);
}

// Whether truncating x gave whole's value and that is the rounded result with no new flag.
static bool truncation_serves(double x, double whole, unsigned rm, uint32_t flags) {
    return x == whole || (rm == FP_RTZ && flags & FP_NX);
}

int64_t f64_to_i32(uint64_t a, unsigned rm, uint32_t *flags) {
    double x = f64_value(a);
    if (x > -0x1p31 && x < 0x1p31 && truncation_serves(x, (int32_t)x, rm, *flags))
        return (int32_t)x;
    return (int64_t)soft_to_integer(a, limits_i32, rm, flags);
}

int64_t f64_to_u32(uint64_t a, unsigned rm, uint32_t *flags) {
    double x = f64_value(a);
    if (x >= 0 && x < 0x1p32 && truncation_serves(x, (uint32_t)x, rm, *flags))
        return (int32_t)(uint32_t)x;
    return (int32_t)soft_to_integer(a, limits_u32, rm, flags);
}

int64_t f64_to_i64(uint64_t a, unsigned rm, uint32_t *flags) {
    double x = f64_value(a);
    if (x >= -0x1p63 && x < 0x1p63 && truncation_serves(x, (double)(int64_t)x, rm, *flags))
        return (int64_t)x;
    return (int64_t)soft_to_integer(a, limits_i64, rm, flags);
}

uint64_t f64_to_u64(uint64_t a, unsigned rm, uint32_t *flags) {
    double x = f64_value(a);
    if (x >= 0 && x < 0x1p64 && truncation_serves(x, (double)(uint64_t)x, rm, *flags))
        return (uint64_t)x;
    return soft_to_integer(a, limits_u64, rm, flags);
}

// Widening is exact and keeps a NaN one, and all NaNs convert to the same integer.

static uint64_t widen(uint32_t a) {
    return f64_bits((double)f32_value(a));
}

int64_t f32_to_i32(uint32_t a, unsigned rm, uint32_t *flags) {
    return f64_to_i32(widen(a), rm, flags);
}

int64_t f32_to_u32(uint32_t a, unsigned rm, uint32_t *flags) {
    return f64_to_u32(widen(a), rm, flags);
}

int64_t f32_to_i64(uint32_t a, unsigned rm, uint32_t *flags) {
    return f64_to_i64(widen(a), rm, flags);
}

uint64_t f32_to_u64(uint32_t a, unsigned rm, uint32_t *flags) {
    return f64_to_u64(widen(a), rm, flags);
}

// From integers --------------------------------------------------------------------------------------------------

static struct fp_number from_magnitude(bool sign, uint64_t magnitude) {
    if (magnitude == 0)
        return fp_zero(false);
    int leading_zeros = __builtin_clzll(magnitude);
    return fp_finite(sign, 63 - leading_zeros, magnitude << leading_zeros);
}

static FP_SOFTWARE uint32_t soft_to_f32(bool sign, uint64_t magnitude, unsigned rm, uint32_t *flags) {
    return fp_round32(from_magnitude(sign, magnitude), rm, flags);
}

static FP_SOFTWARE uint64_t soft_to_f64(bool sign, uint64_t magnitude, unsigned rm, uint32_t *flags) {
    return fp_round64(from_magnitude(sign, magnitude), rm, flags);
}

static bool fits_bits(int64_t a, int bits) {
    return a >= -(1ll << bits) && a <= 1ll << bits;
}

uint32_t i64_to_f32(int64_t a, unsigned rm, uint32_t *flags) {
    if (fits_bits(a, 24) || (rm == FP_RNE && *flags & FP_NX))
        return f32_bits((float)a);
    return soft_to_f32(a < 0, with_sign(a < 0, (uint64_t)a), rm, flags);
}

uint32_t u64_to_f32(uint64_t a, unsigned rm, uint32_t *flags) {
    if (a <= 1ull << 24 || (rm == FP_RNE && *flags & FP_NX))
        return f32_bits((float)a);
    return soft_to_f32(false, a, rm, flags);
}

uint32_t i32_to_f32(int32_t a, unsigned rm, uint32_t *flags) {
    return i64_to_f32(a, rm, flags);
}

uint32_t u32_to_f32(uint32_t a, unsigned rm, uint32_t *flags) {
    return i64_to_f32(a, rm, flags);
}

uint64_t i32_to_f64(int32_t a) {
    return f64_bits((double)a);
}

uint64_t u32_to_f64(uint32_t a) {
    return f64_bits((double)a);
}

uint64_t i64_to_f64(int64_t a, unsigned rm, uint32_t *flags) {
    if (fits_bits(a, 53) || (rm == FP_RNE && *flags & FP_NX))
        return f64_bits((double)a);
    return soft_to_f64(a < 0, with_sign(a < 0, (uint64_t)a), rm, flags);
}

uint64_t u64_to_f64(uint64_t a, unsigned rm, uint32_t *flags) {
    if (a <= 1ull << 53 || (rm == FP_RNE && *flags & FP_NX))
        return f64_bits((double)a);
    return soft_to_f64(false, a, rm, flags);
}
