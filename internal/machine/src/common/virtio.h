// What the virtio devices share: the MMIO transport (virtio.c), split virtqueues (virtqueue.c) and the helpers that move
// bytes between a descriptor chain and the machine's side. Section numbers are those of "Virtual I/O Device (VIRTIO)
// Version 1.2", OASIS. Guest addresses stay guest addresses: nothing here outlives a call as a host pointer.
#ifndef AGENTVM_VIRTIO_H
#define AGENTVM_VIRTIO_H

#include <stdbool.h>
#include <stdint.h>

#include "machine.h"
#include "wasi.h"

enum { VIRTIO_QUEUES = 8, VIRTQUEUE_MAX = 256, VIRTIO_CONFIG_MAX = 64 };

// Feature bits of every device (section 6).
#define VIRTIO_F_INDIRECT_DESC (1ull << 28)
#define VIRTIO_F_EVENT_IDX (1ull << 29)
#define VIRTIO_F_VERSION_1 (1ull << 32)

// A split virtqueue (section 2.7) as the driver described it, and how far the device has come.
struct virtqueue {
    uint64_t descriptors, available, used; // gpa; checked to be RAM when the driver enables the queue
    uint16_t size;                         // entries, a power of two
    uint16_t next_available;               // the next entry of the available ring to take
    uint16_t used_index;                   // the next entry of the used ring to fill
    uint16_t signalled;                    // used_index when the driver was last considered for an interrupt
    bool enabled;
};

struct virtio_class;

struct virtio_device {
    const struct virtio_class *class; // NULL: the slot is empty
    uint64_t offered, accepted;       // features
    uint32_t slot, status, interrupts;
    uint32_t offered_select, accepted_select, queue_select;
    uint32_t config_generation, config_size;
    uint32_t backlog; // queues, a bit each, that the device left before they were empty (virtio_later)
    uint8_t config[VIRTIO_CONFIG_MAX];
    struct virtqueue queues[VIRTIO_QUEUES];
};

// What a kind of device adds to the transport. The functions run only while the device is live (virtio_live), except
// reset, which forgets what the driver set up and keeps what the host's side of a stream depends on, and disable.
struct virtio_class {
    uint32_t id; // DeviceID, section 5
    uint32_t queues;
    uint16_t queue_max[VIRTIO_QUEUES]; // largest size of each queue; 0: there is no such queue
    uint32_t config_writable, config_writable_end; // bytes of the configuration that the driver may write
    void (*reset)(struct virtio_device *device);
    void (*notify)(struct virtio_device *device, unsigned queue);
    void (*poll)(struct virtio_device *device, uint64_t ready); // NULL: the device has no descriptor to wait for
    // disable forgets the chains of a queue that the device has not given back: the driver took the queue away, and may
    // enable another one in its place. NULL: the device holds nothing across calls.
    void (*disable)(struct virtio_device *device, unsigned queue);
};

// Transport ------------------------------------------------------------------------------------------------------

extern struct virtio_device virtio_devices[VIRTIO_SLOTS];

// virtio_attach puts a device into its slot; `features` need not name those that the transport adds to each device.
struct virtio_device *virtio_attach(unsigned slot, const struct virtio_class *class, uint64_t features);

// virtio_live says whether the device may touch its queues: the driver is ready and nothing has failed.
bool virtio_live(const struct virtio_device *device);

bool virtio_has(const struct virtio_device *device, uint64_t feature);

// virtio_fail answers a driver that broke the protocol: DEVICE_NEEDS_RESET (section 2.1.2). No queue is touched again
// until the driver resets the device.
void virtio_fail(struct virtio_device *device);

// virtio_later asks for another notify of a queue that holds more than one call should do. It comes with the next slice,
// which Go begins at once: a machine with such a queue is not idle, see devices_behind.
void virtio_later(struct virtio_device *device, unsigned queue);
void virtio_resume(struct virtio_device *device);

// virtio_poll is the device's poll while the device is live.
void virtio_poll(struct virtio_device *device, uint64_t ready);

// virtio_may_go_on says whether the slice has work left for the queue (see machine.h); if not, the queue's turn comes later.
// Reading chains is charged here; a device charges its calls and the bytes that they moved.
bool virtio_may_go_on(struct virtio_device *device, unsigned queue);

// virtio_turn counts the calls of devices: a device sees of each queue what was available when it first looked in a call.
extern uint32_t virtio_turn;

// virtio_config_changed tells the driver that device->config holds something new.
void virtio_config_changed(struct virtio_device *device);

void virtio_interrupt_queue(struct virtio_device *device);

// Queues ---------------------------------------------------------------------------------------------------------

struct segment {
    uint64_t gpa;
    uint32_t len;
};

// A descriptor chain, checked: every segment lies in RAM and is not empty, the readable segments come first, and the
// lengths of all of them together fit 32 bits.
struct chain {
    uint16_t head;
    uint16_t readable, writable;            // segments of each kind
    uint32_t readable_bytes, writable_bytes;
    struct segment segments[VIRTQUEUE_MAX]; // readable ones, then writable ones
};

// virtqueue_peek reads the chain `ahead` places after the next one without taking it. It gives false when the driver
// has not made that many available, when the device is not live, and when the ring is malformed (the device fails).
bool virtqueue_peek(struct virtio_device *device, struct virtqueue *queue, unsigned ahead, struct chain *chain);

// virtqueue_next is virtqueue_peek also when the slice has no work left: for a device that is in the middle of what it has
// begun.
bool virtqueue_next(struct virtio_device *device, struct virtqueue *queue, unsigned ahead, struct chain *chain);

// virtqueue_waiting counts the chains that the driver made available and the device has not taken. It is 0 when the slice
// has no work left; the queue is then looked at again in the next one. What is made available during a call of the device,
// by a device that writes into the ring, counts from the next call on: no loop over a queue is longer than the queue.
unsigned virtqueue_waiting(struct virtio_device *device, struct virtqueue *queue);

// virtqueue_parse reads the chain that starts at descriptor `head`; false and a failed device if it is malformed.
bool virtqueue_parse(struct virtio_device *device, struct virtqueue *queue, uint16_t head, struct chain *chain);

void virtqueue_take(struct virtqueue *queue);

// virtqueue_taken counts the chains that the device has taken and not given back.
static inline uint16_t virtqueue_taken(const struct virtqueue *queue) {
    return queue->enabled ? (uint16_t)(queue->next_available - queue->used_index) : 0;
}

// virtqueue_give returns a chain with `written` bytes in its writable part. The driver hears of it by
// virtqueue_signal, once for a batch.
void virtqueue_give(struct virtqueue *queue, uint16_t head, uint32_t written);

void virtqueue_signal(struct virtio_device *device, struct virtqueue *queue);

// virtqueue_want_notify says whether the driver should notify the device of the next chain that it adds to those that it
// has made available, whether the device took them or not.
void virtqueue_want_notify(struct virtio_device *device, struct virtqueue *queue, bool want);

// Chains ---------------------------------------------------------------------------------------------------------

enum chain_part { CHAIN_READABLE, CHAIN_WRITABLE };

// chain_iovecs describes up to len bytes of a part of the chain, from offset on, by at most max iovecs. It returns
// their number and adds their bytes to *bytes.
uint32_t chain_iovecs(const struct chain *chain, enum chain_part part, uint32_t offset, uint32_t len,
                      struct wasi_iovec *iovecs, uint32_t max, uint32_t *bytes);

// chain_load copies from the readable part, chain_store into the writable one; false if the part is too short.
bool chain_load(const struct chain *chain, uint32_t offset, void *to, uint32_t len);
bool chain_store(const struct chain *chain, uint32_t offset, const void *from, uint32_t len);

// chain_written reports len bytes of the writable part, from offset on, as written to by someone else, WASI.
void chain_written(const struct chain *chain, uint32_t offset, uint32_t len);

// Plain values ---------------------------------------------------------------------------------------------------

static inline uint16_t load16(const void *from) {
    uint16_t value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

static inline uint32_t load32(const void *from) {
    uint32_t value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

static inline uint64_t load64(const void *from) {
    uint64_t value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

static inline void store16(void *to, uint16_t value) { __builtin_memcpy(to, &value, sizeof value); }
static inline void store32(void *to, uint32_t value) { __builtin_memcpy(to, &value, sizeof value); }
static inline void store64(void *to, uint64_t value) { __builtin_memcpy(to, &value, sizeof value); }

static inline uint32_t wasi_address(const void *pointer) { return (uint32_t)(uintptr_t)pointer; }

// fd_ready says whether fd is one whose state changed.
static inline bool fd_ready(uint64_t ready, int32_t fd) { return fd >= 0 && fd < 64 && (ready >> fd & 1); }

// Devices --------------------------------------------------------------------------------------------------------

// Each makes the devices of its kind that `config` names, with nothing left of an earlier machine.
void console_init(void);
void rng_init(void);
void net_init(void);
void blk_init(void);
void share_init(void);
void balloon_init(void);
void rtc_init(void);
void vmgenid_init(void);

#endif
