// Coverage-guided fuzzing of the devices (libFuzzer). An input is a stream of operations of a driver and of the host, on one kind
// of device: the program's name says which. Besides what the sanitizers see, every operation is checked for this: what
// a device wrote to RAM is reported, Go drops whole pages of RAM only, the streams to the host keep their framing, and a
// slice's work is bounded. internal/machine/fuzz.sh builds and runs it.
#include "devices_test.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

// What one slice may do: its work, and at its end a call more for each stream and a message or frame that was begun.
enum {
    CALLS_MOST = WORK_SLICE / WORK_CALL + 64,
    MOVED_MOST = WORK_SLICE + (2 << 20),
    GIVEN_MOST = WORK_SLICE / (WORK_CHAIN + WORK_SEGMENT) + VIRTQUEUE_MAX,
};

static unsigned slot;
static int stream_fd;

// Input ----------------------------------------------------------------------------------------------------------

static const uint8_t *next, *end;

static uint32_t take(unsigned bytes) {
    uint32_t value = 0;
    for (unsigned i = 0; i < bytes && next < end; i++)
        value |= (uint32_t)*next++ << (8 * i);
    return value;
}

static uint32_t take_below(uint32_t limit) { return take(limit > 256 ? 2 : 1) % limit; }

// take_gpa is mostly in the first pages, where the rings are, too.
static uint64_t take_gpa(void) {
    uint32_t value = take(2);
    switch (value >> 14) {
    case 0: return RAM_BASE + (value & 0x3fff);
    case 1: return RAM_BASE + (value & 0x3fff) * 8;
    case 2: return RAM_BASE + RAM_SIZE - (value & 0xff);
    }
    return (uint64_t)take(4) << (value & 31);
}

static uint32_t take_len(void) {
    uint32_t value = take(1);
    if (value < 200)
        return value;
    return value < 250 ? (value - 199) * 512 : take(4);
}

static void write_ram(uint64_t gpa, const void *from, uint32_t len) {
    if (ram_at(gpa, len))
        guest_write(gpa, from, len);
}

// Checks ---------------------------------------------------------------------------------------------------------

// A stream of messages that carry their length: how much of the current one is to come.
static struct framing {
    uint8_t head[4];
    uint32_t have, left;
} net_frames, share_messages;

static void follow(struct framing *f, const uint8_t *bytes, uint32_t len, bool big, uint32_t least, uint32_t most) {
    for (; len > 0; bytes++, len--) {
        if (f->left > 0) {
            uint32_t piece = f->left < len ? f->left : len;
            f->left -= piece;
            bytes += piece - 1;
            len -= piece - 1;
            continue;
        }
        f->head[f->have++] = *bytes;
        if (f->have < 4)
            continue;
        const uint8_t *h = f->head;
        uint32_t size = big ? (uint32_t)h[0] << 24 | (uint32_t)h[1] << 16 | (uint32_t)h[2] << 8 | h[3] : load32(h);
        CHECK(size >= least && size <= most);
        f->have = 0;
        f->left = size - (big ? 0 : 4);
    }
}

static void net_sink(const uint8_t *bytes, uint32_t len) { follow(&net_frames, bytes, len, true, 12 + 14, 12 + 65535 + 18); }
static void share_sink(const uint8_t *bytes, uint32_t len) { follow(&share_messages, bytes, len, false, 40, (1 << 20) + 4096); }

static void new_streams(void) {
    memset(&net_frames, 0, sizeof net_frames);
    memset(&share_messages, 0, sizeof share_messages);
    for (unsigned i = 0; i < FDS; i++)
        streams[i].in_at = streams[i].in_end = streams[i].error = 0;
}

// The linker has devices call this one, see fuzz.sh.
static uint32_t given, given_before;

void __real_virtqueue_give(struct virtqueue *queue, uint16_t head, uint32_t written);
void __wrap_virtqueue_give(struct virtqueue *queue, uint16_t head, uint32_t written);
void __wrap_virtqueue_give(struct virtqueue *queue, uint16_t head, uint32_t written) {
    given++;
    __real_virtqueue_give(queue, head, written);
}

static void begin_slice(uint64_t ready) {
    calls = moved = given = given_before = syncs = 0;
    yielded = false;
    devices_poll(ready);
}

static void check(void) {
    CHECK(calls <= CALLS_MOST);
    CHECK(moved <= MOVED_MOST);
    CHECK(given <= GIVEN_MOST);
    CHECK(given - given_before <= 4 * VIRTQUEUE_MAX); // one call of a device, or a few at the beginning of a slice
    given_before = given;
    CHECK(syncs <= 1);
    check_released();
    check_writes();
}

// Operations -----------------------------------------------------------------------------------------------------

static void start_driver(void) {
    uint64_t features = offered_features(slot) & ~(uint64_t)(take(1) << 8);
    if (take_below(8) == 0)
        features &= ~VIRTIO_F_EVENT_IDX;
    set_reg(slot, 0x70, 0);
    set_reg(slot, 0x70, 3);
    for (unsigned half = 0; half < 2; half++) {
        set_reg(slot, 0x24, half);
        set_reg(slot, 0x20, (uint32_t)(features >> (32 * half)));
    }
    set_reg(slot, 0x70, 0xb);
    uint32_t size = 1u << take_below(9);
    for (unsigned index = 0; index < VIRTIO_QUEUES; index++) {
        set_reg(slot, 0x30, index);
        uint32_t most = reg(slot, 0x34);
        uint32_t base = (uint32_t)RAM_BASE + 0x2000 * index;
        if (most == 0)
            continue;
        set_reg(slot, 0x38, size < most ? size : most);
        const uint32_t places[] = {base, base + 0x1000, base + 0x1400};
        for (unsigned i = 0; i < 3; i++) {
            set_reg(slot, 0x80 + 16 * i, places[i]);
            set_reg(slot, 0x84 + 16 * i, 0);
        }
        guest_write16(base + 0x1002, 0);
        set_reg(slot, 0x44, 1);
    }
    set_reg(slot, 0x70, 0xf);
}

static struct virtqueue *take_queue(unsigned *index) {
    *index = take_below(VIRTIO_QUEUES);
    return &virtio_devices[slot].queues[*index];
}

static void put(uint64_t table, uint16_t index, uint64_t gpa, uint32_t len, uint16_t flags, uint16_t follows) {
    uint8_t b[16];
    store64(b, gpa);
    store32(b + 8, len);
    store16(b + 12, flags);
    store16(b + 14, follows);
    write_ram(table + 16u * index, b, sizeof b);
}

static void offer(const struct virtqueue *q, uint16_t head) {
    uint64_t index = q->available + 2;
    if (q->size == 0 || !ram_at(q->available, 6 + 2u * q->size))
        return;
    uint16_t now = guest_read16(index);
    guest_write16(q->available + 4 + 2u * (now & (q->size - 1u)), head);
    guest_write16(index, (uint16_t)(now + 1));
}

static void kick_queue(unsigned index) { set_reg(slot, 0x50, index); }

static void op_descriptor(void) {
    unsigned index;
    struct virtqueue *q = take_queue(&index);
    uint16_t at = (uint16_t)take(1), flags = (uint16_t)take_below(8), follows = (uint16_t)take(1);
    uint64_t gpa = take_gpa();
    put(q->descriptors, at, gpa, take_len(), flags, follows);
}

static void op_offer(void) {
    unsigned index;
    struct virtqueue *q = take_queue(&index);
    uint16_t head = (uint16_t)take(1);
    for (uint32_t n = take(1); n > 0; n--)
        offer(q, head);
    if (take_below(2))
        kick_queue(index);
}

// op_request makes a whole request in the shape that the device expects, with contents of the input.
static void op_request(void) {
    unsigned index;
    struct virtqueue *q = take_queue(&index);
    uint64_t at = RAM_BASE + 0x12000 + 0x400 * take_below(8);
    uint16_t head = (uint16_t)take_below(32);
    uint32_t readable = 0, writable = 0;
    uint8_t b[64] = {0};
    switch (slot) {
    case SLOT_DISK:
        store32(b, take_below(16));
        store64(b + 8, take_below(200));
        store64(b + 16, take_below(200));
        store32(b + 24, take_len());
        readable = take_below(2) ? 16 : 32;
        writable = 1 + take_len();
        break;
    case SLOT_SHARE:
        readable = 40 + take_below(24);
        store32(b, readable);
        store64(b + 8, take_below(16));
        writable = take_below(8) ? 16 + take_below(200) : 0;
        break;
    case SLOT_NET:
        readable = index ? 12 + take_below(100) : 0;
        writable = index ? 0 : 12 + take_len();
        break;
    case SLOT_CONSOLE:
        store32(b, take_below(4));
        store16(b + 4, (uint16_t)take_below(8));
        store16(b + 6, (uint16_t)take_below(2));
        readable = index & 1 ? 8 + take_below(100) : 0;
        writable = index & 1 ? 0 : 8 + take_len();
        break;
    case SLOT_BALLOON:
        readable = index < 2 ? 4 * take_below(100) : 0;
        writable = index < 2 ? 0 : 4096 * (1 + take_below(20));
        break;
    default: writable = take_len() * 8; break;
    }
    write_ram(at, b, sizeof b);
    uint32_t count = (readable > 0) + (writable > 0);
    if (readable)
        put(q->descriptors, head, at, readable, count > 1, head + 1);
    if (writable)
        put(q->descriptors, head + (readable > 0), at + (slot == SLOT_BALLOON ? 0x2000 : 0x100), writable, 2, 0);
    for (uint32_t n = 1 + take_below(take_below(8) ? 2 : 256); n > 0; n--)
        offer(q, head);
    kick_queue(index);
}

static void op_register(void) {
    static const uint16_t offsets[] = {0x14, 0x20, 0x24, 0x30, 0x38, 0x44, 0x44, 0x50, 0x64, 0x70,
                                       0x80, 0x84, 0x90, 0x94, 0xa0, 0xa4, 0x100, 0x104};
    uint16_t offset = offsets[take_below(sizeof offsets / sizeof *offsets)];
    uint32_t value = take(1);
    if (value >= 250)
        value = take(4);
    else if (offset >= 0x80 && offset < 0x100)
        value = (uint32_t)RAM_BASE + value * 0x100;
    set_reg(slot, offset, value);
    (void)reg(slot, offset);
}

static void op_enable(void) {
    set_reg(slot, 0x30, take_below(VIRTIO_QUEUES));
    for (unsigned n = 1 + take_below(2); n > 0; n--)
        set_reg(slot, 0x44, !reg(slot, 0x44));
}

static void op_ram(void) {
    uint8_t b[64];
    uint64_t at = take_gpa();
    uint32_t len = take_below(sizeof b);
    for (uint32_t i = 0; i < len; i++)
        b[i] = (uint8_t)take(1);
    write_ram(at, b, len);
}

static void op_indices(void) {
    unsigned index;
    struct virtqueue *q = take_queue(&index);
    uint64_t ring = take_below(2) ? q->available : q->used;
    uint16_t value = (uint16_t)(q->next_available + take(1));
    uint8_t b[2];
    store16(b, value);
    write_ram(ring + 2, b, 2);
}

// op_host sends bytes of the input, or whole frames and messages, as often as is said.
static void op_host(void) {
    uint8_t b[80] = {0};
    int fd = slot == SLOT_CONSOLE ? (int[]){FD_IN, FD_CONTROL, FD_BULK}[take_below(3)] : stream_fd;
    uint32_t len = take_below(64);
    for (uint32_t i = 0; i < len; i++)
        b[16 + i] = (uint8_t)take(i < 8);
    uint8_t *from = b + 16;
    if (slot == SLOT_NET && take_below(4)) {
        from = b;
        b[3] = (uint8_t)(12 + len);
        b[4] = (uint8_t)take_below(4);
        len += 16;
    } else if (slot == SLOT_SHARE && take_below(4)) {
        from = b;
        len += 16;
        store32(b, len);
        store64(b + 8, take_below(16));
    }
    for (uint32_t n = 1 + take(1) * take_below(8); n > 0; n--) {
        if (len > STREAM_SIZE - streams[fd].in_end)
            break;
        host_send(fd, from, len);
    }
}

static void op_host_state(void) {
    int fd = slot == SLOT_CONSOLE ? (int[]){FD_IN, FD_OUT, FD_CONTROL, FD_BULK}[take_below(4)] : stream_fd;
    streams[fd].out_room = take_below(4) ? take(2) : UINT32_MAX;
    streams[fd].read_max = 1 + take(2);
    if (take_below(16) == 0)
        streams[fd].error = WASI_EIO; // a stream fails for good
    disk_piece = take_below(4) ? UINT32_MAX : take(1);
    random_byte = (uint8_t)take(1);
}

static void op_slice(void) {
    if (take_below(4))
        released_pages.count = 0; // as Go does
    begin_slice(take_below(4) ? ~0ull : 0);
}

static void restored(void) {
    new_streams();
    console_restored();
    net_restored();
    share_restored();
}

// op_image makes the machine anew from a copy of its state, of which the input changes bytes.
static void op_image(void) {
    static struct {
        struct memory_range (*where)(void);
        bool (*adopt)(const void *from);
    } parts[] = {{virtio_state, virtio_adopt},   {console_state, console_adopt}, {net_state, net_adopt},
                 {share_state, share_adopt}, {balloon_state, balloon_adopt}};
    enum { PARTS = sizeof parts / sizeof *parts };
    static uint8_t copies[PARTS][64 << 10];
    bool sound = true;
    for (unsigned i = 0; i < PARTS; i++) {
        struct memory_range r = parts[i].where();
        CHECK(r.size <= sizeof copies[i]);
        memcpy(copies[i], (void *)(uintptr_t)r.address, r.size);
    }
    for (unsigned n = take_below(8); n > 0; n--) {
        unsigned part = take_below(PARTS);
        uint32_t at = take(2) % parts[part].where().size;
        if (part == 0) // of the device at hand
            at = (uint32_t)(sizeof(struct virtio_device) * slot + at % sizeof(struct virtio_device));
        copies[part][at] = (uint8_t)take(1);
    }
    released_pages.count = 0;
    devices_init();
    for (unsigned i = 0; i < PARTS && sound; i++)
        sound = parts[i].adopt(copies[i]);
    if (!sound)
        devices_init(); // such an image is refused
    restored();
    begin_slice(0);
}

static void op_restore(void) {
    restored();
    begin_slice(~0ull);
}

static void op_ack(void) { set_reg(slot, 0x64, 3); }
static void op_reset(void) { set_reg(slot, 0x70, 0); }
static void op_kick(void) { kick_queue(take_below(VIRTIO_QUEUES)); }

static void (*const operations[])(void) = {
    start_driver, op_descriptor, op_offer, op_request, op_request, op_register, op_enable, op_ram,
    op_indices,   op_host,       op_host_state, op_slice, op_image,  op_restore, op_ack, op_reset, op_kick,
};

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    static const struct {
        const char *name;
        unsigned slot;
        int fd;
    } kinds[] = {{"console", SLOT_CONSOLE, FD_IN}, {"rng", SLOT_RNG, FD_IN},        {"net", SLOT_NET, FD_NET},
                 {"disk", SLOT_DISK, FD_DISK},     {"share", SLOT_SHARE, FD_SHARE}, {"balloon", SLOT_BALLOON, FD_IN}};
    (void)argc;
    const char *name = strrchr((*argv)[0], '/') ? strrchr((*argv)[0], '/') + 1 : (*argv)[0];
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(name, kinds[i].name) == 0) {
            slot = kinds[i].slot;
            stream_fd = kinds[i].fd;
            return 0;
        }
    fprintf(stderr, "the program must be called console, rng, net, disk, share or balloon\n");
    exit(2);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    next = bytes;
    end = bytes + size;
    machine_start();
    new_streams();
    random_byte = 0xa5;
    streams[FD_NET].sink = net_sink;
    streams[FD_SHARE].sink = share_sink;
    begin_slice(0);
    start_driver();
    while (next < end) {
        if (yielded) // no instruction is executed before the next slice
            begin_slice(0);
        operations[take_below(sizeof operations / sizeof *operations)]();
        check();
    }
    return 0;
}
