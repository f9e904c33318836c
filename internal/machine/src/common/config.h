// What Go tells the machine before `init`: it writes a struct machine_config at the address `configure` returns.
// abiConfig of abi.go mirrors it, and abi_test.go compares the two; keep every member naturally aligned.
#ifndef AGENTVM_CONFIG_H
#define AGENTVM_CONFIG_H

#include <stdint.h>

enum { MAX_DISKS = 4, MAX_SHARES = 20, SHARE_TAG_SIZE = 32 };

// Where the guest's clocks come from.
enum clock_mode {
    CLOCK_HOST = 0,         // WASI's monotonic and real-time clocks
    CLOCK_INSTRUCTIONS = 1, // deterministic: each retired instruction takes 10 ns, idle time passes at once
};

enum { DISK_READ_ONLY = 1 };

enum {
    NET_HEADER = 1, // each frame on net_fd is preceded, inside the QEMU length, by a 12-byte virtio_net_hdr
};

// A file descriptor of -1 means: no such device.
struct machine_config {
    uint64_t ram_size; // bytes, a multiple of 4096
    int32_t console_in_fd, console_out_fd;
    int32_t control_fd, bulk_fd;
    int32_t net_fd;
    uint32_t net_flags;
    uint8_t net_mac[6];
    uint16_t net_mtu; // bytes of an Ethernet payload
    int32_t disk_fd[MAX_DISKS];
    uint32_t disk_flags[MAX_DISKS];
    int32_t share_fd[MAX_SHARES];
    char share_tag[MAX_SHARES][SHARE_TAG_SIZE]; // NUL-terminated mount tags
    uint32_t clock_mode;
    uint32_t hart_flags;  // see enum hart_flags
    uint32_t harts, reserved; // of a module for several: how many
    uint64_t realtime_ns; // CLOCK_INSTRUCTIONS: the wall clock at time 0
    uint8_t generation[16]; // of the VM generation device; a restored machine may have another one
};

enum hart_flags {
    HART_START_M = 1, // start in M-mode (bare programs); otherwise S-mode on the built-in SBI
};

extern struct machine_config config;

#endif
