// Rings that no honest driver makes. Each must end in DEVICE_NEEDS_RESET, touch nothing, and leave a device that works
// again after a reset. The transmit queue of the network device serves: it takes any chain that is sound.
#include "devices_test.h"

enum { NEXT = 1, WRITE = 2, INDIRECT = 4, SLOT = SLOT_NET, INDEX = 1, QUEUE = 8 };

static struct queue queue;
static uint64_t buffer;

static void start(uint64_t features) {
    machine_start();
    driver_start(SLOT, features);
    queue = queue_setup(SLOT, INDEX, QUEUE);
    driver_ok(SLOT);
    buffer = guest_alloc(4096);
}

static void put_indirect(uint64_t table, unsigned index, uint64_t gpa, uint32_t len, uint16_t flags, uint16_t next) {
    struct queue as_queue = {.descriptors = table};
    put_descriptor(&as_queue, (uint16_t)index, gpa, len, flags, next);
}

static void works_after_reset(void) {
    uint32_t head, len;
    driver_start(SLOT, 0);
    queue = queue_setup(SLOT, INDEX, QUEUE);
    driver_ok(SLOT);
    CHECK_EQ(streams[FD_NET].out_end, 0);
    add_chain(&queue, (struct buffer[]){{buffer, 12, false}, {buffer + 64, 60, false}}, 2);
    kick(&queue);
    CHECK(next_used(&queue, &head, &len));
    CHECK_EQ(streams[FD_NET].out_end, 4 + 12 + 60);
}

// expect_refusal kicks: the device must refuse, say so, and stay quiet.
static void expect_refusal(void) {
    set_reg(SLOT, 0x64, 3);
    kick(&queue);
    CHECK(needs_reset(SLOT));
    CHECK_EQ(reg(SLOT, 0x60), 2); // a configuration change notification, section 2.1.2
    CHECK(line[SLOT + 1]);
    CHECK_EQ(guest_read16(queue.used + 2), 0);
    kick(&queue);
    devices_poll(~0ull);
    CHECK_EQ(guest_read16(queue.used + 2), 0);
    works_after_reset();
}

static void refuse_one(uint64_t gpa, uint32_t len, uint16_t flags, uint16_t next) {
    start(VIRTIO_F_INDIRECT_DESC);
    put_descriptor(&queue, 0, gpa, len, flags, next);
    make_available(&queue, 0);
    expect_refusal();
}

static void loop_to_itself(void) {
    start(0);
    put_descriptor(&queue, 0, buffer, 16, NEXT, 0);
    make_available(&queue, 0);
    expect_refusal();
}

static void loop_of_two(void) {
    start(0);
    put_descriptor(&queue, 0, buffer, 16, NEXT, 1);
    put_descriptor(&queue, 1, buffer, 16, NEXT, 0);
    make_available(&queue, 0);
    expect_refusal();
}

static void next_out_of_range(void) {
    start(0);
    put_descriptor(&queue, 0, buffer, 16, NEXT, QUEUE);
    make_available(&queue, 0);
    expect_refusal();
}

static void head_out_of_range(void) {
    start(0);
    make_available(&queue, QUEUE);
    expect_refusal();
}

static void address_below_ram(void) { refuse_one(0x1000, 16, 0, 0); }
static void address_behind_ram(void) { refuse_one(RAM_BASE + RAM_SIZE, 1, 0, 0); }
static void buffer_across_the_end(void) { refuse_one(RAM_BASE + RAM_SIZE - 8, 16, 0, 0); }
static void address_wraps(void) { refuse_one(UINT64_MAX - 7, 16, 0, 0); }
static void length_wraps(void) { refuse_one(RAM_BASE + 16, UINT32_MAX, 0, 0); }
static void zero_length(void) { refuse_one(RAM_BASE, 0, 0, 0); }

static void too_many_available(void) {
    start(0);
    put_descriptor(&queue, 0, buffer, 16, 0, 0);
    guest_write16(queue.available + 2, QUEUE + 1);
    expect_refusal();
}

static void readable_after_writable(void) {
    start(0);
    put_descriptor(&queue, 0, buffer, 16, WRITE | NEXT, 1);
    put_descriptor(&queue, 1, buffer, 16, 0, 0);
    make_available(&queue, 0);
    expect_refusal();
}

static void indirect_not_negotiated(void) {
    start(0);
    uint64_t table = guest_alloc(16);
    put_indirect(table, 0, buffer, 16, 0, 0);
    put_descriptor(&queue, 0, table, 16, INDIRECT, 0);
    make_available(&queue, 0);
    expect_refusal();
}

static void indirect_in_indirect(void) {
    start(VIRTIO_F_INDIRECT_DESC);
    uint64_t table = guest_alloc(32);
    put_indirect(table, 0, table, 32, INDIRECT, 0);
    put_descriptor(&queue, 0, table, 32, INDIRECT, 0);
    make_available(&queue, 0);
    expect_refusal();
}

// refuse_table names a sound table in a way that is not allowed.
static void refuse_table(uint32_t len, uint16_t flags) {
    start(VIRTIO_F_INDIRECT_DESC);
    uint64_t table = guest_alloc(32);
    put_indirect(table, 0, buffer, 16, 0, 0);
    put_descriptor(&queue, 0, table, len, INDIRECT | flags, 1);
    put_descriptor(&queue, 1, buffer, 16, 0, 0);
    make_available(&queue, 0);
    expect_refusal();
}

static void indirect_with_next(void) { refuse_table(32, NEXT); }
static void indirect_odd_length(void) { refuse_table(17, 0); }
static void indirect_empty(void) { refuse_one(RAM_BASE, 0, INDIRECT, 0); }
static void indirect_outside_ram(void) { refuse_one(RAM_BASE + RAM_SIZE - 16, 32, INDIRECT, 0); }

static void indirect_loop(void) {
    start(VIRTIO_F_INDIRECT_DESC);
    uint64_t table = guest_alloc(32);
    put_indirect(table, 0, buffer, 16, NEXT, 1);
    put_indirect(table, 1, buffer, 16, NEXT, 0);
    put_descriptor(&queue, 0, table, 32, INDIRECT, 0);
    make_available(&queue, 0);
    expect_refusal();
}

// longest_chain has as many segments as the queue has entries, which is allowed; one more is not.
static void longest_chain(void) {
    uint32_t head, len;
    for (unsigned count = QUEUE; count <= QUEUE + 1; count++) {
        start(VIRTIO_F_INDIRECT_DESC);
        uint64_t table = guest_alloc(16 * count);
        for (unsigned i = 0; i < count; i++)
            put_indirect(table, i, buffer, 16, i + 1 < count ? NEXT : 0, (uint16_t)(i + 1));
        put_descriptor(&queue, 0, table, 16 * count, INDIRECT, 0);
        make_available(&queue, 0);
        if (count > QUEUE) {
            expect_refusal();
            continue;
        }
        kick(&queue);
        CHECK(next_used(&queue, &head, &len));
        CHECK_EQ(streams[FD_NET].out_end, 4 + 16 * QUEUE);
    }
}

// indirect_is_served: a direct descriptor, then a table with entries that are not used.
static void indirect_is_served(void) {
    uint32_t head, len;
    start(VIRTIO_F_INDIRECT_DESC);
    uint64_t table = guest_alloc(64);
    put_indirect(table, 0, buffer + 64, 40, NEXT, 3);
    put_indirect(table, 3, buffer + 1024, 20, 0, 0);
    put_descriptor(&queue, 0, buffer, 12, NEXT, 1);
    put_descriptor(&queue, 1, table, 64, INDIRECT | WRITE, 0); // WRITE means nothing here, section 2.7.5.3.2
    make_available(&queue, 0);
    kick(&queue);
    CHECK(next_used(&queue, &head, &len));
    CHECK_EQ(streams[FD_NET].out_end, 4 + 12 + 60);
    CHECK(!needs_reset(SLOT));
}

// rings outside RAM: the queue is never enabled.
static void refuse_rings(uint64_t descriptors, uint64_t available, uint64_t used) {
    machine_start();
    driver_start(SLOT, 0);
    set_reg(SLOT, 0x30, 0);
    set_reg(SLOT, 0x38, QUEUE);
    const uint64_t rings[] = {descriptors, available, used};
    for (unsigned i = 0; i < 3; i++) {
        set_reg(SLOT, 0x80 + 16 * i, (uint32_t)rings[i]);
        set_reg(SLOT, 0x84 + 16 * i, (uint32_t)(rings[i] >> 32));
    }
    set_reg(SLOT, 0x44, 1);
    CHECK(needs_reset(SLOT));
    CHECK_EQ(reg(SLOT, 0x44), 0);
    driver_ok(SLOT);
    set_reg(SLOT, 0x50, 0);
    check_writes();
}

static void rings_outside_ram(void) {
    const uint64_t good = RAM_BASE + 0x1000, end = RAM_BASE + RAM_SIZE;
    refuse_rings(end - 16 * QUEUE + 16, good, good);
    refuse_rings(good, end - 20, good);
    refuse_rings(good, good, end - 64);
    refuse_rings(0, good, good);
    refuse_rings(UINT64_MAX - 15, good, good);
    refuse_rings(good + 8, good, good); // misaligned
    refuse_rings(good, good + 1, good);
    refuse_rings(good, good, good + 2);
}

// Rings that share bytes, so that each answer would change what comes next: within a queue, and between two of a device.
static void rings_overlap(void) {
    const uint64_t a = RAM_BASE + 0x1000, b = a + 0x1000, c = b + 0x1000;
    refuse_rings(a, b, b);
    refuse_rings(a, a, b);
    refuse_rings(b, a, b);
    refuse_rings(a, a + 16 * QUEUE - 2, b);
    refuse_rings(a, b, b + 6 + 2 * QUEUE - 2);
    refuse_rings(a, c + 6 + 8 * QUEUE - 2, c);
    for (unsigned shared = 0; shared < 2; shared++) { // as close together as they may be, and two bytes closer
        machine_start();
        driver_start(SLOT, 0);
        for (unsigned index = 0; index < 2; index++) {
            const uint64_t used = a + 16 * QUEUE, available = used + 6 + 8 * QUEUE, next = available + 6 + 2 * QUEUE;
            uint64_t rings[] = {index ? b : a, index ? next - 2 * shared : available, index ? c : used};
            set_reg(SLOT, 0x30, index);
            set_reg(SLOT, 0x38, QUEUE);
            for (unsigned i = 0; i < 3; i++) {
                set_reg(SLOT, 0x80 + 16 * i, (uint32_t)rings[i]);
                set_reg(SLOT, 0x84 + 16 * i, 0);
            }
            set_reg(SLOT, 0x44, 1);
            CHECK_EQ(reg(SLOT, 0x44), index == 0 || !shared);
        }
        CHECK_EQ(needs_reset(SLOT), shared == 1);
    }
}

// The device itself makes chains available: the buffer of a chain lies on the ring. A call takes no more than the queue holds.
static void ring_feeds_itself(void) {
    uint32_t taken = 0;
    machine_start();
    driver_start(SLOT_RNG, 0);
    queue = queue_setup(SLOT_RNG, 0, 8);
    driver_ok(SLOT_RNG);
    put_descriptor(&queue, 0, queue.available + 2, 2, WRITE, 0); // random bytes are 0xa5 here
    for (unsigned i = 0; i < 0xa5a5 / 8; i++) {
        guest_write16(queue.available + 2, (uint16_t)(8 * i + 8));
        next_slice();
        set_reg(SLOT_RNG, 0x50, 0);
        CHECK_EQ(guest_read16(queue.used + 2) - taken, 8);
        taken = guest_read16(queue.used + 2);
    }
    check_writes();
}

// Random rings ---------------------------------------------------------------------------------------------------

static uint64_t state;

static uint32_t random_below(uint32_t limit) { // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (uint32_t)((z ^ z >> 31) >> 32) % limit;
}

static uint64_t random_gpa(void) {
    if (random_below(64) == 0)
        return (uint64_t)random_below(UINT32_MAX) << random_below(33);
    return RAM_BASE + random_below(random_below(8) ? 0x8000 : RAM_SIZE);
}

static uint32_t random_len(void) {
    switch (random_below(16)) {
    case 0: return random_below(UINT32_MAX);
    case 1: return 0;
    case 2: return 16 * random_below(64);
    default: return 1 + random_below(4096);
    }
}

static void random_descriptor(uint64_t at) {
    struct queue table = {.descriptors = at};
    uint16_t flags = (uint16_t)random_below(random_below(8) ? 4 : 8);
    put_descriptor(&table, 0, random_gpa(), random_len(), flags, (uint16_t)random_below(20));
}

static void random_bytes(void) {
    uint8_t bytes[64];
    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(random_below(4) ? random_below(8) : random_below(256));
    guest_write(RAM_BASE + random_below(0x8000), bytes, sizeof bytes);
}

static void random_host(void) {
    static const int fds[] = {FD_IN, FD_OUT, FD_NET, FD_CONTROL, FD_BULK, FD_SHARE, FD_DISK};
    struct stream *stream = &streams[fds[random_below(7)]];
    stream->out_room = random_below(4) ? random_below(100000) : 0;
    stream->read_max = 1 + random_below(5000);
    stream->in_at = random_below(STREAM_SIZE / 2);
    stream->in_end = stream->in_at + random_below(20000);
    stream->error = random_below(50) ? 0 : WASI_EIO;
    disk_piece = random_below(8) ? UINT32_MAX : random_below(3000);
}

// random_frames fills the host's streams with net frames or FUSE replies most of the time, else with noise.
static void random_frames(void) {
    for (uint32_t at = 0; at + 64 < STREAM_SIZE; at += 64) {
        uint8_t *net = streams[FD_NET].in + at, *share = streams[FD_SHARE].in + at;
        memset(net, 0, 64);
        net[3] = (uint8_t)(random_below(50) ? 60 : random_below(256));
        net[2] = random_below(100) == 0;
        store32(share, random_below(50) ? 64 : random_below(1 << 20));
        store64(share + 8, random_below(8));
    }
}

// random_driver sets a device up with its rings at random places, all within the first 32 KiB of RAM. One ring in 64 may overlap
// others, and is refused then.
static void random_driver(unsigned slot) {
    uint64_t features = offered_features(slot);
    if (random_below(3) == 0)
        features &= ~(1ull << random_below(32));
    driver_start(slot, features);
    for (unsigned index = 0; index < VIRTIO_QUEUES; index++) {
        set_reg(slot, 0x30, index);
        set_reg(slot, 0x38, 1u << random_below(6));
        for (unsigned ring = 0; ring < 3; ring++) {
            uint32_t own = 0x400 * (3 * index + ring) + 16 * random_below(32);
            set_reg(slot, 0x80 + 16 * ring, (uint32_t)RAM_BASE + (random_below(64) ? own : 16 * random_below(0x700)));
            set_reg(slot, 0x84 + 16 * ring, 0);
        }
        if (reg(slot, 0x34))
            set_reg(slot, 0x44, 1);
    }
    driver_ok(slot);
}

static void random_step(unsigned slot) {
    unsigned index = random_below(VIRTIO_QUEUES);
    const struct virtqueue *target = &virtio_devices[slot].queues[index];
    if (target->size && random_below(4)) {
        random_descriptor(target->descriptors + 16 * random_below(target->size));
        guest_write16(target->available + 4 + 2 * random_below(target->size), (uint16_t)random_below(target->size + 1u));
        guest_write16(target->available + 2, (uint16_t)(target->next_available + random_below(target->size + 1u)));
    }
    if (random_below(4) == 0)
        random_bytes();
    if (random_below(4) == 0)
        random_host();
    if (random_below(2))
        set_reg(slot, 0x50, index);
    else
        devices_poll((uint64_t)random_below(UINT32_MAX));
    check_released();
    if (random_below(2))
        released_pages.count = 0; // as Go does
}

static void random_round(uint64_t seed) {
    static const unsigned slots[] = {SLOT_CONSOLE, SLOT_RNG, SLOT_NET, SLOT_DISK, SLOT_SHARE, SLOT_BALLOON};
    state = seed;
    machine_start();
    random_frames();
    for (unsigned i = 0; i < 400; i++) {
        unsigned slot = slots[random_below(6)];
        if (needs_reset(slot) || reg(slot, 0x70) == 0)
            random_driver(slot);
        random_step(slot);
        if (i % 16 == 0)
            check_writes();
    }
}

static void random_rings(void) {
    for (uint64_t seed = 0; seed < 300; seed++)
        random_round(seed);
}

const struct test malformed_tests[] = {
    {"malformed/loop to itself", loop_to_itself},
    {"malformed/loop of two", loop_of_two},
    {"malformed/next out of range", next_out_of_range},
    {"malformed/head out of range", head_out_of_range},
    {"malformed/address below RAM", address_below_ram},
    {"malformed/address behind RAM", address_behind_ram},
    {"malformed/buffer across the end of RAM", buffer_across_the_end},
    {"malformed/address wraps", address_wraps},
    {"malformed/length wraps", length_wraps},
    {"malformed/zero length", zero_length},
    {"malformed/more available than the queue holds", too_many_available},
    {"malformed/readable after writable", readable_after_writable},
    {"malformed/indirect not negotiated", indirect_not_negotiated},
    {"malformed/indirect in indirect", indirect_in_indirect},
    {"malformed/indirect with next", indirect_with_next},
    {"malformed/indirect of odd length", indirect_odd_length},
    {"malformed/indirect empty", indirect_empty},
    {"malformed/indirect outside RAM", indirect_outside_ram},
    {"malformed/indirect loop", indirect_loop},
    {"malformed/chain longer than the queue", longest_chain},
    {"malformed/honest indirect is served", indirect_is_served},
    {"malformed/rings outside RAM or misaligned", rings_outside_ram},
    {"malformed/rings overlap", rings_overlap},
    {"malformed/ring feeds itself", ring_feeds_itself},
    {"malformed/random rings", random_rings},
    {0},
};
