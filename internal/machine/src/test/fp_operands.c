#include "fp_operands.h"

#include "../common/fp.h"

const struct fp_format fp_binary32 = {24, 8}, fp_binary64 = {53, 11};

uint64_t fp_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static unsigned below(uint64_t *state, unsigned bound) {
    return (unsigned)((fp_random(state) >> 32) % bound);
}

static int max_field(struct fp_format f) {
    return (1 << f.exponent_bits) - 1;
}

static int bias(struct fp_format f) {
    return max_field(f) >> 1;
}

static uint64_t encode(struct fp_format f, bool sign, int field, uint64_t fraction) {
    int limit = max_field(f);
    field = field < 0 ? 0 : field > limit ? limit : field;
    fraction &= (1ull << (f.precision - 1)) - 1;
    return ((uint64_t)sign << f.exponent_bits | (uint64_t)field) << (f.precision - 1) | fraction;
}

static int field_of(struct fp_format f, uint64_t bits) {
    return (int)(bits >> (f.precision - 1)) & max_field(f);
}

static bool sign_of(struct fp_format f, uint64_t bits) {
    return bits >> (f.precision - 1 + f.exponent_bits) & 1;
}

enum { EDGE_FRACTIONS = 9, EDGE_FIELDS = 24 };

static uint64_t edge_fraction(struct fp_format f, unsigned index) {
    uint64_t half = 1ull << (f.precision - 2), ones = 2 * half - 1;
    uint64_t tie = f.precision > 24 ? 3ull << (f.precision - 25) : 3; // for the conversion to binary32
    const uint64_t fractions[EDGE_FRACTIONS] = {
        0, 1, 2, half - 1, half, half + 1, ones - 1, ones, tie,
    };
    return fractions[index];
}

static int edge_field(struct fp_format f, unsigned index) {
    const int one = bias(f), top = max_field(f), p = f.precision;
    const int fields[EDGE_FIELDS] = {
        0,          1,        2,        p,        one - p - 1, one - p,  one - p / 2, one - 2,
        one - 1,    one,      one + 1,  one + 2,  one + p - 2, one + p - 1, one + p,  one + p + 1,
        one + 30,   one + 31, one + 32, one + 62, one + 63,    one + 64, top - 1,     top,
    };
    return fields[index];
}

unsigned fp_edge_count(void) {
    return 2 * EDGE_FRACTIONS * EDGE_FIELDS;
}

uint64_t fp_edge(struct fp_format f, unsigned index) {
    unsigned rest = index / 2;
    return encode(f, index & 1, edge_field(f, rest % EDGE_FIELDS), edge_fraction(f, rest / EDGE_FIELDS));
}

// Random fractions and ones with few significant bits, long runs or only low bits, which make exact results and ties.
static uint64_t random_fraction(struct fp_format f, uint64_t *state) {
    uint64_t random = fp_random(state);
    int shift = (int)below(state, (unsigned)f.precision);
    switch (below(state, 5)) {
    case 0:
        return random;
    case 1:
        return random << shift;
    case 2:
        return random >> 11 >> shift;
    case 3:
        return ~0ull << shift;
    default:
        return (1ull << shift) + random % 3 - 1;
    }
}

static uint64_t in_binade(struct fp_format f, int field, uint64_t *state) {
    return encode(f, fp_random(state) & 1, field, random_fraction(f, state));
}

// Within `distance` binades of `field`.
static uint64_t near_binade(struct fp_format f, int field, int distance, uint64_t *state) {
    return in_binade(f, field - distance + (int)below(state, (unsigned)(2 * distance + 1)), state);
}

static uint64_t random_operand(struct fp_format f, uint64_t *state) {
    switch (below(state, 4)) {
    case 0:
        return fp_edge(f, below(state, fp_edge_count()));
    case 1:
        return near_binade(f, bias(f), f.precision + 12, state);
    case 2:
        return near_binade(f, bias(f), 3, state);
    default:
        return in_binade(f, (int)below(state, (unsigned)max_field(f) + 1), state);
    }
}

// An exponent field near the format's limits, where results overflow or become subnormal.
static int boundary_field(struct fp_format f, uint64_t *state) {
    return below(state, 2) ? max_field(f) - 2 + (int)below(state, 5) : 2 - (int)below(state, (unsigned)f.precision + 5);
}

static uint64_t random_partner(struct fp_format f, uint64_t a, uint64_t *state) {
    int field = field_of(f, a);
    switch (below(state, 6)) {
    case 0:
        return near_binade(f, field, f.precision + 2, state);
    case 1: // a's neighbours and their negatives
        return (a ^ fp_random(state) << (f.precision - 1 + f.exponent_bits)) + below(state, 5) - 2;
    case 2: // the product is near a boundary
        return in_binade(f, boundary_field(f, state) - field + bias(f), state);
    case 3: // the quotient is
        return in_binade(f, field - boundary_field(f, state) + bias(f), state);
    default:
        return random_operand(f, state);
    }
}

static uint64_t rounded_product(struct fp_format f, uint64_t a, uint64_t b) {
    uint32_t flags = 0;
    if (f.precision == 24)
        return f32_mul((uint32_t)a, (uint32_t)b, FP_RNE, &flags);
    return f64_mul(a, b, FP_RNE, &flags);
}

// An addend for a * b: of its size, or its rounded value give or take little, so that only the product's low half
// and the addend's difference remain.
static uint64_t random_addend(struct fp_format f, uint64_t a, uint64_t b, uint64_t *state) {
    uint64_t product = rounded_product(f, a, b);
    switch (below(state, 4)) {
    case 0:
        return near_binade(f, field_of(f, product), 2 * f.precision + 3, state);
    case 1:
        return encode(f, !sign_of(f, product), field_of(f, product), product + below(state, 5) - 2);
    case 2:
        return near_binade(f, field_of(f, a) + field_of(f, b) - bias(f), f.precision + 2, state);
    default:
        return random_operand(f, state);
    }
}

static uint64_t random_integer(uint64_t *state) {
    uint64_t random = fp_random(state);
    unsigned shift = below(state, 64);
    switch (below(state, 4)) {
    case 0:
        return random >> shift;
    case 1:
        return (uint64_t)((int64_t)random >> shift);
    case 2:
        return (1ull << shift) + random % 5 - 2;
    default: // near a tie of either format
        return random >> shift << shift / 2 | random % 3;
    }
}

// Zero, one, infinity, a quiet or a signalling NaN, the smallest or largest numbers.
static uint64_t special_operand(struct fp_format f, uint64_t *state) {
    const int top = max_field(f);
    const uint64_t quiet = 1ull << (f.precision - 2);
    bool sign = fp_random(state) & 1;
    switch (below(state, 8)) {
    case 0:
        return encode(f, sign, bias(f), 0);
    case 1:
        return encode(f, sign, top, 0);
    case 2:
        return encode(f, sign, top, quiet | random_fraction(f, state));
    case 3:
        return encode(f, sign, top, 1 + random_fraction(f, state) % (quiet - 1));
    case 4:
        return encode(f, sign, 0, 1);
    case 5:
        return encode(f, sign, top - 1, ~0ull);
    default:
        return encode(f, sign, 0, 0);
    }
}

static void special_numbers(struct fp_vector *v, struct fp_format f, uint64_t *state) {
    v->a = special_operand(f, state);
    v->b = special_operand(f, state);
    v->c = special_operand(f, state);
}

// A product of half a unit in the addend's last place and one bit far below, which alone decides a tie:
// (x + 1)(x^2 - x + 1) = x^3 + 1 for a power of two x.
static void nearly_tied_numbers(struct fp_vector *v, struct fp_format f, uint64_t *state) {
    const int log_x = f.precision / 2, unused = f.precision - 2 * log_x; // x^2 - x + 1 has 2 * log_x bits
    const uint64_t x = 1ull << log_x;
    v->a = encode(f, fp_random(state) & 1, bias(f), (x + 1) << (f.precision - 1 - log_x));
    v->b = encode(f, false, bias(f), (x * x - x + 1) << unused);
    v->c = encode(f, fp_random(state) & 1, bias(f) + f.precision + 1, random_fraction(f, state));
}

// A product just below the smallest normal number, which rounds up to it and is tiny or not depending on e: the
// smallest normal number times (1 + e)(1 - e), or times 1 - e alone.
static void barely_normal_numbers(struct fp_vector *v, struct fp_format f, uint64_t *state) {
    const int last = f.precision - 1, scale = (int)below(state, (unsigned)f.precision);
    const bool alone = fp_random(state) & 1;
    const int log_e = alone ? f.precision - (int)below(state, 3) : f.precision / 2 - 1 + (int)below(state, 5);
    v->a = encode(f, fp_random(state) & 1, bias(f) - 1 - scale, alone ? 0 : 1ull << (last - log_e));
    v->b = encode(f, fp_random(state) & 1, 1 + scale, ~0ull << (last - log_e + 1));
    v->c = encode(f, fp_random(state) & 1, 0, random_fraction(f, state) & 1);
}

static void related_numbers(struct fp_vector *v, struct fp_format f, uint64_t *state) {
    v->a = random_operand(f, state);
    v->b = random_partner(f, v->a, state);
    v->c = random_addend(f, v->a, v->b, state);
}

static void random_numbers(struct fp_vector *v, struct fp_format f, uint64_t *state) {
    switch (below(state, 16)) {
    case 0:
        special_numbers(v, f, state);
        break;
    case 1:
        nearly_tied_numbers(v, f, state);
        break;
    case 2:
        barely_normal_numbers(v, f, state);
        break;
    default:
        related_numbers(v, f, state);
    }
    if (f.precision == 24) {
        v->a = (uint32_t)v->a;
        v->b = (uint32_t)v->b;
        v->c = (uint32_t)v->c;
    }
}

static void random_integers(struct fp_vector *v, uint64_t *state) {
    v->a = random_integer(state);
    v->b = v->c = 0;
}

#define OPERANDS_S(v, state) random_numbers(v, fp_binary32, state)
#define OPERANDS_D(v, state) random_numbers(v, fp_binary64, state)
#define OPERANDS_R(v, state) random_integers(v, state)
#define OPERANDS(function, signature, operand, instruction, result) \
    case OP_##function:                                             \
        OPERANDS_##operand(v, state);                               \
        break;

void fp_random_operands(struct fp_vector *v, uint64_t *state) {
    switch (v->operation) {
        FP_OPERATIONS(OPERANDS)
    }
}
