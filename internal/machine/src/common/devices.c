// All the devices together: made at init, polled between slices.
#include "virtio.h"

static uint32_t work;

void work_begin(void) { work = WORK_SLICE; }
void work_done(uint64_t units) { work = units < work ? work - (uint32_t)units : 0; }
uint32_t work_left(void) { return work; }

void devices_init(void) {
    __builtin_memset(virtio_devices, 0, sizeof virtio_devices);
    work_begin();
    for (unsigned source = 1; source <= RTC_IRQ; source++)
        interrupt_set_level(source, false);
    rtc_init();
    vmgenid_init();
    console_init();
    rng_init();
    net_init();
    blk_init();
    share_init();
    balloon_init();
}

// The slot that a poll begins with: the one behind that which used up the work of a poll, so that none waits for ever.
static unsigned first;

static void poll(struct virtio_device *device, uint64_t ready) {
    bool before = work_left() > 0;
    if (device->backlog)
        virtio_resume(device);
    if (ready)
        virtio_poll(device, ready);
    if (before && work_left() == 0)
        first = (device->slot + 1) % VIRTIO_SLOTS;
}

void devices_poll(uint64_t ready) {
    work_begin();
    for (unsigned i = 0, from = first; i < VIRTIO_SLOTS; i++) {
        struct virtio_device *device = &virtio_devices[(from + i) % VIRTIO_SLOTS];
        if (device->class)
            poll(device, ready);
    }
}

bool devices_behind(void) {
    for (unsigned slot = 0; slot < VIRTIO_SLOTS; slot++)
        if (virtio_devices[slot].backlog)
            return true;
    return false;
}
