// The balloon holds a report while its queue is taken back and enabled again with both rings in one place: giving the held
// chain back then makes the next one available, for ever.
#include "virtio.h"

enum { BALLOON = 27, REPORTS = 2 };

PAGE static char page[8192];
PAGE static struct descriptor descriptors[64];
PAGE static char available[4096], used[4096], both[4096];

static void put(char c) {
    register u64 a0 __asm__("a0") = (u8)c, a6 __asm__("a6") = 0, a7 __asm__("a7") = 1;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a6), "r"(a7) : "memory");
}

static void print(const char *s) {
    while (*s)
        put(*s++);
}

static u64 now(void) {
    u64 t;
    __asm__ volatile("rdtime %0" : "=r"(t));
    return t;
}

void main(void) {
    if (!negotiate(BALLOON, BALLOON_ID)) {
        print("this slot has no balloon\n");
        return;
    }
    enable(BALLOON, REPORTS, 64, descriptors, available, used);
    REG(BALLOON, 0x70) = 0xf;
    descriptors[0] = (struct descriptor){(u64)page, 4096, 2, 0};
    *(volatile u16 *)(available + 2) = 1;
    REG(BALLOON, 0x50) = REPORTS;
    REG(BALLOON, 0x44) = 0;
    for (u64 start = now(); now() - start < 1000000;) {} // 100 ms: Go drops the page
    descriptors[0] = (struct descriptor){(u64)page, 16, 2, 0};
    enable(BALLOON, REPORTS, 64, descriptors, both, both);
    print(REG(BALLOON, 0x44) ? "enabled\n" : "refused\n");
    REG(BALLOON, 0x50) = REPORTS;
    print("came back\n");
}
