// Data processing on general registers: every form, XZR included. The interpreter has the commoner ones itself.
#include "hart.h"

static inline uint64_t sext32(uint64_t v) { return (uint64_t)(int64_t)(int32_t)v; }

static inline uint64_t sized(uint64_t v, bool wide) { return wide ? v : (uint32_t)v; }

static void set_difference_flags(uint64_t a, uint64_t b, bool wide) {
    hart.flags = wide ? FLAGS_SUB64 : FLAGS_SUB32;
    hart.flag_a = wide ? a : sext32(a);
    hart.flag_b = wide ? b : sext32(b);
}

// add_with_carry is a + b + carry; the upper half of what is not wide is meaningless. With a carry it is a - ~b, and so are its flags.
static uint64_t add_with_carry(uint64_t a, uint64_t b, bool carry, bool wide, bool flags) {
    uint64_t sum = a + b + carry;
    if (flags && carry) set_difference_flags(a, ~b, wide);
    else if (flags && !set_sum_flags(wide ? a : sext32(a), wide ? b : sext32(b), wide)) { // b is the smallest number
        bool negative = a >> (wide ? 63 : 31) & 1;
        set_nzcv((negative ? PSTATE_C | PSTATE_V : PSTATE_N) | (sized(sum, wide) == 0 ? PSTATE_Z : 0));
    }
    return sum;
}

static uint64_t add_or_subtract(uint32_t w, uint64_t a, uint64_t b) {
    bool wide = w >> 31, subtract = w >> 30 & 1, flags = w >> 29 & 1;
    if (!subtract) return add_with_carry(a, b, false, wide, flags);
    if (flags) set_difference_flags(a, b, wide);
    return a - b;
}

static uint64_t shifted(uint64_t v, unsigned type, unsigned amount, bool wide) {
    if (!wide) v = (uint32_t)v;
    switch (type) {
    case 0: return v << amount;
    case 1: return v >> amount;
    case 2: return wide ? (uint64_t)((int64_t)v >> amount) : (uint64_t)(int64_t)((int32_t)v >> amount);
    default: return wide ? v >> amount | v << (-amount & 63) : (uint32_t)v >> amount | (uint32_t)v << (-amount & 31);
    }
}

// extended: B.ExtendReg, `option` as in the instruction.
static uint64_t extended(uint64_t v, unsigned option, unsigned shift) {
    switch (option) {
    case 0: v = (uint8_t)v; break;
    case 1: v = (uint16_t)v; break;
    case 2: v = (uint32_t)v; break;
    case 4: v = (uint64_t)(int64_t)(int8_t)v; break;
    case 5: v = (uint64_t)(int64_t)(int16_t)v; break;
    case 6: v = sext32(v); break;
    default: break;
    }
    return v << shift;
}

static void write(uint32_t w, uint64_t value) { set_xzr(rd_of(w), sized(value, w >> 31)); }

// write_sp is for the forms whose register 31 is SP.
static void write_sp(uint32_t w, uint64_t value) { hart.x[rd_of(w)] = sized(value, w >> 31); }

static uint64_t logic(uint32_t w, uint64_t a, uint64_t b) {
    uint64_t result;
    switch (field(w, 29, 2)) {
    case 1: return a | b;
    case 2: return a ^ b;
    case 3:
        result = a & b;
        hart.flags = FLAGS_LOGIC;
        hart.flag_a = w >> 31 ? result : sext32(result);
        hart.flag_b = 0;
        return result;
    default: return a & b;
    }
}

static void logic_immediate(uint32_t w) {
    uint64_t mask = 0;
    logical_immediate(w, &mask);
    uint64_t result = logic(w, xzr(rn_of(w)), mask);
    if (field(w, 29, 2) == 3) write(w, result);
    else write_sp(w, result);
}

static void move_wide(uint32_t w) {
    unsigned shift = field(w, 21, 2) * 16;
    uint64_t value = (uint64_t)field(w, 5, 16) << shift;
    switch (field(w, 29, 2)) {
    case 0: value = ~value; break;
    case 3: value |= xzr(rd_of(w)) & ~(0xffffull << shift); break;
    default: break;
    }
    write(w, value);
}

// bit_field: SBFM, BFM and UBFM (C6.2, their operations), without the masks: what is moved where.
static void bit_field(uint32_t w) {
    bool wide = w >> 31;
    unsigned size = wide ? 64 : 32, r = field(w, 16, 6), s = field(w, 10, 6);
    uint64_t source = xzr(rn_of(w));
    unsigned width, to, from;
    if (s >= r) from = r, to = 0, width = s - r + 1;
    else from = 0, to = size - r, width = s + 1;
    uint64_t mask = width == 64 ? ~0ull : (1ull << width) - 1, bits = (source >> from & mask) << to;
    switch (field(w, 29, 2)) {
    case 0: bits = (uint64_t)((int64_t)((source >> from & mask) << (64 - width)) >> (64 - width)) << to; break;
    case 1: bits |= xzr(rd_of(w)) & ~(mask << to); break;
    default: break;
    }
    write(w, bits);
}

static void extract(uint32_t w) {
    bool wide = w >> 31;
    unsigned low = field(w, 10, 6);
    uint64_t n = xzr(rn_of(w)), m = xzr(rm_of(w));
    if (wide) write(w, low == 0 ? m : m >> low | n << (64 - low));
    else write(w, ((uint64_t)(uint32_t)n << 32 | (uint32_t)m) >> low);
}

static void shifted_register(uint32_t w) {
    bool wide = w >> 31, is_logic = (w >> 24 & 1) == 0;
    uint64_t a = xzr(rn_of(w)), b = shifted(xzr(rm_of(w)), field(w, 22, 2), field(w, 10, 6), wide);
    if (is_logic) write(w, logic(w, a, w >> 21 & 1 ? ~b : b));
    else write(w, add_or_subtract(w, a, b));
}

static void extended_register(uint32_t w) {
    uint64_t b = extended(xzr(rm_of(w)), field(w, 13, 3), field(w, 10, 3));
    uint64_t result = add_or_subtract(w, hart.x[rn_of(w)], b);
    if (w >> 29 & 1) write(w, result);
    else write_sp(w, result);
}

static void add_immediate(uint32_t w) {
    uint64_t b = (uint64_t)field(w, 10, 12) << (w >> 22 & 1 ? 12 : 0), result = add_or_subtract(w, hart.x[rn_of(w)], b);
    if (w >> 29 & 1) write(w, result);
    else write_sp(w, result);
}

static void with_carry(uint32_t w) {
    bool wide = w >> 31, subtract = w >> 30 & 1, carry = (nzcv() & PSTATE_C) != 0;
    uint64_t a = xzr(rn_of(w)), b = xzr(rm_of(w));
    write(w, add_with_carry(a, subtract ? ~b : b, carry, wide, w >> 29 & 1));
}

static void conditional_compare(uint32_t w) {
    bool wide = w >> 31;
    if (!condition_holds(field(w, 12, 4))) {
        set_nzcv((uint64_t)field(w, 0, 4) << 28);
        return;
    }
    uint64_t a = xzr(rn_of(w)), b = w >> 11 & 1 ? rm_of(w) : xzr(rm_of(w));
    if (w >> 30 & 1) add_or_subtract(w, a, b);
    else add_with_carry(a, b, false, wide, true);
}

static void conditional_select(uint32_t w) {
    if (condition_holds(field(w, 12, 4))) {
        write(w, xzr(rn_of(w)));
        return;
    }
    uint64_t b = xzr(rm_of(w));
    switch (field(w, 30, 1) << 1 | field(w, 10, 1)) {
    case 1: b++; break;
    case 2: b = ~b; break;
    case 3: b = -b; break;
    default: break;
    }
    write(w, b);
}

// crc adds `size` bytes to a checksum, four bits at a time: both polynomials (0x04c11db7, and 0x1edc6f41 of CRC-32C) with their bits reversed, as
// the instructions want them.
static uint32_t crc(uint32_t sum, uint64_t data, unsigned size, bool castagnoli) {
    static const uint32_t of_four_bits[2][16] = {
        {0x0, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
         0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c},
        {0x0, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
         0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75},
    };
    for (unsigned i = 0; i < size * 2; i++, data >>= 4) sum = sum >> 4 ^ of_four_bits[castagnoli][(sum ^ (uint32_t)data) & 15];
    return sum;
}

static uint64_t divide(uint32_t w, uint64_t a, uint64_t b, bool is_signed) {
    if (w >> 31) {
        if (b == 0) return 0;
        if (!is_signed) return a / b;
        return b == ~0ull ? -a : (uint64_t)((int64_t)a / (int64_t)b);
    }
    uint32_t c = (uint32_t)a, d = (uint32_t)b;
    if (d == 0) return 0;
    if (!is_signed) return c / d;
    return d == ~0u ? -c : (uint32_t)((int32_t)c / (int32_t)d);
}

static uint64_t multiply_high(uint64_t a, uint64_t b, bool is_signed) {
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t middle = ah * bl + (al * bl >> 32), other = al * bh + (uint32_t)middle;
    uint64_t high = ah * bh + (middle >> 32) + (other >> 32);
    if (is_signed) high -= ((int64_t)a < 0 ? b : 0) + ((int64_t)b < 0 ? a : 0);
    return high;
}

static void two_sources(uint32_t w) {
    bool wide = w >> 31;
    uint64_t a = xzr(rn_of(w)), b = xzr(rm_of(w));
    unsigned amount = (unsigned)b & (wide ? 63 : 31), op = field(w, 10, 6);
    if (op < 8 || op > 11) slow(SLOW_ARITHMETIC);
    switch (op) {
    case 2: write(w, divide(w, a, b, false)); break;
    case 3: write(w, divide(w, a, b, true)); break;
    case 8: case 9: case 10: case 11: write(w, shifted(a, op & 3, amount, wide)); break;
    default: set_xzr(rd_of(w), crc((uint32_t)a, b, 1u << (op & 3), op >> 2 & 1)); break;
    }
}

static uint64_t reversed_bits(uint64_t v) {
    v = (v >> 1 & 0x5555555555555555ull) | (v & 0x5555555555555555ull) << 1;
    v = (v >> 2 & 0x3333333333333333ull) | (v & 0x3333333333333333ull) << 2;
    v = (v >> 4 & 0x0f0f0f0f0f0f0f0full) | (v & 0x0f0f0f0f0f0f0f0full) << 4;
    return __builtin_bswap64(v);
}

static uint64_t leading_zeros(uint64_t v, bool wide) {
    if (wide) return v == 0 ? 64 : (uint64_t)__builtin_clzll(v);
    return (uint32_t)v == 0 ? 32 : (uint64_t)__builtin_clz((uint32_t)v);
}

static void one_source(uint32_t w) {
    bool wide = w >> 31;
    uint64_t v = xzr(rn_of(w));
    if (!wide) v = (uint32_t)v;
    switch (field(w, 10, 6)) {
    case 0: write(w, wide ? reversed_bits(v) : reversed_bits(v) >> 32); break;
    case 1: write(w, (v >> 8 & 0x00ff00ff00ff00ffull) | (v & 0x00ff00ff00ff00ffull) << 8); break;
    case 2: write(w, wide ? __builtin_bswap64(v) >> 32 | __builtin_bswap64(v) << 32 : __builtin_bswap64(v) >> 32); break;
    case 3: write(w, __builtin_bswap64(v)); break;
    case 4: write(w, leading_zeros(v, wide)); break;
    default: // cls: how many bits below the sign equal it
        v = wide ? v : sext32(v);
        v ^= v << 1;
        write(w, wide ? leading_zeros(v | 1, true) : leading_zeros((uint32_t)v | 1, false));
        break;
    }
}

static void three_sources(unsigned id, uint32_t w) {
    uint64_t n = xzr(rn_of(w)), m = xzr(rm_of(w)), a = xzr(ra_of(w));
    switch (id) {
    case ID_SMADDL: case ID_SMSUBL: n = sext32(n), m = sext32(m); break;
    case ID_UMADDL: case ID_UMSUBL: n = (uint32_t)n, m = (uint32_t)m; break;
    default: break;
    }
    write(w, w >> 15 & 1 ? a - n * m : a + n * m);
}

bool execute_alu(unsigned id, uint32_t w) {
    switch (instruction_rows[id].format) {
    case FORMAT_ADDI: add_immediate(w); break;
    case FORMAT_LOGI: logic_immediate(w); break;
    case FORMAT_MOVW: move_wide(w); break;
    case FORMAT_BFM: bit_field(w); break;
    case FORMAT_EXTR: extract(w); break;
    case FORMAT_SHIFT: shifted_register(w); break;
    case FORMAT_EXT: extended_register(w); break;
    case FORMAT_CC: conditional_compare(w); break;
    case FORMAT_CSEL: conditional_select(w); break;
    case FORMAT_R2: one_source(w); break;
    case FORMAT_R4: three_sources(id, w); break;
    default: // FORMAT_R3
        if (id == ID_SMULH || id == ID_UMULH) write(w, multiply_high(xzr(rn_of(w)), xzr(rm_of(w)), id == ID_SMULH));
        else if ((w >> 21 & 0xff) == 0xd0) with_carry(w);
        else two_sources(w);
        break;
    }
    return true;
}
