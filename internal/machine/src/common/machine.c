// What the module exports. See docs/internals/machine.md.
#include "virtio.h"

#include "hart.h"

#define EXPORT(name) __attribute__((export_name(#name)))

// Timers are looked at each time the count of instructions is a multiple of this: not at the start of each slice, for the length of slices
// depends on the host and a deterministic machine must not. With the host's clock a quarter of a slice is enough, of which translated code
// executes a hundred times as many instructions: it is left each time.
enum { QUANTUM = 16384 };

// What `run` leaves for Go to read.
static struct machine_result {
    uint64_t retired;     // instructions since init
    uint64_t deadline_ns; // RUN_IDLE: when to run again, in WASI monotonic time; ~0 is never
    uint32_t code;        // RUN_FAILURE: what the guest said
    uint32_t released;    // entries of released_pages
    uint64_t pc;
} result;

// machine_layout tells Go where things are; abiLayout of abi.go is the same structure.
static struct machine_layout {
    uint32_t version, config_size;
    uint32_t config, result, hart_at, ram;
    uint32_t hart_size;
    uint32_t dirty;    // dirty_pages
    uint32_t released; // released_pages
    uint32_t scratch_count, hashed_count;
    struct memory_range code_pool, code_index;
    struct memory_range scratch[4]; // what an image need not have: restored() forgets it
    struct memory_range hashed[4];  // what must be equal in machines that did the same, besides the RAM
} layout;

enum { LAYOUT_VERSION = 2 };

static void describe_parts(void) {
    layout.scratch[layout.scratch_count++] = memory_range(dirty_pages, sizeof dirty_pages);
    layout.scratch[layout.scratch_count++] = net_buffers();
    layout.scratch[layout.scratch_count++] = share_buffers();
    enum { RECHECK = offsetof(struct hart_state, recheck), AFTER = RECHECK + sizeof hart.recheck }; // a hint
    layout.hashed[layout.hashed_count++] = memory_range(&hart, RECHECK);
    layout.hashed[layout.hashed_count++] =
        memory_range((const uint8_t *)&hart + AFTER, offsetof(struct hart_state, user_entries) - AFTER);
    layout.hashed[layout.hashed_count++] = memory_range(virtio_devices, sizeof virtio_devices);
}

EXPORT(configure) struct machine_layout *configure(void) {
    layout = (struct machine_layout){
        .version = LAYOUT_VERSION,
        .config_size = sizeof config,
        .config = (uint32_t)(uintptr_t)&config,
        .result = (uint32_t)(uintptr_t)&result,
        .hart_at = (uint32_t)(uintptr_t)&hart,
        .hart_size = sizeof hart,
        .dirty = (uint32_t)(uintptr_t)dirty_pages,
        .released = (uint32_t)(uintptr_t)&released_pages,
    };
    describe_parts();
    return &layout;
}

enum init_error { INIT_OK = 0, INIT_RAM = 1, INIT_CODE = 2 };

// init makes a machine from `config`. The kernel and the device tree are Go's to place afterwards; it also sets
// hart.pc and the argument registers.
EXPORT(init) uint32_t init(void) {
    if (!memory_init()) return INIT_RAM;
    layout.ram = (uint32_t)(uintptr_t)ram_start();
    if (!code_init()) return INIT_CODE;
    layout.code_pool = code_pool();
    layout.code_index = code_index();
    hart.slow_left = SLOW_SLICE;
    tlb_reset();
    processor_reset((config.hart_flags & HART_START_M) != 0);
    time_init();
    devices_init();
    return INIT_OK;
}

// captured begins an image of the machine: Go copies the memory behind it. The machine continues unchanged.
EXPORT(captured) void captured(void) {
    tlb_forget_all_writes();
    __builtin_memset(dirty_pages, 0, __builtin_wasm_memory_size(0) * (65536 / PAGE_SIZE));
    time_captured();
}

static uint64_t ready_again; // descriptors that the next run looks at, whatever Go says

// restored follows when Go has put an image into the memory of a new instance, and `config` beside the generation is
// what it was.
EXPORT(restored) void restored(void) {
    time_restored();
    console_restored();
    net_restored();
    share_restored();
    if (vmgenid_restored) vmgenid_restored();
    if (jit_restored) jit_restored();
    ready_again = ~0ull;
    result.retired = retired();
    result.pc = hart.pc;
}

// A paused guest does not see the pause.
EXPORT(clock_stop) void clock_stop(void) { time_stop(); }
EXPORT(clock_start) void clock_start(void) { time_start(); }

// A device did as much as one slice may: the next one continues, as if the budget were spent.
void machine_yield(void) {
    hart.stop = RUN_YIELD;
    hart.recheck = 1;
}

// slow_ended comes again for each charge until the slice ends, which may be for another reason.
void slow_ended(void) {
    hart.slow_left = 0;
    if (hart.stop == 0) machine_yield();
}

static uint32_t reason(void) {
    if (hart.stop == RUN_YIELD) hart.stop = RUN_BUDGET;
    if (hart.stop != 0) return hart.stop;
    if (!hart.wait || devices_behind()) return RUN_BUDGET;
    result.deadline_ns = timer_deadline_ns();
    return RUN_IDLE;
}

// idle handles wfi: true when the guest can continue at once.
static bool idle(void) {
    if (config.clock_mode == CLOCK_INSTRUCTIONS) time_skip();
    timer_update();
    return interrupt_waiting();
}

// run executes at most `budget` instructions. `ready` names the descriptors whose state changed since the last call.
EXPORT(run) uint32_t run(int64_t budget, uint64_t ready) {
    devices_poll(ready | ready_again);
    ready_again = 0;
    hart.stop = 0;
    // Where slices end depends on the host, and what a deterministic guest sees must not: nothing runs before all is done.
    if (config.clock_mode == CLOCK_INSTRUCTIONS && devices_behind()) budget = 0;
    int64_t quarter = budget / 4;
    while (budget > 0) {
        uint64_t into = retired() % QUANTUM;
        int64_t left = config.clock_mode == CLOCK_HOST && quarter > QUANTUM ? quarter : (int64_t)(QUANTUM - into);
        int64_t quantum = budget < left ? budget : left;
        if (into == 0 || config.clock_mode == CLOCK_HOST) timer_update();
        hart.retired_end += (uint64_t)quantum;
        hart.budget = quantum;
        interpret();
        budget -= quantum - hart.budget;
        hart.retired_end -= (uint64_t)hart.budget;
        hart.budget = 0;
        if (hart.stop != 0 || (hart.wait && !idle())) break;
    }
    hart.slow_left = SLOW_SLICE; // what Go asks for between two slices ends none
    result.retired = retired();
    result.code = hart.stop_code;
    result.released = released_pages.count;
    result.pc = hart.pc;
    return reason();
}
