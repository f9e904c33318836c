// Exclusive accesses and the atomic ones of FEAT_LSE, by the host's compare-and-exchange, which is a load and a store in a module for one hart. The
// store of an exclusive pair of instructions compares the values, so that no other store has to look at the reservation.
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
    __atomic_thread_fence(__ATOMIC_SEQ_CST); // LDAXR
    return true;
}

// exchange stores `value` if the memory has `expected`, and returns what it had. The address is aligned.
static uint64_t exchange(uint8_t *at, uint64_t expected, uint64_t value, uint32_t size) {
    switch (size) {
#define EXCHANGE(bytes, type)                                                                                          \
    case bytes: {                                                                                                      \
        type found = (type)expected;                                                                                   \
        __atomic_compare_exchange_n((type *)at, &found, (type)value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);       \
        return found;                                                                                                  \
    }
    EXCHANGE(1, uint8_t)
    EXCHANGE(2, uint16_t)
    EXCHANGE(4, uint32_t)
    default:
    EXCHANGE(8, uint64_t)
#undef EXCHANGE
    }
}

// exchange_pair is the same for two values.
static bool exchange_pair(uint8_t *at, const uint64_t expected[2], const uint64_t value[2], uint64_t found[2], uint32_t size) {
    if (size == 4) {
        uint64_t both = exchange(at, expected[0] | expected[1] << 32, (uint32_t)value[0] | value[1] << 32, 8);
        found[0] = (uint32_t)both;
        found[1] = both >> 32;
    } else {
        exchange_128(at, expected, value, found);
    }
    return found[0] == expected[0] && found[1] == expected[1];
}

static uint64_t mask_of(uint32_t size) { return size == 8 ? ~0ull : (1ull << 8 * size) - 1; }

static bool store_exclusive(uint32_t w, uint64_t va, uint32_t size, bool is_pair) {
    if (misaligned(va, is_pair ? 2 * size : size, true)) return false;
    bool done = false;
    if (hart.exclusive == va) {
        uint8_t *at = atomic_pointer(va, false);
        if (at == NULL) return false;
        uint64_t value[2] = {xzr(rd_of(w)), xzr(ra_of(w))}, found[2];
        if (is_pair) done = exchange_pair(at, hart.exclusive_value, value, found, size);
        else done = exchange(at, hart.exclusive_value[0], value[0], size) == hart.exclusive_value[0];
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
    set_xzr(rs, exchange(at, xzr(rs) & mask_of(size), xzr(rd_of(w)), size));
    return true;
}

static bool compare_and_swap_pair(uint32_t w, uint64_t va, uint32_t size) {
    unsigned rs = rm_of(w), rt = rd_of(w);
    uint8_t *at = atomic_pointer(va, true);
    if (at == NULL) return false;
    uint64_t expected[2] = {xzr(rs) & mask_of(size), xzr(rs + 1) & mask_of(size)}, value[2] = {xzr(rt), xzr(rt + 1)}, found[2];
    exchange_pair(at, expected, value, found, size);
    set_xzr(rs, found[0]);
    set_xzr(rs + 1, found[1]);
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
    uint64_t operand = xzr(rm_of(w)), old = load_bytes(at, size), found;
    while ((found = exchange(at, old, combined(field(w, 12, 4), old, operand, size), size)) != old) old = found;
    set_xzr(rd_of(w), old);
    return true;
}
