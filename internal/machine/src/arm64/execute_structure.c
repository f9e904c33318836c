// Loads and stores of structures: LD1 to LD4, ST1 to ST4, whole registers, one lane and all lanes (C7.2).
#include "hart.h"
#include "simd.h"

// several is LDn and STn of whole registers. An exception may leave some of the registers loaded, as the architecture lets it: the instruction is
// executed again.
static bool several(uint32_t w, uint64_t va) {
    bool is_load = w >> 22 & 1, q = w >> 30 & 1;
    unsigned log = field(w, 10, 2), elements = (q ? 16u : 8u) >> log, registers, interleaved;
    switch (field(w, 12, 4)) {
    case 0: registers = 4, interleaved = 4; break;
    case 2: registers = 4, interleaved = 1; break;
    case 4: registers = 3, interleaved = 3; break;
    case 6: registers = 3, interleaved = 1; break;
    case 7: registers = 1, interleaved = 1; break;
    case 8: registers = 2, interleaved = 2; break;
    default: registers = 2, interleaved = 1; break;
    }
    for (unsigned group = 0; group < registers; group += interleaved)
        for (unsigned e = 0; e < elements; e++)
            for (unsigned k = 0; k < interleaved; k++, va += 1u << log) {
                slow(SLOW_ELEMENT);
                uint64_t *v = hart.v[(rd_of(w) + group + k) & 31];
                if (is_load) {
                    uint64_t value = load(va, 1u << log, false);
                    if (hart.cause != 0) return false;
                    set_lane(v, log, e, value);
                    if (!q && e == elements - 1) v[1] = 0;
                } else {
                    store(va, lane(v, log, e), 1u << log, false);
                    if (hart.cause != 0) return false;
                }
            }
    return true;
}

// one is a single lane of one to four registers, or a load to all their lanes. It returns how many bytes it accessed.
static bool one(uint32_t w, uint64_t va, unsigned *bytes) {
    bool is_load = w >> 22 & 1, q = w >> 30 & 1, s = w >> 12 & 1;
    unsigned op = field(w, 13, 3), size = field(w, 10, 2), registers = ((op & 1) << 1 | field(w, 21, 1)) + 1, log = op >> 1, index = 0;
    bool all = log == 3;
    switch (log) {
    case 0: index = (unsigned)q << 3 | (unsigned)s << 2 | size; break;
    case 1: index = (unsigned)q << 2 | (unsigned)s << 1 | size >> 1; break;
    case 2:
        index = (unsigned)q << 1 | s;
        if (size == 1) log = 3, index = q;
        break;
    default: log = size; break;
    }
    *bytes = registers << log;
    for (unsigned k = 0; k < registers; k++, va += 1u << log) {
        slow(SLOW_ELEMENT);
        uint64_t *v = hart.v[(rd_of(w) + k) & 31];
        if (!is_load) {
            store(va, lane(v, log, index), 1u << log, false);
            if (hart.cause != 0) return false;
            continue;
        }
        uint64_t value = load(va, 1u << log, false);
        if (hart.cause != 0) return false;
        if (!all) {
            set_lane(v, log, index, value);
            continue;
        }
        for (unsigned e = 0; e < 16u >> log; e++) set_lane(v, log, e, value);
        if (!q) v[1] = 0;
    }
    return true;
}

bool execute_structure(unsigned id, uint32_t w) {
    (void)id;
    if (!fp_enabled() || stack_misaligned(rn_of(w))) return false;
    bool lanes = w >> 24 & 1, post = w >> 23 & 1;
    uint64_t va = hart.x[rn_of(w)];
    unsigned bytes = 0;
    if (lanes) {
        if (!one(w, va, &bytes)) return false;
    } else {
        if (!several(w, va)) return false;
        static const uint8_t registers[] = {4, 0, 4, 0, 3, 0, 3, 1, 2, 0, 2};
        bytes = registers[field(w, 12, 4)] * (w >> 30 & 1 ? 16u : 8u);
    }
    if (post) hart.x[rn_of(w)] = va + (rm_of(w) == 31 ? bytes : hart.x[rm_of(w)]);
    return true;
}
