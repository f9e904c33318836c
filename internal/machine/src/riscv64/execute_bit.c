// Zba and Zbb. Source: unprivileged manual, chapter "B" Standard Extension for Bit Manipulation.
#include "hart.h"

static uint64_t word(uint64_t v) { return (uint64_t)(int64_t)(int32_t)v; }
static uint64_t low(uint64_t v) { return v & 0xffffffff; }

static uint64_t rotate_right(uint64_t v, unsigned n) { return n == 0 ? v : v >> n | v << (64 - n); }

static uint64_t rotate_right_word(uint64_t v, unsigned n) {
    uint32_t w = (uint32_t)v;
    return word(n == 0 ? w : w >> n | w << (32 - n));
}

// or_combine sets each byte to all ones unless it is zero.
static uint64_t or_combine(uint64_t v) {
    uint64_t low7 = 0x7f7f7f7f7f7f7f7full, nonzero = ((v & low7) + low7 | v) & ~low7;
    return (nonzero >> 7) * 255;
}

static uint64_t add_shifted(unsigned id, uint64_t a, uint64_t b) {
    switch (id) {
    case ID_ADD_UW: return low(a) + b;
    case ID_SH1ADD: return (a << 1) + b;
    case ID_SH2ADD: return (a << 2) + b;
    case ID_SH3ADD: return (a << 3) + b;
    case ID_SH1ADD_UW: return (low(a) << 1) + b;
    case ID_SH2ADD_UW: return (low(a) << 2) + b;
    default: return (low(a) << 3) + b; // sh3add.uw
    }
}

static uint64_t unary(unsigned id, uint64_t a) {
    uint32_t w = (uint32_t)a;
    switch (id) {
    case ID_CLZ: return a == 0 ? 64 : (uint64_t)__builtin_clzll(a);
    case ID_CTZ: return a == 0 ? 64 : (uint64_t)__builtin_ctzll(a);
    case ID_CPOP: return (uint64_t)__builtin_popcountll(a);
    case ID_CLZW: return w == 0 ? 32 : (uint64_t)__builtin_clz(w);
    case ID_CTZW: return w == 0 ? 32 : (uint64_t)__builtin_ctz(w);
    case ID_CPOPW: return (uint64_t)__builtin_popcount(w);
    case ID_SEXT_B: return (uint64_t)(int64_t)(int8_t)a;
    case ID_SEXT_H: return (uint64_t)(int64_t)(int16_t)a;
    case ID_ZEXT_H: return (uint16_t)a;
    case ID_ORC_B: return or_combine(a);
    default: return __builtin_bswap64(a); // rev8
    }
}

static uint64_t binary(unsigned id, uint64_t a, uint64_t b) {
    switch (id) {
    case ID_ANDN: return a & ~b;
    case ID_ORN: return a | ~b;
    case ID_XNOR: return ~(a ^ b);
    case ID_MIN: return (int64_t)a < (int64_t)b ? a : b;
    case ID_MINU: return a < b ? a : b;
    case ID_MAX: return (int64_t)a > (int64_t)b ? a : b;
    case ID_MAXU: return a > b ? a : b;
    case ID_ROL: return rotate_right(a, (64 - (b & 63)) & 63);
    case ID_ROR: return rotate_right(a, b & 63);
    case ID_ROLW: return rotate_right_word(a, (32 - (b & 31)) & 31);
    default: return rotate_right_word(a, b & 31); // rorw
    }
}

static uint64_t immediate(unsigned id, uint64_t a, unsigned n) {
    switch (id) {
    case ID_SLLI_UW: return low(a) << n;
    case ID_RORI: return rotate_right(a, n);
    default: return rotate_right_word(a, n); // roriw
    }
}

static bool is_unary(unsigned id) {
    return (id >= ID_CLZ && id <= ID_ZEXT_H) || id == ID_ORC_B || id == ID_REV8;
}

bool execute_bit(const struct insn *d) {
    unsigned id = d->imm & 0xff;
    uint64_t a = hart.x[d->rs1 / 8], b = hart.x[d->rs2 / 8], *rd = &hart.x[d->rd / 8];
    if (id == ID_SLLI_UW || id == ID_RORI || id == ID_RORIW) *rd = immediate(id, a, (unsigned)d->imm >> 8);
    else if (id >= ID_ADD_UW && id <= ID_SH3ADD_UW) *rd = add_shifted(id, a, b);
    else *rd = is_unary(id) ? unary(id, a) : binary(id, a, b);
    return true;
}
