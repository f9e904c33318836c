// What every processor's hart has beside its registers: the state of its translated code, and its decoded code. None of it is the guest's.
#ifndef AGENTVM_HART_CACHES_H
#define AGENTVM_HART_CACHES_H

#include "processor.h"

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
    uint64_t scratch[16]; // of translated code alone, while it looks up a page, or two
};

// What a slice leaves for Go to read.
struct machine_result {
    uint64_t retired;     // instructions since init
    uint64_t deadline_ns; // RUN_IDLE: when to run again, in WASI monotonic time; ~0 is never
    uint32_t code;        // RUN_FAILURE: what the guest said
    uint32_t released;    // entries of released_pages
    uint64_t pc;
};

// The decoded pages of a hart, see code.c.
struct code_cache {
    struct code_page *pool; // `pages` entries, in linear memory behind the RAM
    uint16_t *page_of_frame; // for each RAM page: index in the pool + 1, or 0
    uint32_t pages, next_victim; // of the pool, which is a ring with a second chance
};

#endif
