// 9p shares (section 5.9 registers the device; its queue and configuration are those of Linux's net/9p/trans_virtio.c).
// A chain carries a T-message in its readable part; the R-message with the same tag goes into its writable part. On
// the share's descriptor the messages follow each other: size[4] type[1] tag[2] and the rest, little-endian.
//
// Back-pressure: T-messages stay in the queue while fd_write gives EAGAIN; of one that went out in part the rest is kept
// here. Replies always have room, because the chain that asked is held until its reply is there.
#include "virtio.h"

#define F_MOUNT_TAG (1ull << 0)

enum { SHARE_QUEUE_SIZE = 128, MESSAGE_MAX = 512 << 10 };
enum { MESSAGE_SIZE = 0, MESSAGE_TYPE = 4, MESSAGE_TAG = 5, MESSAGE_HEADER = 7 };
enum { RLERROR = 7, RLERROR_SIZE = 11, LINUX_EIO = 5 };

static struct share {
    bool readable, writable;        // no EAGAIN since the descriptor's ready bit was seen
    bool dead;                      // the server is gone or lost its framing: every request fails with EIO
    bool pending[SHARE_QUEUE_SIZE]; // by the head of the chain that waits for its reply
    uint16_t tag[SHARE_QUEUE_SIZE];
    uint32_t reply_end;             // bytes in buffers.reply
    uint32_t rest_at, rest_end;     // bytes in buffers.rest: the tail of a T-message that went out in part
} shares[MAX_SHARES];

// Bytes of the streams; share_restored forgets them.
static struct {
    uint8_t reply[MAX_SHARES][MESSAGE_MAX];
    uint8_t rest[MAX_SHARES][MESSAGE_MAX];
} buffers;

static struct chain chain;
static struct wasi_iovec iovecs[SHARE_QUEUE_SIZE];

static unsigned share_of(const struct virtio_device *device) { return device->slot - SLOT_SHARE; }

// Replies --------------------------------------------------------------------------------------------------------

static void answer(struct virtio_device *device, const uint8_t *message, uint32_t size) {
    if (!chain_store(&chain, 0, message, size)) {
        virtio_fail(device);
        return;
    }
    virtqueue_give(&device->queues[0], chain.head, size);
}

// refuse answers the chain with Rlerror (9P2000.L): ecode[4].
static void refuse(struct virtio_device *device, uint16_t tag) {
    uint8_t message[RLERROR_SIZE];
    store32(message + MESSAGE_SIZE, RLERROR_SIZE);
    message[MESSAGE_TYPE] = RLERROR;
    store16(message + MESSAGE_TAG, tag);
    store32(message + MESSAGE_HEADER, LINUX_EIO);
    answer(device, message, RLERROR_SIZE);
}

// refuse_pending fails the requests that wait, and forgets what is left of the stream.
static void refuse_pending(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    share->reply_end = share->rest_at = share->rest_end = 0;
    for (uint16_t head = 0; head < SHARE_QUEUE_SIZE; head++) {
        if (!share->pending[head])
            continue;
        share->pending[head] = false;
        if (!virtqueue_parse(device, &device->queues[0], head, &chain))
            return;
        refuse(device, share->tag[head]);
    }
}

// die fails the requests that wait, and with them the share: after a broken stream no reply can be trusted.
static void die(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    share->dead = share->writable = true; // whatever comes from now on is refused at once
    refuse_pending(device);
}

// dispatch gives a reply to the chain that waits for its tag. A reply without a waiting chain belongs to a driver that was reset.
static void dispatch(struct virtio_device *device, const uint8_t *message, uint32_t size) {
    struct share *share = &shares[share_of(device)];
    uint16_t tag = load16(message + MESSAGE_TAG), head = 0;
    while (head < SHARE_QUEUE_SIZE && !(share->pending[head] && share->tag[head] == tag))
        head++;
    if (head == SHARE_QUEUE_SIZE)
        return;
    share->pending[head] = false;
    if (!virtqueue_parse(device, &device->queues[0], head, &chain))
        return;
    if (size > chain.writable_bytes)
        refuse(device, tag);
    else
        answer(device, message, size);
}

// dispatch_all takes the whole messages out of the reply buffer.
static void dispatch_all(struct virtio_device *device) {
    unsigned index = share_of(device);
    struct share *share = &shares[index];
    uint32_t at = 0;
    while (share->reply_end - at >= MESSAGE_HEADER && virtio_live(device) && virtio_may_go_on(device, 0)) {
        const uint8_t *message = buffers.reply[index] + at;
        uint32_t size = load32(message);
        if (size < MESSAGE_HEADER || size > MESSAGE_MAX) {
            die(device);
            return;
        }
        if (size > share->reply_end - at)
            break;
        dispatch(device, message, size);
        at += size;
    }
    share->reply_end -= at;
    __builtin_memmove(buffers.reply[index], buffers.reply[index] + at, share->reply_end);
}

static void receive(struct virtio_device *device) {
    unsigned index = share_of(device);
    struct share *share = &shares[index];
    dispatch_all(device); // what an earlier turn left
    while (share->readable && !share->dead && virtio_live(device) && virtio_may_go_on(device, 0)) {
        struct wasi_iovec room = {wasi_address(buffers.reply[index] + share->reply_end), MESSAGE_MAX - share->reply_end};
        uint32_t done = 0;
        uint16_t error = wasi_fd_read(config.share_fd[index], &room, 1, &done);
        share->readable = error == WASI_ESUCCESS && done > 0 && done <= room.len;
        work_done(WORK_CALL + (share->readable ? done : 0));
        if (share->readable) {
            share->reply_end += done;
            dispatch_all(device);
        } else if (error != WASI_ESUCCESS && error != WASI_EAGAIN) {
            die(device);
        }
    }
    virtqueue_signal(device, &device->queues[0]);
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
        struct wasi_iovec rest = {wasi_address(buffers.rest[index] + share->rest_at), share->rest_end - share->rest_at};
        share->rest_at += write_some(device, &rest, 1, rest.len);
    }
}

// send writes the chain's message of `size` bytes; false if the server took none of it.
static bool send(struct virtio_device *device, uint32_t size) {
    unsigned index = share_of(device);
    struct share *share = &shares[index];
    uint32_t planned = 0;
    uint32_t count = chain_iovecs(&chain, CHAIN_READABLE, 0, size, iovecs, SHARE_QUEUE_SIZE, &planned);
    uint32_t done = write_some(device, iovecs, count, planned);
    if (done > 0 && done < size) {
        chain_load(&chain, done, buffers.rest[index], size - done);
        share->rest_at = 0;
        share->rest_end = size - done;
    }
    return done > 0;
}

// take_request sends the next chain's message and holds the chain; false if there is none, or none can go out now.
static bool take_request(struct virtio_device *device, struct virtqueue *queue) {
    struct share *share = &shares[share_of(device)];
    uint8_t header[MESSAGE_HEADER];
    if (!virtqueue_peek(device, queue, 0, &chain))
        return false;
    bool whole = chain_load(&chain, 0, header, MESSAGE_HEADER);
    uint32_t size = whole ? load32(header) : 0;
    if (size < MESSAGE_HEADER || size > chain.readable_bytes || size > MESSAGE_MAX || share->pending[chain.head]) {
        virtio_fail(device);
        return false;
    }
    uint16_t tag = load16(header + MESSAGE_TAG), head = chain.head;
    if (!share->dead && !send(device, size) && !share->dead)
        return false;
    virtqueue_take(queue);
    if (!share->dead) {
        share->pending[head] = true;
        share->tag[head] = tag;
    } else if (virtqueue_parse(device, queue, head, &chain)) { // die may have used `chain`
        refuse(device, tag);
    }
    return true;
}

static void transmit(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    struct virtqueue *queue = &device->queues[0];
    write_rest(device);
    while (share->writable && take_request(device, queue))
        write_rest(device);
    virtqueue_want_notify(device, queue, share->writable);
    virtqueue_signal(device, queue);
}

// Device ---------------------------------------------------------------------------------------------------------

static void forget_pending(struct share *share) { __builtin_memset(share->pending, 0, sizeof share->pending); }

static void share_notify(struct virtio_device *device, unsigned index) {
    (void)index;
    if (shares[share_of(device)].readable)
        receive(device);
    transmit(device);
}

static void share_disable(struct virtio_device *device, unsigned index) {
    (void)index;
    forget_pending(&shares[share_of(device)]);
}

static void share_poll(struct virtio_device *device, uint64_t ready) {
    struct share *share = &shares[share_of(device)];
    if (!fd_ready(ready, config.share_fd[share_of(device)]))
        return;
    share->readable = share->writable = true;
    receive(device);
    transmit(device);
}

// share_reset forgets who waits, and keeps what the stream depends on. The next mount begins with Tversion, which ends
// the old session on the server; replies to the old requests find no chain and are dropped.
static void share_reset(struct virtio_device *device) {
    struct share *share = &shares[share_of(device)];
    forget_pending(share);
    share->readable = share->writable = true;
}

static const struct virtio_class share_class = {
    .id = 9,
    .queues = 1,
    .queue_max = {SHARE_QUEUE_SIZE},
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
        shares[share_of(device)].dead = false;
        refuse_pending(device);
        share_reset(device);
        virtqueue_signal(device, &device->queues[0]);
    }
}

struct memory_range share_state(void) { return memory_range(shares, sizeof shares); }

// share_adopt takes who waits for replies, for share_restored to tell them.
bool share_adopt(const void *other) {
    const struct share *from = other;
    for (unsigned index = 0; index < MAX_SHARES; index++) {
        if (config.share_fd[index] < 0)
            continue;
        const struct virtqueue *queue = &virtio_devices[SLOT_SHARE + index].queues[0];
        unsigned waiting = 0;
        for (unsigned head = 0; head < SHARE_QUEUE_SIZE; head++) {
            shares[index].pending[head] = truth(&from[index].pending[head]);
            shares[index].tag[head] = from[index].tag[head];
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
    for (unsigned index = 0; index < MAX_SHARES; index++) {
        if (config.share_fd[index] < 0)
            continue;
        struct virtio_device *device =
            virtio_attach(SLOT_SHARE + index, &share_class, VIRTIO_F_INDIRECT_DESC | F_MOUNT_TAG);
        uint16_t len = 0;
        while (len < SHARE_TAG_SIZE && config.share_tag[index][len])
            len++;
        store16(device->config, len);
        __builtin_memcpy(device->config + 2, config.share_tag[index], len);
        device->config_size = 2u + len;
        share_reset(device);
    }
}
