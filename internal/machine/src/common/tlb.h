// The translation caches: plain data in the hart, a set for each privilege level. tlb_fill.h has what changes them.
#ifndef AGENTVM_TLB_H
#define AGENTVM_TLB_H

#include "machine.h"

// Unaligned host accesses are fine in WebAssembly; the attribute keeps the compiler honest elsewhere.
typedef uint16_t unaligned16 __attribute__((aligned(1)));
typedef uint32_t unaligned32 __attribute__((aligned(1)));
typedef uint64_t unaligned64 __attribute__((aligned(1)));

// load_bytes and store_bytes access 1, 2, 4 or 8 bytes of RAM.
static inline uint64_t load_bytes(const uint8_t *from, uint32_t size) {
    switch (size) {
    case 1: return *from;
    case 2: return *(const unaligned16 *)from;
    case 4: return *(const unaligned32 *)from;
    default: return *(const unaligned64 *)from;
    }
}

static inline void store_bytes(uint8_t *to, uint64_t value, uint32_t size) {
    switch (size) {
    case 1: *to = (uint8_t)value; break;
    case 2: *(unaligned16 *)to = (uint16_t)value; break;
    case 4: *(unaligned32 *)to = (uint32_t)value; break;
    default: *(unaligned64 *)to = value; break;
    }
}

// The index is the page's number, so that pages far from each other may want the same entry; where they are is different in each
// process. What is replaced moves to its other place, TLB_OTHER from the first one, where only the slow paths and jumps between
// translated pages look: two pages of code that are used all the time and want the same entry would else be looked up for ever.
enum { TLB_SIZE = 4096, TLB_NOTED = 512, TLB_OTHER = TLB_SIZE / 2, TLB_JUMPS = 1024 };

// A tag is the virtual page's address; TLB_INVALID never equals one. Data entries: host address = (uint32_t)va +
// addend. Code entries: addend is the address of the struct code_page.
// An access of n bytes hits when the page of its last byte, (va + n - 1) & ~4095, equals the tag of the entry that
// its first byte selects: misaligned accesses within a page hit, those that cross a page miss.
struct tlb_entry {
    uint64_t tag;
    uint32_t addend;
    uint32_t frame; // RAM page number
};

#define TLB_INVALID (~0ull)

// tlb_jump is a place that translated code has jumped to from another page, and the offset of its entry in the table of entries, with the set's
// generation above it. One of another generation is not valid. As long as a generation lasts, no entry of `code` is dropped, and no function.
struct tlb_jump {
    uint64_t pc, entry;
};

// One set for each privilege level, so that a system call and its return flush nothing. The entries that were filled are noted, so
// that emptying a set does not take longer the more of them there are.
struct tlb {
    struct tlb_entry read[TLB_SIZE], write[TLB_SIZE], code[TLB_SIZE];
    uint32_t filled;           // above TLB_NOTED: unknown which
    uint16_t noted[TLB_NOTED]; // index from read on
    uint64_t generation;       // in the upper half
    struct tlb_jump jumps[TLB_JUMPS];
};

static inline unsigned tlb_index(uint64_t va) { return va >> 12 & (TLB_SIZE - 1); }

// tlb_find looks at both places of the page at va, NULL: it is at none.
static inline const struct tlb_entry *tlb_find(const struct tlb_entry *entries, uint64_t va) {
    const struct tlb_entry *first = &entries[tlb_index(va)], *other = &entries[tlb_index(va) ^ TLB_OTHER];
    uint64_t tag = va & ~(uint64_t)(PAGE_SIZE - 1);
    return first->tag == tag ? first : other->tag == tag ? other : NULL;
}

#endif
