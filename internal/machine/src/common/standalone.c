// The machine as a WASI preview 1 command: a guest that has booted, its root disk and this main loop in one module, which
// `agentvm image export --wasi` makes of standalone.wasm (internal/machine/standalone.go). It imports WASI and nothing else.
//
// The guest's control port carries frames: a type, the length of what follows as 32 bits, little-endian, and that many
// bytes. internal/guest/standalone.go is the other side. Here the guest is as untrusted as in the host's machine: it may
// write what it likes, and end the module, which is all of it.
//
//	to the guest    'r' what to run, see send_command; 'i' standard input, its end is a frame without bytes
//	from the guest  'o' and 'e' standard output and error; 'x' the exit code, one byte; 'n' connect the network card,
//	                one byte: the listening socket's descriptor, or 0 for the first there is
#ifdef AGENTVM_STANDALONE
#define STANDALONE_ITSELF
#include "standalone.h"

#include "hart.h"
#include "standalone_share.h"

#define EXPORT(name) __attribute__((export_name(#name)))

WASI_IMPORT(args_sizes_get) uint16_t wasi_args_sizes_get(uint32_t *count, uint32_t *bytes);
WASI_IMPORT(args_get) uint16_t wasi_args_get(char **list, char *bytes);
WASI_IMPORT(environ_sizes_get) uint16_t wasi_environ_sizes_get(uint32_t *count, uint32_t *bytes);
WASI_IMPORT(environ_get) uint16_t wasi_environ_get(char **list, char *bytes);
WASI_IMPORT(sock_accept) uint16_t wasi_sock_accept(int32_t fd, uint32_t flags, int32_t *accepted);
WASI_IMPORT(proc_exit) _Noreturn void wasi_proc_exit(uint32_t code);

uint32_t run(int64_t budget, uint64_t ready);
void restored(void);

enum { FD_STDIN = 0, FD_STDOUT = 1, FD_STDERR = 2, FD_FIRST = 3, FD_NETWORK = 4, FD_CONTROL = 5, FD_DISK = 8, FD_SHARE = 16, FD_LAST = 255 };
enum { FAILED = 125 }; // exit code of errors that are not the command's, as agentvm's

enum { HEADER = 5, BUFFER = 256 << 10, MAX_LIST = 8192 };
enum { SLICE = 1 << 20 };        // instructions between two looks at standard input
enum { LONGEST_WAIT = 1000000000 }; // ns: whatever a runtime makes of long ones
enum { SHORT_WAIT = 1000000 };      // ns: between two looks at what cannot be waited for

// What Go sets in the memory that it exports. `booted` is 0 while Go boots the guest: then WASI's functions are used as they are.
static struct standalone {
    uint32_t booted, disk, disk_size; // disk: an address in linear memory
} standalone;

EXPORT(standalone_state) struct standalone *standalone_state(void) { return &standalone; }

static uint8_t to_guest[BUFFER];
static uint32_t to_at, to_end;
static bool input_ended;

static struct {
    uint8_t header[HEADER];
    uint32_t have, left; // bytes of the header that have come, and of the payload that are to come
} frame;

// The network card's connection, with QEMU's framing as virtio_net.c has it. Descriptors are the runtime's; -1: there is none.
static struct {
    int32_t listener, fd;
    bool blocked, ready, polls; // a write gave EAGAIN; poll_oneoff has said that there is something; it tells the truth
} link = {.listener = -1, .fd = -1, .polls = true};

static uint32_t length_of(const char *string) {
    uint32_t length = 0;
    while (string[length] != 0) length++;
    return length;
}

static void write_all(int32_t fd, const uint8_t *bytes, uint32_t count) {
    while (count > 0) {
        struct wasi_iovec iov = {(uint32_t)(uintptr_t)bytes, count};
        uint32_t done = 0;
        uint16_t error = wasi_fd_write(fd, &iov, 1, &done);
        if (error != WASI_ESUCCESS && error != WASI_EAGAIN) return; // a closed pipe must not stop the guest
        if (done > count) return;
        bytes += done;
        count -= done;
    }
}

static _Noreturn void fail(const char *message) {
    write_all(FD_STDERR, (const uint8_t *)message, length_of(message));
    wasi_proc_exit(FAILED);
}

static void put_header(uint8_t *at, uint8_t type, uint32_t length) {
    at[0] = type;
    __builtin_memcpy(at + 1, &length, 4);
}

// What devices do ------------------------------------------------------------------------------------------------

// Without a connection, and when it has ended, nothing comes.
static uint16_t link_read(const struct wasi_iovec *iovs, uint32_t count, uint32_t *done) {
    if (link.fd < 0) return WASI_EAGAIN;
    uint16_t error = wasi_fd_read(link.fd, iovs, count, done);
    if (error == WASI_EAGAIN && link.ready) link.polls = false; // wazero calls each socket ready
    link.ready = false;
    if (error != WASI_EAGAIN && (error != WASI_ESUCCESS || *done == 0)) link.fd = -1;
    return link.fd < 0 ? WASI_EAGAIN : error;
}

// Without a connection frames are lost, as those of a cable that is not plugged in.
static uint16_t link_write(const struct wasi_iovec *iovs, uint32_t count, uint32_t *done) {
    if (link.fd < 0) return WASI_EBADF;
    uint16_t error = wasi_fd_write(link.fd, iovs, count, done);
    link.blocked = error == WASI_EAGAIN || (error == WASI_ESUCCESS && *done == 0);
    return error;
}

uint16_t standalone_read(int32_t fd, const struct wasi_iovec *iovs, uint32_t count, uint32_t *done) {
    if (!standalone.booted) return wasi_fd_read(fd, iovs, count, done);
    *done = 0;
    if (fd == FD_NETWORK) return link_read(iovs, count, done);
    if (fd == FD_SHARE) return share_read(iovs, count, done);
    for (uint32_t i = 0; fd == FD_CONTROL && i < count && to_at < to_end; i++) {
        uint32_t left = to_end - to_at, piece = iovs[i].len < left ? iovs[i].len : left;
        __builtin_memcpy((void *)(uintptr_t)iovs[i].buf, to_guest + to_at, piece);
        to_at += piece;
        *done += piece;
    }
    return *done > 0 ? WASI_ESUCCESS : WASI_EAGAIN;
}

static void take(const uint8_t *bytes, uint32_t count) {
    while (count > 0) {
        if (frame.have < HEADER) {
            frame.header[frame.have++] = *bytes++;
            count--;
            __builtin_memcpy(&frame.left, frame.header + 1, 4);
        } else {
            uint32_t piece = frame.left < count ? frame.left : count;
            if (frame.header[0] == 'o') write_all(FD_STDOUT, bytes, piece);
            if (frame.header[0] == 'e') write_all(FD_STDERR, bytes, piece);
            if (frame.header[0] == 'x') wasi_proc_exit(*bytes);
            if (frame.header[0] == 'n') link.listener = *bytes;
            bytes += piece;
            count -= piece;
            frame.left -= piece;
        }
        if (frame.have == HEADER && frame.left == 0) frame.have = 0;
    }
}

// What the kernel writes to its console, a panic for example, is for standard error.
uint16_t standalone_write(int32_t fd, const struct wasi_iovec *iovs, uint32_t count, uint32_t *done) {
    if (!standalone.booted) return wasi_fd_write(fd, iovs, count, done);
    *done = 0;
    if (fd == FD_NETWORK) return link_write(iovs, count, done);
    if (fd == FD_SHARE) return share_write(iovs, count, done);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *bytes = (const uint8_t *)(uintptr_t)iovs[i].buf;
        if (fd == FD_CONTROL) take(bytes, iovs[i].len);
        else write_all(FD_STDERR, bytes, iovs[i].len);
        *done += iovs[i].len;
    }
    return WASI_ESUCCESS;
}

uint16_t standalone_pread(int32_t fd, const struct wasi_iovec *iovs, uint32_t count, uint64_t offset, uint32_t *done) {
    if (!standalone.booted) return wasi_fd_pread(fd, iovs, count, offset, done);
    *done = 0;
    if (fd != FD_DISK) return WASI_EBADF;
    for (uint32_t i = 0; i < count && offset < standalone.disk_size; i++) {
        uint32_t left = standalone.disk_size - (uint32_t)offset, piece = iovs[i].len < left ? iovs[i].len : left;
        __builtin_memcpy((void *)(uintptr_t)iovs[i].buf, (const uint8_t *)(uintptr_t)standalone.disk + offset, piece);
        offset += piece;
        *done += piece;
    }
    return WASI_ESUCCESS;
}

uint16_t standalone_poll(const struct wasi_subscription *in, struct wasi_event *found, uint32_t count, uint32_t *events) {
    return standalone.booted ? share_poll(in, found, count, events) : wasi_poll_oneoff(in, found, count, events);
}

// The command ----------------------------------------------------------------------------------------------------

static char *list[MAX_LIST];
static char text[BUFFER];

static void put_item(char type, const char *string) {
    uint32_t length = length_of(string);
    if (length > BUFFER - 2 || to_end > BUFFER - length - 2) fail("agentvm: the arguments and the environment are too long\n");
    to_guest[to_end++] = (uint8_t)type;
    __builtin_memcpy(to_guest + to_end, string, length + 1);
    to_end += length + 1;
}

// send_command gives the guest a list of a letter, a text and a NUL each: 't' the time in ns since 1970, 'a' an argument, 'v' a variable,
// 'p' the name of a directory, in the order of the share's.
static void send_command(void) {
    uint32_t count = 0, bytes = 0;
    to_end = HEADER;
    char digits[21], *digit = digits + 20;
    uint64_t now = realtime_nanoseconds();
    for (*digit = 0; now > 0 || *digit == 0; now /= 10) *--digit = (char)('0' + now % 10);
    put_item('t', digit);
    if (wasi_args_sizes_get(&count, &bytes) != WASI_ESUCCESS || count > MAX_LIST || bytes > BUFFER || wasi_args_get(list, text) != WASI_ESUCCESS)
        fail("agentvm: the arguments are too many or too long\n");
    for (uint32_t i = 1; i < count; i++) put_item('a', list[i]);
    if (wasi_environ_sizes_get(&count, &bytes) != WASI_ESUCCESS || count > MAX_LIST || bytes > BUFFER) fail("agentvm: the environment is too large\n");
    if (count > 0 && wasi_environ_get(list, text) != WASI_ESUCCESS) fail("agentvm: the environment cannot be read\n"); // Node.js refuses to read none
    for (uint32_t i = 0; i < count; i++) put_item('v', list[i]);
    count = find_directories();
    for (uint32_t i = 0; i < count; i++) put_item('p', directories[i].name);
    put_header(to_guest, 'r', to_end - HEADER);
}

static void read_input(void) {
    struct wasi_iovec iov = {(uint32_t)(uintptr_t)(to_guest + HEADER), 64 << 10};
    uint32_t done = 0;
    uint16_t error = wasi_fd_read(FD_STDIN, &iov, 1, &done);
    if (error == WASI_EAGAIN) return;
    if (error != WASI_ESUCCESS || done > iov.len) done = 0;
    if (done == 0) input_ended = true;
    put_header(to_guest, 'i', done);
    to_at = 0;
    to_end = HEADER + done;
}

static bool pause(uint64_t ns) {
    const struct wasi_subscription clock = {.type = WASI_EVENT_CLOCK, .fd_or_clock = WASI_CLOCK_MONOTONIC, .timeout_ns = ns};
    struct wasi_event found;
    uint32_t count;
    return wasi_poll_oneoff(&clock, &found, 1, &count) == WASI_ESUCCESS;
}

// connect waits for the connection, whatever time it takes. A listener that was not named is the first socket that accepts.
static void connect(void) {
    int32_t first = link.listener == 0 ? FD_FIRST : link.listener, last = link.listener == 0 ? FD_LAST : link.listener;
    link.listener = -1;
    for (bool waits = true; waits && link.fd < 0; waits = waits && pause(SHORT_WAIT)) {
        waits = false;
        for (int32_t fd = first; fd <= last && !waits; fd++) {
            int32_t accepted;
            uint16_t error = wasi_sock_accept(fd, WASI_NONBLOCK, &accepted);
            waits = error == WASI_EAGAIN;
            if (error != WASI_ESUCCESS) continue;
            link.fd = accepted;
            return;
        }
    }
    fail("agentvm: -net socket: the runtime gave no listening socket, as the first descriptor after the standard streams and directories\n");
}

// wait returns after at most `ns`, or earlier when there is input that the guest can have. A runtime that cannot wait for
// standard input has it read at once: then it is a file.
static void wait(uint64_t ns) {
    enum { CLOCK, INPUT, LINK };
    bool wanted = !input_ended && to_at == to_end;
    bool linked = link.fd >= 0 && link.polls;
    if (link.fd >= 0 && (link.blocked || !link.polls) && ns > SHORT_WAIT) ns = SHORT_WAIT;
    struct wasi_subscription all[3] = {
        {.userdata = CLOCK, .type = WASI_EVENT_CLOCK, .fd_or_clock = WASI_CLOCK_MONOTONIC, .timeout_ns = ns < LONGEST_WAIT ? ns : LONGEST_WAIT},
    };
    struct wasi_event found[3];
    uint32_t asked = 1, count = 0;
    if (wanted) all[asked++] = (struct wasi_subscription){.userdata = INPUT, .type = WASI_EVENT_READ, .fd_or_clock = FD_STDIN};
    if (linked && ns > 0) all[asked++] = (struct wasi_subscription){.userdata = LINK, .type = WASI_EVENT_READ, .fd_or_clock = (uint32_t)link.fd};
    if (asked == 1 && ns == 0) return;
    bool polled = wasi_poll_oneoff(all, found, asked, &count) == WASI_ESUCCESS;
    if (!polled && linked) { // once more without the socket
        link.polls = false;
        return;
    }
    bool ready = !polled;
    for (uint32_t i = 0; polled && i < count && i < asked; i++) {
        ready |= found[i].userdata == INPUT;
        link.ready |= found[i].userdata == LINK && found[i].error == WASI_ESUCCESS;
        if (found[i].userdata == LINK && found[i].error != WASI_ESUCCESS) link.polls = false;
    }
    if (wanted && ready) read_input();
}

EXPORT(_start) void start(void) {
    if (!standalone.booted) fail("agentvm: this module is a part of agentvm, and has no guest\n");
    wasi_random_get(config.generation, sizeof config.generation);
    restored();
    send_command();
    for (;;) {
        uint32_t why = run(SLICE, ~0ull);
        released_pages.count = 0;
        if (link.listener >= 0) connect();
        uint64_t now = 0, deadline = 0;
        switch (why) {
        case RUN_IDLE:
            deadline = timer_deadline_ns();
            wasi_clock_time_get(WASI_CLOCK_MONOTONIC, 1, &now);
            if (to_at < to_end && deadline > now + 1000000) deadline = now + 1000000; // the guest takes it soon, or never
            wait(deadline > now && !share_has_more() ? deadline - now : 0);
            break;
        case RUN_BUDGET: wait(0); break;
        case RUN_POWER_OFF: wasi_proc_exit(0);
        default: fail("agentvm: the guest has crashed\n");
        }
    }
}
#endif
