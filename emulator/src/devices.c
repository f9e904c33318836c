// All the devices together: made at init, polled between slices.
#include "virtio.h"

void devices_init(void) {
    __builtin_memset(virtio_devices, 0, sizeof virtio_devices);
    for (unsigned source = 1; source <= RTC_IRQ; source++)
        plic_set_level(source, false);
    rtc_init();
    vmgenid_init();
    console_init();
    rng_init();
    net_init();
    blk_init();
    share_init();
    balloon_init();
}

void devices_poll(uint64_t ready) {
    for (unsigned slot = 0; slot < VIRTIO_SLOTS; slot++) {
        struct virtio_device *device = &virtio_devices[slot];
        if (device->backlog)
            virtio_resume(device);
        if (ready && device->class && device->class->poll && virtio_live(device))
            device->class->poll(device, ready);
    }
}
