// Rounding and encoding: the one place where NX, UF and OF come from.
#include "fp_internal.h"

struct format {
    int exponent_bits;
    int precision; // significand bits with the implicit one
};

static inline uint64_t infinity_of(struct format f) {
    return ((1ull << f.exponent_bits) - 1) << (f.precision - 1);
}

// Overflow gives infinity, or the largest finite number in the modes that round toward zero on that side.
static inline uint64_t overflow(bool sign, struct format f, unsigned rm, uint32_t *flags) {
    bool to_finite = rm == FP_RTZ || rm == (sign ? FP_RUP : FP_RDN);
    *flags |= FP_OF | FP_NX;
    return infinity_of(f) - to_finite;
}

static inline uint64_t round_significand(bool sign, uint64_t significand, int precision, unsigned rm) {
    uint64_t kept = significand >> (64 - precision);
    return kept + fp_rounds_up(rm, sign, kept & 1, significand << precision);
}

// The magnitude's encoding. A number is tiny when it is below the smallest normal number after rounding to the
// format's precision with an unbounded exponent, so the last binade below needs that rounding tried first.
static inline uint64_t round_magnitude(struct fp_number n, struct format f, unsigned rm, uint32_t *flags) {
    const int32_t max_field = (1 << f.exponent_bits) - 1;
    int32_t field = n.exponent + (max_field >> 1);
    bool tiny = false;

    if (field < 1) {
        tiny = field < 0 || round_significand(n.sign, n.significand, f.precision, rm) >> f.precision == 0;
        n.significand = fp_shift_right_jam(n.significand, 1 - field);
        field = 1;
    }
    uint64_t kept = round_significand(n.sign, n.significand, f.precision, rm);
    // The implicit bit adds one to the exponent field; so does a carry out of the significand. No operation makes a
    // field of 4096, so one above the format's range is still seen as such.
    uint64_t encoded = ((uint64_t)(field - 1) << (f.precision - 1)) + kept;
    if (encoded >= infinity_of(f))
        return overflow(n.sign, f, rm, flags);
    if (n.significand << f.precision != 0)
        *flags |= tiny ? FP_NX | FP_UF : FP_NX;
    return encoded;
}

static inline uint64_t magnitude(struct fp_number n, struct format f, unsigned rm, uint32_t *flags) {
    if (n.class == FP_CLASS_FINITE)
        return round_magnitude(n, f, rm, flags);
    return n.class == FP_CLASS_ZERO ? 0 : infinity_of(f);
}

uint32_t fp_round32(struct fp_number n, unsigned rm, uint32_t *flags) {
    const struct format binary32 = {.exponent_bits = 8, .precision = 24};
    if (fp_is_nan(n))
        return F32_CANONICAL_NAN;
    return (uint32_t)n.sign << 31 | (uint32_t)magnitude(n, binary32, rm, flags);
}

uint64_t fp_round64(struct fp_number n, unsigned rm, uint32_t *flags) {
    const struct format binary64 = {.exponent_bits = 11, .precision = 53};
    if (fp_is_nan(n))
        return F64_CANONICAL_NAN;
    return (uint64_t)n.sign << 63 | magnitude(n, binary64, rm, flags);
}
