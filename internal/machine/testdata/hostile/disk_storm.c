// Fills the disk's queue with requests of one kind, REQUEST, and notifies, for ever.
#include "virtio.h"

enum { DISK = 3 };

PAGE static struct descriptor descriptors[256];
PAGE static struct {
    u16 flags, index, ring[256], event;
} available;
PAGE static char used[4096];
PAGE static char data[1 << 20];
static struct {
    u32 type, reserved;
    u64 sector;
    u64 first; // of the range that WRITE_ZEROES clears
    u32 count, flags;
} request = {REQUEST, 0, 0, 0, 2048, 0};
static u8 status[8];

void main(void) {
    if (!negotiate(DISK, BLOCK_ID))
        return; // the test misses its requests
    enable(DISK, 0, 256, descriptors, &available, used);
    REG(DISK, 0x70) = 0xf;
    descriptors[0] = (struct descriptor){(u64)&request, REQUEST == 13 ? 32 : 16, 1, 1};
    descriptors[1] = (struct descriptor){(u64)status, 1, 2, 0};
    if (REQUEST == 1) { // 16 MiB in one request: the same buffer sixteen times
        for (u16 i = 1; i <= 16; i++)
            descriptors[i] = (struct descriptor){(u64)data, sizeof data, 1, (u16)(i + 1)};
        descriptors[17] = (struct descriptor){(u64)status, 1, 2, 0};
    }
    for (;;) {
        __sync_synchronize();
        *(volatile u16 *)&available.index += 256;
        REG(DISK, 0x50) = 0;
        while (*(volatile u16 *)(used + 2) != *(volatile u16 *)&available.index) {}
    }
}
