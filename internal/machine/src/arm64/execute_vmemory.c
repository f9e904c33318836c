// Loads and stores of SIMD and floating-point registers.
#include "hart.h"
#include "simd.h"

static bool failed(void) { return hart.cause != 0; }

// store_vector stores the low `size` bytes of v, 1 to 16.
static bool store_vector(uint64_t va, const uint64_t *v, uint32_t size) {
    if (size < 16) {
        store(va, v[0], size, false);
    } else {
        if (!can_write(va, 16)) return false;
        store(va, v[0], 8, false);
        store(va + 8, v[1], 8, false);
    }
    return !failed();
}

static bool load_vector(uint64_t va, uint64_t *v, uint32_t size) {
    uint64_t low = load(va, size < 16 ? size : 8, false), high = size < 16 || failed() ? 0 : load(va + 8, 8, false);
    if (failed()) return false;
    v[0] = low;
    v[1] = high;
    return true;
}

static bool single(uint32_t w, unsigned format) {
    unsigned scale = (w >> 30) + (w >> 23 & 1) * 4, rn = rn_of(w), way = format == FORMAT_LSI ? field(w, 10, 2) : 0;
    uint64_t base = hart.x[rn], moved = base;
    if (format == FORMAT_LSU) {
        moved += (uint64_t)field(w, 10, 12) << scale;
    } else if (format == FORMAT_LSR) {
        moved += offset_register(w, scale);
    } else {
        moved += (uint64_t)signed_field(w, 12, 9);
    }
    uint64_t va = way == 1 ? base : moved, *v = hart.v[rd_of(w)];
    if (!(w >> 22 & 1 ? load_vector(va, v, 1u << scale) : store_vector(va, v, 1u << scale))) return false;
    if (way & 1) hart.x[rn] = moved;
    return true;
}

static bool pair(uint32_t w) {
    unsigned scale = 2 + (w >> 30), way = field(w, 23, 2), rn = rn_of(w);
    uint32_t size = 1u << scale;
    uint64_t base = hart.x[rn], moved = base + ((uint64_t)signed_field(w, 15, 7) << scale), va = way == 1 ? base : moved;
    if (w >> 22 & 1) {
        uint64_t first[2], second[2];
        if (!load_vector(va, first, size) || !load_vector(va + size, second, size)) return false;
        __builtin_memcpy(hart.v[rd_of(w)], first, sizeof first);
        __builtin_memcpy(hart.v[ra_of(w)], second, sizeof second);
    } else {
        if (!can_write(va, size) || !can_write(va + size, size)) return false;
        store_vector(va, hart.v[rd_of(w)], size);
        store_vector(va + size, hart.v[ra_of(w)], size);
        if (failed()) return false;
    }
    if (way & 1) hart.x[rn] = moved;
    return true;
}

bool execute_vmemory(unsigned id, uint32_t w, uint64_t pc) {
    unsigned format = instruction_rows[id].format;
    if (!fp_enabled()) return false;
    if (format == FORMAT_LSL) return load_vector(pc + (uint64_t)(signed_field(w, 5, 19) * 4), hart.v[rd_of(w)], 4u << (w >> 30));
    if (stack_misaligned(rn_of(w))) return false;
    return format == FORMAT_LSP ? pair(w) : single(w, format);
}
