// What the floating-point files share: the working form of a number between unpacking and rounding, and the
// conversions between bit patterns and the compiler's own float and double. Included by fp_*.c only.
#ifndef AGENTVM_FP_INTERNAL_H
#define AGENTVM_FP_INTERNAL_H

#include "fp.h"

#define F32_SIGN 0x80000000u
#define F64_SIGN 0x8000000000000000ull

enum fp_class { FP_CLASS_ZERO, FP_CLASS_FINITE, FP_CLASS_INFINITY, FP_CLASS_QUIET_NAN, FP_CLASS_SIGNALLING_NAN };

// A number of either format. FINITE means (-1)^sign * significand * 2^(exponent - 63) with bit 63 of the significand
// set, so that one significand holds binary64's 53 bits and 11 more for rounding. Operands are exact; in a result
// bit 0 may stand for everything below it ("jammed"), which is all that rounding has to know.
struct fp_number {
    uint64_t significand;
    int32_t exponent;
    enum fp_class class;
    bool sign;
};

// Put on the software half of an operation: inlined, it would make the fast half set up a stack frame.
#define FP_SOFTWARE __attribute__((noinline))

static inline struct fp_number fp_zero(bool sign) {
    return (struct fp_number){.class = FP_CLASS_ZERO, .sign = sign};
}

static inline struct fp_number fp_infinity(bool sign) {
    return (struct fp_number){.class = FP_CLASS_INFINITY, .sign = sign};
}

static inline struct fp_number fp_finite(bool sign, int32_t exponent, uint64_t significand) {
    return (struct fp_number){significand, exponent, FP_CLASS_FINITE, sign};
}

static inline struct fp_number fp_invalid(uint32_t *flags) {
    *flags |= FP_NV;
    return (struct fp_number){.class = FP_CLASS_QUIET_NAN};
}

static inline bool fp_is_nan(struct fp_number n) {
    return n.class >= FP_CLASS_QUIET_NAN;
}

// The result of an operation on at least one NaN: payloads never travel in RISC-V, only signalling ones are noted.
static inline struct fp_number fp_nan_of(struct fp_number a, struct fp_number b, uint32_t *flags) {
    if (a.class == FP_CLASS_SIGNALLING_NAN || b.class == FP_CLASS_SIGNALLING_NAN)
        *flags |= FP_NV;
    return (struct fp_number){.class = FP_CLASS_QUIET_NAN};
}

// Unpacks an encoding whose sign is bit 63 and whose exponent field follows it, whatever its width.
static inline struct fp_number fp_unpack(uint64_t bits, int exponent_bits) {
    const int32_t max_field = (1 << exponent_bits) - 1, bias = max_field >> 1;
    int32_t field = (int32_t)(bits << 1 >> (64 - exponent_bits));
    uint64_t fraction = bits << (1 + exponent_bits);
    bool sign = bits >> 63;

    if (field == max_field && fraction != 0)
        return (struct fp_number){.class = fraction >> 63 ? FP_CLASS_QUIET_NAN : FP_CLASS_SIGNALLING_NAN};
    if (field == max_field)
        return fp_infinity(sign);
    if (field != 0)
        return fp_finite(sign, field - bias, 1ull << 63 | fraction >> 1);
    if (fraction == 0)
        return fp_zero(sign);
    int leading_zeros = __builtin_clzll(fraction);
    return fp_finite(sign, -bias - leading_zeros, fraction << leading_zeros);
}

static inline struct fp_number fp_unpack32(uint32_t bits) {
    return fp_unpack((uint64_t)bits << 32, 8);
}

static inline struct fp_number fp_unpack64(uint64_t bits) {
    return fp_unpack(bits, 11);
}

// Whether rounding goes away from zero, given the discarded part left-justified: its bit 63 weighs half a unit.
static inline bool fp_rounds_up(unsigned rm, bool sign, bool odd, uint64_t discarded) {
    const uint64_t half = 1ull << 63;
    switch (rm) {
    case FP_RNE:
        return discarded > half || (discarded == half && odd);
    case FP_RTZ:
        return false;
    case FP_RDN:
        return sign && discarded != 0;
    case FP_RUP:
        return !sign && discarded != 0;
    default: // FP_RMM
        return discarded >= half;
    }
}

// Shifts right, keeping a nonzero discarded part visible in bit 0.
static inline uint64_t fp_shift_right_jam(uint64_t value, int32_t count) {
    if (count == 0)
        return value;
    if (count > 63)
        return value != 0;
    return value >> count | (value << (64 - count) != 0);
}

// Rounds to the format and encodes, raising NX, UF and OF. In fp_round.c.
uint32_t fp_round32(struct fp_number n, unsigned rm, uint32_t *flags);
uint64_t fp_round64(struct fp_number n, unsigned rm, uint32_t *flags);

static inline uint32_t f32_bits(float value) {
    union {
        float value;
        uint32_t bits;
    } pun = {.value = value};
    return pun.bits;
}

static inline uint64_t f64_bits(double value) {
    union {
        double value;
        uint64_t bits;
    } pun = {.value = value};
    return pun.bits;
}

// The fast paths' conditions on a result of the host's round-to-nearest-even operation (docs/internals/machine.md).

static inline bool f32_is_finite(uint32_t bits) {
    return (bits >> 23 & 0xff) != 0xff;
}

static inline bool f64_is_finite(uint64_t bits) {
    return (bits >> 52 & 0x7ff) != 0x7ff;
}

// Finite and at least twice the smallest normal number: such a result raises at most NX. The smallest normal number
// itself is left out because a tiny value may have been rounded up to it, which raises UF.
static inline bool f32_is_safely_normal(uint32_t bits) {
    return (bits >> 23 & 0xff) - 2 < 0xfd;
}

static inline bool f64_is_safely_normal(uint64_t bits) {
    return (bits >> 52 & 0x7ff) - 2 < 0x7fd;
}

// a + b - sum, exactly, where sum is a + b rounded to nearest (Knuth's TwoSum); not a number if a step overflows.
static inline double f64_sum_error(double a, double b, double sum) {
    double b_part = sum - a, a_part = sum - b_part;
    return (a - a_part) + (b - b_part);
}

static inline float f32_sum_error(float a, float b, float sum) {
    float b_part = sum - a, a_part = sum - b_part;
    return (a - a_part) + (b - b_part);
}

#endif
