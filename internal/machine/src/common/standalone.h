// The machine as a WASI command of its own (standalone.wasm), see standalone.c: devices reach WASI through these functions then.
#ifndef AGENTVM_STANDALONE_H
#define AGENTVM_STANDALONE_H

#include <stdint.h>

struct wasi_iovec;
struct wasi_filestat;
struct wasi_subscription;
struct wasi_event;

uint16_t standalone_read(int32_t fd, const struct wasi_iovec *iovs, uint32_t count, uint32_t *done);
uint16_t standalone_write(int32_t fd, const struct wasi_iovec *iovs, uint32_t count, uint32_t *done);
uint16_t standalone_pread(int32_t fd, const struct wasi_iovec *iovs, uint32_t count, uint64_t offset, uint32_t *done);
uint16_t standalone_poll(const struct wasi_subscription *in, struct wasi_event *found, uint32_t count, uint32_t *events);

#ifndef STANDALONE_ITSELF
#define wasi_fd_read standalone_read
#define wasi_fd_write standalone_write
#define wasi_fd_pread standalone_pread
#define wasi_poll_oneoff standalone_poll
#endif

#endif
