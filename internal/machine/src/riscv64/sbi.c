// The supervisor binary interface, answered by the machine itself.
// Source: RISC-V Supervisor Binary Interface Specification 2.0; the chapter of each extension is named beside it.
#include "hart.h"
#include "wasi.h"

enum {
    SBI_SUCCESS = 0,
    SBI_ERR_FAILED = -1,
    SBI_ERR_NOT_SUPPORTED = -2,
    SBI_ERR_INVALID_PARAM = -3,
    SBI_ERR_ALREADY_AVAILABLE = -6,
};

enum {
    EXT_BASE = 0x10,
    EXT_TIME = 0x54494d45,
    EXT_IPI = 0x735049,
    EXT_RFENCE = 0x52464e43,
    EXT_HSM = 0x48534d,
    EXT_SRST = 0x53525354,
    EXT_DBCN = 0x4442434e,
    EXT_LEGACY_PUTCHAR = 1,
    EXT_LEGACY_SHUTDOWN = 8,
};

enum { SPEC_VERSION = 2 << 24, IMPLEMENTATION_ID = 0x61676d /* "agm" */, IMPLEMENTATION_VERSION = 1 };

struct result {
    int64_t error;
    uint64_t value;
};

#define A(n) hart.x[10 + (n)]

static bool known(uint64_t extension) {
    switch (extension) {
    case EXT_BASE: case EXT_TIME: case EXT_IPI: case EXT_RFENCE: case EXT_HSM: case EXT_SRST: case EXT_DBCN:
    case EXT_LEGACY_PUTCHAR: case EXT_LEGACY_SHUTDOWN:
        return true;
    default: return false;
    }
}

static struct result fail(int64_t error) { return (struct result){error, 0}; }
static struct result done(uint64_t value) { return (struct result){SBI_SUCCESS, value}; }

static struct result base(uint64_t function) { // chapter 4
    switch (function) {
    case 0: return done(SPEC_VERSION);
    case 1: return done(IMPLEMENTATION_ID);
    case 2: return done(IMPLEMENTATION_VERSION);
    case 3: return done(known(A(0)));
    case 4: case 5: case 6: return done(0); // mvendorid, marchid, mimpid
    default: return fail(SBI_ERR_NOT_SUPPORTED);
    }
}

static struct result set_timer(uint64_t function) { // chapter 6
    if (function != 0) return fail(SBI_ERR_NOT_SUPPORTED);
    hart.stimecmp = A(0);
    timer_update();
    return done(0);
}

// selects_hart0 tells whether (hart_mask, hart_mask_base) includes the only hart.
static bool selects_hart0(uint64_t mask, uint64_t mask_base) {
    return mask_base == ~0ull || (mask_base == 0 && (mask & 1) != 0);
}

static struct result send_ipi(uint64_t function) { // chapter 7
    if (function != 0) return fail(SBI_ERR_NOT_SUPPORTED);
    if (!selects_hart0(A(0), A(1))) return fail(SBI_ERR_INVALID_PARAM);
    hart.mip |= 1ull << IRQ_SSI;
    return done(0);
}

static struct result remote_fence(uint64_t function) { // chapter 8
    if (function > 6) return fail(SBI_ERR_NOT_SUPPORTED);
    if (!selects_hart0(A(0), A(1))) return fail(SBI_ERR_INVALID_PARAM);
    if (function == 1 || function == 2) tlb_flush_all();
    return done(0);
}

static struct result hart_state(uint64_t function) { // chapter 9
    switch (function) {
    case 0: return fail(A(0) == 0 ? SBI_ERR_ALREADY_AVAILABLE : SBI_ERR_INVALID_PARAM);
    case 1: return fail(SBI_ERR_FAILED); // the last hart cannot stop: SRST powers off
    case 2: return A(0) == 0 ? done(0) : fail(SBI_ERR_INVALID_PARAM);
    case 3: // retentive suspend is a wfi
        if (A(0) != 0) return fail(SBI_ERR_NOT_SUPPORTED);
        hart.wait = 1;
        return done(0);
    default: return fail(SBI_ERR_NOT_SUPPORTED);
    }
}

static struct result system_reset(uint64_t function) { // chapter 10
    enum { SHUTDOWN = 0, WARM_REBOOT = 2, REASON_FAILURE = 1 };
    if (function != 0) return fail(SBI_ERR_NOT_SUPPORTED);
    uint32_t type = (uint32_t)A(0), reason = (uint32_t)A(1);
    if (type > WARM_REBOOT || reason > REASON_FAILURE) return fail(SBI_ERR_INVALID_PARAM);
    hart.stop = reason == REASON_FAILURE ? RUN_FAILURE : type == SHUTDOWN ? RUN_POWER_OFF : RUN_REBOOT;
    hart.stop_code = reason;
    return done(0);
}

// console_write may write less than there is, which the specification allows: a guest cannot make one call long.
static uint32_t console_write(const void *bytes, uint32_t count) {
    enum { WRITE_MAX = 65536 };
    struct wasi_iovec iov = {(uint32_t)(uintptr_t)bytes, count < WRITE_MAX ? count : WRITE_MAX};
    uint32_t written = 0;
    if (config.console_out_fd < 0) return count;
    work_done(WORK_CALL + iov.len);
    if (work_left() == 0) machine_yield();
    return wasi_fd_write(config.console_out_fd, &iov, 1, &written) == WASI_ESUCCESS ? written : 0;
}

static struct result debug_console(uint64_t function) { // chapter 12
    const void *bytes;
    char byte = (char)A(0);
    switch (function) {
    case 0:
        bytes = ram_at(A(1), A(0));
        if (A(2) != 0 || bytes == NULL) return fail(SBI_ERR_INVALID_PARAM);
        return done(console_write(bytes, (uint32_t)A(0)));
    case 1: return done(0); // nothing to read: input goes through virtio-console
    case 2: console_write(&byte, 1); return done(0);
    default: return fail(SBI_ERR_NOT_SUPPORTED);
    }
}

static struct result call(uint64_t extension, uint64_t function) {
    switch (extension) {
    case EXT_BASE: return base(function);
    case EXT_TIME: return set_timer(function);
    case EXT_IPI: return send_ipi(function);
    case EXT_RFENCE: return remote_fence(function);
    case EXT_HSM: return hart_state(function);
    case EXT_SRST: return system_reset(function);
    case EXT_DBCN: return debug_console(function);
    default: return fail(SBI_ERR_NOT_SUPPORTED);
    }
}

void sbi_call(void) {
    uint64_t extension = hart.x[17], function = hart.x[16];
    if (extension == EXT_LEGACY_PUTCHAR) { // chapter 5: legacy calls return in a0 only
        char byte = (char)A(0);
        console_write(&byte, 1);
        A(0) = 0;
        return;
    }
    if (extension == EXT_LEGACY_SHUTDOWN) {
        hart.stop = RUN_POWER_OFF;
        return;
    }
    struct result r = call(extension, function);
    A(0) = (uint64_t)r.error;
    A(1) = r.value;
}
