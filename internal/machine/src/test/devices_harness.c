#include "devices_test.h"

struct machine_config config;
struct stream streams[FDS];
uint8_t ram[RAM_SIZE];
uint8_t disk[DISK_SIZE + DISK_SLACK];
uint32_t disk_piece;
unsigned syncs;
uint64_t discarded, discarded_at;
uint64_t disk_written, calls, moved;
uint8_t random_byte = 0xa5;
bool line[32];
bool yielded; // the slice ended before its time, or the devices have something left for the next one

unsigned code_dropped[RAM_SIZE / 4096];
struct released_pages released_pages;
static uint8_t reported[RAM_SIZE]; // RAM as it is known: the hart's writes and what ram_written reported
static uint64_t next_free;

// The machine's side ---------------------------------------------------------------------------------------------

void *ram_at(uint64_t gpa, uint64_t len) {
    if (gpa < RAM_BASE || gpa - RAM_BASE > RAM_SIZE || len > RAM_SIZE - (gpa - RAM_BASE))
        return 0;
    return ram + (gpa - RAM_BASE);
}

void ram_written(uint64_t gpa, uint64_t len) {
    CHECK(ram_at(gpa, len));
    memcpy(reported + (gpa - RAM_BASE), ram + (gpa - RAM_BASE), len);
}

void code_drop(uint32_t frame) {
    CHECK(frame < RAM_SIZE / PAGE_SIZE);
    code_dropped[frame]++;
}

void check_released(void) {
    CHECK(released_pages.count <= RELEASED_MAX);
    for (uint32_t i = 0; i < released_pages.count; i++) {
        uint64_t at = released_pages.range[i].address, size = released_pages.range[i].size, start = wasi_address(ram);
        CHECK(size > 0 && size % PAGE_SIZE == 0);
        CHECK(at >= start && (at - start) % PAGE_SIZE == 0);
        CHECK(at + size <= start + RAM_SIZE);
    }
}

void check_writes(void) { CHECK(memcmp(ram, reported, RAM_SIZE) == 0); }

void interrupt_set_level(unsigned source, bool level) {
    CHECK(source >= 1 && source <= 31);
    line[source] = level;
}

void machine_yield(void) { yielded = true; }

uint64_t realtime_nanoseconds(void) { return 0x1234567890abcdef; }

// WASI -----------------------------------------------------------------------------------------------------------

static void *native(uint32_t address) { return (void *)(uintptr_t)address; }

uint16_t wasi_fd_read(int32_t fd, const struct wasi_iovec *iovs, uint32_t count, uint32_t *done) {
    struct stream *stream = &streams[fd];
    stream->reads++;
    calls++;
    *done = 0;
    if (stream->error)
        return stream->error;
    if (stream->in_at == stream->in_end)
        return WASI_EAGAIN;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t left = stream->in_end - stream->in_at, max = stream->read_max - *done;
        uint32_t piece = iovs[i].len < left ? iovs[i].len : left;
        piece = piece < max ? piece : max;
        memcpy(native(iovs[i].buf), stream->in + stream->in_at, piece);
        stream->in_at += piece;
        *done += piece;
        moved += piece;
    }
    return WASI_ESUCCESS;
}

uint16_t wasi_fd_write(int32_t fd, const struct wasi_iovec *iovs, uint32_t count, uint32_t *done) {
    struct stream *stream = &streams[fd];
    stream->writes++;
    calls++;
    *done = 0;
    if (stream->error)
        return stream->error;
    if (stream->out_room == 0)
        return WASI_EAGAIN;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t piece = iovs[i].len < stream->out_room ? iovs[i].len : stream->out_room;
        if (piece > STREAM_SIZE - stream->out_end)
            stream->out_end = 0; // random rings write more than anybody looks at
        CHECK(piece <= STREAM_SIZE);
        if (stream->sink) {
            stream->sink(native(iovs[i].buf), piece);
        } else {
            memcpy(stream->out + stream->out_end, native(iovs[i].buf), piece);
            stream->out_end += piece;
        }
        stream->out_room -= piece;
        *done += piece;
        moved += piece;
    }
    return WASI_ESUCCESS;
}

// A wait for bytes of a stream and for a clock: what the peer does while the device waits is said by `while_waiting`.
uint16_t wasi_poll_oneoff(const struct wasi_subscription *in, struct wasi_event *out, uint32_t count, uint32_t *events) {
    CHECK(count == 2 && in[0].type == WASI_EVENT_READ && in[1].type == WASI_EVENT_CLOCK);
    CHECK(in[1].fd_or_clock == WASI_CLOCK_MONOTONIC && in[1].timeout_ns > 0 && in[1].timeout_ns <= 50000);
    struct stream *stream = &streams[in[0].fd_or_clock];
    stream->waits++;
    calls++;
    if (stream->while_waiting)
        stream->while_waiting();
    bool ready = stream->error || stream->in_at < stream->in_end;
    *events = 1;
    out[0] = (struct wasi_event){.type = ready ? WASI_EVENT_READ : WASI_EVENT_CLOCK};
    return WASI_ESUCCESS;
}

static uint32_t disk_room(uint64_t offset, uint32_t done) {
    uint64_t left = offset + done < sizeof disk ? sizeof disk - offset - done : 0;
    return left < disk_piece - done ? (uint32_t)left : disk_piece - done;
}

uint16_t wasi_fd_pread(int32_t fd, const struct wasi_iovec *iovs, uint32_t count, uint64_t offset, uint32_t *done) {
    calls++;
    *done = 0;
    if (streams[fd].error)
        return streams[fd].error;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t room = disk_room(offset, *done), piece = iovs[i].len < room ? iovs[i].len : room;
        memcpy(native(iovs[i].buf), disk + offset + *done, piece);
        *done += piece;
        moved += piece;
    }
    return WASI_ESUCCESS;
}

uint16_t wasi_fd_pwrite(int32_t fd, const struct wasi_iovec *iovs, uint32_t count, uint64_t offset, uint32_t *done) {
    calls++;
    *done = 0;
    if (streams[fd].error)
        return streams[fd].error;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t room = disk_room(offset, *done), piece = iovs[i].len < room ? iovs[i].len : room;
        memcpy(disk + offset + *done, native(iovs[i].buf), piece);
        *done += piece;
        moved += piece;
    }
    disk_written += *done;
    return WASI_ESUCCESS;
}

uint16_t wasi_fd_advise(int32_t fd, uint64_t offset, uint64_t len, uint32_t advice) {
    calls++;
    discarded_at = offset;
    discarded += len;
    return advice == WASI_ADVICE_DONTNEED ? streams[fd].error : WASI_EBADF;
}

uint16_t wasi_fd_sync(int32_t fd) {
    calls++;
    syncs++;
    return streams[fd].error;
}

uint16_t wasi_fd_filestat_get(int32_t fd, struct wasi_filestat *stat) {
    if (streams[fd].error)
        return streams[fd].error;
    *stat = (struct wasi_filestat){.size = DISK_SIZE + 100};
    return WASI_ESUCCESS;
}

uint16_t wasi_random_get(void *buf, uint32_t len) {
    calls++;
    moved += len;
    memset(buf, random_byte, len);
    return WASI_ESUCCESS;
}

// The host -------------------------------------------------------------------------------------------------------

void machine_configure(void) {
    memset(&config, 0, sizeof config);
    config.ram_size = RAM_SIZE;
    config.console_in_fd = FD_IN;
    config.console_out_fd = FD_OUT;
    config.control_fd = FD_CONTROL;
    config.bulk_fd = FD_BULK;
    config.net_fd = FD_NET;
    config.net_flags = NET_HEADER;
    config.net_mtu = 1500;
    memcpy(config.net_mac, "\x52\x54\x00\x12\x34\x56", 6);
    for (unsigned i = 0; i < MAX_DISKS; i++)
        config.disk_fd[i] = i < 2 ? FD_DISK + (int)i : -1;
    config.disk_flags[1] = DISK_READ_ONLY;
    for (unsigned i = 0; i < MAX_SHARES; i++)
        config.share_fd[i] = i == 0 ? FD_SHARE : -1;
    strcpy(config.share_tag[0], "work");
    for (unsigned i = 0; i < FDS; i++) {
        struct stream *stream = &streams[i];
        stream->in_at = stream->in_end = stream->out_end = stream->reads = stream->writes = stream->error = 0;
        stream->out_room = stream->read_max = UINT32_MAX;
    }
    memset(ram, 0, RAM_SIZE);
    memset(reported, 0, RAM_SIZE);
    memset(code_dropped, 0, sizeof code_dropped);
    memset(&released_pages, 0, sizeof released_pages);
    disk_piece = UINT32_MAX;
    next_free = RAM_BASE;
}

void machine_start(void) {
    machine_configure();
    devices_init();
}

void host_send(int fd, const void *bytes, uint32_t len) {
    CHECK(len <= STREAM_SIZE - streams[fd].in_end);
    memcpy(streams[fd].in + streams[fd].in_end, bytes, len);
    streams[fd].in_end += len;
}

// The driver -----------------------------------------------------------------------------------------------------

uint32_t reg(unsigned slot, uint32_t offset) { return (uint32_t)virtio_mmio_read(slot, offset, 4); }
void set_reg(unsigned slot, uint32_t offset, uint32_t value) { virtio_mmio_write(slot, offset, value, 4); }

uint64_t offered_features(unsigned slot) {
    set_reg(slot, 0x14, 1);
    uint64_t high = reg(slot, 0x10);
    set_reg(slot, 0x14, 0);
    return high << 32 | reg(slot, 0x10);
}

void driver_start(unsigned slot, uint64_t features) {
    features |= VIRTIO_F_VERSION_1;
    set_reg(slot, 0x70, 0);
    CHECK_EQ(reg(slot, 0x70), 0);
    set_reg(slot, 0x70, 1);
    set_reg(slot, 0x70, 3);
    for (unsigned half = 0; half < 2; half++) {
        set_reg(slot, 0x24, half);
        set_reg(slot, 0x20, (uint32_t)(features >> (32 * half)));
    }
    set_reg(slot, 0x70, 0xb);
    CHECK_EQ(reg(slot, 0x70), 0xb);
}

void driver_ok(unsigned slot) { set_reg(slot, 0x70, 0xf); }

struct queue queue_setup(unsigned slot, unsigned index, unsigned size) {
    struct queue queue = {.slot = slot, .index = index, .size = size};
    queue.descriptors = guest_alloc(16 * size);
    queue.available = guest_alloc(6 + 2 * size);
    queue.used = guest_alloc(6 + 8 * size);
    set_reg(slot, 0x30, index);
    set_reg(slot, 0x38, size);
    set_reg(slot, 0x80, (uint32_t)queue.descriptors);
    set_reg(slot, 0x84, (uint32_t)(queue.descriptors >> 32));
    set_reg(slot, 0x90, (uint32_t)queue.available);
    set_reg(slot, 0x94, (uint32_t)(queue.available >> 32));
    set_reg(slot, 0xa0, (uint32_t)queue.used);
    set_reg(slot, 0xa4, (uint32_t)(queue.used >> 32));
    set_reg(slot, 0x44, 1);
    return queue;
}

uint64_t guest_alloc(uint32_t len) {
    uint64_t gpa = next_free;
    next_free += (len + 15) & ~15u;
    CHECK(ram_at(gpa, len));
    return gpa;
}

uint8_t *guest(uint64_t gpa) { return ram + (gpa - RAM_BASE); }

void guest_write(uint64_t gpa, const void *from, uint32_t len) {
    CHECK(ram_at(gpa, len));
    memcpy(guest(gpa), from, len);
    memcpy(reported + (gpa - RAM_BASE), from, len);
}

void guest_write16(uint64_t gpa, uint16_t value) { guest_write(gpa, &value, 2); }
uint16_t guest_read16(uint64_t gpa) { return load16(guest(gpa)); }

void put_descriptor(struct queue *queue, uint16_t index, uint64_t gpa, uint32_t len, uint16_t flags, uint16_t next) {
    uint8_t bytes[16];
    store64(bytes, gpa);
    store32(bytes + 8, len);
    store16(bytes + 12, flags);
    store16(bytes + 14, next);
    guest_write(queue->descriptors + 16u * index, bytes, 16);
}

void make_available(struct queue *queue, uint16_t head) {
    guest_write16(queue->available + 4 + 2u * (queue->next_available % queue->size), head);
    guest_write16(queue->available + 2, ++queue->next_available);
}

// Descriptors are used in turn: the tests never have more than a queue of them in flight.
uint16_t add_chain(struct queue *queue, const struct buffer *buffers, unsigned count) {
    uint16_t head = queue->next_descriptor % queue->size;
    for (unsigned i = 0; i < count; i++) {
        uint16_t index = queue->next_descriptor++ % queue->size;
        uint16_t flags = (buffers[i].writable ? 2 : 0) | (i + 1 < count ? 1 : 0);
        put_descriptor(queue, index, buffers[i].gpa, buffers[i].len, flags, queue->next_descriptor % queue->size);
    }
    make_available(queue, head);
    return head;
}

void kick_once(struct queue *queue) {
    set_reg(queue->slot, 0x50, queue->index);
    check_writes();
}

void kick(struct queue *queue) {
    kick_once(queue);
    for (unsigned slices = 0; yielded; slices++) {
        CHECK(slices < 1000);
        next_slice();
    }
}

void next_slice(void) {
    yielded = false;
    devices_poll(0);
    yielded = devices_behind() && released_pages.count == 0; // a report waits for Go, not for a slice
    check_writes();
}

bool next_used(struct queue *queue, uint32_t *head, uint32_t *len) {
    if (guest_read16(queue->used + 2) == queue->seen)
        return false;
    const uint8_t *entry = guest(queue->used + 4 + 8u * (queue->seen++ % queue->size));
    *head = load32(entry);
    *len = load32(entry + 4);
    return true;
}

bool needs_reset(unsigned slot) { return reg(slot, 0x70) & 64; }
