// The pool of decoded code pages. A RAM page is either plain memory, or code with a decoded page; code is
// write-protected in the write TLB, so that a store to it takes the slow path and drops the decoded form first.
#include "hart.h"

bool code_init(uint32_t pages) {
    hart.code.pages = pages;
    hart.code.pool = grow_memory(sizeof(struct code_page) * (uint64_t)pages);
    hart.code.page_of_frame = grow_memory(ram_frames() * sizeof *hart.code.page_of_frame);
    return hart.code.pool != NULL && hart.code.page_of_frame != NULL;
}

struct memory_range code_pool(void) {
    return (struct memory_range){(uint32_t)(uintptr_t)hart.code.pool, sizeof(struct code_page) * hart.code.pages};
}

struct memory_range code_index(void) {
    return (struct memory_range){(uint32_t)(uintptr_t)hart.code.page_of_frame, (uint32_t)(ram_frames() * sizeof *hart.code.page_of_frame)};
}

bool code_present(uint32_t frame) { return hart.code.page_of_frame[frame] != 0; }

static void forget_slots(struct code_page *page) {
    for (unsigned i = 0; i < PAGE_SLOTS; i++) page->slot[i] = (struct insn){.op = OP_UNDECODED};
    for (unsigned i = PAGE_SLOTS; i < PAGE_SLOTS + PAGE_TAIL; i++) page->slot[i] = (struct insn){.op = OP_PAGE_END};
}

static void set_index(uint32_t frame, uint16_t value) {
    hart.code.page_of_frame[frame] = value;
    mark_dirty(&hart.code.page_of_frame[frame]);
}

static void mark_page(const struct code_page *page) {
    const uint8_t *last = (const uint8_t *)(page + 1) - 1;
    for (const uint8_t *at = (const uint8_t *)page; at < last; at += PAGE_SIZE) mark_dirty(at);
    mark_dirty(last);
}

// A page that was looked up since the ring came to it last stays until the ring comes again.
enum { FREE, USED, USED_AGAIN };

static void set_use(struct code_page *page, uint32_t use) {
    if (page->in_use == use) return;
    page->in_use = use;
    mark_dirty(&page->in_use);
}

static void release(struct code_page *page) {
    set_index(page->frame, 0);
    set_use(page, FREE);
    tlb_forget_code(page);
}

static struct code_page *victim(void) {
    for (;;) {
        struct code_page *page = &hart.code.pool[hart.code.next_victim];
        hart.code.next_victim = (hart.code.next_victim + 1) % hart.code.pages;
        if (page->in_use != USED_AGAIN) return page;
        set_use(page, USED);
    }
}

struct code_page *code_page_for(uint32_t frame) {
    if (hart.code.page_of_frame[frame] != 0) {
        struct code_page *page = &hart.code.pool[hart.code.page_of_frame[frame] - 1];
        set_use(page, USED_AGAIN);
        return page;
    }
    slow(SLOW_CODE_PAGE);
    struct code_page *page = victim();
    if (page->in_use != FREE) release(page);
    page->frame = frame;
    page->in_use = USED;
    set_index(frame, (uint16_t)(page - hart.code.pool + 1));
    forget_slots(page);
    mark_page(page);
    tlb_forget_writes(frame);
    return page;
}

// code_drop makes a page plain memory again because it was written. The slots stay as they are, for the instruction
// that wrote may be in this page and still needs its own; the interpreter leaves the page behind it.
void code_drop(uint32_t frame) {
    if (hart.code.page_of_frame[frame] == 0) return;
    release(&hart.code.pool[hart.code.page_of_frame[frame] - 1]);
    hart.recheck = 1;
}

void code_drop_all(void) {
    for (uint32_t i = 0; i < hart.code.pages; i++)
        if (hart.code.pool[i].in_use != FREE) release(&hart.code.pool[i]);
    hart.recheck = 1;
}

struct code_page *code_page_of(const struct insn *slot) {
    return &hart.code.pool[(uint32_t)((uintptr_t)slot - (uintptr_t)hart.code.pool) / sizeof *hart.code.pool];
}

void code_decode(const struct insn *slot) {
    struct code_page *page = code_page_of(slot);
    slow(SLOW_DECODE);
    decode_slot(page, (uint32_t)(slot - page->slot));
    mark_dirty(slot);
}
