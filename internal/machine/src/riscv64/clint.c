// Core-local interruptor for programs that run in M-mode: software interrupt and machine timer.
#include "hart.h"

enum { MSIP = 0x0000, MTIMECMP = 0x4000, MTIME = 0xbff8 };

uint64_t clint_read(uint32_t offset) {
    switch (offset & ~7u) {
    case MSIP: return (hart.mip >> IRQ_MSI & 1) >> (offset & 4) * 8;
    case MTIMECMP: return hart.mtimecmp >> (offset & 4) * 8;
    case MTIME: return guest_time() >> (offset & 4) * 8;
    default: return 0;
    }
}

void clint_write(uint32_t offset, uint64_t value) {
    switch (offset) {
    case MSIP: hart.mip = (hart.mip & ~(1ull << IRQ_MSI)) | (value & 1) << IRQ_MSI; break;
    case MTIMECMP: hart.mtimecmp = value; break;
    case MTIMECMP + 4: hart.mtimecmp = (hart.mtimecmp & 0xffffffff) | value << 32; break;
    default: break;
    }
    timer_update();
    hart.recheck = 1;
}
