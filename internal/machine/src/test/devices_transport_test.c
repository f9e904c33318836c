#include "devices_test.h"

static void identity(void) {
    static const unsigned ids[VIRTIO_SLOTS] = {3, 4, 1, 2, 2, 0, 0, 26, [SLOT_BALLOON] = 5};
    machine_start();
    for (unsigned slot = 0; slot < VIRTIO_SLOTS; slot++) {
        CHECK_EQ(reg(slot, 0), 0x74726976);
        CHECK_EQ(reg(slot, 4), 2);
        CHECK_EQ(reg(slot, 8), ids[slot]);
        if (!ids[slot])
            continue;
        CHECK_EQ(offered_features(slot) >> 32 & 1, 1);
        CHECK(offered_features(slot) & VIRTIO_F_EVENT_IDX);
        for (uint32_t offset = 0xb0; offset <= 0xbc; offset += 4)
            CHECK_EQ(reg(slot, offset), 0xffffffff);
    }
    CHECK_EQ(virtio_mmio_read(0, 0, 1), 0);
    CHECK_EQ(virtio_mmio_read(0, 0, 8), 0);
    CHECK_EQ(virtio_mmio_read(VIRTIO_SLOTS, 0, 4), 0);
}

static void features_are_checked(void) {
    machine_start();
    set_reg(1, 0x70, 3);
    set_reg(1, 0x70, 0xb);
    CHECK_EQ(reg(1, 0x70), 3); // without VERSION_1
    set_reg(1, 0x24, 1);
    set_reg(1, 0x20, 0x80000001);
    set_reg(1, 0x70, 0xb);
    CHECK_EQ(reg(1, 0x70), 3); // with a bit that was not offered
    set_reg(1, 0x20, 1);
    set_reg(1, 0x70, 0xf);
    CHECK_EQ(reg(1, 0x70), 0xf);
    set_reg(1, 0x20, 0); // too late
    CHECK(virtio_has(&virtio_devices[1], VIRTIO_F_VERSION_1));
}

static void config_access_sizes(void) {
    machine_start();
    const uint8_t mac[] = {0x52, 0x54, 0, 0x12, 0x34, 0x56};
    for (unsigned i = 0; i < 6; i++)
        CHECK_EQ(virtio_mmio_read(SLOT_NET, 0x100 + i, 1), mac[i]);
    CHECK_EQ(virtio_mmio_read(SLOT_NET, 0x106, 2), 1);     // link up
    CHECK_EQ(virtio_mmio_read(SLOT_NET, 0x10a, 2), 1500);  // mtu
    CHECK_EQ(virtio_mmio_read(SLOT_NET, 0x100, 4), 0x12005452);
    CHECK_EQ(virtio_mmio_read(SLOT_DISK, 0x100, 8), DISK_SIZE / 512);
    CHECK_EQ(virtio_mmio_read(SLOT_NET, 0x10c, 4), 0); // behind the end
    CHECK_EQ(virtio_mmio_read(SLOT_NET, 0xfffffffc, 8), 0);
    CHECK_EQ(virtio_mmio_read(SLOT_SHARE, 0x100, 8), 0x6b726f77); // "work"
    CHECK_EQ(virtio_mmio_read(SLOT_SHARE, 0x124, 4), 1);          // queues of requests
}

static void queue_registers(void) {
    machine_start();
    driver_start(1, 0);
    set_reg(1, 0x30, 0);
    CHECK_EQ(reg(1, 0x34), 8);
    set_reg(1, 0x38, 16); // too large: ignored, so enabling fails
    set_reg(1, 0x44, 1);
    CHECK(needs_reset(1));
    CHECK_EQ(reg(1, 0x44), 0);
    driver_start(1, 0);
    set_reg(1, 0x30, 1);
    CHECK_EQ(reg(1, 0x34), 0);
    set_reg(1, 0x44, 1); // no such queue
    CHECK_EQ(reg(1, 0x44), 0);
    CHECK(!needs_reset(1));
    queue_setup(1, 0, 8);
    CHECK_EQ(reg(1, 0x44), 1);
}

static void status_order(void) {
    machine_start();
    set_reg(1, 0x70, 3);
    set_reg(1, 0x70, 7); // DRIVER_OK without FEATURES_OK
    CHECK_EQ(reg(1, 0x70), 3);
    set_reg(1, 0x70, 0x80); // FAILED; a driver clears no bit but by a reset
    CHECK_EQ(reg(1, 0x70), 0x83);
    set_reg(1, 0x70, 0x40); // NEEDS_RESET is the device's to set
    CHECK_EQ(reg(1, 0x70), 0x83);
    set_reg(1, 0x70, 0);
    CHECK_EQ(reg(1, 0x70), 0);
}

static void random_fill(struct queue *queue, uint32_t len) {
    uint64_t buffer = guest_alloc(len);
    uint32_t head, written;
    uint16_t added = add_chain(queue, (struct buffer[]){{buffer, len, true}}, 1);
    kick(queue);
    CHECK(next_used(queue, &head, &written));
    CHECK_EQ(head, added);
    CHECK_EQ(written, len < 65536 ? len : 65536);
    CHECK_EQ(*guest(buffer), 0xa5);
    CHECK_EQ(guest(buffer)[written - 1], 0xa5);
}

static void rng_fills(void) {
    machine_start();
    driver_start(1, 0);
    struct queue queue = queue_setup(1, 0, 8);
    driver_ok(1);
    random_fill(&queue, 64);
    CHECK(line[2]);
    CHECK_EQ(reg(1, 0x60), 1);
    set_reg(1, 0x64, 1);
    CHECK(!line[2]);
    random_fill(&queue, 70000);
    CHECK(line[2]);
    set_reg(1, 0x70, 0);
    CHECK(!line[2]);
    CHECK_EQ(reg(1, 0x60), 0);
}

static void nothing_before_driver_ok(void) {
    machine_start();
    driver_start(1, 0);
    struct queue queue = queue_setup(1, 0, 8);
    uint64_t buffer = guest_alloc(16);
    uint32_t head, len;
    add_chain(&queue, (struct buffer[]){{buffer, 16, true}}, 1);
    kick(&queue);
    CHECK(!next_used(&queue, &head, &len));
    driver_ok(1); // what was made available before is served now
    CHECK(next_used(&queue, &head, &len));
}

static void enabled_queue_is_fixed(void) {
    machine_start();
    driver_start(1, 0);
    struct queue queue = queue_setup(1, 0, 8);
    driver_ok(1);
    set_reg(1, 0x38, 2);
    for (uint32_t offset = 0x80; offset <= 0xa4; offset += 4)
        set_reg(1, offset, 0);
    for (unsigned i = 0; i < 10; i++)
        random_fill(&queue, 16);
    set_reg(1, 0x44, 0);
    CHECK_EQ(reg(1, 0x44), 0);
    uint32_t head, len;
    add_chain(&queue, (struct buffer[]){{RAM_BASE, 16, true}}, 1);
    kick(&queue);
    CHECK(!next_used(&queue, &head, &len));
}

static void no_interrupt_flag(void) {
    machine_start();
    driver_start(1, 0);
    struct queue queue = queue_setup(1, 0, 8);
    driver_ok(1);
    guest_write16(queue.available, 1);
    random_fill(&queue, 16);
    CHECK(!line[2]);
}

static void event_idx_suppresses(void) {
    machine_start();
    driver_start(1, VIRTIO_F_EVENT_IDX);
    struct queue queue = queue_setup(1, 0, 8);
    driver_ok(1);
    uint64_t used_event = queue.available + 4 + 2 * 8;
    guest_write16(used_event, 2); // interrupt when the third buffer is used
    for (unsigned i = 0; i < 2; i++) {
        random_fill(&queue, 16);
        CHECK(!line[2]);
        CHECK_EQ(guest_read16(queue.used + 4 + 8 * 8), i + 1); // avail_event: tell of the next buffer
    }
    random_fill(&queue, 16);
    CHECK(line[2]);
    set_reg(1, 0x64, 1);
    random_fill(&queue, 16); // the event is behind
    CHECK(!line[2]);
}

static void indices_wrap(void) {
    machine_start();
    driver_start(1, VIRTIO_F_EVENT_IDX);
    struct queue queue = queue_setup(1, 0, 4);
    driver_ok(1);
    uint64_t buffer = guest_alloc(16);
    for (unsigned i = 0; i < 70000; i++) {
        uint32_t head, len;
        guest_write16(queue.available + 4 + 2 * 4, (uint16_t)i); // interrupt each time
        add_chain(&queue, (struct buffer[]){{buffer, 16, true}}, 1);
        set_reg(1, 0x50, 0);
        if (yielded)
            next_slice();
        CHECK(next_used(&queue, &head, &len));
        CHECK_EQ(len, 16);
        CHECK(line[2]);
        set_reg(1, 0x64, 1);
    }
}

static void rtc_time(void) {
    machine_start();
    CHECK_EQ(rtc_read(0, 4), 0x90abcdef);
    CHECK_EQ(rtc_read(4, 4), 0x12345678);
    rtc_write(4, 5, 4);
    rtc_write(0, 6, 4);
    CHECK_EQ(rtc_read(0, 4), 6);
    CHECK_EQ(rtc_read(4, 4), 5);
    rtc_write(0xc, 7, 4);
    rtc_write(8, 8, 4);
    CHECK_EQ(rtc_read(8, 4), 8);
    CHECK_EQ(rtc_read(0xc, 4), 7);
    CHECK_EQ(rtc_read(0x18, 4), 1);
    rtc_write(0x14, 1, 4);
    CHECK_EQ(rtc_read(0x18, 4), 0);
    CHECK_EQ(rtc_read(0, 8), 0);
}

static void absent_backends(void) {
    machine_configure();
    config.console_in_fd = config.console_out_fd = config.control_fd = config.bulk_fd = config.net_fd = -1;
    config.disk_fd[0] = config.disk_fd[1] = config.share_fd[0] = -1;
    devices_init();
    for (unsigned slot = 0; slot < VIRTIO_SLOTS; slot++) {
        CHECK_EQ(reg(slot, 8), slot == SLOT_RNG ? 4 : slot == SLOT_BALLOON ? 5 : 0);
        if (slot == SLOT_RNG || slot == SLOT_BALLOON)
            continue;
        for (uint32_t offset = 0x10; offset < 0x200; offset += 4) {
            set_reg(slot, offset, 0xffffffff);
            CHECK_EQ(reg(slot, offset), 0);
        }
    }
    devices_poll(~0ull);
}

const struct test transport_tests[] = {
    {"transport/identity", identity},
    {"transport/features are checked", features_are_checked},
    {"transport/config access sizes", config_access_sizes},
    {"transport/queue registers", queue_registers},
    {"transport/status order", status_order},
    {"transport/an enabled queue is fixed", enabled_queue_is_fixed},
    {"transport/nothing before DRIVER_OK", nothing_before_driver_ok},
    {"transport/no-interrupt flag", no_interrupt_flag},
    {"transport/event index suppresses interrupts", event_idx_suppresses},
    {"transport/indices wrap", indices_wrap},
    {"transport/absent backends", absent_backends},
    {"rng/fills and interrupts", rng_fills},
    {"rtc/time and alarm registers", rtc_time},
    {0},
};
