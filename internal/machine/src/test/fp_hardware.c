#include "fp_hardware.h"

#if !defined(__x86_64__)

bool fp_execute_on_hardware(const struct fp_vector *v, struct fp_outcome *out) {
    (void)v;
    (void)out;
    return false;
}

#else

#include "../common/fp.h"

enum { MXCSR_INVALID = 1, MXCSR_DIVIDE = 4, MXCSR_OVERFLOW = 8, MXCSR_UNDERFLOW = 16, MXCSR_PRECISION = 32 };
enum { MXCSR_DEFAULT = 0x1f80, MXCSR_ROUNDING_SHIFT = 13 };

static const uint32_t mxcsr_default = MXCSR_DEFAULT;

static uint32_t mxcsr_for(uint32_t rounding) {
    const uint32_t modes[] = {[FP_RNE] = 0, [FP_RDN] = 1, [FP_RUP] = 2, [FP_RTZ] = 3};
    return MXCSR_DEFAULT | modes[rounding] << MXCSR_ROUNDING_SHIFT;
}

static uint32_t fflags_of(uint32_t status) {
    return (status & MXCSR_INVALID ? FP_NV : 0) | (status & MXCSR_DIVIDE ? FP_DZ : 0) |
           (status & MXCSR_OVERFLOW ? FP_OF : 0) | (status & MXCSR_UNDERFLOW ? FP_UF : 0) |
           (status & MXCSR_PRECISION ? FP_NX : 0);
}

// Executes one instruction between setting and reading MXCSR, so that the compiler can move nothing in or out.
// `result` is its operand %[r] and holds `initial` before; first, second and third are %[x], %[y] and %[z].
#define RUN(instruction, result_in, result, initial, first_in, first, second, third)                     \
    do {                                                                                                 \
        const uint32_t control = mxcsr_for(v->rounding);                                                 \
        result = initial;                                                                                \
        __asm__ volatile("ldmxcsr %[control]\n" instruction "\nstmxcsr %[status]\nldmxcsr %[usual]"      \
                         : [r] "+" result_in(result), [status] "=m"(status)                              \
                         : [x] first_in(first), [y] "x"(second), [z] "x"(third), [control] "m"(control), \
                           [usual] "m"(mxcsr_default));                                                  \
    } while (0)

union value32 {
    uint32_t bits;
    float value;
};

union value64 {
    uint64_t bits;
    double value;
};

static uint64_t canonical32(union value32 u) {
    return u.value != u.value ? F32_CANONICAL_NAN : u.bits;
}

static uint64_t canonical64(union value64 u) {
    return u.value != u.value ? F64_CANONICAL_NAN : u.bits;
}

#define ARITHMETIC32(function, instruction, initial)                   \
    case OP_##function:                                                \
        RUN(instruction, "x", r32.value, initial, "x", x, y, z);       \
        out->value = canonical32(r32);                                 \
        break;
#define ARITHMETIC64(function, instruction, initial)                   \
    case OP_##function:                                                \
        RUN(instruction, "x", r64.value, initial, "x", p, q, s);       \
        out->value = canonical64(r64);                                 \
        break;
#define CONVERSION(function, instruction, result, operand, canonical)  \
    case OP_##function:                                                \
        RUN(instruction, "x", result.value, 0, "x", operand, q, s);    \
        out->value = canonical(result);                                \
        break;
#define TO_INTEGER(function, instruction, type, operand)               \
    case OP_##function: {                                              \
        type integer;                                                  \
        RUN(instruction, "r", integer, 0, "x", operand, q, s);         \
        out->value = (uint64_t)(int64_t)integer;                       \
        break;                                                         \
    }
#define FROM_INTEGER32(function, instruction, type)                    \
    case OP_##function:                                                \
        RUN(instruction, "x", r32.value, 0, "r", (type)v->a, y, z);    \
        out->value = r32.bits;                                         \
        break;
#define FROM_INTEGER64(function, instruction, type)                    \
    case OP_##function:                                                \
        RUN(instruction, "x", r64.value, 0, "r", (type)v->a, q, s);    \
        out->value = r64.bits;                                         \
        break;
// Compares by flags: `set` is the SETcc for %[x] against %[y], and the parity flag means unordered.
#define COMPARE(function, instruction, first, second, set)                                                        \
    case OP_##function: {                                                                                \
        unsigned char truth, ordered;                                                                    \
        uint32_t control = mxcsr_for(v->rounding);                                                       \
        __asm__ volatile("ldmxcsr %[control]\n" instruction " %[y], %[x]\n" set " %[truth]\n"            \
                         "setnp %[ordered]\nstmxcsr %[status]\nldmxcsr %[usual]"                         \
                         : [truth] "=&q"(truth), [ordered] "=&q"(ordered), [status] "=m"(status)         \
                         : [x] "x"(first), [y] "x"(second), [control] "m"(control), [usual] "m"(mxcsr_default)    \
                         : "cc");                                                                        \
        out->value = truth & ordered;                                                                    \
        break;                                                                                           \
    }

static bool is_nan32(uint64_t bits) {
    return ((uint32_t)bits & 0x7fffffff) > 0x7f800000;
}

static bool is_nan64(uint64_t bits) {
    return (bits & ~(1ull << 63)) > 0x7ff0000000000000;
}

// x86 converts what does not fit to one special integer, and leaves inf * 0 + quiet NaN quiet.
static bool is_defined_otherwise(const struct fp_vector *v, uint32_t fflags) {
    switch (v->operation) {
    case OP_f32_to_i32:
    case OP_f32_to_i64:
    case OP_f64_to_i32:
    case OP_f64_to_i64:
        return fflags & FP_NV;
    case OP_f32_fma:
        return is_nan32(v->c);
    case OP_f64_fma:
        return is_nan64(v->c);
    default:
        return false;
    }
}

bool fp_execute_on_hardware(const struct fp_vector *v, struct fp_outcome *out) {
    union value32 r32 = {.bits = (uint32_t)v->a};
    union value64 r64 = {.bits = v->a};
    const float x = r32.value, y = (union value32){.bits = (uint32_t)v->b}.value,
                z = (union value32){.bits = (uint32_t)v->c}.value;
    const double p = r64.value, q = (union value64){.bits = v->b}.value, s = (union value64){.bits = v->c}.value;
    uint32_t status;

    if (v->rounding > FP_RUP)
        return false;
    if ((v->operation == OP_f32_fma || v->operation == OP_f64_fma) && !__builtin_cpu_supports("fma"))
        return false;
    switch (v->operation) {
        ARITHMETIC32(f32_add, "addss %[y], %[r]", x)
        ARITHMETIC32(f32_sub, "subss %[y], %[r]", x)
        ARITHMETIC32(f32_mul, "mulss %[y], %[r]", x)
        ARITHMETIC32(f32_div, "divss %[y], %[r]", x)
        ARITHMETIC32(f32_sqrt, "sqrtss %[x], %[r]", x)
        ARITHMETIC32(f32_fma, "vfmadd231ss %[y], %[x], %[r]", z)
        CONVERSION(f64_to_f32, "cvtsd2ss %[x], %[r]", r32, p, canonical32)
        ARITHMETIC64(f64_add, "addsd %[y], %[r]", p)
        ARITHMETIC64(f64_sub, "subsd %[y], %[r]", p)
        ARITHMETIC64(f64_mul, "mulsd %[y], %[r]", p)
        ARITHMETIC64(f64_div, "divsd %[y], %[r]", p)
        ARITHMETIC64(f64_sqrt, "sqrtsd %[x], %[r]", p)
        ARITHMETIC64(f64_fma, "vfmadd231sd %[y], %[x], %[r]", s)
        CONVERSION(f32_to_f64, "cvtss2sd %[x], %[r]", r64, x, canonical64)
        TO_INTEGER(f32_to_i32, "cvtss2si %[x], %[r]", int32_t, x)
        TO_INTEGER(f32_to_i64, "cvtss2si %[x], %[r]", int64_t, x)
        TO_INTEGER(f64_to_i32, "cvtsd2si %[x], %[r]", int32_t, p)
        TO_INTEGER(f64_to_i64, "cvtsd2si %[x], %[r]", int64_t, p)
        FROM_INTEGER32(i32_to_f32, "cvtsi2ss %[x], %[r]", int32_t)
        FROM_INTEGER32(i64_to_f32, "cvtsi2ss %[x], %[r]", int64_t)
        FROM_INTEGER64(i32_to_f64, "cvtsi2sd %[x], %[r]", int32_t)
        FROM_INTEGER64(i64_to_f64, "cvtsi2sd %[x], %[r]", int64_t)
        COMPARE(f32_eq, "ucomiss", x, y, "sete")
        COMPARE(f32_lt, "comiss", y, x, "seta")
        COMPARE(f32_le, "comiss", y, x, "setae")
        COMPARE(f64_eq, "ucomisd", p, q, "sete")
        COMPARE(f64_lt, "comisd", q, p, "seta")
        COMPARE(f64_le, "comisd", q, p, "setae")
    default:
        return false;
    }
    out->flags = fflags_of(status);
    return !is_defined_otherwise(v, fflags_of(status));
}

#endif
