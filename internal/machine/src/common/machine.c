// What the module exports. See docs/internals/machine.md.
#include "virtio.h"

#include "hart.h"

#define EXPORT(name) __attribute__((export_name(#name)))

// Timers are looked at each time the count of instructions is a multiple of this: not at the start of each slice, for the length of slices
// depends on the host and a deterministic machine must not. With the host's clock a quarter of a slice is enough, of which translated code
// executes a hundred times as many instructions: it is left each time.
enum { QUANTUM = 16384 };

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
    uint32_t harts[8]; // addresses of the harts that there are
} layout;

enum { LAYOUT_VERSION = 3 };

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
        .result = (uint32_t)(uintptr_t)&hart.result,
        .hart_at = (uint32_t)(uintptr_t)&hart,
        .hart_size = sizeof hart,
        .dirty = (uint32_t)(uintptr_t)dirty_pages,
        .released = (uint32_t)(uintptr_t)&released_pages,
    };
    describe_parts();
    return &layout;
}

enum init_error { INIT_OK = 0, INIT_RAM = 1, INIT_CODE = 2 };

enum { HART_STACK = 65536, OTHERS_CODE_PAGES = 4096 };

// init makes a machine from `config`. The kernel and the device tree are Go's to place afterwards; it also sets
// hart.pc and the argument registers.
EXPORT(init) uint32_t init(void) {
#ifdef AGENTVM_HARTS // before the RAM, where an image has all that is not zero
    if (!harts_make(config.harts, HART_STACK)) return INIT_RAM;
    for (uint32_t i = 0; i < hart_count(); i++) layout.harts[i] = (uint32_t)(uintptr_t)hart_numbered(i);
#endif
    if (!memory_init()) return INIT_RAM;
    layout.ram = (uint32_t)(uintptr_t)ram_start();
    if (!code_init(CODE_PAGES)) return INIT_CODE;
    layout.code_pool = code_pool();
    layout.code_index = code_index();
    hart.slow_left = SLOW_SLICE;
    tlb_reset();
    processor_reset((config.hart_flags & HART_START_M) != 0);
    time_init();
    devices_init();
    return INIT_OK;
}

#ifdef AGENTVM_HARTS
// init_hart follows `init` in the instance of each other hart.
EXPORT(init_hart) uint32_t init_hart(void) {
    if (!code_init(OTHERS_CODE_PAGES)) return INIT_CODE;
    hart.slow_left = SLOW_SLICE;
    tlb_reset();
    return INIT_OK;
}

// captured_hart is `captured` of each other hart.
EXPORT(captured_hart) void captured_hart(void) { tlb_forget_all_writes(); }
#endif

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
    hart.result.retired = retired();
    hart.result.pc = hart.pc;
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
    hart.result.deadline_ns = timer_deadline_ns();
    return RUN_IDLE;
}

// idle handles wfi: true when the guest can continue at once.
static bool idle(void) {
    if (config.clock_mode == CLOCK_INSTRUCTIONS) time_skip();
    timer_update();
    return interrupt_waiting();
}

// A slice of several harts is in parts that are short enough for another hart to wait for.
static int64_t quantum_of(int64_t budget, int64_t quarter) {
    uint64_t into = retired() % QUANTUM;
    int64_t left = MAX_HARTS == 1 && config.clock_mode == CLOCK_HOST && quarter > QUANTUM ? quarter : (int64_t)(QUANTUM - into);
    if (into == 0 || config.clock_mode == CLOCK_HOST) timer_update();
    return budget < left ? budget : left;
}

static void execute(int64_t budget) {
    int64_t quarter = budget / 4;
    while (budget > 0) {
        int64_t quantum = quantum_of(budget, quarter);
        hart.retired_end += (uint64_t)quantum;
        hart.budget = quantum;
        hart.slice_left = budget - quantum;
        interpret();
        budget = hart.slice_left + hart.budget;
        hart.retired_end -= (uint64_t)hart.budget;
        hart.budget = 0;
        if (hart.stop != 0 || (hart.wait && !idle())) break;
#ifdef AGENTVM_HARTS
        harts_attend();
#endif
    }
}

#ifdef AGENTVM_HARTS
int64_t next_quantum(void) {
    int64_t more = hart.slice_left < QUANTUM ? hart.slice_left : QUANTUM;
    if (more == 0) return 0;
    hart.slice_left -= more;
    hart.retired_end += (uint64_t)more;
    hart.budget += more;
    timer_update();
    harts_attend();
    if (interrupt_waiting() || hart.stop != 0) hart.recheck = 1;
    return more;
}
#endif

static void poll_devices(uint64_t ready) {
    machine_lock();
    devices_poll(ready | ready_again);
    ready_again = 0;
    machine_unlock();
}

// run executes at most `budget` instructions. `ready` names the descriptors whose state changed since the last call: the first hart's instance
// looks at them.
EXPORT(run) uint32_t run(int64_t budget, uint64_t ready) {
    if (hart.number == 0) poll_devices(ready);
    hart.stop = 0;
    // Where slices end depends on the host, and what a deterministic guest sees must not: nothing runs before all is done.
    if (config.clock_mode == CLOCK_INSTRUCTIONS && devices_behind()) budget = 0;
#ifdef AGENTVM_HARTS
    if (harts_enter()) execute(budget);
#else
    execute(budget);
#endif
    hart.slow_left = SLOW_SLICE; // what Go asks for between two slices ends none
    hart.result.retired = retired();
    hart.result.code = hart.stop_code;
    hart.result.released = released_pages.count;
    hart.result.pc = hart.pc;
    uint32_t why = reason();
#ifdef AGENTVM_HARTS
    bool waits = harts_leave(why == RUN_IDLE);
    if (why == RUN_IDLE && !waits) why = RUN_BUDGET;
    if (waits && why == RUN_BUDGET) { // it is off
        why = RUN_IDLE;
        hart.result.deadline_ns = ~0ull;
    }
#endif
    return why;
}
