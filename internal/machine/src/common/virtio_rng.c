// The entropy device (section 5.4): each buffer is filled from random_get.
#include "virtio.h"

// A buffer gets at most FILL_MAX bytes, which the specification allows: a guest cannot make one call long.
// WORK_BYTE: making a random byte takes that many times as long as copying one.
enum { FILL_MAX = 65536, RNG_QUEUE_SIZE = 8, WORK_BYTE = 4 };

static struct chain chain;

// fill gives the number of random bytes at the start of the chain's writable part.
static uint32_t fill(void) {
    struct wasi_iovec iovecs[8];
    uint32_t bytes = 0, done = 0;
    uint32_t count = chain_iovecs(&chain, CHAIN_WRITABLE, 0, FILL_MAX, iovecs, 8, &bytes);
    for (uint32_t i = 0; i < count; i++) {
        if (wasi_random_get((void *)(uintptr_t)iovecs[i].buf, iovecs[i].len) != WASI_ESUCCESS)
            break;
        done += iovecs[i].len;
    }
    chain_written(&chain, 0, done);
    return done;
}

static void rng_notify(struct virtio_device *device, unsigned index) {
    struct virtqueue *queue = &device->queues[index];
    while (virtqueue_peek(device, queue, 0, &chain)) {
        uint32_t done = fill();
        virtqueue_take(queue);
        virtqueue_give(queue, chain.head, done);
        work_done(WORK_CALL + done * WORK_BYTE);
    }
    virtqueue_want_notify(device, queue, true);
    virtqueue_signal(device, queue);
}

static void rng_reset(struct virtio_device *device) { (void)device; }

static const struct virtio_class rng_class = {
    .id = 4,
    .queues = 1,
    .queue_max = {RNG_QUEUE_SIZE},
    .reset = rng_reset,
    .notify = rng_notify,
};

void rng_init(void) { virtio_attach(SLOT_RNG, &rng_class, 0); }
