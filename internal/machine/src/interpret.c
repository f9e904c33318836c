// Which form of the interpreter's loop runs. Both do exactly the same; which is faster is the host's business
// (docs/internals/rationale.md): a jump table where indirect branches are predicted, else a tree of conditional branches.
#include "interpret.h"
#include "jit.h"
#include "wasi.h"

struct insn crossing[3];

enum { FAR_AWAY = 1 << 30 }; // an offset from which no target is in the same page

bool prepare_crossing(uint64_t pc) {
    uint32_t word;
    if (!fetch_crossing(pc, &word)) return false;
    decode_word(word, &crossing[0], FAR_AWAY);
    crossing[2] = (struct insn){.op = OP_PAGE_END};
    return true;
}

// The host is looked at again after this many runs of the loop, at least 0.1 s: it can change its mind, and a restored
// machine may be on another.
enum { TRUST = 2048 };
enum { STEPS = 256, TRIES = 4 };

static struct {
    uint32_t runs_left;
    bool table;
} choice;

static uint64_t now_ns(void) {
    uint64_t ns = 0;
    wasi_clock_time_get(WASI_CLOCK_MONOTONIC, 1, &ns);
    return ns;
}

// multiply_on is a chain that takes four or five cycles a step on all hosts: a clock that runs with the processor's.
static __attribute__((noinline)) uint64_t multiply_on(uint32_t steps) {
    uint64_t x = steps;
    for (uint32_t i = 0; i < steps; i++) {
        x = x * 0x5851f42d4c957f2d + i;
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}

// predicts_jumps: a predicted indirect branch costs about as much as a multiplication, another at least 15 cycles more.
static bool predicts_jumps(void) {
    uint64_t jumps = ~0ull, products = ~0ull;
    for (int i = 0; i < TRIES; i++) {
        uint64_t a = now_ns();
        jump_about(STEPS);
        uint64_t b = now_ns();
        multiply_on(STEPS);
        uint64_t c = now_ns();
        if (b - a < jumps) jumps = b - a;
        if (c - b < products) products = c - b;
    }
    return jumps < 3 * products;
}

static bool choose_table(void) {
    // No clock is read when all must be repeatable. Both forms have their turn then, so that tests see both.
    if (config.clock_mode == CLOCK_INSTRUCTIONS) return (retired() * 0x9e3779b97f4a7c15 >> 63) != 0;
    if (choice.runs_left == 0) {
        choice.table = predicts_jumps();
        choice.runs_left = TRUST;
    }
    choice.runs_left--;
    return choice.table;
}

void interpret(void) {
    jit_uncount();
    if (choose_table()) interpret_table();
    else interpret_tree();
}
