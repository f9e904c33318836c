// Split virtqueues (section 2.7) as the device sees them, and the bytes of their chains. The rings are the guest's, so
// each index, address, length and flag is checked when it is used, and every walk is bounded by the queue's size.
#include "virtio.h"

enum { DESCRIPTOR_NEXT = 1, DESCRIPTOR_WRITE = 2, DESCRIPTOR_INDIRECT = 4, DESCRIPTOR_SIZE = 16 };
enum { AVAILABLE_NO_INTERRUPT = 1, USED_NO_NOTIFY = 1 };

struct descriptor {
    uint64_t gpa;
    uint32_t len;
    uint16_t flags, next;
};

// Rings ----------------------------------------------------------------------------------------------------------
// ram_at cannot fail in this section: the transport enables a queue only when all of it is in RAM.

static uint16_t ring_load(uint64_t ring, uint32_t offset) { return load16(ram_at(ring + offset, 2)); }

static void ring_store(uint64_t ring, uint32_t offset, uint16_t value) {
    store16(ram_at(ring + offset, 2), value);
    ram_written(ring + offset, 2);
}

// needs_event: has the other side's event index been passed between old and new (section 2.7.7.2)?
static bool needs_event(uint16_t event, uint16_t new, uint16_t old) {
    return (uint16_t)(new - event - 1) < (uint16_t)(new - old);
}

static uint16_t available_index(const struct virtqueue *queue) { return ring_load(queue->available, 2); }

// What each queue had when its device first looked at it in a turn. Nothing of it matters longer than the turn.
static struct {
    uint32_t turn;
    uint16_t available;
} seen[VIRTIO_SLOTS][VIRTIO_QUEUES];

static uint16_t seen_available(const struct virtio_device *device, const struct virtqueue *queue) {
    unsigned index = (unsigned)(queue - device->queues);
    if (seen[device->slot][index].turn != virtio_turn) {
        seen[device->slot][index].turn = virtio_turn;
        seen[device->slot][index].available = available_index(queue);
    }
    return seen[device->slot][index].available;
}

static unsigned count_waiting(struct virtio_device *device, struct virtqueue *queue) {
    if (!virtio_live(device) || !queue->enabled)
        return 0;
    uint16_t waiting = seen_available(device, queue) - queue->next_available;
    if (waiting > queue->size) {
        virtio_fail(device);
        return 0;
    }
    return waiting;
}

unsigned virtqueue_waiting(struct virtio_device *device, struct virtqueue *queue) {
    unsigned waiting = count_waiting(device, queue);
    return waiting == 0 || virtio_may_go_on(device, (unsigned)(queue - device->queues)) ? waiting : 0;
}

static bool parse_ahead(struct virtio_device *device, struct virtqueue *queue, unsigned ahead, struct chain *chain) {
    uint32_t entry = (queue->next_available + ahead) & (queue->size - 1u);
    return virtqueue_parse(device, queue, ring_load(queue->available, 4 + 2 * entry), chain);
}

bool virtqueue_peek(struct virtio_device *device, struct virtqueue *queue, unsigned ahead, struct chain *chain) {
    return virtqueue_waiting(device, queue) > ahead && parse_ahead(device, queue, ahead, chain);
}

bool virtqueue_next(struct virtio_device *device, struct virtqueue *queue, unsigned ahead, struct chain *chain) {
    return count_waiting(device, queue) > ahead && parse_ahead(device, queue, ahead, chain);
}

void virtqueue_take(struct virtqueue *queue) { queue->next_available++; }

void virtqueue_give(struct virtqueue *queue, uint16_t head, uint32_t written) {
    uint64_t entry = queue->used + 4 + 8u * (queue->used_index & (queue->size - 1u));
    uint8_t *to = ram_at(entry, 8);
    store32(to, head);
    store32(to + 4, written);
    ram_written(entry, 8);
    queue->used_index++;
    ring_store(queue->used, 2, queue->used_index);
}

void virtqueue_signal(struct virtio_device *device, struct virtqueue *queue) {
    if (!virtio_live(device) || !queue->enabled || queue->used_index == queue->signalled)
        return;
    bool wanted;
    if (virtio_has(device, VIRTIO_F_EVENT_IDX))
        wanted = needs_event(ring_load(queue->available, 4 + 2u * queue->size), queue->used_index, queue->signalled);
    else
        wanted = !(ring_load(queue->available, 0) & AVAILABLE_NO_INTERRUPT);
    queue->signalled = queue->used_index;
    if (wanted)
        virtio_interrupt_queue(device);
}

// With EVENT_IDX an event index that stays behind is what suppresses notifications. The one that asks for the next is that of
// all chains available, those included that the device has left in the queue because they are too few for a frame.
void virtqueue_want_notify(struct virtio_device *device, struct virtqueue *queue, bool want) {
    if (!virtio_live(device) || !queue->enabled)
        return;
    if (!virtio_has(device, VIRTIO_F_EVENT_IDX))
        ring_store(queue->used, 0, want ? 0 : USED_NO_NOTIFY);
    else if (want)
        ring_store(queue->used, 4 + 8u * queue->size, available_index(queue));
}

// Chains ---------------------------------------------------------------------------------------------------------

static struct descriptor load_descriptor(const uint8_t *table, uint32_t index) {
    const uint8_t *from = table + (size_t)index * DESCRIPTOR_SIZE;
    return (struct descriptor){load64(from), load32(from + 8), load16(from + 12), load16(from + 14)};
}

// add_segment appends a buffer; false if the chain would then break one of the promises of struct chain.
static bool add_segment(struct chain *chain, const struct descriptor *from, uint32_t max) {
    uint32_t count = chain->readable + chain->writable;
    uint32_t total = chain->readable_bytes + chain->writable_bytes;
    bool writable = from->flags & DESCRIPTOR_WRITE;
    if (count >= max || from->len == 0 || from->len > UINT32_MAX - total || !ram_at(from->gpa, from->len))
        return false;
    if (!writable && chain->writable)
        return false;
    chain->segments[count] = (struct segment){from->gpa, from->len};
    *(writable ? &chain->writable : &chain->readable) += 1;
    *(writable ? &chain->writable_bytes : &chain->readable_bytes) += from->len;
    return true;
}

// indirect_table gives the table that an indirect descriptor names, or NULL if that is not allowed (section 2.7.5.3).
static const uint8_t *indirect_table(const struct virtio_device *device, const struct descriptor *from) {
    if (!virtio_has(device, VIRTIO_F_INDIRECT_DESC) || (from->flags & DESCRIPTOR_NEXT))
        return 0;
    if (from->len == 0 || from->len % DESCRIPTOR_SIZE)
        return 0;
    return ram_at(from->gpa, from->len);
}

// walk ends: each round adds a segment, of which there may be no more than the queue has entries, or enters the one
// indirect table.
static bool walk(const struct virtio_device *device, const struct virtqueue *queue, struct chain *chain) {
    const uint8_t *table = ram_at(queue->descriptors, (uint64_t)queue->size * DESCRIPTOR_SIZE);
    uint32_t entries = queue->size, index = chain->head;
    bool indirect = false;
    while (index < entries) {
        struct descriptor descriptor = load_descriptor(table, index);
        if (descriptor.flags & DESCRIPTOR_INDIRECT) {
            table = indirect ? 0 : indirect_table(device, &descriptor);
            if (!table)
                return false;
            entries = descriptor.len / DESCRIPTOR_SIZE;
            index = 0;
            indirect = true;
            continue;
        }
        if (!add_segment(chain, &descriptor, queue->size))
            return false;
        if (!(descriptor.flags & DESCRIPTOR_NEXT))
            return true;
        index = descriptor.next;
    }
    return false;
}

bool virtqueue_parse(struct virtio_device *device, struct virtqueue *queue, uint16_t head, struct chain *chain) {
    chain->head = head;
    chain->readable = chain->writable = 0;
    chain->readable_bytes = chain->writable_bytes = 0;
    bool sound = queue->enabled && walk(device, queue, chain);
    work_done(WORK_CHAIN + (chain->readable + chain->writable) * WORK_SEGMENT);
    if (!sound)
        virtio_fail(device);
    return sound;
}

uint32_t chain_iovecs(const struct chain *chain, enum chain_part part, uint32_t offset, uint32_t len,
                      struct wasi_iovec *iovecs, uint32_t max, uint32_t *bytes) {
    const struct segment *from = part == CHAIN_READABLE ? chain->segments : chain->segments + chain->readable;
    const struct segment *end = from + (part == CHAIN_READABLE ? chain->readable : chain->writable);
    uint32_t count = 0;
    for (; from < end && len > 0 && count < max; from++) {
        if (offset >= from->len) {
            offset -= from->len;
            continue;
        }
        uint32_t piece = from->len - offset < len ? from->len - offset : len;
        iovecs[count++] = (struct wasi_iovec){wasi_address(ram_at(from->gpa + offset, piece)), piece};
        *bytes += piece;
        len -= piece;
        offset = 0;
    }
    return count;
}

bool chain_load(const struct chain *chain, uint32_t offset, void *to, uint32_t len) {
    uint8_t *at = to;
    if (offset > chain->readable_bytes || len > chain->readable_bytes - offset)
        return false;
    for (const struct segment *from = chain->segments; len > 0; from++) {
        if (offset >= from->len) {
            offset -= from->len;
            continue;
        }
        uint32_t piece = from->len - offset < len ? from->len - offset : len;
        __builtin_memcpy(at, ram_at(from->gpa + offset, piece), piece);
        at += piece;
        len -= piece;
        offset = 0;
    }
    return true;
}

bool chain_store(const struct chain *chain, uint32_t offset, const void *from, uint32_t len) {
    const uint8_t *at = from;
    if (offset > chain->writable_bytes || len > chain->writable_bytes - offset)
        return false;
    for (const struct segment *to = chain->segments + chain->readable; len > 0; to++) {
        if (offset >= to->len) {
            offset -= to->len;
            continue;
        }
        uint32_t piece = to->len - offset < len ? to->len - offset : len;
        __builtin_memcpy(ram_at(to->gpa + offset, piece), at, piece);
        ram_written(to->gpa + offset, piece);
        at += piece;
        len -= piece;
        offset = 0;
    }
    return true;
}

void chain_written(const struct chain *chain, uint32_t offset, uint32_t len) {
    for (const struct segment *at = chain->segments + chain->readable; len > 0; at++) {
        if (offset >= at->len) {
            offset -= at->len;
            continue;
        }
        uint32_t piece = at->len - offset < len ? at->len - offset : len;
        ram_written(at->gpa + offset, piece);
        len -= piece;
        offset = 0;
    }
}
