// A slice's work is bounded, what is left is done in the next ones, and what a device holds of a queue is forgotten when the
// driver takes the queue back.
#include "devices_test.h"

static struct queue queue;

static void start(unsigned slot, unsigned index, unsigned size, uint64_t features) {
    machine_start();
    driver_start(slot, features);
    queue = queue_setup(slot, index, size);
    driver_ok(slot);
}

// take_back disables the queue and enables it anew, with all of its indices zero.
static void take_back(void) {
    set_reg(queue.slot, 0x30, queue.index);
    set_reg(queue.slot, 0x44, 0);
    guest_write16(queue.available + 2, 0);
    guest_write16(queue.used + 2, 0);
    queue.next_available = queue.seen = queue.next_descriptor = 0;
    set_reg(queue.slot, 0x44, 1);
    CHECK_EQ(reg(queue.slot, 0x44), 1);
}

static uint64_t put(const void *bytes, uint32_t len) {
    uint64_t at = guest_alloc(len);
    guest_write(at, bytes, len);
    return at;
}

// Disks ----------------------------------------------------------------------------------------------------------

static uint64_t disk_request(uint32_t type, uint64_t sector) {
    uint8_t bytes[16] = {0};
    store32(bytes, type);
    store64(bytes + 8, sector);
    return put(bytes, sizeof bytes);
}

// A queue full of requests that clear as much as one may: 16 MiB and more in one slice once.
static void clearing_is_divided(void) {
    start(SLOT_DISK, 0, 256, 0);
    uint8_t range[16] = {0};
    store32(range + 8, DISK_SIZE / 512);
    uint64_t header = disk_request(13, 0), ranges = put(range, sizeof range), status = guest_alloc(1);
    const struct buffer chain[] = {{header, 16, false}, {ranges, 16, false}, {status, 1, true}};
    add_chain(&queue, chain, 3);
    for (unsigned i = 1; i < 256; i++)
        make_available(&queue, 0);
    disk_written = 0;
    kick_once(&queue);
    unsigned slices = 1;
    uint64_t most = disk_written, total = disk_written;
    for (; yielded; slices++) {
        disk_written = 0;
        next_slice();
        total += disk_written;
        most = disk_written > most ? disk_written : most;
    }
    CHECK_EQ(guest_read16(queue.used + 2), 256);
    CHECK_EQ(total, 256 * DISK_SIZE);
    CHECK(most <= WORK_SLICE + DISK_SIZE);
    CHECK(slices >= 16);
    CHECK_EQ(*guest(status), 0);
}

static void one_flush_a_slice(void) {
    start(SLOT_DISK, 0, 64, 0);
    uint64_t header = disk_request(4, 0), status = guest_alloc(1);
    add_chain(&queue, (struct buffer[]){{header, 16, false}, {status, 1, true}}, 2);
    for (unsigned i = 1; i < 64; i++)
        make_available(&queue, 0);
    syncs = 0;
    kick_once(&queue);
    for (unsigned slice = 1; slice <= 64; slice++) {
        CHECK_EQ(syncs, slice);
        CHECK_EQ(guest_read16(queue.used + 2), slice);
        CHECK_EQ(devices_behind(), slice < 64);
        next_slice();
    }
    CHECK_EQ(syncs, 64);
}

// A request that is larger than what a slice does is carried on where it stopped.
static void long_request_continues(void) {
    start(SLOT_DISK, 0, 256, VIRTIO_F_INDIRECT_DESC);
    uint64_t header = disk_request(1, 0), data = guest_alloc(64 << 10), table = guest_alloc(16 * 256);
    struct queue as_queue = {.descriptors = table};
    put_descriptor(&as_queue, 0, header, 16, 1, 1);
    put_descriptor(&as_queue, 1, data, 64 << 10, 1, 2);
    put_descriptor(&as_queue, 2, guest_alloc(1), 1, 2, 0);
    for (unsigned i = 0; i < 64 << 10; i++)
        *guest(data + i) = (uint8_t)(i * 3 + (i >> 8));
    ram_written(data, 64 << 10);
    put_descriptor(&queue, 0, table, 48, 4, 0);
    disk_piece = 100; // each call costs, and the disk is small
    memset(disk, 0, DISK_SIZE);
    make_available(&queue, 0);
    kick_once(&queue);
    CHECK(yielded);
    CHECK_EQ(guest_read16(queue.used + 2), 0);
    kick(&queue);
    CHECK_EQ(guest_read16(queue.used + 2), 1);
    CHECK(memcmp(disk, guest(data), DISK_SIZE) == 0);

    // The queue is taken back in the middle: the next request begins at its beginning.
    make_available(&queue, 0);
    kick_once(&queue);
    CHECK(yielded);
    take_back();
    memset(disk, 0, DISK_SIZE);
    make_available(&queue, 0);
    kick(&queue);
    CHECK_EQ(guest_read16(queue.used + 2), 1);
    CHECK(memcmp(disk, guest(data), DISK_SIZE) == 0);
}

// Others ---------------------------------------------------------------------------------------------------------

static void notifications_end_the_slice(void) {
    start(SLOT_RNG, 0, 8, 0);
    unsigned n = 0;
    for (next_slice(); !yielded; n++) {
        CHECK(n < 10000);
        set_reg(SLOT_RNG, 0x50, 0);
    }
    CHECK(n >= 1000);
}

static void random_bytes_are_bounded(void) {
    start(SLOT_RNG, 0, 8, 0);
    uint64_t buffer = guest_alloc(65536);
    add_chain(&queue, (struct buffer[]){{buffer, 65536, true}}, 1);
    for (unsigned i = 1; i < 8; i++)
        make_available(&queue, 0);
    kick_once(&queue);
    CHECK(yielded);
    CHECK(guest_read16(queue.used + 2) >= 1);
    CHECK(guest_read16(queue.used + 2) <= 4);
    kick(&queue);
    CHECK_EQ(guest_read16(queue.used + 2), 8);
}

// Frames that take no chain are work, too.
static void dropped_frames_are_bounded(void) {
    static uint8_t frames[STREAM_SIZE];
    start(SLOT_NET, 0, 16, 0);
    for (uint32_t at = 0; at + 5 <= sizeof frames; at += 5)
        frames[at + 3] = 1; // a frame of one byte
    host_send(FD_NET, frames, sizeof frames - 2);
    devices_poll(1ull << FD_NET);
    CHECK(devices_behind());
    CHECK(streams[FD_NET].in_at <= WORK_SLICE + (256 << 10));
    while (devices_behind())
        next_slice();
    CHECK_EQ(streams[FD_NET].in_at, sizeof frames - 2);
}

// wants_notify is what a driver that negotiated EVENT_IDX asks itself after it has made `added` chains available.
static bool wants_notify(const struct queue *of, uint16_t added) {
    uint16_t event = guest_read16(of->used + 4 + 8 * of->size);
    return (uint16_t)(of->next_available - event - 1) < added;
}

// A frame needs more buffers than there are: the driver has to be asked for the next one, not for one that it has given
// already. Linux refills when it pleases and notifies when the event index says so, and was never heard of again.
static void frame_waits_for_buffers(void) {
    enum { MRG_RXBUF = 1 << 15, FRAME = 14 * 4096 - 12 };
    static uint8_t frame[16 + FRAME];
    start(SLOT_NET, 0, 64, MRG_RXBUF | VIRTIO_F_EVENT_IDX | 1 << 1 | 1 << 7);
    for (unsigned i = 0; i < 4; i++)
        frame[i] = (uint8_t)((12 + FRAME) >> (24 - 8 * i));
    uint64_t page = guest_alloc(4096);
    for (unsigned i = 0; i < 5; i++)
        add_chain(&queue, (struct buffer[]){{page, 4096, true}}, 1);
    if (wants_notify(&queue, 5))
        kick(&queue);
    host_send(FD_NET, frame, sizeof frame);
    devices_poll(1ull << FD_NET);
    CHECK_EQ(guest_read16(queue.used + 2), 0);
    for (unsigned given = 5; given < 14; given++) {
        add_chain(&queue, (struct buffer[]){{page, 4096, true}}, 1);
        CHECK(wants_notify(&queue, 1));
        kick(&queue);
    }
    CHECK_EQ(guest_read16(queue.used + 2), 14);
}

// A frame is half out when a chain before it is given back, and its descriptor lies where that is written down. The stream continues
// with the rest of that frame all the same: its reader already has the length (found by fuzzing).
static void begun_frame_is_finished(void) {
    start(SLOT_NET, 1, 16, VIRTIO_F_INDIRECT_DESC);
    uint64_t buffer = guest_alloc(128);
    struct queue as_queue = {.descriptors = queue.used};
    put_descriptor(&as_queue, 0, buffer, 72, 0, 0);
    put_descriptor(&queue, 0, buffer, 72, 0, 0);
    put_descriptor(&queue, 1, queue.used, 16, 4, 0);
    make_available(&queue, 0);
    make_available(&queue, 1);
    streams[FD_NET].out_room = 76 + 5;
    kick(&queue);
    CHECK_EQ(streams[FD_NET].out_end, 76 + 5);
    streams[FD_NET].out_room = 1000;
    devices_poll(1ull << FD_NET);
    CHECK_EQ(streams[FD_NET].out_end, 2 * 76);
}

// Queues that are taken back -------------------------------------------------------------------------------------

static void report_is_forgotten(void) {
    start(SLOT_BALLOON, 2, 64, 1 << 5);
    uint64_t page = RAM_BASE + 0x100000;
    add_chain(&queue, (struct buffer[]){{page, 4096, true}}, 1);
    kick_once(&queue);
    CHECK_EQ(released_pages.count, 1);
    take_back();
    CHECK_EQ(released_pages.count, 0); // the driver may use its pages again
    next_slice();
    CHECK(!devices_behind());
    CHECK_EQ(guest_read16(queue.used + 2), 0);
    add_chain(&queue, (struct buffer[]){{page, 16, true}}, 1); // less than a page: nothing is released
    kick(&queue);
    CHECK_EQ(guest_read16(queue.used + 2), 1);
}

static void sent_part_is_forgotten(void) {
    start(SLOT_CONSOLE, 1, 16, 0);
    uint64_t text = put("abcdefgh", 8);
    streams[FD_OUT].out_room = 5;
    add_chain(&queue, (struct buffer[]){{text, 8, false}}, 1);
    kick(&queue);
    CHECK_EQ(streams[FD_OUT].out_end, 5);
    take_back();
    streams[FD_OUT].out_room = 100;
    add_chain(&queue, (struct buffer[]){{text, 3, false}}, 1);
    devices_poll(1ull << FD_OUT);
    CHECK(!needs_reset(SLOT_CONSOLE));
    CHECK_EQ(guest_read16(queue.used + 2), 1);
    CHECK(memcmp(streams[FD_OUT].out, "abcdeabc", 8) == 0);
}

static uint64_t message(uint8_t unique) {
    uint8_t bytes[40] = {40, 0, 0, 0, 3, 0, 0, 0, unique}; // FUSE_GETATTR
    return put(bytes, sizeof bytes);
}

static void replies_are_forgotten(void) {
    uint8_t reply[16] = {16, 0, 0, 0, 0, 0, 0, 0, 1};
    start(SLOT_SHARE, 1, 16, 0);
    uint64_t room = guest_alloc(64), first = message(1), second = message(2);
    add_chain(&queue, (struct buffer[]){{first, 40, false}, {room, 64, true}}, 2);
    kick(&queue);
    take_back();
    add_chain(&queue, (struct buffer[]){{second, 40, false}, {room, 64, true}}, 2); // the same head
    kick(&queue);
    CHECK(!needs_reset(SLOT_SHARE));
    host_send(FD_SHARE, reply, sizeof reply);
    devices_poll(1ull << FD_SHARE);
    CHECK_EQ(guest_read16(queue.used + 2), 0);
    reply[8] = 2;
    host_send(FD_SHARE, reply, sizeof reply);
    devices_poll(1ull << FD_SHARE);
    CHECK_EQ(guest_read16(queue.used + 2), 1);
    check_writes();
}

static void backlog_is_forgotten(void) {
    start(SLOT_DISK, 0, 16, 0);
    uint64_t header = disk_request(4, 0), status = guest_alloc(1);
    for (unsigned i = 0; i < 2; i++)
        add_chain(&queue, (struct buffer[]){{header, 16, false}, {status, 1, true}}, 2);
    kick_once(&queue);
    CHECK(devices_behind());
    set_reg(SLOT_DISK, 0x30, 0);
    set_reg(SLOT_DISK, 0x44, 0);
    CHECK(!devices_behind());
    syncs = 0;
    next_slice();
    CHECK_EQ(syncs, 0);
}

const struct test work_tests[] = {
    {"work/clearing a disk is divided", clearing_is_divided},
    {"work/one flush a slice", one_flush_a_slice},
    {"work/a long request continues", long_request_continues},
    {"work/notifications end the slice", notifications_end_the_slice},
    {"work/random bytes are bounded", random_bytes_are_bounded},
    {"work/dropped frames are bounded", dropped_frames_are_bounded},
    {"work/a frame waits for buffers", frame_waits_for_buffers},
    {"work/a frame that is begun is finished", begun_frame_is_finished},
    {"work/disabled: report of the balloon", report_is_forgotten},
    {"work/disabled: half of a console's chain", sent_part_is_forgotten},
    {"work/disabled: replies of a share", replies_are_forgotten},
    {"work/disabled: what was left for later", backlog_is_forgotten},
    {0},
};
