// The floating-point functions as a WebAssembly module of their own, so that the test runs what the machine runs: the
// host writes records at `vectors`, calls `execute` and reads records at `outcomes`.
#include "fp_apply.h"

enum { BATCH = 4096 };

static struct fp_vector batch[BATCH];
static struct fp_outcome results[BATCH];

__attribute__((export_name("vectors"))) struct fp_vector *vectors(void) {
    return batch;
}

__attribute__((export_name("outcomes"))) struct fp_outcome *outcomes(void) {
    return results;
}

// `accrued` is what fflags hold before each record.
__attribute__((export_name("execute"))) void execute(uint32_t count, uint32_t accrued) {
    for (uint32_t i = 0; i < count && i < BATCH; i++)
        results[i] = fp_apply(&batch[i], accrued);
}
