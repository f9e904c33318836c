// The network device (section 5.1). On the descriptor each frame is a 32-bit big-endian length and that many bytes;
// with NET_HEADER the bytes begin with the frame's virtio_net_hdr, and only then are offloads offered.
//
// Back-pressure. Guest to host: frames stay in the transmit queue while fd_write gives EAGAIN; of a frame that went out
// in part the rest is kept here, so that no guest, and no reset, can leave the stream between frames. Host to guest:
// when the guest has no buffers, frames stay in the receive buffer, and then in the descriptor.
#include "virtio.h"

#define F_CSUM (1ull << 0)
#define F_GUEST_CSUM (1ull << 1)
#define F_MTU (1ull << 3)
#define F_MAC (1ull << 5)
#define F_GUEST_TSO4 (1ull << 7)
#define F_GUEST_TSO6 (1ull << 8)
#define F_HOST_TSO4 (1ull << 11)
#define F_HOST_TSO6 (1ull << 12)
#define F_MRG_RXBUF (1ull << 15)
#define F_STATUS (1ull << 16)

// struct virtio_net_hdr, section 5.1.6.
enum { HEADER_FLAGS = 0, HEADER_GSO_TYPE = 1, HEADER_BUFFERS = 10, HEADER_SIZE = 12 };
enum { FLAG_NEEDS_CSUM = 1, FLAG_DATA_VALID = 2, GSO_NONE = 0, GSO_TCPV4 = 1, GSO_TCPV6 = 4 };
enum { CONFIG_STATUS = 6, CONFIG_MTU = 10, CONFIG_SIZE = 12, LINK_UP = 1 };

enum { QUEUE_RX = 0, QUEUE_TX = 1, NET_QUEUE_SIZE = 256 };
enum { PREFIX_SIZE = 4, FRAME_MIN = 14, FRAME_MAX = 65535 + 18 }; // an IP packet of 64 KiB, Ethernet and VLAN headers
enum { RECEIVE_SIZE = 256 << 10, BATCH_FRAMES = 32, BATCH_IOVECS = 512 };

static struct {
    bool readable, writable;         // no EAGAIN since the descriptor's ready bit was seen
    bool broken;                     // the host's side sent a length that cannot be: nothing after it has a meaning
    uint32_t receive_at, receive_end; // bytes in buffers.receive
    uint32_t rest_at, rest_end;       // bytes in buffers.rest: the tail of a frame that went out in part
} net;

// Bytes of the stream; net_restored forgets them.
static struct {
    uint8_t receive[RECEIVE_SIZE];
    uint8_t rest[PREFIX_SIZE + HEADER_SIZE + FRAME_MAX];
} buffers;

static struct chain chain;
static struct wasi_iovec iovecs[BATCH_IOVECS];

// A batch is the frames that one fd_write covers.
static struct {
    uint32_t chains, iovecs;
    uint16_t head[BATCH_FRAMES];
    uint32_t len[BATCH_FRAMES]; // bytes in the stream, prefix included; 0: a chain that is no frame
    uint8_t prefix[BATCH_FRAMES][PREFIX_SIZE];
} batch;

static uint32_t stream_header(void) { return config.net_flags & NET_HEADER ? HEADER_SIZE : 0; }

static uint32_t load_length(const uint8_t *from) {
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

static void store_length(uint8_t *to, uint32_t length) {
    for (unsigned i = 0; i < PREFIX_SIZE; i++)
        to[i] = (uint8_t)(length >> (24 - 8 * i));
}

// Guest to host --------------------------------------------------------------------------------------------------

// write_some gives the bytes that the host took. A descriptor that fails for good swallows everything, as a cable that
// is not plugged in does.
static uint32_t write_some(const struct wasi_iovec *from, uint32_t count, uint32_t total) {
    uint32_t done = 0;
    work_done(WORK_CALL + total);
    if (net.broken)
        return total;
    uint16_t error = wasi_fd_write(config.net_fd, from, count, &done);
    if (error != WASI_ESUCCESS && error != WASI_EAGAIN)
        return total;
    if (error == WASI_EAGAIN || done == 0 || done > total) {
        net.writable = false;
        return 0;
    }
    return done;
}

static void write_rest(void) {
    while (net.writable && net.rest_at < net.rest_end) {
        struct wasi_iovec rest = {wasi_address(buffers.rest + net.rest_at), net.rest_end - net.rest_at};
        net.rest_at += write_some(&rest, 1, rest.len);
    }
}

// frame_bytes gives the length that the chain's frame has in the stream, without prefix, or 0 if it is no frame.
static uint32_t frame_bytes(void) {
    if (chain.readable_bytes < HEADER_SIZE + FRAME_MIN || chain.readable_bytes > HEADER_SIZE + FRAME_MAX)
        return 0;
    return chain.readable_bytes - HEADER_SIZE + stream_header();
}

static void add_to_batch(void) {
    uint32_t i = batch.chains++, frame = frame_bytes(), bytes = 0;
    batch.head[i] = chain.head;
    batch.len[i] = 0;
    if (frame == 0)
        return;
    batch.len[i] = PREFIX_SIZE + frame;
    store_length(batch.prefix[i], frame);
    iovecs[batch.iovecs++] = (struct wasi_iovec){wasi_address(batch.prefix[i]), PREFIX_SIZE};
    batch.iovecs += chain_iovecs(&chain, CHAIN_READABLE, HEADER_SIZE - stream_header(), frame, iovecs + batch.iovecs,
                                 BATCH_IOVECS - batch.iovecs, &bytes);
}

// gather fills the batch and gives its bytes.
static uint32_t gather(struct virtio_device *device, struct virtqueue *queue) {
    uint32_t total = 0;
    batch.chains = batch.iovecs = 0;
    while (batch.chains < BATCH_FRAMES && virtqueue_peek(device, queue, batch.chains, &chain)) {
        if (batch.iovecs + 1 + chain.readable > BATCH_IOVECS)
            break;
        add_to_batch();
        total += batch.len[batch.chains - 1];
    }
    return total;
}

// keep_rest saves a frame of which `done` bytes are out.
static void keep_rest(uint32_t frame, uint32_t done) {
    store_length(buffers.rest, frame);
    chain_load(&chain, HEADER_SIZE - stream_header(), buffers.rest + PREFIX_SIZE, frame);
    net.rest_at = done;
    net.rest_end = PREFIX_SIZE + frame;
}

// retire returns the chains whose frames are in the `done` bytes just written, and the one that is begun. The rest of that is
// kept before any chain is given back, which writes into the guest's memory: a descriptor of it may be there.
static void retire(struct virtio_device *device, struct virtqueue *queue, uint32_t done) {
    uint32_t chains = 0;
    while (chains < batch.chains && batch.len[chains] <= done)
        done -= batch.len[chains++];
    if (chains < batch.chains && done > 0) {
        virtqueue_next(device, queue, chains, &chain); // it was sound a moment ago
        keep_rest(batch.len[chains++] - PREFIX_SIZE, done);
    }
    for (uint32_t i = 0; i < chains; i++) {
        virtqueue_take(queue);
        virtqueue_give(queue, batch.head[i], 0);
    }
}

static void transmit(struct virtio_device *device) {
    struct virtqueue *queue = &device->queues[QUEUE_TX];
    write_rest();
    while (net.writable && virtqueue_waiting(device, queue) > 0) {
        uint32_t total = gather(device, queue);
        if (!virtio_live(device))
            break;
        retire(device, queue, total > 0 ? write_some(iovecs, batch.iovecs, total) : 0);
        write_rest();
    }
    virtqueue_want_notify(device, queue, net.writable);
    virtqueue_signal(device, queue);
}

// Host to guest --------------------------------------------------------------------------------------------------

// break_link gives up a stream that lost its framing.
static void break_link(struct virtio_device *device) {
    net.broken = net.writable = true; // what the guest sends from now on is dropped
    net.readable = false;
    net.receive_at = net.receive_end = 0;
    net.rest_at = net.rest_end = 0;
    store16(device->config + CONFIG_STATUS, 0);
    virtio_config_changed(device);
}

// gso_accepted: may a frame with this gso_type go to the driver (section 5.1.6.4.1)?
static bool gso_accepted(const struct virtio_device *device, uint8_t type) {
    switch (type) {
    case GSO_NONE: return true;
    case GSO_TCPV4: return virtio_has(device, F_GUEST_TSO4);
    case GSO_TCPV6: return virtio_has(device, F_GUEST_TSO6);
    }
    return false; // ECN and UFO are not offered
}

// make_header prepares the header that the driver gets; false if the frame needs an offload that the driver refused.
static bool make_header(const struct virtio_device *device, const uint8_t *from, uint8_t *header) {
    __builtin_memset(header, 0, HEADER_SIZE);
    if (!from)
        return true;
    __builtin_memcpy(header, from, HEADER_SIZE);
    header[HEADER_FLAGS] &= FLAG_NEEDS_CSUM | FLAG_DATA_VALID;
    if (!virtio_has(device, F_GUEST_CSUM)) {
        if (header[HEADER_FLAGS] & FLAG_NEEDS_CSUM)
            return false;
        header[HEADER_FLAGS] = 0;
    }
    return gso_accepted(device, header[HEADER_GSO_TYPE]);
}

enum room { ROOM_FOUND, ROOM_LATER, ROOM_NEVER };

// find_room counts the chains that a frame of `need` bytes takes, header included.
static enum room find_room(struct virtio_device *device, struct virtqueue *queue, uint32_t need, uint16_t *chains) {
    uint32_t room = 0, limit = virtio_has(device, F_MRG_RXBUF) ? queue->size : 1;
    for (uint16_t n = 0; n < limit; n++) {
        if (!virtqueue_peek(device, queue, n, &chain))
            return ROOM_LATER;
        if (chain.writable_bytes < HEADER_SIZE) { // section 5.1.6.3.1
            virtio_fail(device);
            return ROOM_LATER;
        }
        *chains = (uint16_t)(n + 1);
        if (chain.writable_bytes >= need - room)
            return ROOM_FOUND;
        room += chain.writable_bytes;
    }
    return ROOM_NEVER;
}

// scatter puts header and frame into the next chains, which find_room has counted.
static void scatter(struct virtio_device *device, struct virtqueue *queue, const uint8_t *header, const uint8_t *frame,
                    uint32_t len) {
    work_done(len);
    for (uint32_t skip = HEADER_SIZE; len > 0; skip = 0) {
        if (!virtqueue_next(device, queue, 0, &chain) || chain.writable_bytes < HEADER_SIZE)
            return; // only a guest whose buffers overlap its rings gets here
        uint32_t piece = chain.writable_bytes - skip < len ? chain.writable_bytes - skip : len;
        chain_store(&chain, 0, header, skip);
        chain_store(&chain, skip, frame, piece);
        virtqueue_take(queue);
        virtqueue_give(queue, chain.head, skip + piece);
        frame += piece;
        len -= piece;
    }
}

// deliver gives one frame to the guest, or drops it; false if it has to wait for buffers.
static bool deliver(struct virtio_device *device, struct virtqueue *queue, const uint8_t *from, uint32_t len) {
    uint8_t header[HEADER_SIZE];
    uint32_t skip = stream_header();
    uint16_t chains = 0;
    if (len < skip + FRAME_MIN || !make_header(device, skip ? from : 0, header))
        return true;
    enum room room = find_room(device, queue, HEADER_SIZE + len - skip, &chains);
    if (room == ROOM_FOUND) {
        store16(header + HEADER_BUFFERS, chains);
        scatter(device, queue, header, from + skip, len - skip);
    }
    return room != ROOM_LATER;
}

// deliver_all takes the whole frames out of the receive buffer; false if one is left that has to wait.
static bool deliver_all(struct virtio_device *device, struct virtqueue *queue) {
    while (net.receive_end - net.receive_at >= PREFIX_SIZE) {
        const uint8_t *from = buffers.receive + net.receive_at;
        uint32_t len = load_length(from);
        if (len > stream_header() + FRAME_MAX) {
            break_link(device);
            return true;
        }
        if (net.receive_end - net.receive_at - PREFIX_SIZE < len)
            return true;
        if (!deliver(device, queue, from + PREFIX_SIZE, len))
            return false;
        net.receive_at += PREFIX_SIZE + len;
    }
    return true;
}

// fill reads what fits behind the bytes that are there, less than one frame; false if the host has nothing. Frames that
// are dropped take no chain, so what is read is charged to the slice's work as well.
static bool fill(void) {
    uint32_t left = net.receive_end - net.receive_at, done = 0;
    __builtin_memmove(buffers.receive, buffers.receive + net.receive_at, left);
    net.receive_at = 0;
    net.receive_end = left;
    struct wasi_iovec room = {wasi_address(buffers.receive + left), RECEIVE_SIZE - left};
    uint16_t error = wasi_fd_read(config.net_fd, &room, 1, &done);
    net.readable = error == WASI_ESUCCESS && done > 0 && done <= room.len;
    if (net.readable)
        net.receive_end += done;
    work_done(WORK_CALL + (net.readable ? done : 0));
    return net.readable;
}

static void receive(struct virtio_device *device) {
    struct virtqueue *queue = &device->queues[QUEUE_RX];
    bool waiting = false;
    do
        waiting = !deliver_all(device, queue);
    while (!waiting && net.readable && virtio_may_go_on(device, QUEUE_RX) && fill());
    virtqueue_want_notify(device, queue, waiting);
    virtqueue_signal(device, queue);
}

// Device ---------------------------------------------------------------------------------------------------------

static void net_notify(struct virtio_device *device, unsigned index) {
    if (index == QUEUE_RX)
        receive(device);
    else
        transmit(device);
}

static void net_poll(struct virtio_device *device, uint64_t ready) {
    if (!fd_ready(ready, config.net_fd))
        return;
    net.readable = !net.broken;
    net.writable = true;
    receive(device);
    transmit(device);
}

// net_reset keeps both buffers: they belong to the stream, not to the driver.
static void net_reset(struct virtio_device *device) {
    (void)device;
    net.readable = !net.broken;
    net.writable = true;
}

static const struct virtio_class net_class = {
    .id = 1,
    .queues = 2,
    .queue_max = {NET_QUEUE_SIZE, NET_QUEUE_SIZE},
    .reset = net_reset,
    .notify = net_notify,
    .poll = net_poll,
};

// net_restored: bytes of a frame that was half sent or half received belong to a stream that is no more. The frame is
// lost, as frames may be.
void net_restored(void) {
    struct virtio_device *device = &virtio_devices[SLOT_NET];
    if (device->class != &net_class)
        return;
    bool was_broken = net.broken;
    __builtin_memset(&net, 0, sizeof net);
    net_reset(device);
    __builtin_memcpy(device->config, config.net_mac, sizeof config.net_mac);
    if (was_broken) {
        store16(device->config + CONFIG_STATUS, LINK_UP);
        virtio_config_changed(device);
    }
}

struct memory_range net_state(void) { return memory_range(&net.broken, sizeof net.broken); }

// net_adopt only says to net_restored whether the guest has seen its link go down.
bool net_adopt(const void *from) {
    net.broken = truth(from);
    return true;
}

struct memory_range net_buffers(void) { return (struct memory_range){wasi_address(&buffers), sizeof buffers}; }

void net_init(void) {
    __builtin_memset(&net, 0, sizeof net);
    net_reset(0);
    if (config.net_fd < 0)
        return;
    uint64_t features = VIRTIO_F_INDIRECT_DESC | F_MAC | F_MTU | F_STATUS | F_MRG_RXBUF;
    if (config.net_flags & NET_HEADER)
        features |= F_CSUM | F_GUEST_CSUM | F_HOST_TSO4 | F_HOST_TSO6 | F_GUEST_TSO4 | F_GUEST_TSO6;
    struct virtio_device *device = virtio_attach(SLOT_NET, &net_class, features);
    device->config_size = CONFIG_SIZE;
    __builtin_memcpy(device->config, config.net_mac, sizeof config.net_mac);
    store16(device->config + CONFIG_STATUS, LINK_UP);
    store16(device->config + CONFIG_MTU, config.net_mtu);
}
