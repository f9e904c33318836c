// Listings of directories. One is read whole when the guest begins with it: runtimes differ in what a later position means when names have come or
// gone since, and `rm -r` removes names while it reads them.
#ifdef AGENTVM_STANDALONE
#define STANDALONE_ITSELF
#include "standalone_share.h"

enum { WASM_PAGE = 65536, HEAD = 24, LEAST_ROOM = 1024, LINUX_EIO = 5, LINUX_ENOMEM = 12 };

// Entries as WASI has them: next[8] ino[8] length[4] type[4] name.
struct listing {
    struct listing *next;
    uint32_t used;
    uint8_t entries[WASM_PAGE - 2 * sizeof(uint32_t)];
};
_Static_assert(sizeof(struct listing) == WASM_PAGE, "a page");

static struct listing *free_pages;

void *new_page(void) {
    enum { PIECE = 256 }; // Node.js 20 crashes at its end when memory has grown page by page
    static uintptr_t page, left;
    if (left == 0) {
        page = __builtin_wasm_memory_grow(0, PIECE);
        if (page == (uintptr_t)-1) return 0;
        left = PIECE;
    }
    left--;
    return (void *)(page++ * WASM_PAGE);
}

void free_listing(struct listing *listing) {
    while (listing != 0) {
        struct listing *next = listing->next;
        listing->next = free_pages;
        free_pages = listing;
        listing = next;
    }
}

static struct listing *take_page(void) {
    struct listing *page = free_pages;
    if (page != 0) free_pages = page->next;
    else page = new_page();
    if (page != 0) page->next = 0, page->used = 0;
    return page;
}

// entry_size gives the size of the entry at a place, or 0 if not all of it is before `end`.
static uint32_t entry_size(const uint8_t *entries, uint32_t at, uint32_t end) {
    uint32_t length;
    if (end - at < HEAD) return 0;
    __builtin_memcpy(&length, entries + at + 16, 4);
    return length > end - at - HEAD ? 0 : HEAD + length;
}

uint32_t read_listing(int32_t fd, struct listing **listing) {
    free_listing(*listing);
    struct listing **last = listing;
    *last = 0;
    uint64_t cookie = 0;
    for (bool more = true; more;) {
        struct listing *page = take_page();
        if (page == 0) return LINUX_ENOMEM;
        *last = page;
        last = &page->next;
        while (more && sizeof page->entries - page->used >= LEAST_ROOM) {
            uint32_t room = sizeof page->entries - page->used, got = 0, size;
            if (wasi_fd_readdir(fd, page->entries + page->used, room, cookie, &got) != WASI_ESUCCESS || got > room) return LINUX_EIO;
            uint32_t end = page->used + got, before = page->used;
            for (; (size = entry_size(page->entries, page->used, end)) > 0; page->used += size)
                __builtin_memcpy(&cookie, page->entries + page->used, 8);
            more = page->used > before; // Node.js returns less than it has room for also in the middle
            if (got == room && !more) return LINUX_EIO;
        }
    }
    return 0;
}

uint32_t put_listing(const struct listing *listing, uint64_t from, uint8_t *to, uint32_t size) {
    static const uint8_t types[] = {0, 6, 2, 4, 8, 12, 12, 10}; // Linux's DT_ numbers
    uint32_t out = 0;
    uint64_t number = 0;
    for (; listing != 0 && number < from / WASM_PAGE; number++) listing = listing->next;
    for (uint32_t at = from % WASM_PAGE; listing != 0; listing = listing->next, at = 0, number++) {
        for (uint32_t next; at < listing->used; at = next) {
            uint32_t length = entry_size(listing->entries, at, listing->used), padded = (length + 7) / 8 * 8;
            if (length == 0 || padded > size - out) return out; // 0: the guest made the position up
            next = at + length;
            if (length == HEAD || length > HEAD + NAME_MAX) continue;
            uint8_t *entry = to + out, type = listing->entries[at + 20];
            uint64_t ino, position = number * WASM_PAGE + next;
            __builtin_memcpy(&ino, listing->entries + at + 8, 8);
            if (ino == 0) ino = 0xffffffff; // an unknown number
            __builtin_memset(entry, 0, padded);
            __builtin_memcpy(entry, &ino, 8);
            __builtin_memcpy(entry + 8, &position, 8);
            __builtin_memcpy(entry + 16, listing->entries + at + 16, 4);
            entry[20] = type < sizeof types ? types[type] : 0;
            __builtin_memcpy(entry + HEAD, listing->entries + at + HEAD, length - HEAD);
            out += padded;
        }
    }
    return out;
}
#endif
