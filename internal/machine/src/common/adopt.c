// Restoring an untrusted image. An image is the whole of a machine's memory, and this code trusts what is there: decoded code,
// translation caches, indices, pointers to functions. A forged one could keep a slice from ever ending. So an untrusted image is not
// put into memory. `init` makes a new machine, Go maps the image's RAM into it, which concerns only the guest, and of the rest only
// what follows is copied, value by value.
#include "hart.h"

#define EXPORT(name) __attribute__((export_name(#name)))

// In the order of stateNames in adopt.go. The devices' rings are looked for in the RAM, so that comes first; the interrupt lines
// follow from the devices. A processor need not have all.
static const struct part {
    struct memory_range (*where)(void);
    bool (*adopt)(const void *from);
} parts[] = {
    {registers_state, registers_adopt}, {cycle_state, cycle_adopt}, {time_state, time_adopt},
    {interrupts_state, interrupts_adopt}, {rtc_state, rtc_adopt},   {vmgenid_state, vmgenid_adopt},
    {virtio_state, virtio_adopt},   {console_state, console_adopt}, {net_state, net_adopt},
    {share_state, share_adopt},     {balloon_state, balloon_adopt},
};

enum { PARTS = sizeof parts / sizeof *parts, ALIGNMENT = 64 };

// What Go reads of the image and where it puts that: abiAdoption of adopt.go is the same structure. The place belongs to the
// streams of the shares, which are unused before `restored`.
static struct adoption {
    uint32_t count, reserved;
    struct {
        struct memory_range state;
        uint32_t copy, reserved;
    } part[16];
} adoption;
_Static_assert(PARTS <= sizeof adoption.part / sizeof *adoption.part, "there is room for all parts");

EXPORT(adoption) struct adoption *adoption_of(void) {
    uint32_t at = share_buffers().address;
    adoption.count = PARTS;
    for (unsigned i = 0; i < PARTS; i++) {
        at = (at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        adoption.part[i].state = parts[i].where != NULL ? parts[i].where() : (struct memory_range){0};
        adoption.part[i].copy = at;
        at += adoption.part[i].state.size;
    }
    return &adoption;
}

#ifdef AGENTVM_HARTS
// adopt_hart comes before `adopt`, in the instance of each other hart, whose registers are at the place of the first part. False: they are refused.
EXPORT(adopt_hart) uint32_t adopt_hart(void) {
    if (!registers_adopt((const void *)(uintptr_t)adoption.part[0].copy)) return false;
    hart.slow_left = SLOW_SLICE;
    return true;
}
#endif

// adopt follows `init`, with the image's RAM in place. 0, or the number of the part that is refused, counted from 1.
EXPORT(adopt) uint32_t adopt(void) {
    for (unsigned i = 0; i < PARTS; i++)
        if (parts[i].adopt != NULL && !parts[i].adopt((const void *)(uintptr_t)adoption.part[i].copy)) return i + 1;
    timer_update();
    hart.slow_left = SLOW_SLICE; // none of this was the guest's
    return 0;
}
