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

void set_nzcv(uint64_t flags) {
    hart.flags = FLAGS_PACKED;
    hart.flag_a = flags & PSTATE_NZCV;
    hart.flag_b = 0;
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
