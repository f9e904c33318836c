// Physical addresses that are not RAM: which device's register they are. docs/internals/machine.md has the memory map.
#include "hart.h"

enum {
    FINISHER_BASE = 0x100000,
    FINISHER_SIZE = 0x1000,
    CLINT_BASE = 0x2000000,
    CLINT_SIZE = 0x10000,
    PLIC_BASE = 0xc000000,
    PLIC_SIZE = 0x600000,
    VIRTIO_SIZE = VIRTIO_SLOTS * VIRTIO_STRIDE,
};

static bool read_register(uint64_t gpa, uint32_t size, uint64_t *value) {
    uint32_t o;
    if (inside(gpa, VIRTIO_BASE, VIRTIO_SIZE, &o)) *value = virtio_mmio_read(o / VIRTIO_STRIDE, o % VIRTIO_STRIDE, size);
    else if (inside(gpa, PLIC_BASE, PLIC_SIZE, &o)) *value = plic_read(o);
    else if (inside(gpa, RTC_BASE, RTC_SIZE, &o)) *value = rtc_read(o, size);
    else if (inside(gpa, VMGENID_BASE, VMGENID_SIZE, &o)) *value = vmgenid_read(o, size);
    else if (inside(gpa, CLINT_BASE, CLINT_SIZE, &o)) *value = clint_read(o);
    else if (inside(gpa, FINISHER_BASE, FINISHER_SIZE, &o)) *value = 0;
    else return false;
    return true;
}

// with_upper_half keeps the half of a CLINT register that a 32-bit store to its lower half leaves alone.
static uint64_t with_upper_half(uint32_t offset, uint64_t value, uint32_t size) {
    return size == 4 && (offset & 4) == 0 ? value | clint_read(offset) >> 32 << 32 : value;
}

static bool write_register(uint64_t gpa, uint64_t value, uint32_t size) {
    uint32_t o;
    if (size < 8) value &= (1ull << size * 8) - 1;
    if (inside(gpa, VIRTIO_BASE, VIRTIO_SIZE, &o)) virtio_mmio_write(o / VIRTIO_STRIDE, o % VIRTIO_STRIDE, value, size);
    else if (inside(gpa, PLIC_BASE, PLIC_SIZE, &o)) plic_write(o, value);
    else if (inside(gpa, RTC_BASE, RTC_SIZE, &o)) rtc_write(o, value, size);
    else if (inside(gpa, VMGENID_BASE, VMGENID_SIZE, &o)) {} // read-only
    else if (inside(gpa, CLINT_BASE, CLINT_SIZE, &o)) clint_write(o, with_upper_half(o, value, size));
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
