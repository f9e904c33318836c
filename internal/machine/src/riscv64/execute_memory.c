// Loads and stores that the interpreter leaves: TLB misses, device registers, page crossings, and the rare forms.
#include "operands.h"

#define BOX 0xffffffff00000000ull

static bool fp_off(void) {
    if ((hart.mstatus & MSTATUS_FS) != 0) return false;
    raise(CAUSE_ILLEGAL, 0);
    return true;
}

// load gives the zero-extended value through *value.
static bool load(const struct insn *d, uint32_t size, uint64_t *value) {
    *value = slow_load(RS1 + (uint64_t)IMM, size);
    return hart.cause == CAUSE_NONE;
}

static bool load_unsigned(const struct insn *d, uint32_t size) {
    uint64_t value;
    if (!load(d, size, &value)) return false;
    RD = value;
    return true;
}

static bool load_signed(const struct insn *d, uint32_t size) {
    uint64_t value;
    if (!load(d, size, &value)) return false;
    unsigned unused = 64 - 8 * size;
    RD = (uint64_t)((int64_t)(value << unused) >> unused);
    return true;
}

static bool load_discarded(const struct insn *d) {
    uint64_t value;
    return load(d, 1u << (d->rs2 & 3), &value);
}

static bool load_fp(const struct insn *d, uint32_t size, uint64_t box) {
    uint64_t value;
    if (fp_off() || !load(d, size, &value)) return false;
    F(d->rd) = value | box;
    hart.mstatus |= MSTATUS_FS;
    return true;
}

static bool store(const struct insn *d, uint64_t value, uint32_t size) {
    slow_store(RS1 + (uint64_t)IMM, value, size);
    return hart.cause == CAUSE_NONE;
}

bool execute_memory(const struct insn *d) {
    switch (d->op) {
    case OP_LB: return load_signed(d, 1);
    case OP_LH: return load_signed(d, 2);
    case OP_LW: case OP_C_LW: case OP_C_LWSP: return load_signed(d, 4);
    case OP_LBU: return load_unsigned(d, 1);
    case OP_LHU: return load_unsigned(d, 2);
    case OP_LWU: return load_unsigned(d, 4);
    case OP_LD: case OP_C_LD: case OP_C_LDSP: return load_unsigned(d, 8);
    case OP_SB: return store(d, RS2, 1);
    case OP_SH: return store(d, RS2, 2);
    case OP_SW: case OP_C_SW: case OP_C_SWSP: return store(d, RS2, 4);
    case OP_SD: case OP_C_SD: case OP_C_SDSP: return store(d, RS2, 8);
    case OP_FLW: return load_fp(d, 4, BOX);
    case OP_FLD: case OP_C_FLD: case OP_C_FLDSP: return load_fp(d, 8, 0);
    case OP_FSW: return !fp_off() && store(d, F(d->rs2), 4);
    case OP_FSD: case OP_C_FSD: case OP_C_FSDSP: return !fp_off() && store(d, F(d->rs2), 8);
    default: return load_discarded(d); // OP_LOAD_X0
    }
}
