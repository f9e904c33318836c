// The harts of a machine, and what they ask of each other. A machine of several is several instances of the module over one linear memory: each has
// a stack, a base for its hart (hart.h) and a goroutine of its own, and shares all else. Devices, the interrupt controller and the mail below are
// under one lock; RAM is not. In a module for one hart all of this is empty.
#ifndef AGENTVM_HARTS_H
#define AGENTVM_HARTS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef AGENTVM_HARTS
enum { MAX_HARTS = 8 };
#else
enum { MAX_HARTS = 1 };
#endif

enum hart_power { HART_ON, HART_OFF, HART_STARTING };

enum { HART_MAIL = 32, ALL_CODE = ~0u };

// hart_mail is what a hart is asked for. It attends to it between two quanta, and before it executes anything again.
struct hart_mail {
    uint32_t attention; // something is below: looked at without the lock
    uint32_t running;   // else nothing is executed before it attends
    uint32_t idle;      // its goroutine is to be woken
    uint64_t posted, done;                // requests
    uint32_t translations, frames;        // of the lists; above HART_MAIL: everything is meant
    uint64_t translation[HART_MAIL];      // what to forget, as the processor writes it
    uint32_t frame[HART_MAIL];            // whose decoded code is dropped
};

uint32_t hart_count(void);

// exchange_128 stores `value` at an address that is a multiple of 16 if `expected` is there, and gives what was found.
void exchange_128(void *at, const uint64_t expected[2], const uint64_t value[2], uint64_t found[2]);

void machine_lock(void);
void machine_unlock(void);

// What follows is called with the lock, harts_post_* and harts_wait without.
void harts_interrupt(uint32_t number); // its interrupt line rose
bool harts_start(uint32_t number, uint64_t pc, uint64_t argument); // false: it is on
uint32_t harts_power(uint32_t number);
bool harts_others_on(void);

void harts_post_translation(uint64_t what);
void harts_post_code(uint32_t frame); // or ALL_CODE
void harts_wait(void);                // until the others have done all that was posted

#endif
