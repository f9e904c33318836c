#include "fp_apply.h"

#include <inttypes.h>
#include <stdio.h>

#include "../fp.h"

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

struct fp_outcome fp_apply(const struct fp_vector *v, uint32_t accrued)
{
    const uint64_t a = v->a, b = v->b, c = v->c;
    const unsigned rm = v->rounding;
    uint32_t flags = accrued;
    uint64_t value = 0;

    switch (v->operation) {
        FP_OPERATIONS(APPLY)
    }
    return (struct fp_outcome){value, flags};
}

static bool differs(const struct fp_vector *v, struct fp_outcome want, uint32_t accrued, const char *reference)
{
    struct fp_outcome got = fp_apply(v, accrued);
    want.flags |= accrued;
    if (got.value == want.value && got.flags == want.flags)
        return false;
    printf("%s rm=%" PRIu32 " a=%#" PRIx64 " b=%#" PRIx64 " c=%#" PRIx64 " fflags before=%#" PRIx32
           ": got %#" PRIx64 " fflags %#" PRIx64 ", %s says %#" PRIx64 " fflags %#" PRIx64 "\n",
           fp_operation_names[v->operation], v->rounding, v->a, v->b, v->c, accrued, got.value, got.flags, reference,
           want.value, want.flags);
    return true;
}

bool fp_matches(const struct fp_vector *v, struct fp_outcome want, const char *reference)
{
    return !differs(v, want, 0, reference) && !differs(v, want, FP_NX, reference);
}
