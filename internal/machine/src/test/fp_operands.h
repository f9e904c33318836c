// Operands that reach the corners: edge values, numbers near each other or near what makes a product, quotient or
// fused sum hard to round, and random ones.
#ifndef AGENTVM_TEST_FP_OPERANDS_H
#define AGENTVM_TEST_FP_OPERANDS_H

#include "fp_vectors.h"

struct fp_format {
    int precision, exponent_bits;
};

extern const struct fp_format fp_binary32, fp_binary64;

// SplitMix64: one word of state, good enough and reproducible.
uint64_t fp_random(uint64_t *state);

// The edge values of a format are numbered from 0: both signs of special fractions in special binades.
unsigned fp_edge_count(void);
uint64_t fp_edge(struct fp_format f, unsigned index);

// Fills a, b and c with operands fit for v->operation.
void fp_random_operands(struct fp_vector *v, uint64_t *state);

#endif
