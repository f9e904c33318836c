#include "fp_arm.h"
#include "fp.h"

enum { IOC = 1, DZC = 2, OFC = 4, UFC = 8, IXC = 16, IDC = 128 }; // of FPSR

// What a format looks like.
struct precision {
    unsigned fraction;
    uint64_t sign, infinity, quiet, minimum; // minimum: the least normal number
};

static const struct precision precisions[] = {
    {23, 1ull << 31, 0xffull << 23, 1ull << 22, 1ull << 23},
    {52, 1ull << 63, 0x7ffull << 52, 1ull << 51, 1ull << 52},
};

#define PRECISION(wide) const struct precision *f = &precisions[wide]

static uint64_t magnitude(uint64_t a, const struct precision *f) { return a & (f->sign - 1); }
static bool is_nan(uint64_t a, const struct precision *f) { return magnitude(a, f) > f->infinity; }
static bool is_signalling(uint64_t a, const struct precision *f) { return is_nan(a, f) && (a & f->quiet) == 0; }
static bool is_infinity(uint64_t a, const struct precision *f) { return magnitude(a, f) == f->infinity; }
static bool is_zero(uint64_t a, const struct precision *f) { return magnitude(a, f) == 0; }
static uint64_t default_nan(const struct precision *f) { return f->infinity | f->quiet; }

static bool flushing(void) { return (hart.fpcr & FPCR_FZ) != 0; }

static void accrue(uint32_t flags) { hart.fpsr |= flags; }

static void accrue_core(uint32_t flags) {
    accrue(((flags & FP_NX) ? IXC : 0) | ((flags & FP_UF) ? UFC : 0) | (flags & FP_OF) | ((flags & FP_DZ) ? DZC : 0) | ((flags & FP_NV) ? IOC : 0));
}

// operand is FPUnpack's part: denormal numbers count as zero while FZ is set.
static uint64_t operand(uint64_t a, const struct precision *f) {
    if (!flushing() || magnitude(a, f) == 0 || magnitude(a, f) >= f->minimum) return a;
    accrue(IDC);
    return a & f->sign;
}

// FPProcessNaN.
static uint64_t nan_result(uint64_t a, const struct precision *f) {
    if (is_signalling(a, f)) accrue(IOC);
    return (hart.fpcr & FPCR_DN) != 0 ? default_nan(f) : a | f->quiet;
}

// FPProcessNaNs3: a signalling NaN goes first. false: there is none.
static bool nan_of(const uint64_t *operands, unsigned count, uint64_t *result, const struct precision *f) {
    for (unsigned signalling = 2; signalling-- > 0;)
        for (unsigned i = 0; i < count; i++)
            if (is_nan(operands[i], f) && (signalling == 0 || is_signalling(operands[i], f))) {
                *result = nan_result(operands[i], f);
                return true;
            }
    return false;
}

enum rounding fp_rounding(void) { return (enum rounding)(hart.fpcr >> 22 & 3); }

static unsigned core_rounding(enum rounding r) {
    static const uint8_t core[] = {FP_RNE, FP_RUP, FP_RDN, FP_RTZ, FP_RMM};
    return core[r];
}

// Operations of the core, of both formats.
enum operation_kind { ADD, SUB, MUL, DIV, SQRT, FMA, NARROW };

static uint64_t core(enum operation_kind op, const uint64_t *o, unsigned rm, uint32_t *flags, bool wide) {
    if (wide) {
        switch (op) {
        case ADD: return f64_add(o[0], o[1], rm, flags);
        case SUB: return f64_sub(o[0], o[1], rm, flags);
        case MUL: return f64_mul(o[0], o[1], rm, flags);
        case DIV: return f64_div(o[0], o[1], rm, flags);
        case SQRT: return f64_sqrt(o[0], rm, flags);
        default: return f64_fma(o[0], o[1], o[2], rm, flags);
        }
    }
    uint32_t a = (uint32_t)o[0], b = (uint32_t)o[1];
    switch (op) {
    case ADD: return f32_add(a, b, rm, flags);
    case SUB: return f32_sub(a, b, rm, flags);
    case MUL: return f32_mul(a, b, rm, flags);
    case DIV: return f32_div(a, b, rm, flags);
    case SQRT: return f32_sqrt(a, rm, flags);
    case NARROW: return f64_to_f32(o[0], rm, flags);
    default: return f32_fma(a, b, (uint32_t)o[2], rm, flags);
    }
}

// computed does an operation of numbers and has its flags accrue. The core says Underflow for results that are tiny after rounding, Arm before:
// towards zero no result becomes normal by rounding (FPRound).
static uint64_t computed(enum operation_kind op, const uint64_t *o, enum rounding rounding, bool wide) {
    PRECISION(wide);
    uint32_t flags = 0;
    uint64_t result = core(op, o, core_rounding(rounding), &flags, wide);
    if (!is_zero(result, f) ? magnitude(result, f) <= f->minimum : (flags & FP_NX) != 0) {
        uint32_t unused = 0;
        bool tiny = magnitude(core(op, o, FP_RTZ, &unused, wide), f) < f->minimum;
        if (tiny && flushing()) {
            accrue(UFC);
            return result & f->sign;
        }
        if (tiny && (flags & FP_NX) != 0) flags |= FP_UF;
    }
    accrue_core(flags);
    return result;
}

static uint64_t binary(enum operation_kind op, uint64_t a, uint64_t b, bool wide) {
    PRECISION(wide);
    uint64_t o[3] = {operand(a, f), operand(b, f), 0}, nan;
    if (nan_of(o, 2, &nan, f)) return nan;
    return computed(op, o, fp_rounding(), wide);
}

uint64_t fp_add(uint64_t a, uint64_t b, bool wide) { return binary(ADD, a, b, wide); }
uint64_t fp_sub(uint64_t a, uint64_t b, bool wide) { return binary(SUB, a, b, wide); }
uint64_t fp_mul(uint64_t a, uint64_t b, bool wide) { return binary(MUL, a, b, wide); }
uint64_t fp_div(uint64_t a, uint64_t b, bool wide) { return binary(DIV, a, b, wide); }

// FPMulX: infinity times zero is two.
uint64_t fp_mulx(uint64_t a, uint64_t b, bool wide) {
    PRECISION(wide);
    uint64_t x = operand(a, f), y = operand(b, f);
    if ((is_infinity(x, f) && is_zero(y, f)) || (is_zero(x, f) && is_infinity(y, f))) return ((x ^ y) & f->sign) | (wide ? 0x4000000000000000ull : 0x40000000);
    return binary(MUL, a, b, wide);
}

uint64_t fp_sqrt(uint64_t a, bool wide) {
    PRECISION(wide);
    uint64_t o[3] = {operand(a, f), 0, 0}, nan;
    if (nan_of(o, 1, &nan, f)) return nan;
    return computed(SQRT, o, fp_rounding(), wide);
}

uint64_t fp_neg(uint64_t a, bool wide) { return a ^ precisions[wide].sign; }
uint64_t fp_abs(uint64_t a, bool wide) { return a & ~precisions[wide].sign; }

// less compares numbers.
static bool less(uint64_t a, uint64_t b, const struct precision *f) {
    bool a_negative = (a & f->sign) != 0, b_negative = (b & f->sign) != 0;
    if (is_zero(a, f) && is_zero(b, f)) return false;
    if (a_negative != b_negative) return a_negative;
    return a_negative ? magnitude(a, f) > magnitude(b, f) : magnitude(a, f) < magnitude(b, f);
}

// FPMax and FPMin.
static uint64_t extreme(uint64_t a, uint64_t b, bool maximum, bool wide) {
    PRECISION(wide);
    uint64_t o[2] = {operand(a, f), operand(b, f)}, nan;
    if (nan_of(o, 2, &nan, f)) return nan;
    if (is_zero(o[0], f) && is_zero(o[1], f)) return maximum ? o[0] & o[1] : o[0] | o[1];
    return less(o[0], o[1], f) == maximum ? o[1] : o[0];
}

uint64_t fp_max(uint64_t a, uint64_t b, bool wide) { return extreme(a, b, true, wide); }
uint64_t fp_min(uint64_t a, uint64_t b, bool wide) { return extreme(a, b, false, wide); }

// FPMaxNum and FPMinNum: a quiet NaN is no number, and the other operand is the result.
static uint64_t extreme_number(uint64_t a, uint64_t b, bool maximum, bool wide) {
    PRECISION(wide);
    bool a_quiet = is_nan(a, f) && !is_signalling(a, f), b_quiet = is_nan(b, f) && !is_signalling(b, f);
    uint64_t least = f->infinity | (maximum ? f->sign : 0);
    if (a_quiet && !is_nan(b, f)) a = least;
    else if (b_quiet && !is_nan(a, f)) b = least;
    return extreme(a, b, maximum, wide);
}

uint64_t fp_maxnm(uint64_t a, uint64_t b, bool wide) { return extreme_number(a, b, true, wide); }
uint64_t fp_minnm(uint64_t a, uint64_t b, bool wide) { return extreme_number(a, b, false, wide); }

// FPMulAdd. Infinity times zero is invalid even when a quiet NaN is to be added.
uint64_t fp_muladd(uint64_t addend, uint64_t a, uint64_t b, bool wide) {
    PRECISION(wide);
    uint64_t c = operand(addend, f), x = operand(a, f), y = operand(b, f), nan;
    bool invalid = (is_infinity(x, f) && is_zero(y, f)) || (is_zero(x, f) && is_infinity(y, f));
    if (invalid && is_nan(c, f) && !is_signalling(c, f)) {
        accrue(IOC);
        return default_nan(f);
    }
    if (nan_of((uint64_t[]){c, x, y}, 3, &nan, f)) return nan;
    return computed(FMA, (uint64_t[]){x, y, c}, fp_rounding(), wide);
}

// Comparisons ---------------------------------------------------------------------------------------------------

uint64_t fp_compare(uint64_t a, uint64_t b, bool signals, bool wide) {
    PRECISION(wide);
    uint64_t x = operand(a, f), y = operand(b, f);
    if (is_nan(x, f) || is_nan(y, f)) {
        if (signals || is_signalling(x, f) || is_signalling(y, f)) accrue(IOC);
        return PSTATE_C | PSTATE_V;
    }
    if (less(x, y, f)) return PSTATE_N;
    return less(y, x, f) ? PSTATE_C : PSTATE_Z | PSTATE_C;
}

bool fp_equal(uint64_t a, uint64_t b, bool wide) { return (fp_compare(a, b, false, wide) & PSTATE_Z) != 0; }
bool fp_greater(uint64_t a, uint64_t b, bool wide) { return fp_compare(a, b, true, wide) == PSTATE_C; }

bool fp_greater_or_equal(uint64_t a, uint64_t b, bool wide) {
    uint64_t flags = fp_compare(a, b, true, wide);
    return (flags & PSTATE_C) != 0 && (flags & PSTATE_V) == 0;
}

// Conversions ---------------------------------------------------------------------------------------------------

// FPRoundInt.
uint64_t fp_round_int(uint64_t a, enum rounding rounding, bool exact, bool wide) {
    PRECISION(wide);
    uint64_t x = operand(a, f), nan;
    if (nan_of(&x, 1, &nan, f)) return nan;
    int exponent = (int)(magnitude(x, f) >> f->fraction) - (int)(f->infinity >> f->fraction) / 2;
    if (exponent >= (int)f->fraction || is_zero(x, f)) return x;
    bool negative = (x & f->sign) != 0, up;
    uint64_t unit, value = magnitude(x, f), half, rest;
    if (exponent < 0) { // below one: zero or one
        uint64_t one = (f->infinity >> f->fraction) / 2 << f->fraction;
        bool above_half = exponent == -1 && (value & (f->minimum - 1)) != 0, is_half = exponent == -1 && !above_half;
        switch (rounding) {
        case ROUND_NEAREST: up = above_half; break;
        case ROUND_AWAY: up = above_half || is_half; break;
        case ROUND_UP: up = !negative; break;
        case ROUND_DOWN: up = negative; break;
        default: up = false; break;
        }
        if (exact) accrue(IXC);
        return (x & f->sign) | (up ? one : 0);
    }
    unit = 1ull << (f->fraction - (unsigned)exponent);
    half = unit / 2;
    rest = value & (unit - 1);
    if (rest == 0) return x;
    value -= rest;
    switch (rounding) {
    case ROUND_NEAREST: up = rest > half || (rest == half && (value & unit) != 0); break;
    case ROUND_AWAY: up = rest >= half; break;
    case ROUND_UP: up = !negative; break;
    case ROUND_DOWN: up = negative; break;
    default: up = false; break;
    }
    // With an exponent of 0 the unit is the implicit one, whose place is the exponent's lowest bit: odd, for one has a bias that is odd.
    if (rounding == ROUND_NEAREST && exponent == 0) up = rest >= half;
    if (exact) accrue(IXC);
    return (x & f->sign) | (value + (up ? unit : 0));
}

static uint64_t power_of_two(int exponent) { return (uint64_t)(1023 + exponent) << 52; }

// FPToFixed: saturated; a NaN is zero.
uint64_t fp_to_int(uint64_t a, unsigned fraction, bool is_unsigned, enum rounding rounding, bool wide, bool to_wide) {
    PRECISION(wide);
    uint64_t x = operand(a, f);
    if (is_nan(x, f)) {
        accrue(IOC);
        return 0;
    }
    uint32_t flags = 0, unused = 0;
    unsigned rm = core_rounding(rounding);
    if (!wide) x = f32_to_f64((uint32_t)x, &unused);
    if (fraction != 0) x = f64_mul(x, power_of_two((int)fraction), FP_RNE, &unused); // exact, or beyond any integer
    uint64_t result;
    if (to_wide) result = is_unsigned ? f64_to_u64(x, rm, &flags) : (uint64_t)f64_to_i64(x, rm, &flags);
    else result = (uint32_t)(is_unsigned ? f64_to_u32(x, rm, &flags) : f64_to_i32(x, rm, &flags));
    accrue_core(flags);
    return result;
}

// FixedToFP. Scaling is exact: there is room for any exponent.
uint64_t fp_from_int(uint64_t a, unsigned fraction, bool is_unsigned, bool wide, bool from_wide) {
    uint32_t flags = 0, unused = 0;
    unsigned rm = core_rounding(fp_rounding());
    if (!from_wide) a = is_unsigned ? (uint32_t)a : (uint64_t)(int64_t)(int32_t)a;
    uint64_t result;
    if (wide) {
        result = is_unsigned ? u64_to_f64(a, rm, &flags) : i64_to_f64((int64_t)a, rm, &flags);
        if (fraction != 0 && result != 0) result = f64_mul(result, power_of_two(-(int)fraction), FP_RNE, &unused);
    } else {
        uint32_t narrow = is_unsigned ? u64_to_f32(a, rm, &flags) : i64_to_f32((int64_t)a, rm, &flags);
        if (fraction != 0 && narrow != 0) narrow -= fraction << 23;
        result = narrow;
    }
    accrue_core(flags);
    return result;
}

// FPConvertNaN between formats: the payload's upper bits stay.
static uint64_t converted_nan(uint64_t a, const struct precision *f, unsigned to_fraction, uint64_t to_sign, uint64_t to_infinity) {
    if (is_signalling(a, f)) accrue(IOC);
    uint64_t quiet = 1ull << (to_fraction - 1);
    if ((hart.fpcr & FPCR_DN) != 0) return to_infinity | quiet;
    uint64_t payload = a & (f->quiet - 1);
    payload = to_fraction >= f->fraction ? payload << (to_fraction - f->fraction) : payload >> (f->fraction - to_fraction);
    return ((a & f->sign) != 0 ? to_sign : 0) | to_infinity | quiet | payload;
}

uint64_t fp_widen(uint64_t a) {
    const struct precision *f = &precisions[0], *to = &precisions[1];
    uint64_t x = operand(a, f);
    if (is_nan(x, f)) return converted_nan(x, f, to->fraction, to->sign, to->infinity);
    uint32_t unused = 0;
    return f32_to_f64((uint32_t)x, &unused);
}

uint64_t fp_narrow(uint64_t a) {
    const struct precision *f = &precisions[1], *to = &precisions[0];
    uint64_t o[3] = {operand(a, f), 0, 0};
    if (is_nan(o[0], f)) return converted_nan(o[0], f, to->fraction, to->sign, to->infinity);
    return computed(NARROW, o, fp_rounding(), false);
}

uint64_t fp_narrow_odd(uint64_t a) {
    const struct precision *f = &precisions[1], *to = &precisions[0];
    uint64_t o[3] = {operand(a, f), 0, 0};
    if (is_nan(o[0], f)) return converted_nan(o[0], f, to->fraction, to->sign, to->infinity);
    uint32_t before = hart.fpsr;
    hart.fpsr = 0;
    uint64_t result = computed(NARROW, o, ROUND_ZERO, false);
    if ((hart.fpsr & IXC) != 0) result |= 1;
    hart.fpsr |= before;
    return result;
}

// Half precision. FPCR.AHP chooses the alternative format, which has neither infinities nor NaNs.
uint64_t fp_from_half(uint64_t a, bool wide) {
    const struct precision *to = &precisions[wide];
    static const struct precision half = {10, 1u << 15, 31u << 10, 1u << 9, 1u << 10};
    uint64_t sign = (a & half.sign) != 0 ? to->sign : 0, value = a & (half.sign - 1);
    bool alternative = (hart.fpcr & FPCR_AHP) != 0;
    if (!alternative && value > half.infinity) return converted_nan(a, &half, to->fraction, to->sign, to->infinity);
    if (!alternative && value == half.infinity) return sign | to->infinity;
    if (value == 0) return sign;
    int exponent = (int)(value >> 10), bias = (int)(to->infinity >> to->fraction) / 2;
    uint64_t fraction = value & 0x3ff;
    if (exponent == 0) {
        for (exponent = 1; (fraction & 0x400) == 0; exponent--) fraction <<= 1;
        fraction &= 0x3ff;
    }
    return sign | (uint64_t)(exponent - 15 + bias) << to->fraction | fraction << (to->fraction - 10);
}

uint64_t fp_to_half(uint64_t a, bool wide) {
    PRECISION(wide);
    uint64_t x = operand(a, f), sign = (x & f->sign) != 0 ? 0x8000 : 0;
    bool alternative = (hart.fpcr & FPCR_AHP) != 0;
    if (is_nan(x, f)) {
        if (!alternative) return converted_nan(x, f, 10, 0x8000, 0x7c00);
        accrue(IOC);
        return sign;
    }
    if (is_infinity(x, f)) {
        if (!alternative) return sign | 0x7c00;
        accrue(IOC);
        return sign | 0x7fff;
    }
    if (is_zero(x, f)) return sign;
    uint32_t unused = 0;
    if (!wide) x = f32_to_f64((uint32_t)x, &unused);
    int exponent = (int)(x >> 52 & 0x7ff) - 1023;
    uint64_t fraction = x & ((1ull << 52) - 1);
    bool tiny = exponent < -14;
    // The significand as a whole number of units of the result's last place, with what is below it.
    unsigned drop = 42 + (tiny ? (unsigned)(-14 - exponent) : 0);
    uint64_t significand = fraction | ((x >> 52 & 0x7ff) != 0 ? 1ull << 52 : 0), value, rest, half;
    if (drop > 62) value = 0, rest = significand != 0, half = 2;
    else value = significand >> drop, rest = significand & ((1ull << drop) - 1), half = 1ull << (drop - 1);
    bool negative = sign != 0, up;
    switch (fp_rounding()) {
    case ROUND_NEAREST: up = rest > half || (rest == half && (value & 1) != 0); break;
    case ROUND_UP: up = !negative && rest != 0; break;
    case ROUND_DOWN: up = negative && rest != 0; break;
    default: up = false; break;
    }
    value += up;
    if (tiny && rest != 0) accrue(UFC);
    int biased = tiny ? 0 : exponent + 15;
    uint64_t result = tiny ? value : ((uint64_t)biased << 10) + (value - 0x400);
    if (alternative ? result > 0x7fff : result >= 0x7c00) {
        if (alternative) {
            accrue(IOC);
            return sign | 0x7fff;
        }
        accrue(OFC | IXC);
        bool to_infinity = fp_rounding() == ROUND_NEAREST || (fp_rounding() == ROUND_UP && !negative) || (fp_rounding() == ROUND_DOWN && negative);
        return sign | (to_infinity ? 0x7c00 : 0x7bff);
    }
    if (rest != 0) accrue(IXC);
    return sign | result;
}

uint64_t fp_immediate(unsigned imm8, bool wide) {
    uint64_t sign = imm8 >> 7, b6 = imm8 >> 6 & 1, low = imm8 & 63;
    if (wide) return sign << 63 | (b6 ? 0x3fc0000000000000ull : 0x4000000000000000ull) | low << 48;
    return sign << 31 | (b6 ? 0x3e000000ull : 0x40000000ull) | low << 19;
}

// Estimates -----------------------------------------------------------------------------------------------------

// RecipEstimate and RecipSqrtEstimate, of nine bits.
static uint32_t recip_of(uint32_t a) {
    a = a * 2 + 1;
    uint32_t b = (1u << 19) / a;
    return (b + 1) / 2;
}

static uint32_t rsqrt_of(uint32_t a) {
    if (a < 256) a = a * 2 + 1;
    else a = (a >> 1 << 1) + 1, a *= 2;
    uint32_t b = 512;
    while ((uint64_t)a * (b + 1) * (b + 1) < 1ull << 28) b++;
    return (b + 1) / 2;
}

uint32_t unsigned_recip_estimate(uint32_t a) { return a >> 31 == 0 ? ~0u : recip_of(a >> 23) << 23; }
uint32_t unsigned_rsqrt_estimate(uint32_t a) { return a >> 30 == 0 ? ~0u : rsqrt_of(a >> 23) << 23; }

// FPRecipEstimate.
uint64_t fp_recip_estimate(uint64_t a, bool wide) {
    PRECISION(wide);
    uint64_t x = operand(a, f), nan, sign = x & f->sign;
    if (nan_of(&x, 1, &nan, f)) return nan;
    if (is_infinity(x, f)) return sign;
    if (is_zero(x, f)) {
        accrue(DZC);
        return sign | f->infinity;
    }
    // Below 2^-128 (2^-1024) the reciprocal is too large.
    if (magnitude(x, f) < f->minimum >> 2) {
        accrue(OFC | IXC);
        enum rounding r = fp_rounding();
        bool to_infinity = r == ROUND_NEAREST || (r == ROUND_UP && sign == 0) || (r == ROUND_DOWN && sign != 0);
        return sign | (to_infinity ? f->infinity : f->infinity - 1);
    }
    int bias2 = wide ? 2045 : 253, exponent = (int)(magnitude(x, f) >> f->fraction);
    uint64_t fraction = (x & (f->minimum - 1)) << (52 - f->fraction);
    if (flushing() && exponent >= bias2) {
        accrue(UFC);
        return sign;
    }
    if (exponent == 0) {
        if ((fraction >> 51 & 1) == 0) exponent = -1, fraction = fraction << 2 & ((1ull << 52) - 1);
        else fraction = fraction << 1 & ((1ull << 52) - 1);
    }
    int result_exponent = bias2 - exponent;
    uint64_t estimate = (uint64_t)(recip_of((uint32_t)(0x100 | fraction >> 44)) & 0xff) << 44;
    if (result_exponent == 0) estimate = 1ull << 51 | estimate >> 1;
    else if (result_exponent == -1) estimate = 1ull << 50 | estimate >> 2, result_exponent = 0;
    return sign | (uint64_t)result_exponent << f->fraction | estimate >> (52 - f->fraction);
}

// FPRSqrtEstimate.
uint64_t fp_rsqrt_estimate(uint64_t a, bool wide) {
    PRECISION(wide);
    uint64_t x = operand(a, f), nan, sign = x & f->sign;
    if (nan_of(&x, 1, &nan, f)) return nan;
    if (is_zero(x, f)) {
        accrue(DZC);
        return sign | f->infinity;
    }
    if (sign != 0) {
        accrue(IOC);
        return default_nan(f);
    }
    if (is_infinity(x, f)) return 0;
    int exponent = (int)(x >> f->fraction);
    uint64_t fraction = (x & (f->minimum - 1)) << (52 - f->fraction);
    if (exponent == 0) {
        for (; (fraction >> 51 & 1) == 0; exponent--) fraction = fraction << 1 & ((1ull << 52) - 1);
        fraction = fraction << 1 & ((1ull << 52) - 1);
    }
    uint32_t scaled = (exponent & 1) == 0 ? (uint32_t)(0x100 | fraction >> 44) : (uint32_t)(0x80 | fraction >> 45);
    int result_exponent = ((wide ? 3068 : 380) - exponent) / 2;
    uint64_t estimate = (uint64_t)(rsqrt_of(scaled) & 0xff) << 44;
    return (uint64_t)result_exponent << f->fraction | estimate >> (52 - f->fraction);
}

// FPRecpX: the exponent's bits inverted.
uint64_t fp_recpx(uint64_t a, bool wide) {
    PRECISION(wide);
    uint64_t x = operand(a, f), nan;
    if (nan_of(&x, 1, &nan, f)) return nan;
    uint64_t exponent = magnitude(x, f) >> f->fraction, all = f->infinity >> f->fraction;
    return (x & f->sign) | (exponent == 0 ? all - 1 : ~exponent & all) << f->fraction;
}

// step has `start` - a * b, halved with `halve`, for the iterations of Newton and Raphson.
static uint64_t step(uint64_t a, uint64_t b, uint64_t start, bool halve, uint64_t indefinite, bool wide) {
    PRECISION(wide);
    uint64_t x = operand(fp_neg(a, wide), f), y = operand(b, f), nan;
    if (nan_of((uint64_t[]){x, y}, 2, &nan, f)) return nan;
    if ((is_infinity(x, f) && is_zero(y, f)) || (is_zero(x, f) && is_infinity(y, f))) return indefinite;
    if (!halve || is_infinity(x, f) || is_infinity(y, f)) return computed(FMA, (uint64_t[]){x, y, start}, fp_rounding(), wide);
    // (3 - a * b) / 2 is 3 / 2 - (a / 2) * b, and a / 2 is exact unless it is denormal: then b is halved, which is not, or the product is nothing.
    uint64_t *large = magnitude(x, f) >= magnitude(y, f) ? &x : &y;
    if (magnitude(*large, f) >= 2 * f->minimum) *large -= f->minimum;
    else if (!is_zero(*large, f)) *large = (*large & f->sign) | magnitude(*large, f) >> 1;
    return computed(FMA, (uint64_t[]){x, y, (start & f->sign) | (start - f->minimum)}, fp_rounding(), wide);
}

uint64_t fp_recip_step(uint64_t a, uint64_t b, bool wide) {
    uint64_t two = wide ? 0x4000000000000000ull : 0x40000000;
    return step(a, b, two, false, two, wide);
}

uint64_t fp_rsqrt_step(uint64_t a, uint64_t b, bool wide) {
    return step(a, b, wide ? 0x4008000000000000ull : 0x40400000, true, wide ? 0x3ff8000000000000ull : 0x3fc00000, wide);
}
