// Block devices (section 5.2). A request is carried out when the driver notifies, between the disk's descriptor and the
// guest's RAM without a copy. Nothing here waits: a disk is a file that WASI answers at once.
#include "virtio.h"

#define F_SEG_MAX (1ull << 2)
#define F_RO (1ull << 5)
#define F_BLK_SIZE (1ull << 6)
#define F_FLUSH (1ull << 9)
#define F_DISCARD (1ull << 13)
#define F_WRITE_ZEROES (1ull << 14)

enum { REQUEST_IN = 0, REQUEST_OUT = 1, REQUEST_FLUSH = 4, REQUEST_GET_ID = 8, REQUEST_DISCARD = 11, REQUEST_ZEROES = 13 };
enum { STATUS_OK = 0, STATUS_IOERR = 1, STATUS_UNSUPPORTED = 2, STATUS_FULL = 254, STATUS_LATER = 255 }; // the driver never sees the last two
enum { SECTOR = 512, HEADER_SIZE = 16, RANGE_SIZE = 16, ID_SIZE = 20 };

// Offsets in the configuration space, section 5.2.4.
enum {
    CONFIG_CAPACITY = 0,
    CONFIG_SEG_MAX = 12,
    CONFIG_BLK_SIZE = 20,
    CONFIG_DISCARD_SECTORS = 36,
    CONFIG_DISCARD_SEGMENTS = 40,
    CONFIG_DISCARD_ALIGNMENT = 44,
    CONFIG_ZEROES_SECTORS = 48,
    CONFIG_ZEROES_SEGMENTS = 52,
    CONFIG_SIZE = 60,
};

// One request moves at most TRANSFER_MAX bytes, and clears at most ZEROES_MAX or discards at most DISCARD_MAX sectors in each of RANGES_MAX
// ranges. The host frees space in clusters of CLUSTER bytes (internal/storage/disk), so smaller discards are not worth a request. Discarding
// DISCARD_COST bytes is as much work as moving one.
enum { BLK_QUEUE_SIZE = 256, SEGMENTS_MAX = BLK_QUEUE_SIZE - 2, TRANSFER_MAX = 64 << 20 };
enum { ZEROES_MAX = (1 << 20) / SECTOR, DISCARD_MAX = (256 << 20) / SECTOR, RANGES_MAX = 1, CLUSTER = 64 << 10, DISCARD_COST = 256 };

static uint64_t disk_sectors[MAX_DISKS];

// How much of the first request of the queue is done, in bytes: a long one continues in the next slice. Nothing depends on it
// for good, for a request that is done twice is the same.
static uint64_t progress[MAX_DISKS];

static struct chain chain;
static struct wasi_iovec iovecs[VIRTQUEUE_MAX];
static uint8_t zeroes[65536];

static unsigned disk_of(const struct virtio_device *device) { return device->slot - SLOT_DISK; }

static bool in_disk(unsigned disk, uint64_t sector, uint64_t count) {
    return sector <= disk_sectors[disk] && count <= disk_sectors[disk] - sector;
}

// Requests -------------------------------------------------------------------------------------------------------

// may_go_on says whether the request at hand has to wait for the next slice.
static bool may_go_on(unsigned disk) { return virtio_may_go_on(&virtio_devices[SLOT_DISK + disk], 0); }

// transfer reads or writes `bytes` of the chain's data; pread and pwrite may stop early, an end of file does not.
static uint8_t transfer(unsigned disk, enum chain_part part, uint64_t sector, uint32_t bytes) {
    uint32_t first = part == CHAIN_READABLE ? HEADER_SIZE : 0;
    if (bytes % SECTOR || bytes > TRANSFER_MAX || !in_disk(disk, sector, bytes / SECTOR))
        return STATUS_IOERR;
    for (uint32_t at, done; (at = (uint32_t)progress[disk]) < bytes; progress[disk] += done) {
        if (!may_go_on(disk))
            return STATUS_LATER;
        uint32_t planned = 0, piece = bytes - at < work_left() ? bytes - at : work_left();
        uint32_t count = chain_iovecs(&chain, part, first + at, piece, iovecs, VIRTQUEUE_MAX, &planned);
        work_done(WORK_CALL + planned);
        done = 0;
        uint16_t error = part == CHAIN_READABLE
                             ? wasi_fd_pwrite(config.disk_fd[disk], iovecs, count, sector * SECTOR + at, &done)
                             : wasi_fd_pread(config.disk_fd[disk], iovecs, count, sector * SECTOR + at, &done);
        if (error == WASI_ENOSPC)
            return STATUS_FULL;
        if (error != WASI_ESUCCESS || done == 0 || done > planned)
            return STATUS_IOERR;
    }
    return STATUS_OK;
}

static uint8_t read_sectors(unsigned disk, uint64_t sector) {
    uint32_t bytes = chain.writable_bytes - 1;
    uint64_t from = progress[disk];
    uint8_t status = transfer(disk, CHAIN_WRITABLE, sector, bytes);
    uint64_t to = status == STATUS_IOERR ? bytes : progress[disk]; // a call that failed may have written all the same
    if (to > from)
        chain_written(&chain, (uint32_t)from, (uint32_t)(to - from));
    return status;
}

static uint8_t write_sectors(unsigned disk, uint64_t sector) {
    if (config.disk_flags[disk] & DISK_READ_ONLY)
        return STATUS_IOERR;
    return transfer(disk, CHAIN_READABLE, sector, chain.readable_bytes - HEADER_SIZE);
}

static uint8_t clear_sectors(unsigned disk, uint64_t sector, uint32_t count) {
    uint64_t start = sector * SECTOR, bytes = (uint64_t)count * SECTOR;
    for (uint32_t done; progress[disk] < bytes; progress[disk] += done) {
        if (!may_go_on(disk))
            return STATUS_LATER;
        uint64_t left = bytes - progress[disk];
        struct wasi_iovec iovec = {wasi_address(zeroes), left < sizeof zeroes ? (uint32_t)left : sizeof zeroes};
        work_done(WORK_CALL + iovec.len);
        done = 0;
        uint16_t error = wasi_fd_pwrite(config.disk_fd[disk], &iovec, 1, start + progress[disk], &done);
        if (error == WASI_ENOSPC)
            return STATUS_FULL;
        if (error != WASI_ESUCCESS || done == 0 || done > iovec.len)
            return STATUS_IOERR;
    }
    return STATUS_OK;
}

// discard_sectors is a hint, so a host that has no room to note it (WASI_ENOSPC) or no use for it (another error than EIO) has not failed.
static uint8_t discard_sectors(unsigned disk, uint64_t sector, uint32_t count) {
    if (!may_go_on(disk))
        return STATUS_LATER;
    work_done(WORK_CALL + count * SECTOR / DISCARD_COST);
    uint16_t error = wasi_fd_advise(config.disk_fd[disk], sector * SECTOR, (uint64_t)count * SECTOR, WASI_ADVICE_DONTNEED);
    return error == WASI_EIO ? STATUS_IOERR : STATUS_OK;
}

// clear_ranges does DISCARD and WRITE_ZEROES.
static uint8_t clear_ranges(unsigned disk, bool write) {
    uint32_t bytes = chain.readable_bytes - HEADER_SIZE;
    if (config.disk_flags[disk] & DISK_READ_ONLY)
        return STATUS_IOERR;
    if (bytes == 0 || bytes % RANGE_SIZE || bytes / RANGE_SIZE > RANGES_MAX)
        return STATUS_UNSUPPORTED;
    for (uint32_t at = HEADER_SIZE; at < chain.readable_bytes; at += RANGE_SIZE) {
        uint8_t range[RANGE_SIZE];
        chain_load(&chain, at, range, RANGE_SIZE);
        uint64_t sector = load64(range);
        uint32_t count = load32(range + 8), flags = load32(range + 12);
        if (flags & ~(write ? 1u : 0u)) // only "unmap", and only with WRITE_ZEROES
            return STATUS_UNSUPPORTED;
        if (count > (write ? ZEROES_MAX : DISCARD_MAX) || !in_disk(disk, sector, count))
            return STATUS_IOERR;
        uint8_t status = write ? clear_sectors(disk, sector, count) : discard_sectors(disk, sector, count);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static uint8_t get_id(unsigned disk) {
    char id[ID_SIZE] = "agentvm-disk";
    id[12] = (char)('0' + disk);
    if (chain.writable_bytes - 1 < ID_SIZE)
        return STATUS_IOERR;
    chain_store(&chain, 0, id, ID_SIZE);
    return STATUS_OK;
}

// flush takes as long as the host's disk does: it is the last that a slice does.
static uint8_t flush(unsigned disk) {
    work_done(WORK_SLICE);
    uint16_t error = wasi_fd_sync(config.disk_fd[disk]);
    return error == WASI_ESUCCESS ? STATUS_OK : error == WASI_ENOSPC ? STATUS_FULL : STATUS_IOERR;
}

static uint8_t request(unsigned disk) {
    uint8_t header[HEADER_SIZE];
    chain_load(&chain, 0, header, HEADER_SIZE);
    uint64_t sector = load64(header + 8);
    switch (load32(header)) {
    case REQUEST_IN: return read_sectors(disk, sector);
    case REQUEST_OUT: return write_sectors(disk, sector);
    case REQUEST_FLUSH: return flush(disk);
    case REQUEST_GET_ID: return get_id(disk);
    case REQUEST_DISCARD: return clear_ranges(disk, false);
    case REQUEST_ZEROES: return clear_ranges(disk, true);
    }
    return STATUS_UNSUPPORTED;
}

// Device ---------------------------------------------------------------------------------------------------------

// A request that finds the host's disk full stays the first of its queue. It is tried again when the descriptor's ready bit is seen, which the host
// sets now and then, or when the driver notifies: an I/O error would have the guest give up its file system.
//
// blk_notify: the status is the last byte of the writable part; a chain with no room for it or without a whole header
// is no request.
static void blk_notify(struct virtio_device *device, unsigned index) {
    struct virtqueue *queue = &device->queues[index];
    while (virtqueue_peek(device, queue, 0, &chain)) {
        if (chain.readable_bytes < HEADER_SIZE || chain.writable_bytes == 0) {
            virtio_fail(device);
            return;
        }
        uint8_t status = request(disk_of(device));
        if (status == STATUS_LATER || status == STATUS_FULL)
            break;
        progress[disk_of(device)] = 0;
        chain_store(&chain, chain.writable_bytes - 1, &status, 1);
        virtqueue_take(queue);
        virtqueue_give(queue, chain.head, chain.writable_bytes);
    }
    virtqueue_want_notify(device, queue, true);
    virtqueue_signal(device, queue);
}

static void blk_poll(struct virtio_device *device, uint64_t ready) {
    if (fd_ready(ready, config.disk_fd[disk_of(device)]) && virtqueue_waiting(device, &device->queues[0]) > 0)
        blk_notify(device, 0);
}

static void blk_reset(struct virtio_device *device) { progress[disk_of(device)] = 0; }

static void blk_disable(struct virtio_device *device, unsigned index) {
    (void)index;
    progress[disk_of(device)] = 0;
}

static const struct virtio_class blk_class = {
    .id = 2,
    .queues = 1,
    .queue_max = {BLK_QUEUE_SIZE},
    .reset = blk_reset,
    .notify = blk_notify,
    .poll = blk_poll,
    .disable = blk_disable,
};

static void attach(unsigned disk) {
    uint64_t features = VIRTIO_F_INDIRECT_DESC | F_SEG_MAX | F_BLK_SIZE | F_FLUSH;
    if (config.disk_flags[disk] & DISK_READ_ONLY)
        features |= F_RO;
    else
        features |= F_DISCARD | F_WRITE_ZEROES;
    struct virtio_device *device = virtio_attach(SLOT_DISK + disk, &blk_class, features);
    device->config_size = CONFIG_SIZE;
    store64(device->config + CONFIG_CAPACITY, disk_sectors[disk]);
    store32(device->config + CONFIG_SEG_MAX, SEGMENTS_MAX);
    store32(device->config + CONFIG_BLK_SIZE, SECTOR);
    store32(device->config + CONFIG_DISCARD_SECTORS, DISCARD_MAX);
    store32(device->config + CONFIG_DISCARD_SEGMENTS, RANGES_MAX);
    store32(device->config + CONFIG_DISCARD_ALIGNMENT, CLUSTER / SECTOR);
    store32(device->config + CONFIG_ZEROES_SECTORS, ZEROES_MAX);
    store32(device->config + CONFIG_ZEROES_SEGMENTS, RANGES_MAX);
}

// blk_init leaves out a disk whose size WASI does not tell. A partial sector at the end of a file is not visible.
void blk_init(void) {
    for (unsigned disk = 0; disk < MAX_DISKS; disk++) {
        struct wasi_filestat stat;
        if (config.disk_fd[disk] < 0 || wasi_fd_filestat_get(config.disk_fd[disk], &stat) != WASI_ESUCCESS)
            continue;
        disk_sectors[disk] = stat.size / SECTOR;
        progress[disk] = 0;
        attach(disk);
    }
}
