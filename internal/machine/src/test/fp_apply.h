// Calls fp.h's functions by the numbers of fp_vectors.h.
#ifndef AGENTVM_TEST_FP_APPLY_H
#define AGENTVM_TEST_FP_APPLY_H

#include "fp_vectors.h"

extern const char *const fp_operation_names[FP_OPERATION_COUNT];

// What the function gives when fflags hold `accrued` before; the outcome's flags include them.
struct fp_outcome fp_apply(const struct fp_vector *v, uint32_t accrued);

#endif
