// Atomic memory operations. One hart and no device stores between instructions: a plain read and write is atomic.
#include "hart.h"

static uint64_t combine32(unsigned id, uint32_t old, uint32_t operand) {
    int32_t a = (int32_t)old, b = (int32_t)operand;
    switch (id) {
    case ID_AMOXOR_W: return old ^ operand;
    case ID_AMOAND_W: return old & operand;
    case ID_AMOOR_W: return old | operand;
    case ID_AMOMIN_W: return a < b ? old : operand;
    case ID_AMOMAX_W: return a > b ? old : operand;
    case ID_AMOMINU_W: return old < operand ? old : operand;
    case ID_AMOMAXU_W: return old > operand ? old : operand;
    case ID_AMOADD_W: return old + operand;
    default: return operand;
    }
}

static uint64_t combine64(unsigned id, uint64_t old, uint64_t operand) {
    int64_t a = (int64_t)old, b = (int64_t)operand;
    switch (id) {
    case ID_AMOXOR_D: return old ^ operand;
    case ID_AMOAND_D: return old & operand;
    case ID_AMOOR_D: return old | operand;
    case ID_AMOMIN_D: return a < b ? old : operand;
    case ID_AMOMAX_D: return a > b ? old : operand;
    case ID_AMOMINU_D: return old < operand ? old : operand;
    case ID_AMOMAXU_D: return old > operand ? old : operand;
    case ID_AMOADD_D: return old + operand;
    default: return operand;
    }
}

static void write_rd(const struct insn *d, uint64_t value) {
    if (d->rd != 0) hart.x[d->rd / 8] = value;
}

static bool load_reserved(const struct insn *d, uint64_t va, uint32_t size) {
    if ((va & (size - 1)) != 0) {
        raise(CAUSE_LOAD_MISALIGNED, va);
        return false;
    }
    uint64_t value = slow_load(va, size);
    if (hart.cause != CAUSE_NONE) return false;
    if (size == 4) value = (uint64_t)(int64_t)(int32_t)value;
    hart.reservation = va;
    hart.reserved_value = value;
    write_rd(d, value);
    return true;
}

static bool store_conditional(const struct insn *d, uint64_t va, uint32_t size) {
    uint8_t *host = atomic_pointer(va, size);
    if (host == NULL) return false;
    uint64_t now = size == 4 ? (uint64_t)(int64_t) * (int32_t *)host : *(uint64_t *)host;
    bool holds = hart.reservation == va && hart.reserved_value == now;
    if (holds && size == 4) *(uint32_t *)host = (uint32_t)hart.x[d->rs2 / 8];
    else if (holds) *(uint64_t *)host = hart.x[d->rs2 / 8];
    hart.reservation = ~0ull;
    write_rd(d, !holds);
    return true;
}

bool execute_amo(const struct insn *d) {
    unsigned id = d->imm & 0xff;
    uint64_t va = hart.x[d->rs1 / 8], operand = hart.x[d->rs2 / 8];
    uint32_t size = id >= ID_LR_D ? 8 : 4;
    if (id == ID_LR_W || id == ID_LR_D) return load_reserved(d, va, size);
    if (id == ID_SC_W || id == ID_SC_D) return store_conditional(d, va, size);
    uint8_t *host = atomic_pointer(va, size);
    if (host == NULL) return false;
    if (size == 4) {
        uint32_t old = *(uint32_t *)host;
        *(uint32_t *)host = (uint32_t)combine32(id, old, (uint32_t)operand);
        write_rd(d, (uint64_t)(int64_t)(int32_t)old);
    } else {
        uint64_t old = *(uint64_t *)host;
        *(uint64_t *)host = combine64(id, old, operand);
        write_rd(d, old);
    }
    return true;
}
