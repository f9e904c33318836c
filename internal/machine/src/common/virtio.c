// The virtio MMIO transport, version 2 (section 4.2): registers, feature negotiation, device status, interrupts.
//
//   reset -> ACKNOWLEDGE -> DRIVER -> FEATURES_OK -> DRIVER_OK (live) -> NEEDS_RESET
//     ^_________________________ status = 0 _______________________________|
#include "virtio.h"

// Register offsets, section 4.2.2.
enum {
    REG_MAGIC = 0x000,
    REG_VERSION = 0x004,
    REG_DEVICE_ID = 0x008,
    REG_VENDOR_ID = 0x00c,
    REG_DEVICE_FEATURES = 0x010,
    REG_DEVICE_FEATURES_SEL = 0x014,
    REG_DRIVER_FEATURES = 0x020,
    REG_DRIVER_FEATURES_SEL = 0x024,
    REG_QUEUE_SEL = 0x030,
    REG_QUEUE_NUM_MAX = 0x034,
    REG_QUEUE_NUM = 0x038,
    REG_QUEUE_READY = 0x044,
    REG_QUEUE_NOTIFY = 0x050,
    REG_INTERRUPT_STATUS = 0x060,
    REG_INTERRUPT_ACK = 0x064,
    REG_STATUS = 0x070,
    REG_QUEUE_DESC_LOW = 0x080,
    REG_QUEUE_DESC_HIGH = 0x084,
    REG_QUEUE_DRIVER_LOW = 0x090,
    REG_QUEUE_DRIVER_HIGH = 0x094,
    REG_QUEUE_DEVICE_LOW = 0x0a0,
    REG_QUEUE_DEVICE_HIGH = 0x0a4,
    REG_SHM_LEN_LOW = 0x0b0,
    REG_SHM_LEN_HIGH = 0x0b4,
    REG_SHM_BASE_LOW = 0x0b8,
    REG_SHM_BASE_HIGH = 0x0bc,
    REG_CONFIG_GENERATION = 0x0fc,
    REG_CONFIG = 0x100,
};

enum { MAGIC = 0x74726976, VERSION = 2, VENDOR = 0x4d564741 }; // "virt", "AGVM"

// Device status, section 2.1.
enum { STATUS_FEATURES_OK = 8, STATUS_DRIVER_OK = 4, STATUS_NEEDS_RESET = 64, STATUS_DRIVER_BITS = 0x8f };

enum { INTERRUPT_QUEUE = 1, INTERRUPT_CONFIG = 2 };

struct virtio_device virtio_devices[VIRTIO_SLOTS];
uint32_t virtio_turn;

// Interrupts and status ------------------------------------------------------------------------------------------

static void update_interrupt(struct virtio_device *device) {
    interrupt_set_level(device->slot + 1, device->interrupts != 0);
}

static void interrupt(struct virtio_device *device, uint32_t cause) {
    device->interrupts |= cause;
    update_interrupt(device);
}

void virtio_interrupt_queue(struct virtio_device *device) { interrupt(device, INTERRUPT_QUEUE); }

bool virtio_live(const struct virtio_device *device) {
    return (device->status & (STATUS_DRIVER_OK | STATUS_NEEDS_RESET)) == STATUS_DRIVER_OK;
}

bool virtio_has(const struct virtio_device *device, uint64_t feature) { return (device->accepted & feature) != 0; }

void virtio_fail(struct virtio_device *device) {
    bool driver_ok = (device->status & STATUS_DRIVER_OK) != 0;
    device->status |= STATUS_NEEDS_RESET;
    if (driver_ok)
        interrupt(device, INTERRUPT_CONFIG);
}

void virtio_config_changed(struct virtio_device *device) {
    device->config_generation++;
    if (virtio_live(device))
        interrupt(device, INTERRUPT_CONFIG);
}

// Turns ----------------------------------------------------------------------------------------------------------

void virtio_later(struct virtio_device *device, unsigned queue) { device->backlog |= 1u << queue; }

bool virtio_may_go_on(struct virtio_device *device, unsigned queue) {
    if (work_left() > 0)
        return true;
    virtio_later(device, queue);
    return false;
}

// notify begins a turn of the device.
static void notify(struct virtio_device *device, unsigned queue) {
    if (!device->queues[queue].enabled || !virtio_live(device) || !virtio_may_go_on(device, queue))
        return;
    virtio_turn++;
    device->class->notify(device, queue);
}

void virtio_poll(struct virtio_device *device, uint64_t ready) {
    if (!device->class->poll || !virtio_live(device))
        return;
    virtio_turn++;
    device->class->poll(device, ready);
}

void virtio_resume(struct virtio_device *device) {
    uint32_t backlog = device->backlog;
    device->backlog = 0;
    for (unsigned i = 0; i < device->class->queues; i++)
        if (backlog >> i & 1)
            notify(device, i);
}

struct virtio_device *virtio_attach(unsigned slot, const struct virtio_class *class, uint64_t features) {
    struct virtio_device *device = &virtio_devices[slot];
    __builtin_memset(device, 0, sizeof *device);
    device->class = class;
    device->slot = slot;
    device->offered = features | VIRTIO_F_VERSION_1 | VIRTIO_F_EVENT_IDX;
    return device;
}

static void reset(struct virtio_device *device) {
    device->accepted = 0;
    device->status = 0;
    device->interrupts = device->backlog = 0;
    device->offered_select = device->accepted_select = device->queue_select = 0;
    __builtin_memset(device->queues, 0, sizeof device->queues);
    device->class->reset(device);
    update_interrupt(device);
}

// go_live lets the device see what the driver made available, and the host sent, before DRIVER_OK.
static void go_live(struct virtio_device *device) {
    for (unsigned i = 0; i < device->class->queues; i++)
        notify(device, i);
    virtio_poll(device, ~0ull);
}

// features_acceptable: the driver took nothing that was not offered, and VERSION_1, without which rings and headers
// would have another shape (section 6.2).
static bool features_acceptable(const struct virtio_device *device) {
    return (device->accepted & ~device->offered) == 0 && virtio_has(device, VIRTIO_F_VERSION_1);
}

static void write_status(struct virtio_device *device, uint32_t value) {
    if (value == 0) {
        reset(device);
        return;
    }
    uint32_t before = device->status;
    uint32_t added = value & STATUS_DRIVER_BITS & ~before;
    if ((added & STATUS_FEATURES_OK) && !features_acceptable(device))
        added &= ~(uint32_t)STATUS_FEATURES_OK;
    if (!((before | added) & STATUS_FEATURES_OK))
        added &= ~(uint32_t)STATUS_DRIVER_OK;
    device->status = before | added; // a driver clears bits by a reset only (section 2.1.1)
    if ((added & STATUS_DRIVER_OK) && virtio_live(device))
        go_live(device);
    if (work_left() == 0)
        machine_yield();
}

static void write_driver_features(struct virtio_device *device, uint32_t value) {
    if ((device->status & STATUS_FEATURES_OK) || device->accepted_select > 1)
        return;
    unsigned shift = device->accepted_select * 32;
    device->accepted &= ~(0xffffffffull << shift);
    device->accepted |= (uint64_t)value << shift;
}

// Queue registers ------------------------------------------------------------------------------------------------

// selected gives the queue that QueueSel names, or NULL.
static struct virtqueue *selected(struct virtio_device *device) {
    return device->queue_select < device->class->queues ? &device->queues[device->queue_select] : 0;
}

static uint32_t selected_max(const struct virtio_device *device) {
    return device->queue_select < device->class->queues ? device->class->queue_max[device->queue_select] : 0;
}

enum { PARTS = 3 };

struct place {
    uint64_t gpa, size;
};

static void queue_parts(const struct virtqueue *queue, struct place parts[PARTS]) {
    uint64_t size = queue->size;
    parts[0] = (struct place){queue->descriptors, 16 * size};
    parts[1] = (struct place){queue->available, 6 + 2 * size};
    parts[2] = (struct place){queue->used, 6 + 8 * size};
}

// rings_in_ram checks size, alignment (section 2.7) and place of the three parts of a queue.
static bool rings_in_ram(const struct virtqueue *queue) {
    struct place parts[PARTS];
    if (queue->size == 0 || queue->descriptors % 16 || queue->available % 2 || queue->used % 4)
        return false;
    queue_parts(queue, parts);
    for (unsigned i = 0; i < PARTS; i++)
        if (!ram_at(parts[i].gpa, parts[i].size))
            return false;
    return true;
}

// overlap says whether parts of two queues that are in RAM share bytes; of one queue, different parts.
static bool overlap(const struct virtqueue *queue, const struct virtqueue *other) {
    struct place mine[PARTS], theirs[PARTS];
    queue_parts(queue, mine);
    queue_parts(other, theirs);
    for (unsigned i = 0; i < PARTS; i++)
        for (unsigned k = 0; k < PARTS; k++)
            if ((queue != other || i != k) && mine[i].gpa < theirs[k].gpa + theirs[k].size &&
                theirs[k].gpa < mine[i].gpa + mine[i].size)
                return true;
    return false;
}

// rings_sound: the queue's rings are in RAM, and nothing that the device writes for one queue changes the rings of another
// one of the device, or what the driver said.
static bool rings_sound(const struct virtio_device *device, const struct virtqueue *queue) {
    if (!rings_in_ram(queue) || overlap(queue, queue))
        return false;
    for (unsigned i = 0; i < device->class->queues; i++)
        if (device->queues[i].enabled && &device->queues[i] != queue && overlap(queue, &device->queues[i]))
            return false;
    return true;
}

static void enable(struct virtio_device *device, struct virtqueue *queue) {
    if (queue->enabled)
        return;
    if (!rings_sound(device, queue)) {
        virtio_fail(device);
        return;
    }
    queue->next_available = queue->used_index = queue->signalled = 0;
    queue->enabled = true;
}

static void disable(struct virtio_device *device, struct virtqueue *queue) {
    unsigned index = (unsigned)(queue - device->queues);
    if (!queue->enabled)
        return;
    queue->enabled = false;
    device->backlog &= ~(1u << index);
    if (device->class->disable)
        device->class->disable(device, index);
}

static void set_low(uint64_t *address, uint32_t value) { *address = (*address & ~0xffffffffull) | value; }
static void set_high(uint64_t *address, uint32_t value) { *address = (*address & 0xffffffff) | (uint64_t)value << 32; }

// write_queue_layout: size and addresses are fixed while a queue is enabled.
static void write_queue_layout(struct virtio_device *device, struct virtqueue *queue, uint32_t offset, uint32_t value) {
    if (queue->enabled)
        return;
    switch (offset) {
    case REG_QUEUE_NUM:
        if (value <= selected_max(device) && (value & (value - 1)) == 0)
            queue->size = (uint16_t)value;
        break;
    case REG_QUEUE_DESC_LOW: set_low(&queue->descriptors, value); break;
    case REG_QUEUE_DESC_HIGH: set_high(&queue->descriptors, value); break;
    case REG_QUEUE_DRIVER_LOW: set_low(&queue->available, value); break;
    case REG_QUEUE_DRIVER_HIGH: set_high(&queue->available, value); break;
    case REG_QUEUE_DEVICE_LOW: set_low(&queue->used, value); break;
    case REG_QUEUE_DEVICE_HIGH: set_high(&queue->used, value); break;
    }
}

static void write_queue(struct virtio_device *device, uint32_t offset, uint32_t value) {
    struct virtqueue *queue = selected(device);
    if (!queue)
        return;
    if (offset == REG_QUEUE_READY)
        (value & 1 ? enable : disable)(device, queue);
    else
        write_queue_layout(device, queue, offset, value);
}

static void write_notify(struct virtio_device *device, uint32_t queue) {
    if (queue >= device->class->queues)
        return;
    work_done(WORK_NOTIFY);
    notify(device, queue);
    if (work_left() == 0)
        machine_yield();
}

// Registers ------------------------------------------------------------------------------------------------------

static uint32_t read_register(struct virtio_device *device, uint32_t offset) {
    switch (offset) {
    case REG_MAGIC: return MAGIC;
    case REG_VERSION: return VERSION;
    case REG_DEVICE_ID: return device->class ? device->class->id : 0;
    case REG_VENDOR_ID: return VENDOR;
    }
    if (!device->class)
        return 0;
    switch (offset) {
    case REG_DEVICE_FEATURES:
        return device->offered_select < 2 ? (uint32_t)(device->offered >> (device->offered_select * 32)) : 0;
    case REG_QUEUE_NUM_MAX: return selected_max(device);
    case REG_QUEUE_READY: return selected(device) && selected(device)->enabled;
    case REG_INTERRUPT_STATUS: return device->interrupts;
    case REG_STATUS: return device->status;
    case REG_SHM_LEN_LOW: // length and base of a shared memory region that does not exist (section 4.2.2)
    case REG_SHM_LEN_HIGH:
    case REG_SHM_BASE_LOW:
    case REG_SHM_BASE_HIGH: return 0xffffffff;
    case REG_CONFIG_GENERATION: return device->config_generation;
    }
    return 0;
}

static void write_register(struct virtio_device *device, uint32_t offset, uint32_t value) {
    switch (offset) {
    case REG_DEVICE_FEATURES_SEL: device->offered_select = value; break;
    case REG_DRIVER_FEATURES: write_driver_features(device, value); break;
    case REG_DRIVER_FEATURES_SEL: device->accepted_select = value; break;
    case REG_QUEUE_SEL: device->queue_select = value; break;
    case REG_QUEUE_NOTIFY: write_notify(device, value); break;
    case REG_INTERRUPT_ACK:
        device->interrupts &= ~value;
        update_interrupt(device);
        break;
    case REG_STATUS: write_status(device, value); break;
    default: write_queue(device, offset, value); break;
    }
}

static uint64_t read_config(const struct virtio_device *device, uint32_t offset, unsigned size) {
    uint64_t value = 0;
    for (unsigned i = 0; i < size && i < 8; i++)
        if (offset < device->config_size && i < device->config_size - offset)
            value |= (uint64_t)device->config[offset + i] << (8 * i);
    return value;
}

uint64_t virtio_mmio_read(unsigned slot, uint32_t offset, unsigned size) {
    if (slot >= VIRTIO_SLOTS)
        return 0;
    struct virtio_device *device = &virtio_devices[slot];
    if (offset >= REG_CONFIG)
        return device->class ? read_config(device, offset - REG_CONFIG, size) : 0;
    return size == 4 ? read_register(device, offset) : 0;
}

static void write_config(struct virtio_device *device, uint32_t offset, uint64_t value, unsigned size) {
    for (unsigned i = 0; i < size && i < 8; i++, value >>= 8)
        if (offset + i >= device->class->config_writable && offset + i < device->class->config_writable_end)
            device->config[offset + i] = (uint8_t)value;
}

void virtio_mmio_write(unsigned slot, uint32_t offset, uint64_t value, unsigned size) {
    if (slot >= VIRTIO_SLOTS || !virtio_devices[slot].class)
        return;
    if (offset >= REG_CONFIG)
        write_config(&virtio_devices[slot], offset - REG_CONFIG, value, size);
    else if (size == 4)
        write_register(&virtio_devices[slot], offset, (uint32_t)value);
}

// Machines of others -----------------------------------------------------------------------------------------------

struct memory_range virtio_state(void) { return memory_range(virtio_devices, sizeof virtio_devices); }

static bool adopt_queue(struct virtqueue *queue, const struct virtqueue *from, uint16_t max) {
    if (from->size > max || (from->size & (from->size - 1)) != 0)
        return false;
    *queue = (struct virtqueue){
        .descriptors = from->descriptors,
        .available = from->available,
        .used = from->used,
        .size = from->size,
        .next_available = from->next_available,
        .used_index = from->used_index,
        .signalled = from->signalled,
        .enabled = truth(&from->enabled),
    };
    return !queue->enabled || (rings_in_ram(queue) && virtqueue_taken(queue) <= queue->size);
}

// queues_sound follows the adoption of all queues of a device.
static bool queues_sound(const struct virtio_device *device) {
    for (unsigned i = 0; i < device->class->queues; i++)
        if (device->queues[i].enabled && !rings_sound(device, &device->queues[i]))
            return false;
    return true;
}

static void adopt_config(struct virtio_device *device, const uint8_t *from) {
    for (uint32_t i = device->class->config_writable; i < device->class->config_writable_end; i++)
        device->config[i] = from[i];
}

static bool adopt_status(struct virtio_device *device, const struct virtio_device *from) {
    device->accepted = from->accepted;
    device->status = from->status & (STATUS_DRIVER_BITS | STATUS_NEEDS_RESET);
    if (device->status & STATUS_FEATURES_OK)
        return features_acceptable(device);
    return !(device->status & STATUS_DRIVER_OK);
}

static bool adopt_device(struct virtio_device *device, const struct virtio_device *from) {
    if (!adopt_status(device, from))
        return false;
    device->interrupts = from->interrupts & (INTERRUPT_QUEUE | INTERRUPT_CONFIG);
    device->offered_select = from->offered_select;
    device->accepted_select = from->accepted_select;
    device->queue_select = from->queue_select;
    device->config_generation = from->config_generation;
    device->backlog = from->backlog & ((1u << device->class->queues) - 1);
    adopt_config(device, from->config);
    for (unsigned i = 0; i < device->class->queues; i++)
        if (!adopt_queue(&device->queues[i], &from->queues[i], device->class->queue_max[i]))
            return false;
    update_interrupt(device);
    return queues_sound(device);
}

// virtio_adopt takes for each device that is here what its driver has set up. What the device is, and what it offers, is said by
// this machine.
bool virtio_adopt(const void *other) {
    const struct virtio_device *from = other;
    for (unsigned slot = 0; slot < VIRTIO_SLOTS; slot++)
        if (virtio_devices[slot].class && !adopt_device(&virtio_devices[slot], &from[slot]))
            return false;
    return true;
}
