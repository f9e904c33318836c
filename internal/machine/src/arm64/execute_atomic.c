// Exclusive accesses and the atomic ones of FEAT_LSE. With one hart nothing comes between the load and the store of one instruction; the store of
// an exclusive pair also compares the values, so that no other store has to look at the reservation.
#include "hart.h"

static bool load_exclusive(uint32_t w, uint64_t va, uint32_t size, bool is_pair) {
    if (misaligned(va, is_pair ? 2 * size : size, false)) return false;
    uint64_t first = load(va, size, false), second = is_pair && hart.cause == 0 ? load(va + size, size, false) : 0;
    if (hart.cause != 0) return false;
    hart.exclusive = va;
    hart.exclusive_value[0] = first;
    hart.exclusive_value[1] = second;
    set_xzr(rd_of(w), first);
    if (is_pair) set_xzr(ra_of(w), second);
    return true;
}

static bool store_exclusive(uint32_t w, uint64_t va, uint32_t size, bool is_pair) {
    if (misaligned(va, is_pair ? 2 * size : size, true)) return false;
    bool done = false;
    if (hart.exclusive == va) {
        uint8_t *at = atomic_pointer(va, false);
        if (at == NULL) return false;
        done = load_bytes(at, size) == hart.exclusive_value[0] && (!is_pair || load_bytes(at + size, size) == hart.exclusive_value[1]);
        if (done) store_bytes(at, xzr(rd_of(w)), size);
        if (done && is_pair) store_bytes(at + size, xzr(ra_of(w)), size);
    }
    hart.exclusive = ~0ull;
    set_xzr(rm_of(w), !done);
    return true;
}

bool execute_exclusive(unsigned id, uint32_t w) {
    (void)id;
    if (stack_misaligned(rn_of(w))) return false;
    bool is_pair = w >> 21 & 1, is_load = w >> 22 & 1;
    uint64_t va = hart.x[rn_of(w)];
    uint32_t size = 1u << (w >> 30);
    return is_load ? load_exclusive(w, va, size, is_pair) : store_exclusive(w, va, size, is_pair);
}

static int64_t signed_value(uint64_t v, uint32_t size) { return (int64_t)(v << (64 - 8 * size)) >> (64 - 8 * size); }

static uint64_t combined(unsigned operation, uint64_t old, uint64_t v, uint32_t size) {
    bool less = signed_value(old, size) < signed_value(v, size);
    uint64_t mask = size == 8 ? ~0ull : (1ull << 8 * size) - 1;
    bool below = old < (v & mask);
    switch (operation) {
    case 0: return old + v;
    case 1: return old & ~v;
    case 2: return old ^ v;
    case 3: return old | v;
    case 4: return less ? v : old;
    case 5: return less ? old : v;
    case 6: return below ? v : old;
    case 7: return below ? old : v;
    default: return v; // swp
    }
}

static bool compare_and_swap(uint32_t w, uint64_t va, uint32_t size) {
    unsigned rs = rm_of(w);
    uint8_t *at = atomic_pointer(va, true);
    if (at == NULL) return false;
    uint64_t old = load_bytes(at, size), mask = size == 8 ? ~0ull : (1ull << 8 * size) - 1;
    if (old == (xzr(rs) & mask)) store_bytes(at, xzr(rd_of(w)), size);
    set_xzr(rs, old);
    return true;
}

static bool compare_and_swap_pair(uint32_t w, uint64_t va, uint32_t size) {
    unsigned rs = rm_of(w), rt = rd_of(w);
    uint8_t *at = atomic_pointer(va, true);
    if (at == NULL) return false;
    uint64_t first = load_bytes(at, size), second = load_bytes(at + size, size), mask = size == 8 ? ~0ull : 0xffffffff;
    if (first == (xzr(rs) & mask) && second == (xzr(rs + 1) & mask)) {
        store_bytes(at, xzr(rt), size);
        store_bytes(at + size, xzr(rt + 1), size);
    }
    set_xzr(rs, first);
    set_xzr(rs + 1, second);
    return true;
}

bool execute_atomic(unsigned id, uint32_t w) {
    if (stack_misaligned(rn_of(w))) return false;
    uint64_t va = hart.x[rn_of(w)];
    if (id == ID_CASP_W || id == ID_CASP_X) {
        uint32_t size = w >> 30 & 1 ? 8 : 4;
        return !misaligned(va, 2 * size, false) && compare_and_swap_pair(w, va, size);
    }
    uint32_t size = 1u << (w >> 30);
    if (misaligned(va, size, false)) return false;
    if ((w >> 24 & 63) == 8) return compare_and_swap(w, va, size);
    uint8_t *at = atomic_pointer(va, true);
    if (at == NULL) return false;
    uint64_t old = load_bytes(at, size);
    store_bytes(at, combined(field(w, 12, 4), old, xzr(rm_of(w)), size), size);
    set_xzr(rd_of(w), old);
    return true;
}
