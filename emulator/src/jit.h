// What the interpreter and translated code have to do with each other; docs/jit.md has the contract.
#ifndef AGENTVM_JIT_H
#define AGENTVM_JIT_H

#include "hart.h"

// JIT_LATE: a slice has not come to its end while so many instructions are left: no region looks for more at once.
enum { JIT_LATE = 256, JIT_HEAT = 4096, JIT_HOT = 256, JIT_FUNCTIONS = 8192, JIT_THRESHOLD = 1024,
       JIT_EDGES = 4096, JIT_EDGE_THRESHOLD = 4096, JIT_EDGE = 1u << 31, JIT_APART = 1u << 30 };

// What Go and the machine tell each other between two slices.
struct jit_state {
    uint32_t enabled;  // code is counted
    uint32_t eager;    // for tests: code is hot when it is first reached, and the slice ends there
    uint32_t hot_count;
    uint32_t refused_frame, refused_offset; // eager: what was asked for last and cannot be translated
    uint32_t table;       // index of the first function in the table
    uint32_t next;        // number of the next function; 0 is none
    uint32_t padding;
    uint64_t entered;  // calls of translated code
    uint64_t stuck;    // of these: it did nothing, although the slice had not come to its end
    uint64_t executed; // instructions in it
    uint64_t chained;  // of these: another region was left for it
    uint64_t unmapped; // left for a page that the code TLB does not have
    uint64_t late;     // of those entered: it did nothing at the end of a slice
    uint64_t left[256]; // left for an instruction that is not translated, by its operation
    // Code that was reached often: the RAM page's number and the offset there. Or regions of which one is often left for the
    // other: a function's number with JIT_EDGE, and the other's. Or a load or store whose page the TLB has, for which a region is left
    // nevertheless: the page's number with JIT_APART, and the offset, with the function's place in the table above that.
    struct jit_hot { uint32_t frame, offset; } hot[JIT_HOT];
    uint16_t heat[JIT_HEAT]; // counts what jumps reach; slots share counters
    uint16_t edges[JIT_EDGES]; // counts what regions leave for others, which share counters
    uint16_t apart[JIT_EDGES]; // counts loads and stores as for JIT_APART, which share counters
    uint32_t live[JIT_FUNCTIONS]; // the function at each place of the table
};

extern struct jit_state jit;

// jit_count counts a jump to the slot: true when it has become hot.
static inline bool jit_count(const struct insn *slot) {
    return ++jit.heat[(uintptr_t)slot / sizeof *slot % JIT_HEAT] % JIT_THRESHOLD == 0;
}

// jit_uncount makes up for the jump with which a slice begins, wherever that is.
void jit_uncount(void);

// jit_hot notes hot code. true: the slice must end before it.
bool jit_hot(const struct code_page *page, const struct insn *slot);

// jit_run executes translated code from the slot on, where hart.pc is, and what follows it as long as that is translated.
// It returns with pc, budget and cause in the hart. Otherwise, its result is NULL, or where to go on with
// interpreting the instruction at pc, which translated code has not managed.
const struct insn *jit_run(const struct insn *slot);

#endif
