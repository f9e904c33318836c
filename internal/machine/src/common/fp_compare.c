// FMIN, FMAX and FCLASS: integer work on the bit patterns. FEQ, FLT and FLE are inline in fp.h.
#include "fp_internal.h"

static bool f32_is_nan(uint32_t a) {
    return (a & ~F32_SIGN) > 0x7f800000u;
}

static bool f64_is_nan(uint64_t a) {
    return (a & ~F64_SIGN) > 0x7ff0000000000000ull;
}

static bool f32_is_signalling(uint32_t a) {
    return f32_is_nan(a) && (a & 0x400000u) == 0;
}

static bool f64_is_signalling(uint64_t a) {
    return f64_is_nan(a) && (a & 0x8000000000000ull) == 0;
}

// The order in which -0 is below +0, for numbers.

static bool f32_below(uint32_t a, uint32_t b) {
    return a & F32_SIGN ? a > b : (b & F32_SIGN) == 0 && a < b;
}

static bool f64_below(uint64_t a, uint64_t b) {
    return a & F64_SIGN ? a > b : (b & F64_SIGN) == 0 && a < b;
}

// minimumNumber and maximumNumber of IEEE 754-2019: a number wins over a NaN.

static uint32_t f32_select(uint32_t a, uint32_t b, bool want_a, uint32_t *flags) {
    if (f32_is_signalling(a) || f32_is_signalling(b))
        *flags |= FP_NV;
    if (f32_is_nan(a))
        return f32_is_nan(b) ? F32_CANONICAL_NAN : b;
    return want_a || f32_is_nan(b) ? a : b;
}

static uint64_t f64_select(uint64_t a, uint64_t b, bool want_a, uint32_t *flags) {
    if (f64_is_signalling(a) || f64_is_signalling(b))
        *flags |= FP_NV;
    if (f64_is_nan(a))
        return f64_is_nan(b) ? F64_CANONICAL_NAN : b;
    return want_a || f64_is_nan(b) ? a : b;
}

uint32_t f32_min(uint32_t a, uint32_t b, uint32_t *flags) {
    return f32_select(a, b, f32_below(a, b), flags);
}

uint32_t f32_max(uint32_t a, uint32_t b, uint32_t *flags) {
    return f32_select(a, b, f32_below(b, a), flags);
}

uint64_t f64_min(uint64_t a, uint64_t b, uint32_t *flags) {
    return f64_select(a, b, f64_below(a, b), flags);
}

uint64_t f64_max(uint64_t a, uint64_t b, uint32_t *flags) {
    return f64_select(a, b, f64_below(b, a), flags);
}

// The FCLASS mask: negative infinity, normal, subnormal and zero are bits 0 to 3, the positive ones mirror them in
// bits 7 to 4, signalling and quiet NaN are 8 and 9.
static uint32_t class_mask(bool sign, unsigned magnitude_class) {
    return 1u << (sign ? magnitude_class : 7 - magnitude_class);
}

static unsigned magnitude_class(bool infinite, bool normal, bool zero) {
    return infinite ? 0 : normal ? 1 : zero ? 3 : 2;
}

uint32_t f32_classify(uint32_t a) {
    uint32_t magnitude = a & ~F32_SIGN;
    if (f32_is_nan(a))
        return f32_is_signalling(a) ? 1u << 8 : 1u << 9;
    return class_mask(a >> 31, magnitude_class(magnitude == 0x7f800000u, magnitude >= 0x800000u, magnitude == 0));
}

uint32_t f64_classify(uint64_t a) {
    uint64_t magnitude = a & ~F64_SIGN;
    if (f64_is_nan(a))
        return f64_is_signalling(a) ? 1u << 8 : 1u << 9;
    bool infinite = magnitude == 0x7ff0000000000000ull;
    return class_mask(a >> 63, magnitude_class(infinite, magnitude >= 0x10000000000000ull, magnitude == 0));
}
