// A virtio driver of a few lines, for programs that misuse it.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

#define REG(slot, offset) (*(volatile u32 *)(0x10001000ul + (slot) * 0x1000 + (offset)))
#define PAGE __attribute__((aligned(4096)))

struct descriptor {
    u64 address;
    u32 length;
    u16 flags, next;
};

enum { BLOCK_ID = 2, BALLOON_ID = 5 };

// now counts ticks, of which a second has so many.
#ifdef __riscv
static inline u64 now(void) {
    u64 t;
    __asm__ volatile("rdtime %0" : "=r"(t));
    return t;
}
static inline u64 second(void) { return 10000000; }
#else
static inline u64 now(void) {
    u64 t;
    __asm__ volatile("isb\n mrs %0, cntvct_el0" : "=r"(t));
    return t;
}
static inline u64 second(void) {
    u64 t;
    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(t));
    return t;
}
#endif

// negotiate prepares a device for use, if the slot has one of this kind.
static int negotiate(int slot, u32 id) {
    if (REG(slot, 0) != 0x74726976 || REG(slot, 8) != id)
        return 0;
    REG(slot, 0x70) = 0;
    REG(slot, 0x70) = 3;
    REG(slot, 0x24) = 1;
    REG(slot, 0x20) = 1; // VERSION_1
    REG(slot, 0x70) = 0xb;
    return 1;
}

static void enable(int slot, int queue, int size, void *descriptors, void *available, void *used) {
    REG(slot, 0x30) = (u32)queue;
    REG(slot, 0x38) = (u32)size;
    REG(slot, 0x80) = (u32)(u64)descriptors;
    REG(slot, 0x84) = 0;
    REG(slot, 0x90) = (u32)(u64)available;
    REG(slot, 0x94) = 0;
    REG(slot, 0xa0) = (u32)(u64)used;
    REG(slot, 0xa4) = 0;
    REG(slot, 0x44) = 1;
}
