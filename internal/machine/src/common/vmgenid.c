// The VM generation device: 16 bytes that are others in each machine made from an image, and an interrupt when they
// change. Linux mixes them into its random numbers then, before any program runs.
// Source: "Virtual Machine Generation ID" (Microsoft, 2012); Linux, bindings/rng/microsoft,vmgenid.yaml.
//
// The line is high while the guest has read another id than the one that is here, so reading all of it acknowledges,
// and a guest that was in the middle of reading when it was saved is interrupted once more.
#include "virtio.h"

enum { ID_SIZE = sizeof config.generation };

static uint8_t seen[ID_SIZE]; // each byte as the guest read it last

static void update(void) {
    bool changed = false;
    for (unsigned i = 0; i < ID_SIZE; i++) changed |= seen[i] != config.generation[i];
    interrupt_set_level(VMGENID_IRQ, changed);
}

// A machine that starts has seen its id: nothing changed.
void vmgenid_init(void) {
    __builtin_memcpy(seen, config.generation, ID_SIZE);
    update();
}

void vmgenid_restored(void) { update(); }

struct memory_range vmgenid_state(void) { return memory_range(seen, sizeof seen); }

bool vmgenid_adopt(const void *from) {
    __builtin_memcpy(seen, from, sizeof seen);
    return true;
}

uint64_t vmgenid_read(uint32_t offset, unsigned size) {
    uint64_t value = 0;
    if (offset >= ID_SIZE) return 0;
    for (unsigned i = 0; i < size && i < ID_SIZE - offset; i++) {
        seen[offset + i] = config.generation[offset + i];
        value |= (uint64_t)seen[offset + i] << (8 * i);
    }
    update();
    return value;
}
