// Physical addresses that are not RAM: which device's register they are. docs/internals/machine.md has the memory map.
#include "hart.h"
#include "system.h"

enum {
    FINISHER_BASE = 0x100000,
    FINISHER_SIZE = 0x1000,
    GICD_BASE = 0x8000000,
    GICD_SIZE = 0x10000,
    GICR_BASE = 0x80a0000,
    GICR_SIZE = MAX_HARTS * 0x20000,
    VIRTIO_SIZE = VIRTIO_SLOTS * VIRTIO_STRIDE,
};

static bool read_register(uint64_t gpa, uint32_t size, uint64_t *value) {
    uint32_t o;
    if (inside(gpa, VIRTIO_BASE, VIRTIO_SIZE, &o)) *value = virtio_mmio_read(o / VIRTIO_STRIDE, o % VIRTIO_STRIDE, size);
    else if (inside(gpa, GICD_BASE, GICD_SIZE, &o)) *value = gic_distributor_read(o, size);
    else if (inside(gpa, GICR_BASE, GICR_SIZE, &o)) *value = gic_redistributor_read(o, size);
    else if (inside(gpa, RTC_BASE, RTC_SIZE, &o)) *value = rtc_read(o, size);
    else if (inside(gpa, VMGENID_BASE, VMGENID_SIZE, &o)) *value = vmgenid_read(o, size);
    else if (inside(gpa, FINISHER_BASE, FINISHER_SIZE, &o)) *value = 0;
    else return false;
    return true;
}

static bool write_register(uint64_t gpa, uint64_t value, uint32_t size) {
    uint32_t o;
    if (size < 8) value &= (1ull << size * 8) - 1;
    if (inside(gpa, VIRTIO_BASE, VIRTIO_SIZE, &o)) virtio_mmio_write(o / VIRTIO_STRIDE, o % VIRTIO_STRIDE, value, size);
    else if (inside(gpa, GICD_BASE, GICD_SIZE, &o)) gic_distributor_write(o, value, size);
    else if (inside(gpa, GICR_BASE, GICR_SIZE, &o)) gic_redistributor_write(o, value, size);
    else if (inside(gpa, RTC_BASE, RTC_SIZE, &o)) rtc_write(o, value, size);
    else if (inside(gpa, VMGENID_BASE, VMGENID_SIZE, &o)) {} // read-only
    else if (inside(gpa, FINISHER_BASE, FINISHER_SIZE, &o)) finisher_write(value);
    else return false;
    return true;
}

bool bus_read(uint64_t gpa, uint32_t size, uint64_t *value) {
    slow(SLOW_REGISTER);
    machine_lock();
    bool found = read_register(gpa, size, value);
    machine_unlock();
    return found;
}

bool bus_write(uint64_t gpa, uint64_t value, uint32_t size) {
    slow(SLOW_REGISTER);
    machine_lock();
    bool found = write_register(gpa, value, size);
    machine_unlock();
    return found;
}
