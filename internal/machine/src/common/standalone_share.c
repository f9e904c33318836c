// The stream of FUSE's messages between virtio_fs.c and standalone_fuse.c: each request is answered while it is written, and its reply is kept
// until it is read.
#ifdef AGENTVM_STANDALONE
#define STANDALONE_ITSELF
#include "standalone_share.h"

enum { REPLIES = 1 << 20, SPARE = 512 };

static union {
    struct in_header header;
    uint8_t bytes[FUSE_MAX_REQUEST + SPARE];
} request;
static uint32_t have; // bytes of it that have come

static uint8_t replies[REPLIES];
static uint32_t replies_at, replies_end;
static bool refused; // a request is to come once more

uint16_t share_write(const struct wasi_iovec *iovs, uint32_t count, uint32_t *done) {
    if (replies_at == replies_end) replies_at = replies_end = 0;
    refused = REPLIES - replies_end < FUSE_MAX_REPLY;
    if (refused) return WASI_EAGAIN;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *from = (const uint8_t *)(uintptr_t)iovs[i].buf;
        if (have + iovs[i].len > FUSE_MAX_REQUEST || iovs[i].len > FUSE_MAX_REQUEST) return WASI_EIO;
        __builtin_memcpy(request.bytes + have, from, iovs[i].len);
        have += iovs[i].len;
        *done += iovs[i].len;
    }
    if (have < sizeof request.header || have < request.header.length) return WASI_ESUCCESS;
    if (have > request.header.length) return WASI_EIO; // one request at a time is what virtio_fs.c sends
    __builtin_memset(request.bytes + have, 0, SPARE);
    replies_end += fuse_answer(&request.header, have, (struct out_header *)(replies + replies_end));
    have = 0;
    return WASI_ESUCCESS;
}

uint16_t share_read(const struct wasi_iovec *iovs, uint32_t count, uint32_t *done) {
    for (uint32_t i = 0; i < count && replies_at < replies_end; i++) {
        uint32_t left = replies_end - replies_at, piece = iovs[i].len < left ? iovs[i].len : left;
        __builtin_memcpy((void *)(uintptr_t)iovs[i].buf, replies + replies_at, piece);
        replies_at += piece;
        *done += piece;
    }
    return *done > 0 ? WASI_ESUCCESS : WASI_EAGAIN;
}

static bool share_has_reply(void) { return replies_at < replies_end; }

// share_poll is poll_oneoff for virtio_fs.c, which waits a moment for the reply to its request: that is there, or never comes.
uint16_t share_poll(const struct wasi_subscription *in, struct wasi_event *found, uint32_t count, uint32_t *events) {
    for (uint32_t i = 0; i < count; i++) {
        if ((in[i].type == WASI_EVENT_READ) != share_has_reply()) continue;
        found[0] = (struct wasi_event){.userdata = in[i].userdata, .type = in[i].type};
        *events = 1;
        return WASI_ESUCCESS;
    }
    return WASI_EIO;
}

bool share_has_more(void) { return refused || share_has_reply(); }
#endif
