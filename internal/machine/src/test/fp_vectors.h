// The floating-point operations under test and the records that the generator, the RISC-V program and the checker
// exchange through files. Both sides are little-endian.
#ifndef AGENTVM_TEST_FP_VECTORS_H
#define AGENTVM_TEST_FP_VECTORS_H

#include <stdint.h>

struct fp_vector {
    uint32_t operation; // an enum fp_operation
    uint32_t rounding;  // as in frm
    uint64_t a, b, c;   // bit patterns or integers; binary32 in the low half
};

struct fp_outcome {
    uint64_t value;
    uint64_t flags;
};

// X(function of fp.h, its signature, kind of operand, RISC-V instruction, kind of result). The kinds are S and D for
// the formats and R for an integer register; the instruction finds its operands in ft0, ft1, ft2 or %[a] and leaves
// its result in ft0 or %[value].
#define FP_OPERATIONS(X)                                                \
    X(f32_add, BINARY, S, "fadd.s ft0, ft0, ft1", S)                    \
    X(f32_sub, BINARY, S, "fsub.s ft0, ft0, ft1", S)                    \
    X(f32_mul, BINARY, S, "fmul.s ft0, ft0, ft1", S)                    \
    X(f32_div, BINARY, S, "fdiv.s ft0, ft0, ft1", S)                    \
    X(f32_sqrt, UNARY, S, "fsqrt.s ft0, ft0", S)                        \
    X(f32_fma, TERNARY, S, "fmadd.s ft0, ft0, ft1, ft2", S)             \
    X(f64_add, BINARY, D, "fadd.d ft0, ft0, ft1", D)                    \
    X(f64_sub, BINARY, D, "fsub.d ft0, ft0, ft1", D)                    \
    X(f64_mul, BINARY, D, "fmul.d ft0, ft0, ft1", D)                    \
    X(f64_div, BINARY, D, "fdiv.d ft0, ft0, ft1", D)                    \
    X(f64_sqrt, UNARY, D, "fsqrt.d ft0, ft0", D)                        \
    X(f64_fma, TERNARY, D, "fmadd.d ft0, ft0, ft1, ft2", D)             \
    X(f32_eq, BINARY_UNROUNDED, S, "feq.s %[value], ft0, ft1", R)       \
    X(f32_lt, BINARY_UNROUNDED, S, "flt.s %[value], ft0, ft1", R)       \
    X(f32_le, BINARY_UNROUNDED, S, "fle.s %[value], ft0, ft1", R)       \
    X(f64_eq, BINARY_UNROUNDED, D, "feq.d %[value], ft0, ft1", R)       \
    X(f64_lt, BINARY_UNROUNDED, D, "flt.d %[value], ft0, ft1", R)       \
    X(f64_le, BINARY_UNROUNDED, D, "fle.d %[value], ft0, ft1", R)       \
    X(f32_min, BINARY_UNROUNDED, S, "fmin.s ft0, ft0, ft1", S)          \
    X(f32_max, BINARY_UNROUNDED, S, "fmax.s ft0, ft0, ft1", S)          \
    X(f64_min, BINARY_UNROUNDED, D, "fmin.d ft0, ft0, ft1", D)          \
    X(f64_max, BINARY_UNROUNDED, D, "fmax.d ft0, ft0, ft1", D)          \
    X(f32_classify, UNARY_EXACT, S, "fclass.s %[value], ft0", R)        \
    X(f64_classify, UNARY_EXACT, D, "fclass.d %[value], ft0", R)        \
    X(f32_to_f64, UNARY_UNROUNDED, S, "fcvt.d.s ft0, ft0", D)           \
    X(f64_to_f32, UNARY, D, "fcvt.s.d ft0, ft0", S)                     \
    X(f32_to_i32, UNARY, S, "fcvt.w.s %[value], ft0", R)                \
    X(f32_to_u32, UNARY, S, "fcvt.wu.s %[value], ft0", R)               \
    X(f32_to_i64, UNARY, S, "fcvt.l.s %[value], ft0", R)                \
    X(f32_to_u64, UNARY, S, "fcvt.lu.s %[value], ft0", R)               \
    X(f64_to_i32, UNARY, D, "fcvt.w.d %[value], ft0", R)                \
    X(f64_to_u32, UNARY, D, "fcvt.wu.d %[value], ft0", R)               \
    X(f64_to_i64, UNARY, D, "fcvt.l.d %[value], ft0", R)                \
    X(f64_to_u64, UNARY, D, "fcvt.lu.d %[value], ft0", R)               \
    X(i32_to_f32, UNARY, R, "fcvt.s.w ft0, %[a]", S)                    \
    X(u32_to_f32, UNARY, R, "fcvt.s.wu ft0, %[a]", S)                   \
    X(i64_to_f32, UNARY, R, "fcvt.s.l ft0, %[a]", S)                    \
    X(u64_to_f32, UNARY, R, "fcvt.s.lu ft0, %[a]", S)                   \
    X(i32_to_f64, UNARY_EXACT, R, "fcvt.d.w ft0, %[a]", D)              \
    X(u32_to_f64, UNARY_EXACT, R, "fcvt.d.wu ft0, %[a]", D)             \
    X(i64_to_f64, UNARY, R, "fcvt.d.l ft0, %[a]", D)                    \
    X(u64_to_f64, UNARY, R, "fcvt.d.lu ft0, %[a]", D)

enum fp_operation {
#define FP_ENUMERATE(function, ...) OP_##function,
    FP_OPERATIONS(FP_ENUMERATE)
#undef FP_ENUMERATE
        FP_OPERATION_COUNT
};

enum { FP_ROUNDING_COUNT = 5 };

#endif
