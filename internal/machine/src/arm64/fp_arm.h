// Floating point as the Arm architecture has it, over the core of fp.h: which NaN comes out, flushing to zero, tininess before rounding, and the
// flags of FPSR. Values are bit patterns; `wide` says that they are of 64 bits and not of 32.
// Source: DDI 0487, the functions of J1.3 that are named beside each.
#ifndef AGENTVM_FP_ARM_H
#define AGENTVM_FP_ARM_H

#include "hart.h"

enum rounding { ROUND_NEAREST, ROUND_UP, ROUND_DOWN, ROUND_ZERO, ROUND_AWAY }; // the first four as FPCR.RMode has them; the last: ties away

enum rounding fp_rounding(void); // FPCR's

uint64_t fp_add(uint64_t a, uint64_t b, bool wide);
uint64_t fp_sub(uint64_t a, uint64_t b, bool wide);
uint64_t fp_mul(uint64_t a, uint64_t b, bool wide);
uint64_t fp_mulx(uint64_t a, uint64_t b, bool wide);
uint64_t fp_div(uint64_t a, uint64_t b, bool wide);
uint64_t fp_sqrt(uint64_t a, bool wide);
uint64_t fp_max(uint64_t a, uint64_t b, bool wide);
uint64_t fp_min(uint64_t a, uint64_t b, bool wide);
uint64_t fp_maxnm(uint64_t a, uint64_t b, bool wide);
uint64_t fp_minnm(uint64_t a, uint64_t b, bool wide);
uint64_t fp_muladd(uint64_t addend, uint64_t a, uint64_t b, bool wide); // addend + a * b, rounded once
uint64_t fp_recip_step(uint64_t a, uint64_t b, bool wide);              // FPRecipStepFused: 2 - a * b
uint64_t fp_rsqrt_step(uint64_t a, uint64_t b, bool wide);              // FPRSqrtStepFused: (3 - a * b) / 2
uint64_t fp_recip_estimate(uint64_t a, bool wide);
uint64_t fp_rsqrt_estimate(uint64_t a, bool wide);
uint64_t fp_recpx(uint64_t a, bool wide);
uint32_t unsigned_recip_estimate(uint32_t a);
uint32_t unsigned_rsqrt_estimate(uint32_t a);

uint64_t fp_neg(uint64_t a, bool wide);
uint64_t fp_abs(uint64_t a, bool wide);

uint64_t fp_compare(uint64_t a, uint64_t b, bool signals, bool wide); // NZCV at the places of PSTATE
bool fp_equal(uint64_t a, uint64_t b, bool wide);
bool fp_greater(uint64_t a, uint64_t b, bool wide);
bool fp_greater_or_equal(uint64_t a, uint64_t b, bool wide);

uint64_t fp_round_int(uint64_t a, enum rounding rounding, bool exact, bool wide); // exact: Inexact is raised
uint64_t fp_to_int(uint64_t a, unsigned fraction, bool is_unsigned, enum rounding rounding, bool wide, bool to_wide);
uint64_t fp_from_int(uint64_t a, unsigned fraction, bool is_unsigned, bool wide, bool from_wide);
uint64_t fp_widen(uint64_t a);  // 32 bits to 64
uint64_t fp_narrow(uint64_t a); // 64 bits to 32
uint64_t fp_narrow_odd(uint64_t a); // the same, rounded to odd: FCVTXN
uint64_t fp_from_half(uint64_t a, bool wide);
uint64_t fp_to_half(uint64_t a, bool wide);
uint64_t fp_immediate(unsigned imm8, bool wide); // VFPExpandImm

#endif
