// The condition flags, see enum flags.
#include "hart.h"

static uint64_t packed(bool n, bool z, bool c, bool v) {
    return (n ? PSTATE_N : 0) | (z ? PSTATE_Z : 0) | (c ? PSTATE_C : 0) | (v ? PSTATE_V : 0);
}

uint64_t nzcv(void) {
    uint64_t a = hart.flag_a, b = hart.flag_b, difference = a - b;
    switch (hart.flags) {
    case FLAGS_SUB64: return packed(difference >> 63, a == b, a >= b, ((a ^ b) & (a ^ difference)) >> 63);
    case FLAGS_SUB32: return packed(difference >> 31 & 1, a == b, a >= b, (difference >> 31 ^ difference >> 32) & 1);
    case FLAGS_LOGIC: return packed(a >> 63, a == 0, false, false);
    default: return a;
    }
}

// set_nzcv keeps the flags as a subtraction that has them, if there is one: none sets Z without C, or V without one of the others.
void set_nzcv(uint64_t flags) {
    enum { NONE = FLAGS_PACKED };
    static const struct { uint64_t kind, a, b; } of[16] = {
        {FLAGS_SUB64, 0, ~0ull}, {NONE, 0, 0}, {FLAGS_SUB64, 1, 0}, {FLAGS_SUB64, 1ull << 63, 1}, // NZCV 0000 to 0011
        {FLAGS_LOGIC, 0, 0}, {NONE, 0, 0}, {FLAGS_SUB64, 0, 0}, {NONE, 0, 0},
        {FLAGS_SUB64, 0, 1}, {FLAGS_SUB64, INT64_MAX, ~0ull}, {FLAGS_SUB64, ~0ull, 0}, {NONE, 0, 0},
        {NONE, 0, 0}, {NONE, 0, 0}, {NONE, 0, 0}, {NONE, 0, 0},
    };
    unsigned n = flags >> 28 & 15;
    hart.flags = of[n].kind;
    hart.flag_a = of[n].kind == NONE ? flags & PSTATE_NZCV : of[n].a;
    hart.flag_b = of[n].b;
}

// set_sum_flags sets the flags of a + b: those of a - (-b), if there is a -b, and of a alone when b is zero, for nothing is carried. Both are
// sign-extended when the sum is of 32 bits. false: the flags were not set.
bool set_sum_flags(uint64_t a, uint64_t b, bool wide) {
    if (b == (wide ? 1ull << 63 : (uint64_t)INT32_MIN)) return false;
    hart.flags = b == 0 ? FLAGS_LOGIC : wide ? FLAGS_SUB64 : FLAGS_SUB32;
    hart.flag_a = a;
    hart.flag_b = -b;
    return true;
}

// compared tells a condition by the operands alone, when the flags are a comparison's or a logical operation's, whose second operand is 0. false: it
// cannot.
static bool compared(unsigned condition, bool *holds) {
    uint64_t a = hart.flag_a, b = hart.flag_b;
    if (hart.flags > FLAGS_LOGIC) return false;
    switch (condition) {
    case 0: *holds = a == b; return true;
    case 1: *holds = a != b; return true;
    case 10: *holds = (int64_t)a >= (int64_t)b; return true;
    case 11: *holds = (int64_t)a < (int64_t)b; return true;
    case 12: *holds = (int64_t)a > (int64_t)b; return true;
    case 13: *holds = (int64_t)a <= (int64_t)b; return true;
    default: break;
    }
    if (hart.flags == FLAGS_LOGIC) return false;
    switch (condition) {
    case 2: *holds = a >= b; return true;
    case 3: *holds = a < b; return true;
    case 8: *holds = a > b; return true;
    case 9: *holds = a <= b; return true;
    default: return false;
    }
}

// condition_holds: C1.2.4, table "Condition codes". The last two are both "always".
bool condition_holds(unsigned condition) {
    bool known;
    if (compared(condition, &known)) return known;
    uint64_t f = nzcv();
    bool n = (f & PSTATE_N) != 0, z = (f & PSTATE_Z) != 0, c = (f & PSTATE_C) != 0, v = (f & PSTATE_V) != 0, holds;
    switch (condition >> 1) {
    case 0: holds = z; break;
    case 1: holds = c; break;
    case 2: holds = n; break;
    case 3: holds = v; break;
    case 4: holds = c && !z; break;
    case 5: holds = n == v; break;
    case 6: holds = n == v && !z; break;
    default: return true;
    }
    return holds != (condition & 1);
}
