#include "devices_test.h"

enum { MRG_RXBUF = 1 << 15, GUEST_CSUM = 1 << 1, GUEST_TSO4 = 1 << 7 };

static struct queue receiving, sending;

static void net_start(uint64_t features) {
    driver_start(SLOT_NET, features | VIRTIO_F_EVENT_IDX);
    receiving = queue_setup(SLOT_NET, 0, 16);
    sending = queue_setup(SLOT_NET, 1, 16);
    driver_ok(SLOT_NET);
}

static uint8_t pattern(uint32_t i) { return (uint8_t)(i * 7 + (i >> 8)); }

// host_frame queues a frame with a header of the given flags and gso type.
static void host_frame(uint32_t len, uint8_t flags, uint8_t gso) {
    static uint8_t bytes[16 + 70000];
    uint32_t total = 12 + len;
    memset(bytes, 0, 16);
    for (unsigned i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(total >> (24 - 8 * i));
    bytes[4] = flags;
    bytes[5] = gso;
    for (uint32_t i = 0; i < len; i++)
        bytes[16 + i] = pattern(i);
    host_send(FD_NET, bytes, 16 + len);
}

static uint64_t buffers[64];

static void give_buffers(unsigned count, uint32_t len) {
    for (unsigned i = 0; i < count; i++) {
        uint64_t buffer = guest_alloc(len);
        buffers[receiving.next_descriptor % 16] = buffer;
        add_chain(&receiving, (struct buffer[]){{buffer, len, true}}, 1);
    }
    kick(&receiving);
}

static void poll_net(void) {
    devices_poll(1ull << FD_NET);
    while (devices_behind())
        next_slice();
    check_writes();
}

// expect_frame checks the next frame that the guest got, which takes `chains` chains.
static void expect_frame(uint32_t len, uint16_t chains) {
    uint32_t head, used, at = 0;
    for (uint16_t n = 0; n < chains; n++) {
        CHECK(next_used(&receiving, &head, &used));
        const uint8_t *bytes = guest(buffers[head]);
        uint32_t skip = n == 0 ? 12 : 0;
        if (n == 0)
            CHECK_EQ(load16(bytes + 10), chains);
        for (uint32_t i = skip; i < used; i++)
            CHECK_EQ(bytes[i], pattern(at++));
    }
    CHECK_EQ(at, len);
}

static void expect_nothing(void) {
    uint32_t head, len;
    CHECK(!next_used(&receiving, &head, &len));
}

static void features(void) {
    machine_start();
    uint64_t all = offered_features(SLOT_NET);
    CHECK_EQ(all & 0xffffff, 1 | 2 | 1 << 3 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 11 | 1 << 12 | 1 << 15 | 1 << 16);
    config.net_flags = 0;
    devices_init();
    CHECK_EQ(offered_features(SLOT_NET) & 0xffffff, 1 << 3 | 1 << 5 | 1 << 15 | 1 << 16);
}

static void receives(void) {
    machine_start();
    net_start(MRG_RXBUF);
    give_buffers(4, 2048);
    host_frame(60, 0, 0);
    host_frame(1514, 0, 0);
    streams[FD_NET].reads = 0;
    poll_net();
    expect_frame(60, 1);
    expect_frame(1514, 1);
    expect_nothing();
    CHECK_EQ(streams[FD_NET].reads, 2); // both frames at once, then EAGAIN
}

static void receives_split_reads(void) {
    machine_start();
    net_start(MRG_RXBUF);
    give_buffers(8, 2048);
    host_frame(60, 0, 0);
    host_frame(1514, 0, 0);
    streams[FD_NET].read_max = 1;
    poll_net();
    expect_frame(60, 1);
    expect_frame(1514, 1);
    streams[FD_NET].read_max = 997;
    host_frame(1514, 0, 0);
    host_frame(20, 0, 0);
    uint32_t end = streams[FD_NET].in_end;
    streams[FD_NET].in_end -= 50; // EAGAIN within the first frame
    poll_net();
    expect_nothing();
    streams[FD_NET].in_end = end;
    poll_net();
    expect_frame(1514, 1);
    expect_frame(20, 1);
}

static void receives_mergeable(void) {
    machine_start();
    net_start(MRG_RXBUF | GUEST_CSUM | GUEST_TSO4);
    give_buffers(4, 1024);
    host_frame(4000, 1, 1); // 4012 bytes with header: four buffers
    host_frame(1012, 0, 0); // exactly one
    poll_net();
    expect_frame(4000, 4);
    expect_nothing(); // out of buffers: the frame waits
    give_buffers(2, 1024);
    expect_frame(1012, 1);
    host_frame(1013, 0, 0); // one byte more than the buffer left
    poll_net();
    expect_nothing();
    give_buffers(1, 1024);
    expect_frame(1013, 2);
}

static void receives_back_pressure(void) {
    machine_start();
    net_start(MRG_RXBUF);
    for (unsigned i = 0; i < 600; i++)
        host_frame(1514, 0, 0); // more than the device buffers itself
    poll_net();
    uint32_t reads = streams[FD_NET].reads;
    poll_net();
    CHECK_EQ(streams[FD_NET].reads, reads); // nothing is read while a frame waits
    for (unsigned i = 0; i < 600; i++) {
        receiving.next_descriptor = 0; // the same buffer each time
        buffers[0] = buffers[0] ? buffers[0] : guest_alloc(2048);
        add_chain(&receiving, (struct buffer[]){{buffers[0], 2048, true}}, 1);
        kick(&receiving);
        expect_frame(1514, 1);
    }
    expect_nothing();
}

static void receives_without_mergeable(void) {
    machine_start();
    net_start(0);
    give_buffers(2, 128);
    host_frame(200, 0, 0); // can never fit: dropped
    host_frame(60, 0, 0);
    poll_net();
    expect_frame(60, 1);
    expect_nothing();
}

static void receives_refused_offloads(void) {
    machine_start();
    net_start(MRG_RXBUF);
    give_buffers(2, 2048);
    host_frame(60, 1, 0);
    host_frame(60, 0, 1);
    host_frame(13, 0, 0); // no Ethernet header
    host_frame(61, 2, 0);
    poll_net();
    CHECK_EQ(guest(buffers[0])[0], 0); // DATA_VALID needs GUEST_CSUM
    expect_frame(61, 1);
    expect_nothing();
}

static void receives_largest(void) {
    machine_start();
    net_start(MRG_RXBUF | GUEST_CSUM | GUEST_TSO4);
    give_buffers(16, 4096);
    host_frame(65535 + 14, 1, 1);
    poll_net();
    expect_nothing(); // 17 buffers needed, the queue has 16: dropped
    host_frame(65000, 1, 1);
    poll_net();
    expect_frame(65000, 16);
}

static void bad_length_breaks_link(void) {
    uint32_t head, len;
    machine_start();
    net_start(MRG_RXBUF);
    give_buffers(2, 2048);
    host_send(FD_NET, "\0\1\0\x1f", 4); // 12 + 65535 + 18 is the largest
    host_frame(60, 0, 0);
    poll_net();
    expect_nothing();
    CHECK_EQ(virtio_mmio_read(SLOT_NET, 0x106, 2), 0);
    CHECK_EQ(reg(SLOT_NET, 0xfc), 1);
    CHECK_EQ(reg(SLOT_NET, 0x60), 2);
    uint64_t frame = guest_alloc(80);
    add_chain(&sending, (struct buffer[]){{frame, 72, false}}, 1);
    kick(&sending);
    CHECK(next_used(&sending, &head, &len));
    CHECK_EQ(streams[FD_NET].out_end, 0);
}

static void guest_frame(uint32_t len, uint8_t mark) {
    uint64_t bytes = guest_alloc(12 + len);
    memset(guest(bytes), mark, 12 + len);
    ram_written(bytes, 12 + len);
    add_chain(&sending, (struct buffer[]){{bytes, 12, false}, {bytes + 12, len / 2, false},
                                          {bytes + 12 + len / 2, len - len / 2, false}}, 3);
}

// expect_stream checks the frame at *at of what the host got.
static void expect_stream(uint32_t *at, uint32_t len, uint8_t mark) {
    uint32_t skip = config.net_flags & NET_HEADER ? 12 : 0;
    const uint8_t *bytes = streams[FD_NET].out + *at;
    CHECK_EQ(bytes[2] << 8 | bytes[3], len + skip);
    for (uint32_t i = 0; i < len + skip; i++)
        CHECK_EQ(bytes[4 + i], mark);
    *at += 4 + skip + len;
}

static void sends(void) {
    for (unsigned header = 0; header < 2; header++) {
        uint32_t at = 0;
        machine_configure();
        config.net_flags = header ? NET_HEADER : 0;
        devices_init();
        net_start(0);
        guest_frame(60, 1);
        guest_frame(13, 2); // too short: dropped
        guest_frame(1514, 3);
        guest_frame(14, 4);
        kick(&sending);
        expect_stream(&at, 60, 1);
        expect_stream(&at, 1514, 3);
        expect_stream(&at, 14, 4);
        CHECK_EQ(at, streams[FD_NET].out_end);
        CHECK_EQ(streams[FD_NET].writes, 1);
        CHECK_EQ(guest_read16(sending.used + 2), 4);
    }
}

static void sends_in_pieces(void) {
    for (uint32_t piece = 1; piece < 200; piece++) {
        uint32_t at = 0;
        machine_start();
        streams[FD_NET].out_room = piece;
        net_start(0);
        guest_frame(60, 1);
        guest_frame(70, 2);
        guest_frame(80, 3);
        kick(&sending);
        for (unsigned i = 0; i < 300; i++) {
            streams[FD_NET].out_room = piece;
            devices_poll(1ull << FD_NET);
        }
        check_writes();
        expect_stream(&at, 60, 1);
        expect_stream(&at, 70, 2);
        expect_stream(&at, 80, 3);
        CHECK_EQ(at, streams[FD_NET].out_end);
        CHECK_EQ(guest_read16(sending.used + 2), 3);
    }
}

static void sends_back_pressure(void) {
    machine_start();
    net_start(0);
    streams[FD_NET].out_room = 0;
    guest_frame(60, 1);
    kick(&sending);
    CHECK_EQ(guest_read16(sending.used + 2), 0); // the guest keeps it
    streams[FD_NET].out_room = UINT32_MAX;
    kick(&sending);
    CHECK_EQ(guest_read16(sending.used + 2), 0); // the ready bit has not been seen
    poll_net();
    CHECK_EQ(guest_read16(sending.used + 2), 1);
}

static void reset_keeps_stream(void) {
    uint32_t at = 0;
    machine_start();
    net_start(0);
    streams[FD_NET].out_room = 10;
    guest_frame(60, 1);
    kick(&sending);
    host_frame(100, 0, 0);
    host_frame(60, 0, 0);
    streams[FD_NET].read_max = 50;
    uint32_t end = streams[FD_NET].in_end;
    streams[FD_NET].in_end = 50;
    poll_net();
    net_start(0);
    streams[FD_NET].in_end = end;
    streams[FD_NET].out_room = UINT32_MAX;
    guest_frame(70, 2);
    kick(&sending);
    give_buffers(2, 2048);
    poll_net();
    expect_stream(&at, 60, 1);
    expect_stream(&at, 70, 2);
    expect_frame(100, 1);
    expect_frame(60, 1);
}

// new_stream is what a restored machine finds in its descriptor.
static void new_stream(int fd) {
    struct stream *stream = &streams[fd];
    stream->in_at = stream->in_end = stream->out_end = stream->error = 0;
    stream->out_room = UINT32_MAX;
}

// Of a frame that was half sent and one that was half received when the machine was saved, nothing is left.
static void restored_between_frames(void) {
    uint32_t at = 0;
    machine_start();
    net_start(MRG_RXBUF);
    give_buffers(4, 2048);
    host_frame(1514, 0, 0);
    streams[FD_NET].in_end -= 50;
    streams[FD_NET].out_room = 70;
    poll_net();
    guest_frame(100, 1);
    guest_frame(101, 2);
    kick(&sending);
    CHECK_EQ(streams[FD_NET].out_end, 70);
    new_stream(FD_NET);
    memcpy(config.net_mac, "\x52\x54\x00\x65\x43\x21", 6);
    net_restored();
    host_frame(60, 0, 0);
    poll_net();
    expect_frame(60, 1);
    expect_nothing();
    expect_stream(&at, 101, 2); // the one that was not begun
    CHECK_EQ(at, streams[FD_NET].out_end);
    CHECK_EQ(virtio_mmio_read(SLOT_NET, 0x105, 1), 0x21);
    CHECK_EQ(reg(SLOT_NET, 0xfc), 0); // the link was up all the time
}

static void restored_after_a_broken_link(void) {
    machine_start();
    net_start(MRG_RXBUF);
    give_buffers(2, 2048);
    host_send(FD_NET, "\1\0\0\0", 4);
    poll_net();
    CHECK_EQ(virtio_mmio_read(SLOT_NET, 0x106, 2), 0);
    new_stream(FD_NET);
    net_restored();
    CHECK_EQ(virtio_mmio_read(SLOT_NET, 0x106, 2), 1);
    CHECK_EQ(reg(SLOT_NET, 0xfc), 2);
    host_frame(60, 0, 0);
    poll_net();
    expect_frame(60, 1);
}

// A machine without a network, or with a driver that has not started, is restored as well.
static void restored_without_driver(void) {
    machine_configure();
    config.net_fd = -1;
    devices_init();
    net_restored();
    CHECK_EQ(reg(SLOT_NET, 0x08), 0);
    machine_start();
    net_restored();
    net_start(MRG_RXBUF);
    give_buffers(1, 2048);
    host_frame(60, 0, 0);
    poll_net();
    expect_frame(60, 1);
}

const struct test net_tests[] = {
    {"net/features follow the stream's header", features},
    {"net/receives", receives},
    {"net/receives split reads", receives_split_reads},
    {"net/receives into merged buffers", receives_mergeable},
    {"net/receives with back-pressure", receives_back_pressure},
    {"net/receives without mergeable buffers", receives_without_mergeable},
    {"net/drops offloads the driver refused", receives_refused_offloads},
    {"net/largest frames", receives_largest},
    {"net/bad length breaks the link", bad_length_breaks_link},
    {"net/sends with and without header", sends},
    {"net/sends in pieces", sends_in_pieces},
    {"net/sends with back-pressure", sends_back_pressure},
    {"net/reset keeps the stream whole", reset_keeps_stream},
    {"net/restored between frames", restored_between_frames},
    {"net/restored after a broken link", restored_after_a_broken_link},
    {"net/restored without a driver", restored_without_driver},
    {0},
};
