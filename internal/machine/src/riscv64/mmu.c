// Address translation: Sv39 (Privileged Architecture, chapter "Sv39"), the translation caches, and the slow paths
// of loads, stores and fetches. Accessed and dirty bits are set by the hart, as Svadu allows.
#include "hart.h"
#include "tlb_fill.h"

enum access { ACCESS_READ, ACCESS_WRITE, ACCESS_FETCH };

enum { PTE_V = 1, PTE_R = 2, PTE_W = 4, PTE_X = 8, PTE_U = 16, PTE_G = 32, PTE_A = 64, PTE_D = 128 };
#define PTE_RESERVED (0x3ffull << 54) // N, PBMT and the reserved bits: none of these extensions is there
#define SATP_MODE_SV39 8

static const uint32_t page_fault_cause[] = {CAUSE_LOAD_PAGE, CAUSE_STORE_PAGE, CAUSE_FETCH_PAGE};
static const uint32_t access_fault_cause[] = {CAUSE_LOAD_ACCESS, CAUSE_STORE_ACCESS, CAUSE_FETCH_ACCESS};

// effective_privilege honours mstatus.MPRV, which redirects M-mode's loads and stores.
static unsigned effective_privilege(enum access access) {
    if (hart.privilege == PRIV_M && access != ACCESS_FETCH && (hart.mstatus & MSTATUS_MPRV) != 0)
        return (unsigned)(hart.mstatus >> 11 & 3);
    return hart.privilege;
}

static bool permitted(uint64_t pte, enum access access, unsigned privilege) {
    if ((pte & PTE_U) == 0 && privilege == PRIV_U) return false;
    if ((pte & PTE_U) != 0 && privilege == PRIV_S && (access == ACCESS_FETCH || (hart.mstatus & MSTATUS_SUM) == 0))
        return false;
    switch (access) {
    case ACCESS_READ: return (pte & PTE_R) != 0 || ((hart.mstatus & MSTATUS_MXR) != 0 && (pte & PTE_X) != 0);
    case ACCESS_WRITE: return (pte & PTE_W) != 0;
    default: return (pte & PTE_X) != 0;
    }
}

// Short forms of ram_at for what each miss needs.
static inline uint8_t *ram_byte(uint64_t gpa) { return gpa - RAM_BASE < ram_bytes ? ram + (uint32_t)(gpa - RAM_BASE) : NULL; }

static inline uint64_t *ram_entry(uint64_t gpa) { return (uint64_t *)ram_byte(gpa); } // aligned, so all of it is there

struct mapping {
    uint64_t gpa;
    bool user_page; // supervisor access depends on SUM
    bool may_write; // the page table says so, and its dirty bit is set
    bool global;    // the same in all address spaces
    uint8_t shift;  // its size: 12, or that of a superpage
};

// translate finds the guest physical address of va. It raises an exception and returns false when there is none.
static bool translate(uint64_t va, enum access access, struct mapping *m) {
    unsigned privilege = effective_privilege(access);
    slow(SLOW_TRANSLATE);
    if (privilege == PRIV_M || hart.satp >> 60 != SATP_MODE_SV39) {
        *m = (struct mapping){.gpa = va, .may_write = true, .global = true}; // until satp's mode changes
        return true;
    }
    uint64_t global = 0; // also when a table on the way says so
    if ((uint64_t)((int64_t)(va << 25) >> 25) != va) goto page_fault;
    uint64_t table = (hart.satp & ((1ull << 44) - 1)) * PAGE_SIZE;
    for (int level = 2; level >= 0; level--) {
        unsigned shift = 12 + 9 * (unsigned)level;
        uint64_t where = table + (va >> shift & 511) * 8, *entry = ram_entry(where);
        if (entry == NULL) {
            raise(access_fault_cause[access], va);
            return false;
        }
        uint64_t pte = *entry;
        if ((pte & PTE_V) == 0 || (pte & (PTE_R | PTE_W)) == PTE_W || (pte & PTE_RESERVED) != 0) goto page_fault;
        global |= pte & PTE_G;
        if ((pte & (PTE_R | PTE_X)) == 0) {
            if ((pte & (PTE_U | PTE_A | PTE_D)) != 0) goto page_fault;
            table = (pte >> 10) * PAGE_SIZE;
            continue;
        }
        uint64_t base = (pte >> 10 & ((1ull << 44) - 1)) << 12, inside = (1ull << shift) - 1;
        if (!permitted(pte, access, privilege) || (base & inside) != 0) goto page_fault;
        uint64_t wanted = access == ACCESS_WRITE ? PTE_A | PTE_D : PTE_A;
        if ((pte & wanted) != wanted) {
            *entry = pte |= wanted;
            ram_written(where, 8);
        }
        *m = (struct mapping){
            .gpa = base | (va & inside),
            .user_page = (pte & PTE_U) != 0,
            .may_write = (pte & (PTE_W | PTE_D)) == (PTE_W | PTE_D),
            .global = global != 0,
            .shift = (uint8_t)shift,
        };
        return true;
    }
page_fault:
    raise(page_fault_cause[access], va);
    return false;
}

// Filling -------------------------------------------------------------------------------------------------------

static void note_user_entry(uint64_t va) {
    enum { CAPACITY = sizeof hart.user_entry / sizeof hart.user_entry[0] };
    if (hart.user_entries < CAPACITY) hart.user_entry[hart.user_entries] = (uint16_t)tlb_index(va);
    if (hart.user_entries <= CAPACITY) hart.user_entries++;
}

// Entries of the supervisor's set for pages of this address space only, other than those for user pages. Linux has none:
// its own pages are global.

static void note_entry(const struct mapping *m, uint64_t va) {
    if (m->shift > hart.largest_shift[va >> 63]) hart.largest_shift[va >> 63] = m->shift;
    if (hart.privilege != PRIV_S) return;
    if (m->user_page) note_user_entry(va);
    else if (!m->global) hart.local_entries = true;
}

// cached is where the TLB has the byte at va, NULL if it has it nowhere. The interpreter has looked at the first place already; LR, SC
// and the AMOs come here without.
static uint8_t *cached(struct tlb_entry *entries, uint64_t va) {
    if (!recall(current_tlb(), entries, va)) return NULL;
    const struct tlb_entry *e = &entries[tlb_index(va)];
    return (uint8_t *)(uintptr_t)((uint32_t)va + e->addend);
}

// data_pointer translates one access that stays within a page, fills the TLB, and returns where the bytes are in
// RAM. NULL with hart.cause unset means a device register at *gpa.
static uint8_t *data_pointer(uint64_t va, enum access access, uint64_t *gpa) {
    struct mapping m;
    if (!translate(va, access, &m)) return NULL;
    *gpa = m.gpa;
    uint8_t *host = ram_byte(m.gpa);
    if (host == NULL) return NULL;
    struct tlb *tlb = current_tlb();
    note_entry(&m, va);
    fill(tlb, tlb->read, va, *gpa, host);
    if (access == ACCESS_WRITE) {
        code_drop(frame_of(*gpa));
        mark_dirty(host);
        fill(tlb, tlb->write, va, *gpa, host);
    } else if (m.may_write && is_dirty(host) && !code_present(frame_of(*gpa))) {
        fill(tlb, tlb->write, va, *gpa, host); // a page that is read is often written next; a read marks none
    }
    return host;
}

// tlb_reach has the TLB know the page of an access that is about to be made. false: it is none of RAM, or raises an exception.
bool tlb_reach(uint64_t va, bool store) {
    uint64_t gpa = 0;
    struct tlb *tlb = current_tlb();
    if (recall(tlb, store ? tlb->write : tlb->read, va)) return true;
    return data_pointer(va, store ? ACCESS_WRITE : ACCESS_READ, &gpa) != NULL;
}

static bool same_page(uint64_t va, uint32_t size) { return ((va ^ (va + size - 1)) & ~(uint64_t)(PAGE_SIZE - 1)) == 0; }

// A copy whose size is no constant would be a memory.copy, a call of the host's in wazero.
static uint64_t slow_load_within_page(uint64_t va, uint32_t size) {
    uint64_t gpa = 0, value = 0;
    uint8_t *host = cached(current_tlb()->read, va);
    if (host == NULL) host = data_pointer(va, ACCESS_READ, &gpa);
    if (host != NULL) return load_bytes(host, size);
    if (hart.cause != CAUSE_NONE) return 0;
    if ((gpa & (size - 1)) != 0 || !bus_read(gpa, size, &value)) return raise(CAUSE_LOAD_ACCESS, va);
    return value;
}

uint64_t slow_load(uint64_t va, uint32_t size) {
    if (same_page(va, size)) return slow_load_within_page(va, size);
    uint64_t value = 0;
    for (uint32_t i = 0; i < size && hart.cause == CAUSE_NONE; i++)
        value |= slow_load_within_page(va + i, 1) << (8 * i);
    return value;
}

static void slow_store_within_page(uint64_t va, uint64_t value, uint32_t size) {
    uint64_t gpa = 0;
    uint8_t *host = cached(current_tlb()->write, va);
    if (host == NULL) host = data_pointer(va, ACCESS_WRITE, &gpa);
    if (host != NULL) {
        store_bytes(host, value, size);
        return;
    }
    if (hart.cause != CAUSE_NONE) return;
    if ((gpa & (size - 1)) != 0 || !bus_write(gpa, value, size)) raise(CAUSE_STORE_ACCESS, va);
}

// A store that crosses pages writes nothing unless both pages can be written.
void slow_store(uint64_t va, uint64_t value, uint32_t size) {
    if (same_page(va, size)) {
        slow_store_within_page(va, value, size);
        return;
    }
    uint64_t second = (va + size - 1) & ~(uint64_t)(PAGE_SIZE - 1);
    struct mapping m;
    if (!translate(va, ACCESS_WRITE, &m) || !translate(second, ACCESS_WRITE, &m)) return;
    for (uint32_t i = 0; i < size && hart.cause == CAUSE_NONE; i++) slow_store_within_page(va + i, value >> (8 * i), 1);
}

// atomic_pointer serves SC and the AMOs, which fault as stores.
uint8_t *atomic_pointer(uint64_t va, uint32_t size) {
    uint64_t gpa = 0;
    if ((va & (size - 1)) != 0) {
        raise(CAUSE_STORE_MISALIGNED, va);
        return NULL;
    }
    uint8_t *host = cached(current_tlb()->write, va);
    if (host == NULL) host = data_pointer(va, ACCESS_WRITE, &gpa);
    if (host == NULL && hart.cause == CAUSE_NONE) raise(CAUSE_STORE_ACCESS, va);
    return host;
}

void cbo_zero(uint64_t va) {
    uint64_t gpa = 0;
    va &= ~(uint64_t)(PAGE_SIZE - 1);
    uint8_t *host = data_pointer(va, ACCESS_WRITE, &gpa);
    slow(SLOW_CLEAR);
    if (host != NULL) __builtin_memset(host, 0, PAGE_SIZE);
    else if (hart.cause == CAUSE_NONE) raise(CAUSE_STORE_ACCESS, va);
}

// Code ----------------------------------------------------------------------------------------------------------

static uint8_t *code_pointer(uint64_t va, struct mapping *m) {
    if (!translate(va, ACCESS_FETCH, m)) return NULL;
    uint8_t *host = ram_byte(m->gpa);
    if (host == NULL) raise(CAUSE_FETCH_ACCESS, va);
    return host;
}

struct code_page *fetch_page(uint64_t va) {
    struct tlb_entry *entries = current_tlb()->code;
    if (recall(current_tlb(), entries, va)) return (struct code_page *)(uintptr_t)entries[tlb_index(va)].addend;
    struct mapping m;
    if (code_pointer(va, &m) == NULL) return NULL;
    note_entry(&m, va);
    struct code_page *page = code_page_for(frame_of(m.gpa));
    struct tlb *tlb = current_tlb();
    struct tlb_entry *e = place(tlb, tlb->code, va);
    e->addend = (uint32_t)(uintptr_t)page;
    e->frame = page->frame;
    return page;
}

// fetch_crossing reads the 32-bit instruction at va whose halves are in two pages. A fault in the second half is
// reported at that half's address; *word is then the first half.
bool fetch_crossing(uint64_t va, uint32_t *word) {
    struct mapping m;
    uint8_t *low = code_pointer(va, &m);
    if (low == NULL) return false;
    *word = (uint32_t)load_bytes(low, 2);
    uint8_t *high = code_pointer(va + 2, &m);
    if (high == NULL) return false;
    *word |= (uint32_t)load_bytes(high, 2) << 16;
    return true;
}

// Forgetting ----------------------------------------------------------------------------------------------------

void tlb_flush_all(void) {
    for (unsigned set = 0; set < 3; set++) flush_set(&hart.tlb[set]);
    hart.user_entries = 0;
    hart.local_entries = false;
    hart.largest_shift[0] = hart.largest_shift[1] = 0;
}

// tlb_flush_space drops what is not global. The caches have translations of one address space only, so there is nothing
// to look for; and the kernel's own, which are most of what is needed after a switch, stay.
void tlb_flush_space(void) {
    if (hart.local_entries) flush_set(&hart.tlb[PRIV_S]);
    hart.local_entries = false;
    tlb_sum_cleared();
    flush_set(&hart.tlb[PRIV_U]);
    if ((hart.mstatus & MSTATUS_MPRV) != 0) tlb_flush_machine();
}

void tlb_flush_machine(void) { flush_set(&hart.tlb[2]); }

// tlb_sum_cleared drops the supervisor's entries for user pages. Linux sets SUM for a copy of a few pages at most,
// so their places are remembered; beyond that everything goes.
void tlb_sum_cleared(void) {
    struct tlb *tlb = &hart.tlb[PRIV_S];
    if (hart.user_entries > sizeof hart.user_entry / sizeof hart.user_entry[0]) {
        slow(TLB_SIZE);
        __builtin_memset(tlb->read, 0xff, sizeof tlb->read);
        __builtin_memset(tlb->write, 0xff, sizeof tlb->write);
    } else {
        for (unsigned i = 0; i < hart.user_entries; i++) {
            unsigned index = hart.user_entry[i], other = index ^ TLB_OTHER;
            invalidate(&tlb->read[index]);
            invalidate(&tlb->write[index]);
            invalidate(&tlb->read[other]);
            invalidate(&tlb->write[other]);
        }
    }
    hart.user_entries = 0;
}
