// What the two forms of the interpreter's loop share. interpret_loop.h is compiled twice: with a tree of conditional
// branches and with a jump table for its switch. build.sh has the flags, dispatch.c chooses.
#ifndef AGENTVM_INTERPRET_H
#define AGENTVM_INTERPRET_H

#include "hart.h"

void interpret_tree(void);
void interpret_table(void);

// jump_about takes `steps` indirect branches with a pattern that processors learn, if they predict such branches at all.
uint32_t jump_about(uint32_t steps);

// Instructions that cross a page are decoded into their own slots each time, with a page end behind them.
extern struct insn crossing[3];
bool prepare_crossing(uint64_t pc);

static inline bool branch_taken(unsigned condition, uint64_t a, uint64_t b) {
    switch (condition) {
    case 0: return a == b;
    case 1: return a != b;
    case 4: return (int64_t)a < (int64_t)b;
    case 5: return (int64_t)a >= (int64_t)b;
    case 6: return a < b;
    default: return a >= b;
    }
}

#endif
