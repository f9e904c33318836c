// The machine's parts as they see each other. Guest physical addresses are `gpa`, guest virtual ones `va`.
#ifndef AGENTVM_MACHINE_H
#define AGENTVM_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"

#define RAM_BASE 0x80000000ull
#define PAGE_SIZE 4096u

// Memory as devices see it ---------------------------------------------------------------------------------------

// ram_at returns the host address of [gpa, gpa+len), or NULL unless all of it is RAM.
void *ram_at(uint64_t gpa, uint64_t len);

// ram_written must follow every write to RAM that did not come from the hart's own stores: it drops decoded code.
void ram_written(uint64_t gpa, uint64_t len);

// Interrupts -----------------------------------------------------------------------------------------------------

// plic_set_level drives the level of an interrupt source (1..31).
void plic_set_level(unsigned source, bool level);

// Time -----------------------------------------------------------------------------------------------------------

uint64_t realtime_nanoseconds(void);

// Devices --------------------------------------------------------------------------------------------------------

enum { VIRTIO_SLOTS = 16, VIRTIO_BASE = 0x10001000, VIRTIO_STRIDE = 0x1000 };
enum { SLOT_CONSOLE = 0, SLOT_RNG = 1, SLOT_NET = 2, SLOT_DISK = 3, SLOT_SHARE = 7, SLOT_BALLOON = 15 };
enum { RTC_BASE = 0x101000, RTC_SIZE = 0x1000, RTC_IRQ = 31 };

// devices_init makes every device that `config` names; devices_poll gives a device whose descriptor changed state
// since the last slice (a bit of `ready` each, descriptors below 64) the chance to move bytes. Neither blocks.
void devices_init(void);
void devices_poll(uint64_t ready);

// Register accesses. Offsets are within the device's window; size is 1, 2, 4 or 8 bytes. Wrong sizes and unknown
// offsets read as zero and ignore writes, as the virtio specification lets them.
uint64_t virtio_mmio_read(unsigned slot, uint32_t offset, unsigned size);
void virtio_mmio_write(unsigned slot, uint32_t offset, uint64_t value, unsigned size);
uint64_t rtc_read(uint32_t offset, unsigned size);
void rtc_write(uint32_t offset, uint64_t value, unsigned size);

#endif
