// Filling and emptying the translation caches. It is a part of each processor's mmu.c, which has what it means to change address spaces.
#ifndef AGENTVM_TLB_FILL_H
#define AGENTVM_TLB_FILL_H

#include "hart.h"

static inline uint32_t frame_of(uint64_t gpa) { return (uint32_t)((gpa - RAM_BASE) / PAGE_SIZE); }

static inline void invalidate(struct tlb_entry *e) { e->tag = TLB_INVALID; }

// forget_jumps is called whenever an entry for code may be dropped, or what it leads to.
static inline void forget_jumps(struct tlb *tlb) {
    tlb->generation += 1ull << 32;
    if (tlb->generation == 0) __builtin_memset(tlb->jumps, 0xff, sizeof tlb->jumps); // those of the first one
}

static inline void note_filled(struct tlb *tlb, const struct tlb_entry *e) {
    if (e->tag != TLB_INVALID || tlb->filled > TLB_NOTED) return;
    if (tlb->filled < TLB_NOTED) tlb->noted[tlb->filled] = (uint16_t)(e - tlb->read);
    tlb->filled++;
}

// place is the entry for va, noted as filled. What it had moves to its other place; an entry that va had there is gone.
static inline struct tlb_entry *place(struct tlb *tlb, struct tlb_entry *entries, uint64_t va) {
    struct tlb_entry *e = &entries[tlb_index(va)], *other = &entries[tlb_index(va) ^ TLB_OTHER];
    uint64_t tag = va & ~(uint64_t)(PAGE_SIZE - 1);
    if (e->tag != TLB_INVALID && e->tag != tag) {
        note_filled(tlb, other);
        if (entries == tlb->code && other->tag != TLB_INVALID) forget_jumps(tlb);
        *other = *e;
    } else if (other->tag == tag) {
        invalidate(other);
    }
    note_filled(tlb, e);
    e->tag = tag;
    return e;
}

// recall has an entry for va in its first place, where what comes next finds it sooner. false: the TLB does not have it.
static inline bool recall(struct tlb *tlb, struct tlb_entry *entries, uint64_t va) {
    struct tlb_entry *first = &entries[tlb_index(va)], *e = (struct tlb_entry *)(uintptr_t)tlb_find(entries, va);
    if (e != NULL && e != first) {
        struct tlb_entry moved = *e;
        note_filled(tlb, first);
        *e = *first;
        *first = moved;
    }
    return e != NULL;
}

_Static_assert(offsetof(struct tlb, filled) == 3 * TLB_SIZE * sizeof(struct tlb_entry), "a set is one array of entries");

// entries_of is how many entries have to be looked at to find those of a set that are filled.
static inline unsigned entries_of(const struct tlb *tlb) { return tlb->filled > TLB_NOTED ? 3 * TLB_SIZE : tlb->filled; }

static inline void flush_set(struct tlb *tlb) {
    forget_jumps(tlb);
    slow(entries_of(tlb) / 2);
    if (tlb->filled > TLB_NOTED) __builtin_memset(tlb, 0xff, offsetof(struct tlb, filled));
    else
        for (unsigned i = 0; i < tlb->filled; i++) invalidate(&tlb->read[tlb->noted[i]]);
    tlb->filled = 0;
}

void tlb_forget_jumps(void) {
    for (unsigned set = 0; set < TLB_SETS; set++) forget_jumps(&hart.tlb[set]);
}

static inline void fill(struct tlb *tlb, struct tlb_entry *entries, uint64_t va, uint64_t gpa, const uint8_t *host) {
    struct tlb_entry *e = place(tlb, entries, va);
    e->addend = (uint32_t)(uintptr_t)host - (uint32_t)va;
    e->frame = frame_of(gpa);
}

// tlb_reset is for sets of which nothing is known.
void tlb_reset(void) {
    for (unsigned set = 0; set < TLB_SETS; set++) hart.tlb[set].filled = ~0u;
    tlb_flush_all();
}

// tlb_forget_all_writes makes the next store to each page take the slow path, which marks it.
void tlb_forget_all_writes(void) {
    for (unsigned set = 0; set < TLB_SETS; set++) __builtin_memset(hart.tlb[set].write, 0xff, sizeof hart.tlb[set].write);
}

// flush_around drops what is in the same naturally aligned range of 1 << shift bytes.
static void flush_around(uint64_t va, unsigned shift) {
    for (struct tlb *tlb = hart.tlb; tlb < hart.tlb + TLB_SETS; tlb++) {
        bool all = tlb->filled > TLB_NOTED;
        unsigned count = entries_of(tlb);
        slow(count);
        for (unsigned k = 0; k < count; k++) {
            struct tlb_entry *e = &tlb->read[all ? k : tlb->noted[k]];
            if ((e->tag ^ va) >> shift == 0) invalidate(e);
        }
    }
}

void tlb_flush_page(uint64_t va) {
    slow(SLOW_FLUSH);
    if (hart.largest_shift[va >> 63] > 12) flush_around(va, hart.largest_shift[va >> 63]);
    for (unsigned set = 0; set < TLB_SETS; set++) {
        struct tlb *tlb = &hart.tlb[set];
        forget_jumps(tlb);
        for (unsigned place = 0, index = tlb_index(va); place < 2; place++, index ^= TLB_OTHER) {
            invalidate(&tlb->read[index]);
            invalidate(&tlb->write[index]);
            invalidate(&tlb->code[index]);
        }
    }
}

// filled_entry lists what is filled of a table, and maybe entries of others; NULL behind the last.
static struct tlb_entry *filled_entry(struct tlb *tlb, struct tlb_entry *table, unsigned k) {
    if (tlb->filled > TLB_NOTED) return k < TLB_SIZE ? &table[k] : NULL;
    return k < tlb->filled ? &tlb->read[tlb->noted[k]] : NULL;
}

void tlb_forget_writes(uint32_t frame) {
    for (struct tlb *tlb = hart.tlb; tlb < hart.tlb + TLB_SETS; tlb++) {
        struct tlb_entry *e;
        for (unsigned k = 0; (e = filled_entry(tlb, tlb->write, k)) != NULL; k++)
            if (e->frame == frame) invalidate(e);
    }
}

void tlb_forget_code(const struct code_page *page) {
    for (struct tlb *tlb = hart.tlb; tlb < hart.tlb + TLB_SETS; tlb++) {
        struct tlb_entry *e;
        for (unsigned k = 0; (e = filled_entry(tlb, tlb->code, k)) != NULL; k++)
            if (e->addend == (uint32_t)(uintptr_t)page) invalidate(e);
        forget_jumps(tlb);
    }
}

#endif
