// Loads and stores of general registers: every form. The interpreter has the commoner ones itself.
#include "hart.h"

static bool failed(void) { return hart.cause != 0; }

// An access by bits 31 to 22 of most loads and stores: `opc` 0 stores, 1 loads, 2 loads with its sign to 64 bits, 3 to 32 bits.
static bool access(unsigned rt, uint64_t va, unsigned scale, unsigned opc, bool unprivileged) {
    uint32_t size = 1u << scale;
    if (opc == 0) {
        store(va, xzr(rt), size, unprivileged);
        return !failed();
    }
    uint64_t value = load(va, size, unprivileged);
    if (failed()) return false;
    unsigned unused = 64 - 8 * size;
    if (opc >= 2) value = (uint64_t)((int64_t)(value << unused) >> unused);
    set_xzr(rt, opc == 3 ? (uint32_t)value : value);
    return true;
}

// single is a load or store of one register. Bits 11 and 10 of the forms with nine bits are 0, 1 after, 2 unprivileged, 3 before.
static bool single(uint32_t w, unsigned format) {
    unsigned scale = w >> 30, opc = field(w, 22, 2), rn = rn_of(w), way = format == FORMAT_LSI ? field(w, 10, 2) : 0;
    uint64_t base = hart.x[rn], moved = base;
    if (format == FORMAT_LSU) moved += (uint64_t)field(w, 10, 12) << scale;
    else if (format == FORMAT_LSR) moved += offset_register(w, scale);
    else moved += (uint64_t)signed_field(w, 12, 9);
    if (!access(rd_of(w), way == 1 ? base : moved, scale, opc, way == 2)) return false;
    if (way & 1) hart.x[rn] = moved;
    return true;
}

static bool literal(uint32_t w, uint64_t pc) {
    uint64_t va = pc + (uint64_t)(signed_field(w, 5, 19) * 4);
    static const uint8_t scale[] = {2, 3, 2}, opc[] = {1, 1, 2};
    return access(rd_of(w), va, scale[w >> 30], opc[w >> 30], false);
}

static bool pair(uint32_t w) {
    bool is_load = w >> 22 & 1, is_signed = w >> 30 == 1;
    unsigned scale = w >> 31 ? 3 : 2, way = field(w, 23, 2), rn = rn_of(w); // way: 0 and 2 neither, 1 after, 3 before
    uint32_t size = 1u << scale;
    uint64_t base = hart.x[rn], moved = base + ((uint64_t)signed_field(w, 15, 7) << scale), va = way == 1 ? base : moved;
    if (is_load) {
        uint64_t first = load(va, size, false), second = failed() ? 0 : load(va + size, size, false);
        if (failed()) return false;
        if (is_signed) first = (uint64_t)(int64_t)(int32_t)first, second = (uint64_t)(int64_t)(int32_t)second;
        set_xzr(rd_of(w), first);
        set_xzr(ra_of(w), second);
    } else {
        uint64_t first = xzr(rd_of(w)), second = xzr(ra_of(w));
        if (!can_write(va, size) || !can_write(va + size, size)) return false;
        store(va, first, size, false);
        store(va + size, second, size, false);
    }
    if (way & 1) hart.x[rn] = moved;
    return true;
}

// Accesses in order: with one hart, all are. Else a load-acquire comes before what follows it, and a store-release before every later load-acquire
// (DDI 0487, B2.3.7).
static bool ordered(unsigned id, uint32_t w) {
    unsigned scale = w >> 30;
    uint64_t va = hart.x[rn_of(w)];
    bool is_load = w >> 22 & 1 || (id >= ID_LDAPRB && id <= ID_LDAPR_X);
    if (misaligned(va, 1u << scale, !is_load)) return false;
    if (!is_load) __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!access(rd_of(w), va, scale, is_load ? 1 : 0, false)) return false;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return true;
}

bool execute_memory(unsigned id, uint32_t w, uint64_t pc) {
    unsigned format = instruction_rows[id].format;
    if (format == FORMAT_LSL) return literal(w, pc);
    if (stack_misaligned(rn_of(w))) return false;
    switch (format) {
    case FORMAT_LSP: return pair(w);
    case FORMAT_EXCL: return ordered(id, w);
    default: return single(w, format);
    }
}
