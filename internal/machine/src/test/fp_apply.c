#include "fp_apply.h"

#include "../common/fp.h"

#define NAME(function, ...) #function,
const char *const fp_operation_names[FP_OPERATION_COUNT] = {FP_OPERATIONS(NAME)};

#define CALL_TERNARY(f) f(a, b, c, rm, &flags)
#define CALL_BINARY(f) f(a, b, rm, &flags)
#define CALL_BINARY_UNROUNDED(f) f(a, b, &flags)
#define CALL_UNARY(f) f(a, rm, &flags)
#define CALL_UNARY_UNROUNDED(f) f(a, &flags)
#define CALL_UNARY_EXACT(f) f(a)
#define APPLY(function, signature, ...)                 \
    case OP_##function:                                 \
        value = (uint64_t)CALL_##signature(function);   \
        break;

struct fp_outcome fp_apply(const struct fp_vector *v, uint32_t accrued) {
    const uint64_t a = v->a, b = v->b, c = v->c;
    const unsigned rm = v->rounding;
    uint32_t flags = accrued;
    uint64_t value = 0;

    switch (v->operation) {
        FP_OPERATIONS(APPLY)
    }
    return (struct fp_outcome){value, flags};
}
