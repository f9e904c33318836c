// The memory balloon (section 5.5), of which only free page reporting (section 5.5.6.5) is used: the driver names pages
// that are unused, Go drops them between two slices, and only then does the driver get its buffer back. Until that
// moment it keeps the pages for itself, so that nothing which it writes later is lost. Their contents are undefined
// afterwards, for PAGE_POISON is not offered.
//
//   report ── chain taken, ranges to Go ──► held ── Go emptied released_pages ──► next poll: chain given back
//
// The host never asks for memory (num_pages stays 0). A driver that inflates or deflates all the same gets its buffers
// back; its pages stay where they are.
#include "processor.h"
#include "virtio.h"

#define BALLOON_F_REPORTING (1ull << 5)

// Queues are numbered as if all of them existed, says the specification; Linux 6.12 leaves out the numbers of those whose
// features are not offered (vm_find_vqs), so that reports come on what is the statistics queue otherwise.
enum { INFLATE, DEFLATE, REPORTS_OF_LINUX, FREE_PAGE_HINTS, REPORTS, QUEUES };

enum {
    QUEUE_SIZE = 64,            // Linux reports 32 blocks in a chain
    REPORT_MAX = 128 << 20,     // bytes of one chain that are dropped, as many as Linux names; never more than the RAM
    WORK_FRAME = 64,            // to forget a page here, and to drop it by a call of the system
    CONFIG_ACTUAL = 4,          // pages in the balloon, written by the driver
    CONFIG_SIZE = 8,
};

static struct chain chain;

// The one report that waits for Go.
static struct {
    bool waiting;
    uint16_t queue, head;
} held;

static void release(uint64_t gpa, uint64_t end, uint32_t *room) {
    gpa = (gpa + PAGE_SIZE - 1) & ~(uint64_t)(PAGE_SIZE - 1);
    end &= ~(uint64_t)(PAGE_SIZE - 1);
    if (end <= gpa || *room == 0 || released_pages.count == RELEASED_MAX)
        return;
    uint32_t size = end - gpa < *room ? (uint32_t)(end - gpa) : *room;
    uint8_t *at = ram_at(gpa, size);
    if (!at)
        return;
    *room -= size;
    work_done(size / PAGE_SIZE * WORK_FRAME);
    released_pages.range[released_pages.count++] = (struct memory_range){wasi_address(at), size};
    for (uint32_t frame = (uint32_t)((gpa - RAM_BASE) / PAGE_SIZE), n = size / PAGE_SIZE; n > 0; n--)
        code_drop(frame++);
}

// room_for_release bounds Go's work between two slices. A deterministic machine releases nothing: what is in the pages
// would depend on when slices end.
static uint32_t room_for_release(void) {
    if (config.clock_mode == CLOCK_INSTRUCTIONS)
        return 0;
    return config.ram_size < REPORT_MAX ? (uint32_t)config.ram_size : REPORT_MAX;
}

static void release_chain(void) {
    uint32_t room = room_for_release();
    const struct segment *from = chain.segments + chain.readable;
    for (const struct segment *s = from; s < from + chain.writable; s++)
        release(s->gpa, s->gpa + s->len, &room);
}

static void answer(struct virtio_device *device, unsigned index, uint16_t head) {
    virtqueue_give(&device->queues[index], head, 0);
    virtqueue_signal(device, &device->queues[index]);
}

// give_back ends the report that waits; false while Go has not seen it.
static bool give_back(struct virtio_device *device) {
    if (!held.waiting)
        return true;
    if (released_pages.count != 0)
        return false;
    held.waiting = false;
    answer(device, held.queue, held.head);
    return true;
}

static void hold(struct virtio_device *device, unsigned index) {
    held.waiting = true;
    held.queue = (uint16_t)index;
    held.head = chain.head;
    virtio_later(device, index); // the next poll looks again
}

static void reports(struct virtio_device *device, unsigned index) {
    struct virtqueue *queue = &device->queues[index];
    if (!give_back(device)) {
        virtio_later(device, index);
        return;
    }
    while (virtqueue_peek(device, queue, 0, &chain)) {
        if (chain.writable == 0) {
            virtio_fail(device);
            return;
        }
        virtqueue_take(queue);
        release_chain();
        if (released_pages.count != 0) {
            hold(device, index);
            break;
        }
        answer(device, index, chain.head);
    }
    virtqueue_want_notify(device, queue, true);
}

// page_lists takes what a driver tells on the first two queues: arrays of 32-bit page numbers.
static void page_lists(struct virtio_device *device, unsigned index) {
    struct virtqueue *queue = &device->queues[index];
    while (virtqueue_peek(device, queue, 0, &chain)) {
        if (chain.readable_bytes == 0 || chain.readable_bytes % 4 != 0) {
            virtio_fail(device);
            return;
        }
        virtqueue_take(queue);
        answer(device, index, chain.head);
    }
    virtqueue_want_notify(device, queue, true);
}

static void balloon_notify(struct virtio_device *device, unsigned index) {
    if (index == INFLATE || index == DEFLATE)
        page_lists(device, index);
    else
        reports(device, index);
}

// A driver that starts anew, or takes back the queue of a report, may use its pages at once: those that Go has not dropped
// yet stay.
static void forget(void) {
    held.waiting = false;
    released_pages.count = 0;
}

static void balloon_reset(struct virtio_device *device) {
    forget();
    __builtin_memset(device->config, 0, CONFIG_SIZE);
}

static void balloon_disable(struct virtio_device *device, unsigned index) {
    (void)device;
    if (held.waiting && held.queue == index)
        forget();
}

static const struct virtio_class balloon_class = {
    .id = 5,
    .queues = QUEUES,
    .queue_max = {[INFLATE] = QUEUE_SIZE, [DEFLATE] = QUEUE_SIZE, [REPORTS_OF_LINUX] = QUEUE_SIZE, [REPORTS] = QUEUE_SIZE},
    .config_writable = CONFIG_ACTUAL,
    .config_writable_end = CONFIG_SIZE,
    .reset = balloon_reset,
    .notify = balloon_notify,
    .disable = balloon_disable,
};

void balloon_init(void) {
    forget();
    virtio_attach(SLOT_BALLOON, &balloon_class, BALLOON_F_REPORTING)->config_size = CONFIG_SIZE;
}

struct memory_range balloon_state(void) { return memory_range(&held, sizeof held); }

// balloon_adopt: of a report that waits, nothing is dropped, and its chain given back with the next poll.
bool balloon_adopt(const void *other) {
    const __typeof__(held) *from = other;
    struct virtio_device *device = &virtio_devices[SLOT_BALLOON];
    if (!truth(&from->waiting))
        return true;
    if (from->queue >= QUEUES || virtqueue_taken(&device->queues[from->queue]) == 0)
        return false;
    held.waiting = true;
    held.queue = from->queue;
    held.head = from->head;
    virtio_later(device, held.queue);
    return true;
}
