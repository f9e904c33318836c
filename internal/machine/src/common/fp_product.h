// The exact product of two 64-bit significands, for fp_mul.c and fp_fma.c. Written out because __int128 would
// become a call to compiler-rt on wasm32.
#ifndef AGENTVM_FP_PRODUCT_H
#define AGENTVM_FP_PRODUCT_H

#include <stdint.h>

struct fp_uint128 {
    uint64_t high, low;
};

static inline struct fp_uint128 fp_multiply64(uint64_t a, uint64_t b) {
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t low = a0 * b0;
    uint64_t middle = a1 * b0 + (low >> 32);       // at most (2^32-1)^2 + 2^32-1: no carry out
    uint64_t other = a0 * b1 + (uint32_t)middle;   // the same bound
    return (struct fp_uint128){
        .high = a1 * b1 + (middle >> 32) + (other >> 32),
        .low = other << 32 | (uint32_t)low,
    };
}

#endif
