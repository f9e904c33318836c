// The operations of I and M on registers that programs execute seldom.
#include "operands.h"

static uint64_t mulhu(uint64_t a, uint64_t b) {
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t middle = ah * bl + (al * bl >> 32), other = al * bh + (uint32_t)middle;
    return ah * bh + (middle >> 32) + (other >> 32);
}

static uint64_t mulhsu(uint64_t a, uint64_t b) { return mulhu(a, b) - ((int64_t)a < 0 ? b : 0); }
static uint64_t mulh(uint64_t a, uint64_t b) { return mulhsu(a, b) - ((int64_t)b < 0 ? a : 0); }

// Division by zero and overflow have results, not exceptions ("M" chapter, table "Semantics for division by zero").
static uint64_t divide(int64_t a, int64_t b) { return b == 0 ? ~0ull : b == -1 ? -(uint64_t)a : (uint64_t)(a / b); }
static uint64_t remainder(int64_t a, int64_t b) { return b == 0 ? (uint64_t)a : b == -1 ? 0 : (uint64_t)(a % b); }

static uint64_t divide32(int32_t a, int32_t b) {
    return b == 0 ? ~0ull : b == -1 ? SEXT32(-(uint32_t)a) : SEXT32(a / b);
}

static uint64_t remainder32(int32_t a, int32_t b) { return b == 0 ? SEXT32(a) : b == -1 ? 0 : SEXT32(a % b); }

static uint64_t shift32(unsigned id, uint64_t a, uint64_t b) {
    switch (id) {
    case ID_SLLW: return SEXT32((uint32_t)a << (b & 31));
    case ID_SRLW: return SEXT32((uint32_t)a >> (b & 31));
    default: return SEXT32((int32_t)a >> (b & 31)); // sraw
    }
}

static uint64_t product_or_quotient(unsigned id, uint64_t a, uint64_t b) {
    uint32_t a32 = (uint32_t)a, b32 = (uint32_t)b;
    switch (id) {
    case ID_MULH: return mulh(a, b);
    case ID_MULHSU: return mulhsu(a, b);
    case ID_MULHU: return mulhu(a, b);
    case ID_DIV: return divide((int64_t)a, (int64_t)b);
    case ID_DIVU: return b == 0 ? ~0ull : a / b;
    case ID_REM: return remainder((int64_t)a, (int64_t)b);
    case ID_REMU: return b == 0 ? a : a % b;
    case ID_DIVW: return divide32((int32_t)a, (int32_t)b);
    case ID_DIVUW: return b32 == 0 ? ~0ull : SEXT32(a32 / b32);
    case ID_REMW: return remainder32((int32_t)a, (int32_t)b);
    default: return b32 == 0 ? SEXT32(a) : SEXT32(a32 % b32); // remuw
    }
}

void execute_alu(const struct insn *d) {
    unsigned id = d->imm & 0xff;
    RD = id >= ID_MUL && id <= ID_REMUW ? product_or_quotient(id, RS1, RS2) : shift32(id, RS1, RS2);
}
