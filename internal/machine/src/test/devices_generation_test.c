// The VM generation device: an id to read, and an interrupt for as long as the guest has not read the one that is there.
#include "devices_test.h"

static void set_generation(uint8_t value) {
    memset(config.generation, value, sizeof config.generation);
    vmgenid_restored();
}

static void generation_start(void) {
    machine_configure();
    memcpy(config.generation, "0123456789abcdef", 16);
    devices_init();
}

static void reads_the_id(void) {
    generation_start();
    CHECK(!line[VMGENID_IRQ]);
    CHECK_EQ(vmgenid_read(0, 8), 0x3736353433323130);
    CHECK_EQ(vmgenid_read(8, 8), 0x6665646362613938);
    CHECK_EQ(vmgenid_read(4, 4), 0x37363534);
    CHECK_EQ(vmgenid_read(15, 1), 'f');
    CHECK_EQ(vmgenid_read(14, 8), 0x6665); // nothing behind it
    CHECK_EQ(vmgenid_read(16, 8), 0);
    CHECK_EQ(vmgenid_read(VMGENID_SIZE - 1, 8), 0);
}

static void interrupts_until_read(void) {
    generation_start();
    set_generation(7);
    CHECK(line[VMGENID_IRQ]);
    vmgenid_read(0, 8);
    CHECK(line[VMGENID_IRQ]);
    vmgenid_read(8, 8);
    CHECK(!line[VMGENID_IRQ]);
    vmgenid_restored(); // another restore with the same id says nothing
    CHECK(!line[VMGENID_IRQ]);
}

// The guest was saved between the two halves: it has half of an old id, and is interrupted again.
static void changes_while_read(void) {
    generation_start();
    set_generation(7);
    vmgenid_read(0, 8);
    set_generation(8);
    vmgenid_read(8, 8);
    CHECK(line[VMGENID_IRQ]);
    vmgenid_read(0, 8);
    vmgenid_read(8, 8);
    CHECK(!line[VMGENID_IRQ]);
}

const struct test generation_tests[] = {
    {"generation/reads the id", reads_the_id},
    {"generation/interrupts until read", interrupts_until_read},
    {"generation/changes while read", changes_while_read},
    {0},
};
