// The state of an untrusted machine: what it says of queues and of chains that devices hold is compared with
// what is possible.
#include "devices_test.h"

static struct queue queue;
static uint8_t virtio_copy[sizeof virtio_devices], copy[64 << 10];

static void start(unsigned slot, unsigned index, unsigned size, uint64_t features) {
    machine_start();
    driver_start(slot, features);
    queue = queue_setup(slot, index, size);
    driver_ok(slot);
}

// save copies the devices' state as an image has it; a new machine is in its place afterwards.
static struct virtio_device *save(struct memory_range state) {
    memcpy(virtio_copy, virtio_devices, sizeof virtio_devices);
    memcpy(copy, (void *)(uintptr_t)state.address, state.size);
    devices_init();
    return (struct virtio_device *)virtio_copy;
}

static void honest_machine(void) {
    start(SLOT_NET, 1, 16, 0);
    uint64_t buffer = guest_alloc(128);
    for (unsigned i = 0; i < 5; i++) {
        add_chain(&queue, (struct buffer[]){{buffer, 100, false}}, 1);
        kick(&queue);
    }
    save(net_state());
    CHECK(virtio_adopt(virtio_copy));
    CHECK(net_adopt(copy));
    net_restored();
    add_chain(&queue, (struct buffer[]){{buffer, 100, false}}, 1);
    kick(&queue);
    CHECK_EQ(guest_read16(queue.used + 2), 6);
}

static void overlapping_rings(void) {
    start(SLOT_NET, 1, 16, 0);
    save(net_state())[SLOT_NET].queues[1].used = queue.available + 2;
    CHECK(!virtio_adopt(virtio_copy));
    start(SLOT_NET, 1, 16, 0);
    struct virtio_device *net = &save(net_state())[SLOT_NET];
    net->queues[0] = net->queues[1]; // two queues with the same rings
    CHECK(!virtio_adopt(virtio_copy));
}

static void impossible_indices(void) {
    for (unsigned taken = 16; taken <= 17; taken++) {
        start(SLOT_NET, 1, 16, 0);
        struct virtqueue *saved = &save(net_state())[SLOT_NET].queues[1];
        saved->next_available = (uint16_t)(taken - 5);
        saved->used_index = (uint16_t)-5;
        CHECK_EQ(virtio_adopt(virtio_copy), taken == 16);
    }
}

static void report_that_was_never_made(void) {
    uint64_t page = RAM_BASE + 0x100000;
    for (unsigned honest = 0; honest < 2; honest++) {
        start(SLOT_BALLOON, 2, 64, 1 << 5);
        add_chain(&queue, (struct buffer[]){{page, 4096, true}}, 1);
        kick_once(&queue);
        released_pages.count = 0;
        struct virtio_device *balloon = &save(balloon_state())[SLOT_BALLOON];
        if (!honest)
            balloon->queues[2].used_index = balloon->queues[2].next_available;
        CHECK(virtio_adopt(virtio_copy));
        CHECK_EQ(balloon_adopt(copy), honest);
        next_slice();
        CHECK_EQ(guest_read16(queue.used + 2), honest);
    }
}

static void replies_without_a_request(void) {
    uint8_t bytes[40] = {40, 0, 0, 0, 3, 0, 0, 0, 1}; // FUSE_GETATTR
    for (unsigned honest = 0; honest < 2; honest++) {
        start(SLOT_SHARE, 1, 16, 0);
        uint64_t room = guest_alloc(64), request = guest_alloc(40);
        guest_write(request, bytes, 40);
        add_chain(&queue, (struct buffer[]){{request, 40, false}, {room, 64, true}}, 2);
        kick(&queue);
        struct virtio_device *share = &save(share_state())[SLOT_SHARE];
        if (!honest)
            share->queues[1].used_index = share->queues[1].next_available;
        CHECK(virtio_adopt(virtio_copy));
        CHECK_EQ(share_adopt(copy), honest);
        if (!honest)
            continue;
        share_restored();
        CHECK_EQ(guest_read16(queue.used + 2), 1); // the guest learns that the old server is gone
        CHECK_EQ((int32_t)load32(guest(room) + 4), -5);
    }
}

const struct test adopt_tests[] = {
    {"adopt/an honest machine", honest_machine},
    {"adopt/rings that overlap", overlapping_rings},
    {"adopt/more chains taken than there are", impossible_indices},
    {"adopt/a report that was never made", report_that_was_never_made},
    {"adopt/replies without a request", replies_without_a_request},
    {0},
};
