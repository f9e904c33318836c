// The WASI preview 1 functions that the machine imports; it imports nothing else. standalone.c has what a command needs besides.
// Source: WASI preview 1, witx "wasi_snapshot_preview1".
#ifndef AGENTVM_WASI_H
#define AGENTVM_WASI_H

#include <stdint.h>

enum {
    WASI_ESUCCESS = 0,
    WASI_EAGAIN = 6,
    WASI_EBADF = 8,
    WASI_EIO = 29,
    WASI_ENOSPC = 51,
    WASI_EROFS = 69,
};

enum { WASI_CLOCK_REALTIME = 0, WASI_CLOCK_MONOTONIC = 1 };

enum { WASI_ADVICE_DONTNEED = 4 };

enum { WASI_NONBLOCK = 4 }; // of fdflags

struct wasi_iovec {
    uint32_t buf; // linear memory address
    uint32_t len;
};

struct wasi_filestat {
    uint64_t dev, ino;
    uint8_t filetype;
    uint64_t nlink, size, atim, mtim, ctim;
};

// What poll_oneoff waits for and what it finds, as far as the machine needs it.
enum { WASI_EVENT_CLOCK = 0, WASI_EVENT_READ = 1 };
struct wasi_subscription {
    uint64_t userdata;
    uint8_t type;
    _Alignas(8) uint32_t fd_or_clock;
    uint64_t timeout_ns, precision_ns; // of a clock, from now on
    uint16_t flags;
};
struct wasi_event {
    uint64_t userdata;
    uint16_t error;
    uint8_t type;
    uint64_t bytes;
    uint16_t flags;
};
_Static_assert(sizeof(struct wasi_subscription) == 48 && sizeof(struct wasi_event) == 32, "witx");

#define WASI_IMPORT(name) __attribute__((import_module("wasi_snapshot_preview1"), import_name(#name)))

WASI_IMPORT(fd_read) uint16_t wasi_fd_read(int32_t fd, const struct wasi_iovec *iovs, uint32_t count, uint32_t *done);
WASI_IMPORT(fd_write) uint16_t wasi_fd_write(int32_t fd, const struct wasi_iovec *iovs, uint32_t count, uint32_t *done);
WASI_IMPORT(fd_pread)
uint16_t wasi_fd_pread(int32_t fd, const struct wasi_iovec *iovs, uint32_t count, uint64_t offset, uint32_t *done);
WASI_IMPORT(fd_pwrite)
uint16_t wasi_fd_pwrite(int32_t fd, const struct wasi_iovec *iovs, uint32_t count, uint64_t offset, uint32_t *done);
WASI_IMPORT(fd_advise) uint16_t wasi_fd_advise(int32_t fd, uint64_t offset, uint64_t len, uint32_t advice);
WASI_IMPORT(fd_sync) uint16_t wasi_fd_sync(int32_t fd);
WASI_IMPORT(fd_filestat_get) uint16_t wasi_fd_filestat_get(int32_t fd, struct wasi_filestat *stat);
WASI_IMPORT(clock_time_get) uint16_t wasi_clock_time_get(uint32_t clock, uint64_t precision, uint64_t *nanoseconds);
WASI_IMPORT(poll_oneoff)
uint16_t wasi_poll_oneoff(const struct wasi_subscription *in, struct wasi_event *out, uint32_t count, uint32_t *events);
WASI_IMPORT(random_get) uint16_t wasi_random_get(void *buf, uint32_t len);

#ifdef AGENTVM_STANDALONE
#include "standalone.h"
#endif

#endif
