// Calls fp.h's functions by the numbers of fp_vectors.h.
#ifndef AGENTVM_TEST_FP_APPLY_H
#define AGENTVM_TEST_FP_APPLY_H

#include <stdbool.h>

#include "fp_vectors.h"

extern const char *const fp_operation_names[FP_OPERATION_COUNT];

// What the function gives when fflags hold `accrued` before; the outcome's flags include them.
struct fp_outcome fp_apply(const struct fp_vector *v, uint32_t accrued);

// Compares with a reference, with NX clear and with NX set before. Prints and returns false on the first difference.
bool fp_matches(const struct fp_vector *v, struct fp_outcome want, const char *reference);

#endif
