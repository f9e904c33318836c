// What the module exports: configure, init and run. See docs/machine.md.
#include "hart.h"

#define EXPORT(name) __attribute__((export_name(#name)))

// Timers are looked at each time the count of instructions is a multiple of this, some 60 microseconds: not at the
// start of each slice, for the length of slices depends on the host and a deterministic machine must not.
enum { QUANTUM = 16384 };

// What `run` leaves for Go to read.
static struct machine_result {
    uint64_t retired;     // instructions since init
    uint64_t deadline_ns; // RUN_IDLE: when to run again, in WASI monotonic time; ~0 is never
    uint32_t code;        // RUN_FAILURE: what the guest said
    uint32_t reserved;
    uint64_t pc;
} result;

// machine_layout tells Go where things are; abiLayout of abi.go is the same structure.
static struct machine_layout {
    uint32_t version, config_size;
    uint32_t config, result, hart_at, ram;
    uint32_t hart_size, reserved;
} layout;

enum { LAYOUT_VERSION = 1 };

EXPORT(configure) struct machine_layout *configure(void) {
    layout = (struct machine_layout){
        .version = LAYOUT_VERSION,
        .config_size = sizeof config,
        .config = (uint32_t)(uintptr_t)&config,
        .result = (uint32_t)(uintptr_t)&result,
        .hart_at = (uint32_t)(uintptr_t)&hart,
        .hart_size = sizeof hart,
    };
    return &layout;
}

enum init_error { INIT_OK = 0, INIT_RAM = 1, INIT_CODE = 2 };

// init makes a machine from `config`. The kernel and the device tree are Go's to place afterwards; it also sets
// hart.pc and the argument registers.
EXPORT(init) uint32_t init(void) {
    if (!memory_init()) return INIT_RAM;
    layout.ram = (uint32_t)(uintptr_t)ram_start();
    if (!code_init()) return INIT_CODE;
    tlb_flush_all();
    csr_reset((config.hart_flags & HART_START_M) != 0);
    time_init();
    devices_init();
    return INIT_OK;
}

static uint32_t reason(void) {
    if (hart.stop != 0) return hart.stop;
    if (!hart.wait) return RUN_BUDGET;
    result.deadline_ns = timer_deadline_ns();
    return RUN_IDLE;
}

// idle handles wfi: true when the guest can go on at once.
static bool idle(void) {
    if (config.clock_mode == CLOCK_INSTRUCTIONS) time_skip();
    timer_update();
    return interrupt_waiting();
}

// run executes at most `budget` instructions. `ready` names the descriptors whose state changed since the last call.
EXPORT(run) uint32_t run(int64_t budget, uint64_t ready) {
    devices_poll(ready);
    hart.stop = 0;
    while (budget > 0) {
        uint64_t into = retired() % QUANTUM;
        int64_t left = (int64_t)(QUANTUM - into), quantum = budget < left ? budget : left;
        if (into == 0 || config.clock_mode == CLOCK_HOST) timer_update();
        hart.retired_end += (uint64_t)quantum;
        hart.budget = quantum;
        interpret();
        budget -= quantum - hart.budget;
        hart.retired_end -= (uint64_t)hart.budget;
        hart.budget = 0;
        if (hart.stop != 0 || (hart.wait && !idle())) break;
    }
    result.retired = retired();
    result.code = hart.stop_code;
    result.pc = hart.pc;
    return reason();
}
