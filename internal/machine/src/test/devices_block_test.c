#include "devices_test.h"

static struct queue queue;

static void block_start(unsigned slot) {
    machine_start();
    for (unsigned i = 0; i < sizeof disk; i++)
        disk[i] = (uint8_t)(i >> 9);
    driver_start(slot, VIRTIO_F_INDIRECT_DESC);
    queue = queue_setup(slot, 0, 16);
    driver_ok(slot);
}

static uint64_t make_header(uint32_t type, uint64_t sector) {
    uint8_t bytes[16] = {0};
    uint64_t header = guest_alloc(16);
    store32(bytes, type);
    store64(bytes + 8, sector);
    guest_write(header, bytes, 16);
    return header;
}

// submit runs one request with a data buffer and gives its status.
static uint8_t submit(uint32_t type, uint64_t sector, uint64_t data, uint32_t len, bool writable) {
    uint32_t head, used;
    uint64_t header = make_header(type, sector), status = guest_alloc(1);
    guest_write(status, "\xff", 1);
    struct buffer buffers[] = {{header, 16, false}, {data, len, writable}, {status, 1, true}};
    if (len == 0)
        buffers[1] = buffers[2];
    add_chain(&queue, buffers, len ? 3 : 2);
    kick(&queue);
    CHECK(next_used(&queue, &head, &used));
    CHECK_EQ(used, writable ? len + 1 : 1);
    return *guest(status);
}

static void reads_and_writes(void) {
    block_start(SLOT_DISK);
    uint64_t data = guest_alloc(4096);
    CHECK_EQ(submit(0, 3, data, 1024, true), 0);
    CHECK_EQ(guest(data)[0], 3);
    CHECK_EQ(guest(data)[1023], 4);
    guest_write(data, "written", 8);
    CHECK_EQ(submit(1, 127, data, 512, false), 0);
    CHECK(memcmp(disk + 127 * 512, "written", 8) == 0);
    disk_piece = 100; // WASI may move less than asked
    memset(guest(data), 0, 4096);
    ram_written(data, 4096);
    CHECK_EQ(submit(0, 127, data, 512, true), 0);
    CHECK(memcmp(guest(data), disk + 127 * 512, 512) == 0);
    for (unsigned i = 0; i < 1024; i++)
        *guest(data + i) = (uint8_t)(i * 5 + (i >> 8));
    ram_written(data, 1024);
    CHECK_EQ(submit(1, 8, data, 1024, false), 0);
    CHECK(memcmp(guest(data), disk + 8 * 512, 1024) == 0);
    disk_piece = 0;
    CHECK_EQ(submit(0, 127, data, 512, true), 1);
}

static void any_layout(void) {
    uint32_t head, used;
    block_start(SLOT_DISK);
    uint64_t header = make_header(0, 9), data = guest_alloc(513);
    struct buffer buffers[] = {{header, 1, false}, {header + 1, 15, false}, {data, 100, true}, {data + 100, 413, true}};
    add_chain(&queue, buffers, 4); // the status shares the last buffer
    kick(&queue);
    CHECK(next_used(&queue, &head, &used));
    CHECK_EQ(used, 513);
    CHECK_EQ(guest(data)[511], 9);
    CHECK_EQ(guest(data)[512], 0);
}

static void out_of_range(void) {
    block_start(SLOT_DISK);
    uint64_t data = guest_alloc(4096);
    CHECK_EQ(submit(0, 127, data, 1024, true), 1);
    CHECK_EQ(submit(0, 128, data, 512, true), 1);
    CHECK_EQ(submit(1, 128, data, 512, false), 1);
    CHECK_EQ(submit(0, UINT64_MAX, data, 512, true), 1);
    CHECK_EQ(submit(0, UINT64_MAX / 512 + 1, data, 512, true), 1);
    CHECK_EQ(submit(0, 0, data, 511, true), 1);
    CHECK_EQ(submit(99, 0, data, 512, true), 2);
}

static void read_only(void) {
    block_start(SLOT_DISK + 1);
    CHECK(offered_features(SLOT_DISK + 1) & 1 << 5);
    CHECK(!(offered_features(SLOT_DISK) & 1 << 5));
    uint64_t data = guest_alloc(512);
    CHECK_EQ(submit(0, 1, data, 512, true), 0);
    CHECK_EQ(submit(1, 1, data, 512, false), 1);
    CHECK_EQ(submit(13, 0, data, 16, false), 1);
    CHECK_EQ(disk[512], 1);
}

static void flush_and_id(void) {
    block_start(SLOT_DISK);
    CHECK_EQ(submit(4, 0, 0, 0, false), 0);
    CHECK_EQ(syncs, 1);
    uint64_t data = guest_alloc(20);
    CHECK_EQ(submit(8, 0, data, 20, true), 0);
    CHECK(strcmp((char *)guest(data), "agentvm-disk0") == 0);
    CHECK_EQ(submit(8, 0, data, 19, true), 1);
}

static void io_error(void) {
    block_start(SLOT_DISK);
    uint64_t data = guest_alloc(512);
    streams[FD_DISK].error = WASI_EIO;
    CHECK_EQ(submit(0, 0, data, 512, true), 1);
    CHECK_EQ(submit(1, 0, data, 512, false), 1);
    CHECK_EQ(submit(4, 0, 0, 0, false), 1);
}

static uint64_t make_range(uint64_t sector, uint32_t count, uint32_t flags) {
    uint8_t bytes[16];
    uint64_t range = guest_alloc(16);
    store64(bytes, sector);
    store32(bytes + 8, count);
    store32(bytes + 12, flags);
    guest_write(range, bytes, 16);
    return range;
}

static void zeroes_and_discard(void) {
    block_start(SLOT_DISK);
    disk_piece = 700;
    CHECK_EQ(submit(13, 0, make_range(5, 3, 1), 16, false), 0);
    CHECK_EQ(disk[5 * 512 - 1], 4);
    for (unsigned i = 5 * 512; i < 8 * 512; i++)
        CHECK_EQ(disk[i], 0);
    CHECK_EQ(disk[8 * 512], 8);
    discarded = 0;
    CHECK_EQ(submit(11, 0, make_range(20, 3, 0), 16, false), 0);
    CHECK_EQ(disk[20 * 512], 20); // that is for the host
    CHECK_EQ(discarded_at, 20 * 512);
    CHECK_EQ(discarded, 3 * 512);
    CHECK_EQ(submit(11, 0, make_range(126, 3, 0), 16, false), 1);
    CHECK_EQ(submit(11, 0, make_range(UINT64_MAX, 2, 0), 16, false), 1);
    CHECK_EQ(submit(11, 0, make_range(0, UINT32_MAX, 0), 16, false), 1);
    CHECK_EQ(discarded, 3 * 512);
    CHECK_EQ(submit(13, 0, make_range(126, 3, 0), 16, false), 1);
    CHECK_EQ(submit(13, 0, make_range(UINT64_MAX, 2, 0), 16, false), 1);
    CHECK_EQ(submit(13, 0, make_range(0, UINT32_MAX, 0), 16, false), 1);
    CHECK_EQ(submit(13, 0, make_range(0, 1, 2), 16, false), 2);
    CHECK_EQ(submit(11, 0, make_range(0, 1, 1), 16, false), 2);
    CHECK_EQ(submit(11, 0, make_range(0, 1, 0), 15, false), 2);
}

static void no_room_for_status(void) {
    block_start(SLOT_DISK);
    add_chain(&queue, (struct buffer[]){{make_header(0, 0), 16, false}}, 1);
    kick(&queue);
    CHECK(needs_reset(SLOT_DISK));
    block_start(SLOT_DISK);
    add_chain(&queue, (struct buffer[]){{make_header(0, 0), 15, false}, {guest_alloc(513), 513, true}}, 2);
    kick(&queue);
    CHECK(needs_reset(SLOT_DISK));
}

// A slice ends after about 1 MiB; the rest comes with the next one, whether the driver does anything or not.
static void long_batch(void) {
    block_start(SLOT_DISK);
    set_reg(SLOT_DISK, 0x44, 0);
    queue = queue_setup(SLOT_DISK, 0, 64);
    uint64_t header = make_header(0, 0), data = guest_alloc(DISK_SIZE + 1);
    for (unsigned i = 0; i < 20; i++)
        add_chain(&queue, (struct buffer[]){{header, 16, false}, {data, DISK_SIZE + 1, true}}, 2);
    kick_once(&queue);
    CHECK_EQ(guest_read16(queue.used + 2), 15); // and a part of the next
    CHECK(line[SLOT_DISK + 1]);
    CHECK(yielded);
    CHECK(devices_behind());
    set_reg(SLOT_DISK, 0x64, 1);
    CHECK_EQ(guest_read16(queue.used + 2), 15);
    next_slice();
    CHECK_EQ(guest_read16(queue.used + 2), 20);
    CHECK(line[SLOT_DISK + 1]);
    CHECK(!devices_behind());
    set_reg(SLOT_DISK, 0x64, 1);
    CHECK(!line[SLOT_DISK + 1]);
}

const struct test block_tests[] = {
    {"blk/reads and writes", reads_and_writes},
    {"blk/any layout", any_layout},
    {"blk/out of range", out_of_range},
    {"blk/read only", read_only},
    {"blk/flush and identity", flush_and_id},
    {"blk/errors of the host", io_error},
    {"blk/zeroes and discard", zeroes_and_discard},
    {"blk/long batches are divided", long_batch},
    {"blk/no room for header or status", no_room_for_status},
    {0},
};
