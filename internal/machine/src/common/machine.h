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

// ram_written must follow every write to RAM that did not come from the hart's own stores: it drops decoded code and
// marks the pages.
void ram_written(uint64_t gpa, uint64_t len);

// A part of linear memory.
struct memory_range {
    uint32_t address, size;
};

// dirty_pages has a byte for each 4 KiB of linear memory from the RAM on: 1 says that it may have been written since
// `captured`. Every write there must mark its page: the hart's stores do when the write TLB is filled.
extern uint8_t dirty_pages[1 << 20];

static inline void mark_dirty(const void *written) { dirty_pages[(uint32_t)(uintptr_t)written / PAGE_SIZE] = 1; }
static inline bool is_dirty(const void *at) { return dirty_pages[(uint32_t)(uintptr_t)at / PAGE_SIZE] != 0; }

// Pages that the guest gave back. The device that hears of it appends linear memory ranges, and drops code decoded from
// them; Go frees them between two slices and sets count to 0. They are not marked as written: their contents are not needed.
enum { RELEASED_MAX = 512 };
extern struct released_pages {
    uint32_t count, reserved;
    struct memory_range range[RELEASED_MAX];
} released_pages;

// Interrupts -----------------------------------------------------------------------------------------------------

// interrupt_set_level drives the level of an interrupt source (1..31).
void interrupt_set_level(unsigned source, bool level);

// Time -----------------------------------------------------------------------------------------------------------

uint64_t realtime_nanoseconds(void);

// The guest's time continues at `restored` from what it was at `captured`. Between time_stop and time_start it stands still.
void time_captured(void);
void time_restored(void);
void time_stop(void);
void time_start(void);

// Devices --------------------------------------------------------------------------------------------------------

enum { VIRTIO_SLOTS = 28, VIRTIO_BASE = 0x10001000, VIRTIO_STRIDE = 0x1000 };
enum { SLOT_CONSOLE = 0, SLOT_RNG = 1, SLOT_NET = 2, SLOT_DISK = 3, SLOT_SHARE = 7, SLOT_BALLOON = 27 };
enum { RTC_BASE = 0x101000, RTC_SIZE = 0x1000, RTC_IRQ = 31 };
enum { VMGENID_BASE = 0x102000, VMGENID_SIZE = 0x1000, VMGENID_IRQ = 30 };

// devices_init makes every device that `config` names; devices_poll begins a slice: it gives a device whose descriptor
// changed state since the last slice (a bit of `ready` each, descriptors below 64), and one that left work for later, the
// chance to move bytes. Neither blocks. devices_behind says whether there is work left for the next slice.
void devices_init(void);
void devices_poll(uint64_t ready);
bool devices_behind(void);

// Work -----------------------------------------------------------------------------------------------------------
// A slice cannot be interrupted, and Go's garbage collector waits for its end. So all devices together do only so much in
// one: each charges what it did, and when nothing is left the queues look empty until the next slice. A request that used up
// the rest ends the slice.

// Units are bytes that are copied to or from a file, a nanosecond each or less. WORK_SLICE is what one slice has, WORK_NOTIFY,
// WORK_CHAIN and WORK_SEGMENT are what it takes to hear of a chain and to read it, and WORK_CALL what a call of WASI takes.
enum { WORK_SLICE = 1 << 20, WORK_NOTIFY = 128, WORK_CHAIN = 128, WORK_SEGMENT = 16, WORK_CALL = 4096 };

void work_begin(void); // with each slice
void work_done(uint64_t units);
uint32_t work_left(void);

// machine_yield ends the slice with the instruction that is being executed.
void machine_yield(void);

// The other side of every stream is a new one when a machine was restored: what was half done on the old one is
// forgotten. The buffers of streams hold nothing that outlives this, so they are not part of an image.
void console_restored(void);
void net_restored(void);
void share_restored(void);
void vmgenid_restored(void) __attribute__((weak)); // raises the interrupt unless the guest has read config.generation
void jit_restored(void) __attribute__((weak));     // forgets translations, which belong to an instance of the module
struct memory_range net_buffers(void);
struct memory_range share_buffers(void);

// What is taken from an untrusted image, see adopt.c. Each X_state is where X keeps what the guest can
// see; X_adopt takes it from a copy of another machine's, after devices_init, and leaves all else as it is. It relies on no
// value of the copy: false refuses one that no machine has.
struct memory_range registers_state(void), time_state(void), interrupts_state(void), rtc_state(void);
struct memory_range vmgenid_state(void), virtio_state(void), console_state(void), net_state(void), share_state(void);
struct memory_range balloon_state(void);
bool registers_adopt(const void *from);
struct memory_range cycle_state(void) __attribute__((weak)); // of riscv64
bool cycle_adopt(const void *from) __attribute__((weak));
bool time_adopt(const void *from);
bool interrupts_adopt(const void *from);
bool rtc_adopt(const void *from);
bool vmgenid_adopt(const void *from);
bool virtio_adopt(const void *from);
bool console_adopt(const void *from);
bool net_adopt(const void *from);
bool share_adopt(const void *from);
bool balloon_adopt(const void *from);

// truth reads a bool of such a copy, which may have any byte there.
static inline bool truth(const void *of) { return *(const uint8_t *)of != 0; }

static inline struct memory_range memory_range(const void *start, uint32_t size) {
    return (struct memory_range){(uint32_t)(uintptr_t)start, size};
}

// Register accesses. Offsets are within the device's window; size is 1, 2, 4 or 8 bytes. Wrong sizes and unknown
// offsets read as zero and ignore writes, as the virtio specification lets them.
uint64_t virtio_mmio_read(unsigned slot, uint32_t offset, unsigned size);
void virtio_mmio_write(unsigned slot, uint32_t offset, uint64_t value, unsigned size);
uint64_t rtc_read(uint32_t offset, unsigned size);
void rtc_write(uint32_t offset, uint64_t value, unsigned size);
uint64_t vmgenid_read(uint32_t offset, unsigned size);

#endif
