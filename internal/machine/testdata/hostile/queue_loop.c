// The balloon holds a report while its queue is taken back and enabled again with both rings in one place: giving the held
// chain back then makes the next one available, for ever.
#include "virtio.h"

enum { BALLOON = 27, REPORTS = 2 };

PAGE static char page[8192];
PAGE static struct descriptor descriptors[64];
PAGE static char available[4096], used[4096], both[4096];

void main(void) {
    if (!negotiate(BALLOON, BALLOON_ID)) return;
    enable(BALLOON, REPORTS, 64, descriptors, available, used);
    REG(BALLOON, 0x70) = 0xf;
    descriptors[0] = (struct descriptor){(u64)page, 4096, 2, 0};
    *(volatile u16 *)(available + 2) = 1;
    REG(BALLOON, 0x50) = REPORTS;
    REG(BALLOON, 0x44) = 0;
    for (u64 start = now(); now() - start < second() / 10;) {} // Go drops the page
    descriptors[0] = (struct descriptor){(u64)page, 16, 2, 0};
    enable(BALLOON, REPORTS, 64, descriptors, both, both);
    u32 enabled = REG(BALLOON, 0x44);
    REG(BALLOON, 0x50) = REPORTS;
    *(volatile u32 *)0x100000 = (1 + enabled) << 16 | 0x3333; // the finisher: it came back
}
