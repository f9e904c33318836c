// The reference on x86-64: SSE2 and FMA instructions under MXCSR's rounding modes. x86 detects tininess after
// rounding, as RISC-V does; it has no counterpart of RMM, minimumNumber and saturating conversions.
#ifndef AGENTVM_TEST_FP_HARDWARE_H
#define AGENTVM_TEST_FP_HARDWARE_H

#include <stdbool.h>

#include "fp_vectors.h"

// Executes v and translates the outcome to RISC-V's terms: canonical NaNs, fflags. Returns false where the processor
// has no instruction for it or defines another result.
bool fp_execute_on_hardware(const struct fp_vector *v, struct fp_outcome *out);

#endif
