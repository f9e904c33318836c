// The console device (section 5.3) with three ports: 0 is hvc0, 1 `agentvm.control`, 2 `agentvm.bulk`. Bytes go
// straight between the guest's buffers and the ports' descriptors.
//
// Back-pressure. Guest to host: what fd_write does not take stays in the transmit queue, and `sent` remembers how much
// of its first chain is gone. Host to guest: a descriptor is read only into buffers that the guest has given.
// Both stop at EAGAIN and continue when the descriptor's ready bit is seen.
#include "virtio.h"

#define F_MULTIPORT (1ull << 1)

enum { PORTS = 3, CONTROL_RX = 2, CONTROL_TX = 3, CONTROL_SIZE = 8 };

// Control events, section 5.3.6.2.
enum {
    DEVICE_READY = 0,
    PORT_ADD = 1,
    PORT_READY = 3,
    CONSOLE_PORT = 4,
    PORT_OPEN = 6,
    PORT_NAME = 7,
};

enum { BATCH_CHAINS = 16, BATCH_IOVECS = 64 };

static const char *const port_names[PORTS] = {"", "agentvm.control", "agentvm.bulk"};

static struct port {
    int32_t in_fd, out_fd;    // -1: none
    uint32_t sent;            // bytes of the first transmit chain that the host has taken
    uint8_t pending;          // control events still to be sent to the guest, a bit each
    bool open;                // by the guest
    bool readable, writable;  // no EAGAIN since the descriptor's ready bit was seen
} ports[PORTS];

static struct chain chain;
static struct wasi_iovec iovecs[BATCH_IOVECS];

// A batch is the chains that one fd_read or fd_write covers.
static struct {
    uint32_t chains, iovecs;
    uint16_t head[BATCH_CHAINS];
    uint32_t len[BATCH_CHAINS]; // bytes of each chain still to move
} batch;

static unsigned receive_queue(unsigned port) { return port == 0 ? 0 : 2 + 2 * port; }
static bool present(unsigned port) { return ports[port].in_fd >= 0 || ports[port].out_fd >= 0; }

// Batches --------------------------------------------------------------------------------------------------------

// gather fills the batch with the waiting chains' parts; `skip` bytes of the first one are done already.
static uint32_t gather(struct virtio_device *device, struct virtqueue *queue, enum chain_part part, uint32_t skip) {
    uint32_t total = 0;
    batch.chains = batch.iovecs = 0;
    while (batch.chains < BATCH_CHAINS && batch.iovecs < BATCH_IOVECS &&
           virtqueue_peek(device, queue, batch.chains, &chain)) {
        uint32_t all = part == CHAIN_READABLE ? chain.readable_bytes : chain.writable_bytes;
        if (skip > all) // the guest changed a chain that the device is working on
            virtio_fail(device);
        if (!virtio_live(device))
            return 0;
        uint32_t bytes = 0;
        batch.iovecs += chain_iovecs(&chain, part, skip, all - skip, iovecs + batch.iovecs,
                                     BATCH_IOVECS - batch.iovecs, &bytes);
        batch.head[batch.chains] = chain.head;
        batch.len[batch.chains++] = all - skip;
        total += bytes;
        skip = 0;
        if (bytes < batch.len[batch.chains - 1])
            break;
    }
    return virtio_live(device) ? total : 0;
}

// Host to guest --------------------------------------------------------------------------------------------------

// deliver returns the buffers that hold the `done` bytes just read.
static void deliver(struct virtio_device *device, struct virtqueue *queue, uint32_t done) {
    while (done > 0 && virtqueue_next(device, queue, 0, &chain)) {
        uint32_t piece = chain.writable_bytes < done ? chain.writable_bytes : done;
        chain_written(&chain, 0, piece);
        virtqueue_take(queue);
        virtqueue_give(queue, chain.head, piece);
        done -= piece;
    }
}

// is_open: without the control queues there is one port, and it is always open (section 5.3.4).
static bool is_open(const struct virtio_device *device, unsigned port) {
    return ports[port].open || (port == 0 && !virtio_has(device, F_MULTIPORT));
}

// receive reads while there are bytes and buffers. An end of file counts as "no bytes now": a stream may be opened
// again, and its ready bit tells.
static void receive(struct virtio_device *device, unsigned index) {
    struct port *port = &ports[index];
    struct virtqueue *queue = &device->queues[receive_queue(index)];
    while (is_open(device, index) && port->readable && port->in_fd >= 0) {
        uint32_t room = gather(device, queue, CHAIN_WRITABLE, 0), done = 0;
        if (batch.chains > 0 && room == 0)
            virtio_fail(device); // a buffer that takes nothing would stop the port for ever
        if (room == 0)
            break;
        uint16_t error = wasi_fd_read(port->in_fd, iovecs, batch.iovecs, &done);
        if (error != WASI_ESUCCESS || done == 0 || done > room)
            port->readable = false;
        else
            deliver(device, queue, done);
        work_done(WORK_CALL + (port->readable ? done : 0));
    }
    virtqueue_want_notify(device, queue, port->readable);
    virtqueue_signal(device, queue);
}

// Guest to host --------------------------------------------------------------------------------------------------

// retire returns the chains that the `done` bytes just written complete, and those with nothing to write.
static void retire(struct port *port, struct virtqueue *queue, uint32_t done) {
    for (uint32_t i = 0; i < batch.chains; i++) {
        if (done < batch.len[i]) {
            port->sent += done;
            return;
        }
        done -= batch.len[i];
        port->sent = 0;
        virtqueue_take(queue);
        virtqueue_give(queue, batch.head[i], 0);
    }
}

// write_batch writes the batch's `total` bytes. A descriptor that refuses them for good, or that is absent, must not
// stop the guest: its bytes are dropped.
static uint32_t write_batch(struct port *port, uint32_t total) {
    uint32_t done = 0;
    if (port->out_fd < 0)
        return total;
    uint16_t error = wasi_fd_write(port->out_fd, iovecs, batch.iovecs, &done);
    if (error != WASI_ESUCCESS && error != WASI_EAGAIN)
        return total;
    if (error == WASI_EAGAIN || done == 0 || done > total) {
        port->writable = false;
        return 0;
    }
    return done;
}

static void transmit(struct virtio_device *device, unsigned index) {
    struct port *port = &ports[index];
    struct virtqueue *queue = &device->queues[receive_queue(index) + 1];
    while (port->writable && virtqueue_waiting(device, queue) > 0) {
        uint32_t total = gather(device, queue, CHAIN_READABLE, port->sent);
        if (!virtio_live(device))
            break;
        uint32_t done = total > 0 ? write_batch(port, total) : 0;
        retire(port, queue, done);
        work_done(WORK_CALL + done);
    }
    virtqueue_want_notify(device, queue, port->writable);
    virtqueue_signal(device, queue);
}

// Control queues -------------------------------------------------------------------------------------------------

// tell writes one event into the guest's next control buffer; false if there is none.
static bool tell(struct virtio_device *device, uint32_t port, uint16_t event) {
    struct virtqueue *queue = &device->queues[CONTROL_RX];
    uint8_t message[CONTROL_SIZE + 32];
    uint32_t len = CONTROL_SIZE;
    if (!virtqueue_peek(device, queue, 0, &chain))
        return false;
    store32(message, port);
    store16(message + 4, event);
    store16(message + 6, 1);
    for (const char *at = port_names[port]; event == PORT_NAME && *at; at++)
        message[len++] = (uint8_t)*at;
    if (!chain_store(&chain, 0, message, len)) {
        virtio_fail(device);
        return false;
    }
    virtqueue_take(queue);
    virtqueue_give(queue, chain.head, len);
    return true;
}

// tell_port tells a port's events in the order in which a driver needs them: it exists, what it is, that it is open.
static bool tell_port(struct virtio_device *device, unsigned port) {
    static const uint8_t order[] = {PORT_ADD, CONSOLE_PORT, PORT_NAME, PORT_OPEN};
    for (unsigned i = 0; i < sizeof order; i++) {
        if (!(ports[port].pending & 1 << order[i]))
            continue;
        if (!tell(device, port, order[i]))
            return false;
        ports[port].pending &= (uint8_t) ~(1 << order[i]);
    }
    return true;
}

static void tell_pending(struct virtio_device *device) {
    unsigned port = 0;
    while (port < PORTS && tell_port(device, port))
        port++;
    virtqueue_want_notify(device, &device->queues[CONTROL_RX], port < PORTS);
    virtqueue_signal(device, &device->queues[CONTROL_RX]);
}

static void hear(struct virtio_device *device, uint32_t id, uint16_t event, uint16_t value) {
    if (event == DEVICE_READY && value == 1)
        for (unsigned i = 0; i < PORTS; i++)
            ports[i].pending = present(i) ? 1 << PORT_ADD : 0;
    if (id >= PORTS || !present(id))
        return;
    if (event == PORT_READY && value == 1)
        ports[id].pending |= (uint8_t)((id == 0 ? 1 << CONSOLE_PORT : 1 << PORT_NAME) | 1 << PORT_OPEN);
    if (event == PORT_OPEN) {
        ports[id].open = value == 1;
        receive(device, id);
    }
}

static void hear_control(struct virtio_device *device) {
    struct virtqueue *queue = &device->queues[CONTROL_TX];
    while (virtqueue_peek(device, queue, 0, &chain)) {
        uint8_t message[CONTROL_SIZE];
        uint16_t head = chain.head;
        bool whole = chain_load(&chain, 0, message, CONTROL_SIZE);
        virtqueue_take(queue);
        virtqueue_give(queue, head, 0);
            if (whole)
            hear(device, load32(message), load16(message + 4), load16(message + 6));
    }
    virtqueue_want_notify(device, queue, true);
    virtqueue_signal(device, queue);
    tell_pending(device);
}

// Device ---------------------------------------------------------------------------------------------------------

static void console_notify(struct virtio_device *device, unsigned index) {
    if (index == CONTROL_RX)
        tell_pending(device);
    else if (index == CONTROL_TX)
        hear_control(device);
    else if (index & 1)
        transmit(device, index == 1 ? 0 : index / 2 - 1);
    else
        receive(device, index == 0 ? 0 : index / 2 - 1);
}

// console_poll: two descriptors of one stream have one ready bit, that of the second.
static void console_poll(struct virtio_device *device, uint64_t ready) {
    for (unsigned i = 0; i < PORTS; i++) {
        if (!fd_ready(ready, ports[i].in_fd) && !fd_ready(ready, ports[i].out_fd))
            continue;
        ports[i].readable = ports[i].writable = true;
        receive(device, i);
        transmit(device, i);
    }
}

static void console_reset(struct virtio_device *device) {
    const int32_t fds[PORTS][2] = {
        {config.console_in_fd, config.console_out_fd},
        {config.control_fd, config.control_fd},
        {config.bulk_fd, config.bulk_fd},
    };
    (void)device;
    for (unsigned i = 0; i < PORTS; i++)
        ports[i] = (struct port){.in_fd = fds[i][0], .out_fd = fds[i][1], .readable = true, .writable = true};
}

// console_disable: a driver that takes its transmit queue back takes the chain back of which a part is sent.
static void console_disable(struct virtio_device *device, unsigned index) {
    (void)device;
    for (unsigned i = 0; i < PORTS; i++)
        if (index == receive_queue(i) + 1)
            ports[i].sent = 0;
}

// console_restored: the ports continue with the guest's next byte. Their new readers and writers must expect the rest of a
// message from the old stream.
void console_restored(void) {
    for (unsigned i = 0; i < PORTS; i++)
        ports[i].readable = ports[i].writable = true;
}

struct memory_range console_state(void) { return memory_range(ports, sizeof ports); }

bool console_adopt(const void *other) {
    enum { EVENTS = 1 << PORT_ADD | 1 << CONSOLE_PORT | 1 << PORT_NAME | 1 << PORT_OPEN };
    const struct port *from = other;
    for (unsigned i = 0; i < PORTS; i++) {
        if (!present(i))
            continue;
        if (virtio_devices[SLOT_CONSOLE].queues[receive_queue(i) + 1].enabled)
            ports[i].sent = from[i].sent; // more than the chain has fails the device, see gather
        ports[i].pending = from[i].pending & EVENTS;
        ports[i].open = truth(&from[i].open);
    }
    return true;
}

// Linux fills the receive queues with a page per entry, so their sizes are memory of the guest.
static const struct virtio_class console_class = {
    .id = 3,
    .queues = 2 + 2 * PORTS,
    .queue_max = {16, 32, 16, 32, 32, 64, 64, 64},
    .reset = console_reset,
    .notify = console_notify,
    .poll = console_poll,
    .disable = console_disable,
};

void console_init(void) {
    console_reset(0);
    if (!present(0) && !present(1) && !present(2))
        return;
    struct virtio_device *device = virtio_attach(SLOT_CONSOLE, &console_class, F_MULTIPORT);
    device->config_size = 12; // cols and rows, valid only with F_SIZE; max_nr_ports
    store32(device->config + 4, PORTS);
}
