// virtio-fs (section 5.11): FUSE messages, as in Linux's include/uapi/linux/fuse.h, little-endian.
// A chain carries a request in its readable part; the reply with the same number goes into its writable part. A chain without a
// writable part (FUSE_FORGET) has no reply and returns as soon as it is sent. On the share's descriptor the messages follow each other:
// len[4] opcode[4] unique[8] and the rest, answered by len[4] error[4] unique[8] and the rest.
//
// Back-pressure: requests stay in the queues while fd_write gives EAGAIN; of one that went out in part the rest is kept
// here. Replies always have room, because the chain that asked is held until its reply is there.
#include "virtio.h"

enum { HIGH_PRIORITY, REQUESTS, SHARE_QUEUES };
enum { SHARE_QUEUE_SIZE = VIRTQUEUE_MAX, MESSAGE_MAX = (1 << 20) + 4096 };
// Both headers have the length first and the number of the request at 8.
enum { MESSAGE_SIZE = 0, REPLY_ERROR = 4, MESSAGE_UNIQUE = 8, REPLY_HEADER = 16, REQUEST_HEADER = 40 };
enum { MESSAGE_OPCODE = 4, FUSE_RELEASE = 18, FUSE_RELEASEDIR = 29, FUSE_SETLKW = 33, FUSE_HOST_EVENTS = 8192 };
enum { LINUX_EIO = 5 };
// How long a request waits for its reply, in nanoseconds, and how many requests do not after one that waited too long, at most. Names and
// attributes that the host has in memory come within 20 us; for the guest to sleep, and to be woken, takes longer.
enum { REPLY_WAIT = 50000, UNWAITED_MAX = 64 };
// Messages up to this size go out with one call, as one piece.
enum { SMALL_MESSAGE = 4096 };
// How many shares can have a larger one that went out in part; others wait with theirs.
enum { REST_BUFFERS = 8, NO_REST = REST_BUFFERS };
enum { REPLY_BUFFER = 8 << 10, NO_CHAIN = SHARE_QUEUE_SIZE };
enum { CONFIG_QUEUES = 36, CONFIG_SIZE = 40 }; // tag[36] num_request_queues[4]

static struct share {
    bool readable, writable;        // no EAGAIN since the descriptor's ready bit was seen
    bool dead;                      // the server is gone or lost its framing: every request fails with EIO
    bool pending[SHARE_QUEUE_SIZE]; // by the head of the chain, of the queue of requests, that waits for its reply
    bool unhurried[SHARE_QUEUE_SIZE]; // no program waits for this reply
    uint64_t unique[SHARE_QUEUE_SIZE];
    uint32_t awaited;               // the head of the last chain that went out and that a program waits for; or NO_CHAIN
    bool answered;                  // a reply that a program waits for went into its chain, and the driver does not know yet
    uint32_t unwaited, unwaited_next; // requests that do not wait; and how many when the next reply does not come soon
    uint32_t reply_at, reply_end;   // bytes in buffers.reply that are still to be looked at
    uint32_t into;                  // the head of the chain that the reply under way goes into; NO_CHAIN: it is dropped
    uint32_t into_at, into_end;     // how much of it has arrived, and its size; equal: no reply is under way
    uint32_t rest_at, rest_end;     // bytes in buffers.small, or of buffers.rest: the tail of a request that went out in part
    uint32_t rest;                  // which of buffers.rest it has; or NO_REST
    bool starved;                   // it has a large request to send, and all of buffers.rest are taken
} shares[MAX_SHARES];

// Bytes of the streams; share_restored forgets them. A reply is read up to the end of `reply`, and what is longer goes straight into
// its chain.
static struct {
    uint8_t reply[MAX_SHARES][REPLY_BUFFER];
    uint8_t small[MAX_SHARES][SMALL_MESSAGE];
    uint8_t rest[REST_BUFFERS][MESSAGE_MAX];
} buffers;
static bool rest_taken[REST_BUFFERS];

static struct chain chain;
static struct wasi_iovec iovecs[SHARE_QUEUE_SIZE];

static unsigned share_of(const struct virtio_device *device) { return device->slot - SLOT_SHARE; }

// Replies --------------------------------------------------------------------------------------------------------

// refuse answers the chain with EIO, or returns it as it is if it wants no answer.
static void refuse(struct virtio_device *device, uint64_t unique) {
    uint8_t message[REPLY_HEADER];
    store32(message + MESSAGE_SIZE, REPLY_HEADER);
    store32(message + REPLY_ERROR, (uint32_t)-LINUX_EIO);
    store64(message + MESSAGE_UNIQUE, unique);
    uint32_t size = chain.writable_bytes == 0 ? 0 : REPLY_HEADER;
    if (!chain_store(&chain, 0, message, size)) {
        virtio_fail(device);
        return;
    }
    virtqueue_give(&device->queues[REQUESTS], chain.head, size);
}

// take_rest gives the share one of buffers.rest; false if there is none.
static bool take_rest(struct share *share) {
    for (uint32_t at = 0; at < REST_BUFFERS; at++) {
        if (rest_taken[at])
            continue;
        rest_taken[at] = true;
        share->rest = at;
        return true;
    }
    return false;
}

static void give_rest(struct share *share) {
    if (share->rest < REST_BUFFERS)
        rest_taken[share->rest] = false;
    share->rest = NO_REST;
}

// forget_stream forgets what has arrived of replies and gone out of requests.
static void forget_stream(struct share *share) {
    share->reply_at = share->reply_end = share->into_at = share->into_end = share->rest_at = share->rest_end = 0;
    give_rest(share);
}

// refuse_pending fails the requests that wait, and forgets what is left of the stream.
static void refuse_pending(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    forget_stream(share);
    for (uint16_t head = 0; head < SHARE_QUEUE_SIZE; head++) {
        if (!share->pending[head])
            continue;
        share->pending[head] = false;
        share->answered = true;
        if (!virtqueue_parse(device, &device->queues[REQUESTS], head, &chain))
            return;
        refuse(device, share->unique[head]);
    }
}

// die fails the requests that wait, and with them the share: after a broken stream no reply can be trusted.
static void die(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    share->dead = share->writable = true; // whatever comes from now on is refused at once
    refuse_pending(device);
}

// waiting_for gives the head of the chain that waits for a reply, or NO_CHAIN: its driver was reset.
static uint32_t waiting_for(const struct share *share, uint64_t unique) {
    for (uint32_t head = 0; head < SHARE_QUEUE_SIZE; head++)
        if (share->pending[head] && share->unique[head] == unique)
            return head;
    return NO_CHAIN;
}

// parse_into reads the chain that the reply under way goes into; false, and the reply will be dropped, if there is none.
static bool parse_into(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    if (share->into != NO_CHAIN && !virtqueue_parse(device, &device->queues[REQUESTS], (uint16_t)share->into, &chain))
        share->into = NO_CHAIN; // the device has failed
    return share->into != NO_CHAIN;
}

// arrived notes bytes of the reply under way, and returns its chain, which was just parsed, with the last of them.
static void arrived(struct virtio_device *device, uint32_t size) {
    struct share *share = &shares[share_of(device)];
    share->into_at += size;
    if (share->into_at < share->into_end || share->into == NO_CHAIN)
        return;
    share->pending[share->into] = false;
    if (share->unhurried[share->into])
        virtio_later(device, REQUESTS);
    else
        share->answered = true;
    virtqueue_give(&device->queues[REQUESTS], chain.head, share->into_end);
}

// begin_reply takes as much of the next reply as is in the buffer; false if not even its header is.
static bool begin_reply(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    const uint8_t *message = buffers.reply[share_of(device)] + share->reply_at;
    uint32_t here = share->reply_end - share->reply_at;
    if (here < REPLY_HEADER)
        return false;
    uint32_t size = load32(message + MESSAGE_SIZE);
    uint64_t unique = load64(message + MESSAGE_UNIQUE);
    if (size < REPLY_HEADER || size > MESSAGE_MAX) {
        die(device);
        return false;
    }
    share->into = waiting_for(share, unique);
    share->into_at = 0;
    share->into_end = size;
    if (here > size)
        here = size;
    share->reply_at += here;
    if (parse_into(device) && size > chain.writable_bytes) {
        share->pending[share->into] = false;
        share->answered = true;
        share->into = NO_CHAIN;
        refuse(device, unique);
    }
    if (share->into != NO_CHAIN)
        chain_store(&chain, 0, message, here);
    arrived(device, here);
    return true;
}

// read_some reads bytes of the descriptor; 0 if there are none, or if the share just died.
static uint32_t read_some(struct virtio_device *device, const struct wasi_iovec *to, uint32_t count, uint32_t total) {
    struct share *share = &shares[share_of(device)];
    uint32_t done = 0;
    uint16_t error = wasi_fd_read(config.share_fd[share_of(device)], to, count, &done);
    share->readable = error == WASI_ESUCCESS && done > 0 && done <= total;
    work_done(WORK_CALL + (share->readable ? done : 0));
    if (error != WASI_ESUCCESS && error != WASI_EAGAIN)
        die(device);
    return share->readable ? done : 0;
}

// read_on reads more of the reply under way, straight into its chain.
static void read_on(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    uint8_t *scratch = buffers.reply[share_of(device)]; // empty: begin_reply took all
    uint32_t left = share->into_end - share->into_at, planned = 0, count = 1;
    if (parse_into(device)) {
        count = chain_iovecs(&chain, CHAIN_WRITABLE, share->into_at, left, iovecs, SHARE_QUEUE_SIZE, &planned);
    } else {
        planned = left < REPLY_BUFFER ? left : REPLY_BUFFER;
        iovecs[0] = (struct wasi_iovec){wasi_address(scratch), planned};
    }
    uint32_t done = read_some(device, iovecs, count, planned);
    if (done == 0)
        return;
    if (share->into != NO_CHAIN)
        chain_written(&chain, share->into_at, done);
    arrived(device, done);
}

// read_more fills the buffer, which has no whole header.
static void read_more(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    uint8_t *buffer = buffers.reply[share_of(device)];
    share->reply_end -= share->reply_at;
    __builtin_memmove(buffer, buffer + share->reply_at, share->reply_end);
    share->reply_at = 0;
    struct wasi_iovec room = {wasi_address(buffer + share->reply_end), REPLY_BUFFER - share->reply_end};
    share->reply_end += read_some(device, &room, 1, room.len);
}

// signal tells the driver of replies that a program waits for. The driver learns of the others with the next of those, or when the slice is over:
// an interrupt costs the guest more than the request.
static void signal(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    if (!share->answered)
        return;
    share->answered = false;
    virtqueue_signal(device, &device->queues[REQUESTS]);
}

static void receive(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    while (!share->dead && virtio_live(device) && virtio_may_go_on(device, REQUESTS)) {
        if (share->into_at == share->into_end && begin_reply(device))
            continue;
        if (!share->readable || share->dead)
            break;
        if (share->into_at < share->into_end)
            read_on(device);
        else
            read_more(device);
    }
    signal(device);
}

// Requests -------------------------------------------------------------------------------------------------------

// write_some gives the bytes that the server took; 0 if it takes none now, or if the share just died.
static uint32_t write_some(struct virtio_device *device, const struct wasi_iovec *from, uint32_t count, uint32_t total) {
    struct share *share = &shares[share_of(device)];
    uint32_t done = 0;
    work_done(WORK_CALL + total);
    uint16_t error = wasi_fd_write(config.share_fd[share_of(device)], from, count, &done);
    if (error != WASI_ESUCCESS && error != WASI_EAGAIN) {
        die(device);
        return 0;
    }
    if (error == WASI_EAGAIN || done == 0 || done > total) {
        share->writable = false;
        return 0;
    }
    return done;
}

static void write_rest(struct virtio_device *device) {
    unsigned index = share_of(device);
    struct share *share = &shares[index];
    while (share->writable && share->rest_at < share->rest_end) {
        const uint8_t *from = share->rest < REST_BUFFERS ? buffers.rest[share->rest] : buffers.small[index];
        struct wasi_iovec rest = {wasi_address(from + share->rest_at), share->rest_end - share->rest_at};
        share->rest_at += write_some(device, &rest, 1, rest.len);
    }
    if (share->rest_at == share->rest_end)
        give_rest(share);
}

// send writes the chain's message of `size` bytes; false if the server took none of it, or if there is no place for what it might leave.
static bool send(struct virtio_device *device, uint32_t size) {
    unsigned index = share_of(device);
    struct share *share = &shares[index];
    uint8_t *small = buffers.small[index]; // empty: write_rest was here
    uint32_t planned = size, count = 1, done;
    bool whole = size <= SMALL_MESSAGE && chain_load(&chain, 0, small, size);
    if (whole) {
        iovecs[0] = (struct wasi_iovec){wasi_address(small), size};
    } else if (!take_rest(share)) {
        share->starved = true;
        return false;
    } else {
        count = chain_iovecs(&chain, CHAIN_READABLE, 0, size, iovecs, SHARE_QUEUE_SIZE, &planned);
    }
    done = write_some(device, iovecs, count, planned);
    if (done == 0 || done == size) {
        give_rest(share);
    } else if (whole) {
        share->rest_at = done;
        share->rest_end = size;
    } else {
        chain_load(&chain, done, buffers.rest[share->rest], size - done);
        share->rest_at = 0;
        share->rest_end = size - done;
    }
    return done > 0;
}

// take_request sends the next chain's message, and holds the chain if it has room for a reply; false if there is none, or none can
// go out now. What comes with high priority has no reply.
static bool take_request(struct virtio_device *device, unsigned index) {
    struct share *share = &shares[share_of(device)];
    struct virtqueue *queue = &device->queues[index];
    uint8_t header[REQUEST_HEADER];
    if (!virtqueue_peek(device, queue, 0, &chain))
        return false;
    bool whole = chain_load(&chain, 0, header, REQUEST_HEADER);
    uint32_t size = whole ? load32(header + MESSAGE_SIZE) : 0;
    uint16_t head = chain.head;
    bool replied = index == REQUESTS && chain.writable_bytes > 0;
    if (size < REQUEST_HEADER || size > chain.readable_bytes || size > MESSAGE_MAX || (replied && share->pending[head])) {
        virtio_fail(device);
        return false;
    }
    if (!share->dead && !send(device, size) && !share->dead)
        return false;
    virtqueue_take(queue);
    if (!replied) {
        virtqueue_give(queue, head, 0);
        virtio_later(device, index);
    } else if (!share->dead) {
        uint32_t opcode = load32(header + MESSAGE_OPCODE);
        share->pending[head] = true;
        share->unhurried[head] = opcode == FUSE_RELEASE || opcode == FUSE_RELEASEDIR;
        share->unique[head] = load64(header + MESSAGE_UNIQUE);
        if (!share->unhurried[head] && opcode != FUSE_SETLKW && opcode != FUSE_HOST_EVENTS)
            share->awaited = head;
    } else if (virtqueue_parse(device, queue, head, &chain)) { // die may have used `chain`
        share->answered = true;
        refuse(device, load64(header + MESSAGE_UNIQUE));
    }
    return true;
}

static void transmit(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    write_rest(device);
    for (unsigned index = 0; index < SHARE_QUEUES; index++) {
        while (share->writable && take_request(device, index))
            write_rest(device);
        virtqueue_want_notify(device, &device->queues[index], share->writable);
    }
    signal(device);
}

// feed_starved sends what waited for one of buffers.rest.
static void feed_starved(void) {
    for (unsigned index = 0; index < MAX_SHARES; index++) {
        if (!shares[index].starved)
            continue;
        shares[index].starved = false;
        transmit(&virtio_devices[SLOT_SHARE + index]);
    }
}

// Device ---------------------------------------------------------------------------------------------------------

// forget_pending forgets who waits; the reply under way is dropped when the rest of it comes.
static void forget_pending(struct share *share) {
    __builtin_memset(share->pending, 0, sizeof share->pending);
    share->into = share->awaited = NO_CHAIN;
}

// wait_for_bytes waits for bytes of the server for a moment, and says whether there are some. It counts as work, so that a slice has only a few.
static bool wait_for_bytes(const struct virtio_device *device) {
    const struct wasi_subscription wanted[2] = {
        {.type = WASI_EVENT_READ, .fd_or_clock = (uint32_t)config.share_fd[share_of(device)]},
        {.type = WASI_EVENT_CLOCK, .fd_or_clock = WASI_CLOCK_MONOTONIC, .timeout_ns = REPLY_WAIT},
    };
    struct wasi_event found[2];
    uint32_t count = 0;
    bool there = wasi_poll_oneoff(wanted, found, 2, &count) == WASI_ESUCCESS && count > 0 && found[0].type == WASI_EVENT_READ;
    work_done(there ? REPLY_WAIT / 4 : REPLY_WAIT);
    return there;
}

// await_reply gives the server a moment to reply to the request that has just gone out, if a program waits for it. After one without a reply the
// next requests do not wait: the server may have to read a disk for each.
static void await_reply(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    uint32_t head = share->awaited;
    share->awaited = NO_CHAIN;
    if (head == NO_CHAIN || share->dead || config.clock_mode != CLOCK_HOST)
        return;
    if (share->unwaited > 0) {
        share->unwaited--;
        return;
    }
    while (share->pending[head] && !share->dead && virtio_live(device) && work_left() > 0) {
        if (!wait_for_bytes(device)) {
            share->unwaited = share->unwaited_next;
            share->unwaited_next = share->unwaited < UNWAITED_MAX ? 2 * share->unwaited : UNWAITED_MAX;
            return;
        }
        share->readable = true;
        receive(device);
    }
    share->unwaited_next = 1;
}

// share_notify comes from the driver, and from virtio_resume with what was left for this slice: then the driver learns of all that was given.
static void share_notify(struct virtio_device *device, unsigned index) {
    struct share *share = &shares[share_of(device)];
    if (!(device->backlog >> index & 1))
        virtqueue_signal(device, &device->queues[index]);
    if (share->readable)
        receive(device);
    transmit(device);
    feed_starved();
    await_reply(device);
}

static void share_disable(struct virtio_device *device, unsigned index) {
    if (index == REQUESTS)
        forget_pending(&shares[share_of(device)]);
}

static void share_poll(struct virtio_device *device, uint64_t ready) {
    struct share *share = &shares[share_of(device)];
    if (!fd_ready(ready, config.share_fd[share_of(device)]))
        return;
    share->readable = share->writable = true;
    receive(device);
    transmit(device);
    feed_starved();
}

// share_reset forgets who waits, and keeps what the stream depends on. The next mount begins with FUSE_INIT, which ends
// the old session on the server; replies to the old requests find no chain and are dropped.
static void share_reset(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    forget_pending(share);
    share->readable = share->writable = true;
    share->unwaited = 0;
    share->unwaited_next = 1;
}

static const struct virtio_class share_class = {
    .id = 26,
    .queues = SHARE_QUEUES,
    .queue_max = {SHARE_QUEUE_SIZE, SHARE_QUEUE_SIZE},
    .reset = share_reset,
    .notify = share_notify,
    .poll = share_poll,
    .disable = share_disable,
};

// share_restored: the server is a new one that knows no session. Requests to the old one fail with EIO; the guest has
// to mount again.
void share_restored(void) {
    for (unsigned slot = SLOT_SHARE; slot < SLOT_SHARE + MAX_SHARES; slot++) {
        struct virtio_device *device = &virtio_devices[slot];
        if (device->class != &share_class)
            continue;
        shares[share_of(device)].dead = shares[share_of(device)].starved = false;
        refuse_pending(device);
        share_reset(device);
        virtqueue_signal(device, &device->queues[REQUESTS]);
    }
}

struct memory_range share_state(void) { return memory_range(shares, sizeof shares); }

// share_adopt takes who waits for replies, for share_restored to tell them.
bool share_adopt(const void *other) {
    const struct share *from = other;
    for (unsigned index = 0; index < MAX_SHARES; index++) {
        if (config.share_fd[index] < 0)
            continue;
        const struct virtqueue *queue = &virtio_devices[SLOT_SHARE + index].queues[REQUESTS];
        unsigned waiting = 0;
        for (unsigned head = 0; head < SHARE_QUEUE_SIZE; head++) {
            shares[index].pending[head] = truth(&from[index].pending[head]);
            shares[index].unique[head] = from[index].unique[head];
            waiting += shares[index].pending[head];
        }
        if (waiting > virtqueue_taken(queue))
            return false;
    }
    return true;
}

struct memory_range share_buffers(void) { return (struct memory_range){wasi_address(&buffers), sizeof buffers}; }

void share_init(void) {
    __builtin_memset(shares, 0, sizeof shares);
    __builtin_memset(rest_taken, 0, sizeof rest_taken);
    for (unsigned index = 0; index < MAX_SHARES; index++) {
        if (config.share_fd[index] < 0)
            continue;
        struct virtio_device *device = virtio_attach(SLOT_SHARE + index, &share_class, VIRTIO_F_INDIRECT_DESC);
        for (uint16_t at = 0; at < SHARE_TAG_SIZE && config.share_tag[index][at]; at++)
            device->config[at] = (uint8_t)config.share_tag[index][at];
        store32(device->config + CONFIG_QUEUES, 1);
        device->config_size = CONFIG_SIZE;
        shares[index].rest = NO_REST;
        share_reset(device);
    }
}
