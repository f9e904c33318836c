// IEEE 754-2019 binary32 and binary64 arithmetic as the RISC-V F and D extensions define it (The RISC-V Instruction
// Set Manual, volume I, chapters "F" and "D"): bit-exact results, canonical NaNs, accrued exception flags,
// tininess detected after rounding. Values travel as their bit patterns; NaN boxing is the caller's business.
#ifndef AGENTVM_FP_H
#define AGENTVM_FP_H

#include <stdbool.h>
#include <stdint.h>

// Rounding modes, as encoded in frm and in an instruction's rm field.
enum { FP_RNE = 0, FP_RTZ = 1, FP_RDN = 2, FP_RUP = 3, FP_RMM = 4 };

// Exception flags, as in fflags.
enum { FP_NX = 1, FP_UF = 2, FP_OF = 4, FP_DZ = 8, FP_NV = 16 };

#define F32_CANONICAL_NAN 0x7fc00000u
#define F64_CANONICAL_NAN 0x7ff8000000000000ull

// Each function ORs the exceptions it raises into *flags, which on entry holds the accrued fflags: an implementation
// may take a faster path when FP_NX is already set, because inexactness then needs no detection. rm must be one of the
// five modes: the caller has resolved DYN and refused the reserved ones.

uint32_t f32_add(uint32_t a, uint32_t b, unsigned rm, uint32_t *flags);
uint32_t f32_sub(uint32_t a, uint32_t b, unsigned rm, uint32_t *flags);
uint32_t f32_mul(uint32_t a, uint32_t b, unsigned rm, uint32_t *flags);
uint32_t f32_div(uint32_t a, uint32_t b, unsigned rm, uint32_t *flags);
uint32_t f32_sqrt(uint32_t a, unsigned rm, uint32_t *flags);
uint32_t f32_fma(uint32_t a, uint32_t b, uint32_t c, unsigned rm, uint32_t *flags); // a*b+c, rounded once
uint32_t f32_min(uint32_t a, uint32_t b, uint32_t *flags);                          // IEEE 754-2019 minimumNumber
uint32_t f32_max(uint32_t a, uint32_t b, uint32_t *flags);
uint32_t f32_classify(uint32_t a);                    // FCLASS.S mask

uint64_t f64_add(uint64_t a, uint64_t b, unsigned rm, uint32_t *flags);
uint64_t f64_sub(uint64_t a, uint64_t b, unsigned rm, uint32_t *flags);
uint64_t f64_mul(uint64_t a, uint64_t b, unsigned rm, uint32_t *flags);
uint64_t f64_div(uint64_t a, uint64_t b, unsigned rm, uint32_t *flags);
uint64_t f64_sqrt(uint64_t a, unsigned rm, uint32_t *flags);
uint64_t f64_fma(uint64_t a, uint64_t b, uint64_t c, unsigned rm, uint32_t *flags);
uint64_t f64_min(uint64_t a, uint64_t b, uint32_t *flags);
uint64_t f64_max(uint64_t a, uint64_t b, uint32_t *flags);
uint32_t f64_classify(uint64_t a);

uint64_t f32_to_f64(uint32_t a, uint32_t *flags);
uint32_t f64_to_f32(uint64_t a, unsigned rm, uint32_t *flags);

// Conversions to integers saturate as FCVT.{W,WU,L,LU} do and raise FP_NV then; the 32-bit forms return the value
// as the register holds it: sign-extended to 64 bits, FCVT.WU too.
int64_t f32_to_i32(uint32_t a, unsigned rm, uint32_t *flags);
int64_t f32_to_u32(uint32_t a, unsigned rm, uint32_t *flags);
int64_t f32_to_i64(uint32_t a, unsigned rm, uint32_t *flags);
uint64_t f32_to_u64(uint32_t a, unsigned rm, uint32_t *flags);
int64_t f64_to_i32(uint64_t a, unsigned rm, uint32_t *flags);
int64_t f64_to_u32(uint64_t a, unsigned rm, uint32_t *flags);
int64_t f64_to_i64(uint64_t a, unsigned rm, uint32_t *flags);
uint64_t f64_to_u64(uint64_t a, unsigned rm, uint32_t *flags);

uint32_t i32_to_f32(int32_t a, unsigned rm, uint32_t *flags);
uint32_t u32_to_f32(uint32_t a, unsigned rm, uint32_t *flags);
uint32_t i64_to_f32(int64_t a, unsigned rm, uint32_t *flags);
uint32_t u64_to_f32(uint64_t a, unsigned rm, uint32_t *flags);
uint64_t i32_to_f64(int32_t a); // always exact
uint64_t u32_to_f64(uint32_t a); // always exact
uint64_t i64_to_f64(int64_t a, unsigned rm, uint32_t *flags);
uint64_t u64_to_f64(uint64_t a, unsigned rm, uint32_t *flags);

// Comparisons are inline: they are short and the interpreter uses them a lot. The host's comparisons are exact, and
// false when an operand is a NaN. FLT and FLE raise NV for any NaN, FEQ for a signalling one.

static inline float f32_value(uint32_t bits) {
    union {
        uint32_t bits;
        float value;
    } pun = {.bits = bits};
    return pun.value;
}

static inline double f64_value(uint64_t bits) {
    union {
        uint64_t bits;
        double value;
    } pun = {.bits = bits};
    return pun.value;
}

static inline bool f32_eq(uint32_t a, uint32_t b, uint32_t *flags) {
    const uint32_t infinity = 0x7f800000u, quiet = 0x400000u, magnitude = 0x7fffffffu;
    if (((a & magnitude) > infinity && !(a & quiet)) || ((b & magnitude) > infinity && !(b & quiet)))
        *flags |= FP_NV;
    return f32_value(a) == f32_value(b);
}

static inline bool f32_lt(uint32_t a, uint32_t b, uint32_t *flags) {
    float x = f32_value(a), y = f32_value(b);
    if (x != x || y != y)
        *flags |= FP_NV;
    return x < y;
}

static inline bool f32_le(uint32_t a, uint32_t b, uint32_t *flags) {
    float x = f32_value(a), y = f32_value(b);
    if (x != x || y != y)
        *flags |= FP_NV;
    return x <= y;
}

static inline bool f64_eq(uint64_t a, uint64_t b, uint32_t *flags) {
    const uint64_t infinity = 0x7ff0000000000000ull, quiet = 0x8000000000000ull, magnitude = 0x7fffffffffffffffull;
    if (((a & magnitude) > infinity && !(a & quiet)) || ((b & magnitude) > infinity && !(b & quiet)))
        *flags |= FP_NV;
    return f64_value(a) == f64_value(b);
}

static inline bool f64_lt(uint64_t a, uint64_t b, uint32_t *flags) {
    double x = f64_value(a), y = f64_value(b);
    if (x != x || y != y)
        *flags |= FP_NV;
    return x < y;
}

static inline bool f64_le(uint64_t a, uint64_t b, uint32_t *flags) {
    double x = f64_value(a), y = f64_value(b);
    if (x != x || y != y)
        *flags |= FP_NV;
    return x <= y;
}

#endif
