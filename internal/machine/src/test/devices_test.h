// A machine around the devices, for native tests: RAM, interrupt lines, WASI descriptors made of buffers, and a minimal
// virtio driver. Static data lies below 4 GiB (the tests are linked without PIE), so iovecs hold native addresses.
#ifndef AGENTVM_DEVICES_TEST_H
#define AGENTVM_DEVICES_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/virtio.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define CHECK_EQ(got, want)                                                                                            \
    do {                                                                                                               \
        long long got_ = (long long)(got), want_ = (long long)(want);                                                  \
        if (got_ != want_) {                                                                                           \
            fprintf(stderr, "%s:%d: %s = %lld, want %lld\n", __FILE__, __LINE__, #got, got_, want_);                   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

// The machine ----------------------------------------------------------------------------------------------------

#ifndef RAM_KIB // fuzzing has less, to begin anew sooner
#define RAM_KIB 2048
#endif
enum { RAM_SIZE = RAM_KIB << 10, STREAM_SIZE = 2 << 20, DISK_SIZE = 64 << 10, DISK_SLACK = 8192, FDS = 32 };
enum { FD_IN = 0, FD_OUT = 1, FD_NET = 4, FD_CONTROL = 5, FD_BULK = 6, FD_DISK = 8, FD_SHARE = 16 };

// A stream as the host sees it: `in` goes to the machine, `out` comes from it.
struct stream {
    uint8_t in[STREAM_SIZE], out[STREAM_SIZE];
    uint32_t in_at, in_end, out_end;
    uint32_t out_room;   // bytes that fd_write still takes
    uint32_t read_max;   // bytes that one fd_read gives at most
    uint32_t reads, writes, waits; // calls
    void (*while_waiting)(void); // what the peer does when the device waits for bytes
    uint16_t error;      // what each call gives, if not 0
    void (*sink)(const uint8_t *bytes, uint32_t len); // gets what is written, instead of `out`
};

extern struct stream streams[FDS];
extern uint8_t ram[RAM_SIZE];
extern uint8_t disk[DISK_SIZE + DISK_SLACK]; // larger than WASI says, so that only the device keeps to the size
extern uint32_t disk_piece; // bytes that one pread or pwrite moves at most
extern unsigned syncs;
extern uint64_t discarded, discarded_at; // bytes, and where the last of them began
extern uint64_t disk_written;
extern uint64_t calls, moved; // of WASI: calls, and bytes that they moved
extern uint8_t random_byte;   // what random numbers are made of
extern bool line[32];
extern bool yielded;
extern unsigned code_dropped[]; // by frame: how often its decoded code was dropped

// machine_start makes a machine with every device; tests that need another config change it before devices_init.
void machine_configure(void);
void machine_start(void);

// host_send appends bytes to what the machine can read from fd; it does not set the ready bit.
void host_send(int fd, const void *bytes, uint32_t len);

// check_writes fails if a device changed RAM without ram_written.
void check_writes(void);

// check_released fails if Go would drop anything but whole pages of RAM.
void check_released(void);

// The driver -----------------------------------------------------------------------------------------------------

struct buffer {
    uint64_t gpa;
    uint32_t len;
    bool writable;
};

struct queue {
    unsigned slot, index, size;
    uint64_t descriptors, available, used;
    uint16_t next_descriptor, next_available, seen;
};

uint32_t reg(unsigned slot, uint32_t offset);
void set_reg(unsigned slot, uint32_t offset, uint32_t value);

// driver_start negotiates `features` (VERSION_1 is added) up to FEATURES_OK; driver_ok goes live.
void driver_start(unsigned slot, uint64_t features);
void driver_ok(unsigned slot);
uint64_t offered_features(unsigned slot);
struct queue queue_setup(unsigned slot, unsigned index, unsigned size);

// guest_alloc gives fresh RAM, 16-byte aligned; guest_write fills RAM as the hart would.
uint64_t guest_alloc(uint32_t len);
void guest_write(uint64_t gpa, const void *from, uint32_t len);
void guest_write16(uint64_t gpa, uint16_t value);
uint16_t guest_read16(uint64_t gpa);
uint8_t *guest(uint64_t gpa);

void put_descriptor(struct queue *queue, uint16_t index, uint64_t gpa, uint32_t len, uint16_t flags, uint16_t next);
void make_available(struct queue *queue, uint16_t head);
uint16_t add_chain(struct queue *queue, const struct buffer *buffers, unsigned count);
void kick(struct queue *queue); // and further slices while there is work left
void kick_once(struct queue *queue);
void next_slice(void);

// next_used takes the next entry of the used ring; false if there is none.
bool next_used(struct queue *queue, uint32_t *head, uint32_t *len);
bool needs_reset(unsigned slot);

// The tests ------------------------------------------------------------------------------------------------------

struct test {
    const char *name;
    void (*run)(void);
};

extern const struct test transport_tests[], stream_tests[], net_tests[], block_tests[], balloon_tests[], generation_tests[],
    malformed_tests[], work_tests[], adopt_tests[];

#endif
