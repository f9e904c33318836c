// Time: the guest's clock ticks at TIMEBASE and starts at zero. Its source is WASI's monotonic clock, or the count of
// retired instructions when the machine runs deterministically.
#include "hart.h"
#include "wasi.h"

enum { NS_PER_TICK = 1000000000 / TIMEBASE, NS_PER_INSTRUCTION = 10 };

static uint64_t start_ns;    // of the monotonic clock; modulo 2^64, for a restored guest may be older than that clock
static struct {
    uint64_t skipped_ns;  // idle time that passed at once
    uint64_t captured_ns; // the guest's time when it was captured
} kept;
static uint64_t stopped_ns;  // the guest's time while its clock is stopped
static bool stopped;

static uint64_t clock_ns(uint32_t clock) {
    uint64_t ns = 0;
    wasi_clock_time_get(clock, 1, &ns);
    return ns;
}

static uint64_t elapsed_ns(void) {
    if (config.clock_mode == CLOCK_INSTRUCTIONS) return retired() * NS_PER_INSTRUCTION + kept.skipped_ns;
    return stopped ? stopped_ns : clock_ns(WASI_CLOCK_MONOTONIC) - start_ns;
}

// go_on_from makes it `elapsed` now.
static void go_on_from(uint64_t elapsed) {
    stopped = false;
    if (config.clock_mode == CLOCK_HOST) start_ns = clock_ns(WASI_CLOCK_MONOTONIC) - elapsed;
}

void time_captured(void) { kept.captured_ns = elapsed_ns(); }

void time_restored(void) { go_on_from(kept.captured_ns); }

struct memory_range time_state(void) { return memory_range(&kept, sizeof kept); }

bool time_adopt(const void *from) {
    __builtin_memcpy(&kept, from, sizeof kept);
    return true;
}

void time_stop(void) {
    stopped_ns = elapsed_ns();
    stopped = true;
}

void time_start(void) {
    if (stopped) go_on_from(stopped_ns);
}

void time_init(void) {
    if (config.clock_mode == CLOCK_HOST) start_ns = clock_ns(WASI_CLOCK_MONOTONIC);
}

uint64_t guest_time(void) {
    slow(SLOW_CLOCK);
    return elapsed_ns() / NS_PER_TICK;
}

uint64_t realtime_nanoseconds(void) {
    if (config.clock_mode == CLOCK_INSTRUCTIONS) return config.realtime_ns + elapsed_ns();
    return clock_ns(WASI_CLOCK_REALTIME);
}

uint64_t timer_deadline_ns(void) {
    uint64_t tick = next_tick();
    if (stopped || tick > ~0ull / NS_PER_TICK) return ~0ull;
    uint64_t due = tick * NS_PER_TICK, elapsed = elapsed_ns(), now = start_ns + elapsed;
    if (due <= elapsed) return now;
    return due - elapsed > ~0ull - now ? ~0ull : now + (due - elapsed);
}

void time_skip(void) {
    uint64_t tick = next_tick(), now = guest_time();
    if (config.clock_mode == CLOCK_INSTRUCTIONS && tick != ~0ull && tick > now) kept.skipped_ns += (tick - now) * NS_PER_TICK;
}
