// What the SIMD and floating-point groups share.
#ifndef AGENTVM_SIMD_H
#define AGENTVM_SIMD_H

#include "hart.h"

// fp_enabled raises the exception by which a kernel hears of the first use of the registers, and is false then (CPACR_EL1.FPEN).
static inline bool fp_enabled(void) {
    unsigned enabled = hart.cpacr >> 20 & 3;
    if (enabled == 3 || (enabled == 1 && hart.el == 1)) return true;
    return raise(SYNDROME(EC_FP, 1u << 24 | 0xe << 20), 0);
}

// lane reads a vector's element of 1 << log bytes.
static inline uint64_t lane(const uint64_t *v, unsigned log, unsigned i) {
    const uint8_t *at = (const uint8_t *)v + (i << log);
    switch (log) {
    case 0: return *at;
    case 1: return *(const uint16_t *)(const void *)at;
    case 2: return *(const uint32_t *)(const void *)at;
    default: return *(const uint64_t *)(const void *)at;
    }
}

static inline void set_lane(uint64_t *v, unsigned log, unsigned i, uint64_t value) {
    uint8_t *at = (uint8_t *)v + (i << log);
    switch (log) {
    case 0: *at = (uint8_t)value; break;
    case 1: *(uint16_t *)(void *)at = (uint16_t)value; break;
    case 2: *(uint32_t *)(void *)at = (uint32_t)value; break;
    default: *(uint64_t *)(void *)at = value; break;
    }
}

static inline bool is_scalar(uint32_t w) { return w >> 28 & 1; }
static inline bool is_full(uint32_t w) { return w >> 30 & 1; }
static inline unsigned lanes_of(uint32_t w, unsigned log) { return is_scalar(w) ? 1 : (is_full(w) ? 16u : 8u) >> log; }

// finish_vector gives the destination a result that was made aside.
static inline void finish_vector(uint32_t w, const uint64_t *result) {
    hart.v[rd_of(w)][0] = result[0];
    hart.v[rd_of(w)][1] = result[1];
}

#endif
