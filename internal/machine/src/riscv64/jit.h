// The contract between the interpreter and translated code, which docs/internals/translator.md explains.
#ifndef AGENTVM_JIT_H
#define AGENTVM_JIT_H

#include "hart.h"

// JIT_BUDGET_EXIT: with fewer instructions left than this, a region may execute nothing: none checks the budget for more at once.
enum { JIT_BUDGET_EXIT = 256, JIT_HOTNESS = 4096, JIT_HOT = 256, JIT_FUNCTIONS = 8192, JIT_THRESHOLD = 1024 };

// What Go and the machine exchange between two slices.
struct jit_state {
    uint32_t enabled;  // code is counted
    uint32_t eager;    // for tests: code is hot when it is first reached, and the slice ends there
    uint32_t hot_count;
    uint32_t refused_frame, refused_offset; // eager: the last request, which cannot be translated
    uint32_t next;     // number of the next function; 0 is none
    uint64_t entered;  // calls of translated code
    uint64_t no_progress; // of these: it executed nothing, with budget left
    uint64_t executed; // instructions in it
    uint64_t chained;  // of these: another region was left for it
    uint64_t unmapped; // left for a page that the code TLB does not have
    uint64_t budget_exit; // of those entered: it executed nothing at the end of a slice
    uint64_t left[256]; // left for an instruction that is not translated, by its operation
    // Code that was entered often: the RAM page's number and the offset there.
    struct jit_hot { uint32_t frame, offset; } hot[JIT_HOT];
    uint16_t hotness[JIT_HOTNESS]; // counts what jumps reach; slots share counters
    uint32_t live[JIT_FUNCTIONS]; // the function at each place of the ring
    uint64_t places[32]; // of translated code alone, within a block: where the accesses by a guest register are
    uint64_t scratch[3]; // of translated code alone, while it looks up a page
};

extern struct jit_state jit;

// jit_count counts a jump to the slot: true when it has become hot.
static inline bool jit_count(const struct insn *slot) {
    return ++jit.hotness[(uintptr_t)slot / sizeof *slot % JIT_HOTNESS] % JIT_THRESHOLD == 0;
}

// jit_uncount takes back the count of the jump with which each slice begins.
void jit_uncount(void);

// jit_hot notes hot code. true: the slice must end before it.
bool jit_hot(const struct code_page *page, const struct insn *slot);

// jit_run executes translated code from the slot on, where hart.pc is, and what follows it as long as that is translated.
// It returns with pc, budget and cause in the hart. The result is NULL, or the slot with which to continue
// interpreting: the instruction at pc, which translated code could not execute.
const struct insn *jit_run(const struct insn *slot);

#endif
