// What the rest of the machine and its processor know of each other. Each processor (riscv64) has a header hart.h that includes this one and
// defines struct hart_state and struct code_page. Of these the common code uses, by name:
//
//	hart_state  pc, budget, retired_end, wait, recheck, stop, stop_code, slow_left, user_entries
//	code_page   slot, frame, in_use, with PAGE_SLOTS, PAGE_TAIL and CODE_PAGES
#ifndef AGENTVM_PROCESSOR_H
#define AGENTVM_PROCESSOR_H

#include "harts.h"
#include "machine.h"

// memory.c
bool memory_init(void);
uint8_t *ram_start(void);
extern uint8_t *ram; // for mmu.c, others call ram_at
extern uint64_t ram_bytes;
uint64_t ram_frames(void);
void *grow_memory(uint64_t size);

// code.c: the pool of decoded pages.
bool code_init(uint32_t pages);
bool code_present(uint32_t frame);
void code_drop(uint32_t frame);
void code_drop_all(void);
struct memory_range code_pool(void); // in linear memory
struct memory_range code_index(void);

void processor_reset(bool start_m); // see HART_START_M
void processor_start(uint64_t pc, uint64_t argument); // of a hart that another one starts

// interpret runs until the budget is spent or hart.wait, hart.stop or a pending interrupt needs the caller.
void interpret(void);
bool interrupt_waiting(void); // some enabled interrupt is pending, masked globally or not

void tlb_reset(void);
void tlb_flush_all(void);
void forget_translation(uint64_t what); // see hart_mail
void tlb_forget_all_writes(void);

// finisher_write is the test finisher's register: power off, reboot, failure.
void finisher_write(uint64_t value);

// bus.c: physical accesses outside RAM. false: nothing is there.
bool bus_read(uint64_t gpa, uint32_t size, uint64_t *value);
bool bus_write(uint64_t gpa, uint64_t value, uint32_t size);

// harts.c
struct hart_state *hart_numbered(uint32_t number);
#ifdef AGENTVM_HARTS
bool harts_make(uint32_t count, uint32_t stack);
void harts_attend(void);
bool harts_enter(void);
bool harts_leave(bool waits);
int64_t next_quantum(void); // the quantum's end in the midst of native code; how many more instructions there are
#endif

// inside gives the offset of an address in a device's range, if it is in there.
static inline bool inside(uint64_t gpa, uint64_t base, uint64_t size, uint32_t *offset) {
    *offset = (uint32_t)(gpa - base);
    return gpa - base < size;
}

// Timers and the guest's clock.
uint64_t guest_time(void); // in ticks of TIMEBASE
enum { TIMEBASE = 10000000 };
uint64_t next_tick(void); // of the earliest enabled timer, ~0 when there is none
void time_init(void);
void time_skip(void); // CLOCK_INSTRUCTIONS: idle time passes at once
void timer_update(void); // recomputes which timers' interrupts are pending
uint64_t timer_deadline_ns(void); // of the next enabled timer, in WASI monotonic time; ~0 when none

enum run_reason {
    RUN_BUDGET = 0,    // the slice is used up
    RUN_IDLE = 1,      // wfi: nothing to do until a descriptor changes or the deadline passes
    RUN_POWER_OFF = 2, // SBI SRST or the finisher
    RUN_REBOOT = 3,
    RUN_FAILURE = 4, // the finisher's failure code, or SRST with reason "system failure"
    RUN_TRANSLATE = 5, // tests only: code to translate, see jit.h
    RUN_YIELD = 6,     // within the module only: reported as RUN_BUDGET
};

// What takes much longer than an instruction is charged, in nanoseconds of a middling host: the budget of a slice follows from the speed
// of the one before it, and a program that was fast could be slow for a second. When SLOW_SLICE is used up the slice ends, at the next
// place where hart.stop is looked at.
enum { SLOW_SLICE = 500000 };
enum {
    SLOW_TRANSLATE = 40,
    SLOW_FLUSH = 20,
    SLOW_DECODE = 40,
    SLOW_CODE_PAGE = 8000,
    SLOW_TRAP = 60,
    SLOW_CLOCK = 100,
    SLOW_REGISTER = 100,
    SLOW_CLEAR = 150,
    SLOW_SYSTEM = 30,
    SLOW_ARITHMETIC = 30,
    SLOW_ELEMENT = 8,
    SLOW_FLOAT = 50,
    SLOW_VECTOR = 50,
};

void slow_ended(void); // machine.c

#endif
