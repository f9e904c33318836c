// The test finisher, a register by which a guest ends the machine.
#include "hart.h"

// Values of the finisher, as QEMU's sifive_test device has them.
enum { FINISHER_FAIL = 0x3333, FINISHER_PASS = 0x5555, FINISHER_RESET = 0x7777 };

// finisher_write is the test finisher's register: power off, reboot, failure.
void finisher_write(uint64_t value) {
    hart.recheck = 1;
    hart.stop_code = (uint32_t)(value >> 16 & 0xffff);
    switch (value & 0xffff) {
    case FINISHER_FAIL: hart.stop = RUN_FAILURE; break;
    case FINISHER_PASS: hart.stop = RUN_POWER_OFF; break;
    case FINISHER_RESET: hart.stop = RUN_REBOOT; break;
    default: break;
    }
}
