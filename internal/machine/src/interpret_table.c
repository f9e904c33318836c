// The interpreter for hosts that predict indirect branches: the one file for which build.sh allows jump tables.
#define INTERPRET interpret_table
#include "interpret_loop.h"

#define STEP(n)                                                                                                        \
    case n:                                                                                                            \
        x += 2 * n + 1;                                                                                                \
        __asm__ volatile("" : "+r"(x));                                                                                \
        break;

uint32_t jump_about(uint32_t steps) {
    uint32_t x = 0;
    for (uint32_t i = 0; i < steps; i++) {
        switch (0x73615240u >> (i % 8 * 4) & 15) {
            STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)
        }
    }
    return x;
}
