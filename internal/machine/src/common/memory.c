// Linear memory: the module's own data, then the guest's RAM, then tables whose size depends on the RAM's.
#include "processor.h"

struct machine_config config;

uint8_t dirty_pages[1 << 20];
struct released_pages released_pages;

uint8_t *ram;
uint64_t ram_bytes;

enum { WASM_PAGE = 65536 };

// grow_memory adds `size` bytes, zeroed, at the end of linear memory. NULL when the host refuses.
void *grow_memory(uint64_t size) {
    uint64_t pages = (size + WASM_PAGE - 1) / WASM_PAGE;
    if (pages > 65535) return NULL;
    size_t old = __builtin_wasm_memory_grow(0, (size_t)pages);
    return old == (size_t)-1 ? NULL : (void *)(old * WASM_PAGE);
}

bool memory_init(void) {
    ram_bytes = config.ram_size;
    if (ram_bytes == 0 || ram_bytes % PAGE_SIZE != 0) return false;
    ram = grow_memory(ram_bytes);
    return ram != NULL;
}

uint8_t *ram_start(void) { return ram; }

uint64_t ram_frames(void) { return ram_bytes / PAGE_SIZE; }

void *ram_at(uint64_t gpa, uint64_t len) {
    uint64_t offset = gpa - RAM_BASE;
    if (offset >= ram_bytes || len > ram_bytes - offset) return NULL;
    return ram + offset;
}

void ram_written(uint64_t gpa, uint64_t len) {
    if (len == 0) return;
    uint64_t first = (gpa - RAM_BASE) / PAGE_SIZE, last = (gpa + len - 1 - RAM_BASE) / PAGE_SIZE;
    for (uint64_t frame = first; frame <= last; frame++) {
        code_drop((uint32_t)frame);
        mark_dirty(ram + frame * PAGE_SIZE);
    }
}
