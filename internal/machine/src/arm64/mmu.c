// Address translation: VMSAv8-64 with the 4 KiB granule (DDI 0487, chapter D8), the translation caches, and the slow paths of loads, stores and
// fetches. The access flag and the dirty state are kept by the hart (FEAT_HAFDBS) when the kernel asks for it.
#include "hart.h"
#include "tlb_fill.h"

enum access { ACCESS_READ, ACCESS_WRITE, ACCESS_FETCH };

#define TCR_HA (1ull << 39)
#define TCR_HD (1ull << 40)
#define TCR_EPD0 (1ull << 7)
#define TCR_EPD1 (1ull << 23)
#define TCR_TBI0 (1ull << 37)
#define TCR_TBI1 (1ull << 38)

// Descriptors (D8.3).
#define DESC_VALID 1ull
#define DESC_TABLE 2ull // at level 3: a page
#define DESC_USER (1ull << 6)      // AP[1]
#define DESC_READ_ONLY (1ull << 7) // AP[2]
#define DESC_AF (1ull << 10)
#define DESC_NOT_GLOBAL (1ull << 11)
#define DESC_DBM (1ull << 51)
#define DESC_PXN (1ull << 53)
#define DESC_UXN (1ull << 54)
#define TABLE_PXN (1ull << 59)
#define TABLE_UXN (1ull << 60)
#define TABLE_NO_USER (1ull << 61)   // APTable[0]
#define TABLE_READ_ONLY (1ull << 62) // APTable[1]
#define DESC_ADDRESS 0x0000fffffffff000ull

enum { PHYSICAL_BITS = 40 }; // ID_AA64MMFR0_EL1.PARange

static inline uint8_t *ram_byte(uint64_t gpa) { return gpa - RAM_BASE < ram_bytes ? ram + (uint32_t)(gpa - RAM_BASE) : NULL; }
static inline uint64_t *ram_entry(uint64_t gpa) { return (uint64_t *)ram_byte(gpa); } // aligned, so all of it is there

struct mapping {
    uint64_t gpa;
    uint64_t desc;  // its descriptor, 0 without translation
    bool user_page; // EL0 may access it
    bool may_write; // the descriptor says so now
    bool global;    // the same in all address spaces
    uint8_t shift;  // its size: 12, or that of a block
};

// abort_access: the class says where an access came from, and an unprivileged one of EL1 is one of EL1.
static bool abort_access(uint64_t va, enum access access, unsigned status) {
    unsigned class = access == ACCESS_FETCH ? (hart.el == 0 ? EC_FETCH_LOWER : EC_FETCH) : hart.el == 0 ? EC_DATA_LOWER : EC_DATA;
    return raise(SYNDROME(class, status | (access == ACCESS_WRITE ? ESR_WNR : 0)), va);
}

static bool permitted(uint64_t desc, uint64_t tables, enum access access, unsigned el) {
    bool user = (desc & DESC_USER) != 0 && (tables & TABLE_NO_USER) == 0;
    bool read_only = (desc & DESC_READ_ONLY) != 0 || (tables & TABLE_READ_ONLY) != 0;
    bool wxn = (hart.sctlr & SCTLR_WXN) != 0 && !read_only;
    if (access == ACCESS_FETCH) { // D8.4.1: EL0 may execute what it may not read, and EL1 not what EL0 can write
        if (el == 0) return ((desc & DESC_UXN) | (tables & TABLE_UXN)) == 0 && !(user && wxn);
        return ((desc & DESC_PXN) | (tables & TABLE_PXN)) == 0 && !(user && !read_only) && !wxn;
    }
    if (el == 0 ? !user : user && (hart.pstate & PSTATE_PAN) != 0) return false;
    return access == ACCESS_READ || !read_only;
}

// without_tag is va as it is translated: the top byte may be the program's own (D8.8.1, TCR_EL1.TBI0 and TBI1).
static uint64_t without_tag(uint64_t va) {
    bool tagged = (hart.tcr & (va >> 55 & 1 ? TCR_TBI1 : TCR_TBI0)) != 0;
    return tagged ? (uint64_t)((int64_t)(va << 8) >> 8) : va;
}

uint64_t code_address(uint64_t va) { return without_tag(va); } // D8.8.3: PC has no tag

// beyond_memory tells physical addresses that the processor does not have, or the kernel has no use for (TCR_EL1.IPS).
static bool beyond_memory(uint64_t gpa) {
    static const uint8_t bits[] = {32, 36, PHYSICAL_BITS, PHYSICAL_BITS, PHYSICAL_BITS, PHYSICAL_BITS, PHYSICAL_BITS, PHYSICAL_BITS};
    return gpa >> bits[hart.tcr >> 32 & 7] != 0;
}

// translate finds the guest physical address of va for an access of exception level el. It raises an exception and returns false when there is none.
static bool translate(uint64_t va, enum access access, unsigned el, struct mapping *m) {
    slow(SLOW_TRANSLATE);
    if ((hart.sctlr & SCTLR_M) == 0) {
        uint64_t gpa = without_tag(va);
        if (gpa >> PHYSICAL_BITS != 0) return abort_access(va, access, FAULT_ADDRESS_SIZE);
        *m = (struct mapping){.gpa = gpa, .user_page = true, .may_write = true, .global = true, .shift = 12};
        return true;
    }
    bool upper = va >> 55 & 1;
    unsigned size = upper ? hart.tcr >> 16 & 63 : hart.tcr & 63, bits = 64 - (size < 16 ? 16 : size > 39 ? 39 : size);
    uint64_t above = without_tag(va) >> bits;
    unsigned level = bits > 39 ? 0 : bits > 30 ? 1 : 2;
    if (above != (upper ? ~0ull >> bits : 0)) return abort_access(va, access, FAULT_TRANSLATION);
    if ((hart.tcr & (upper ? TCR_EPD1 : TCR_EPD0)) != 0) return abort_access(va, access, FAULT_TRANSLATION);
    enum { MAX_TRIES = 64 };
    unsigned tries = 0, first_level = level;
again:
    level = first_level;
    uint64_t table = (upper ? hart.ttbr1 : hart.ttbr0) & 0x0000fffffffffffeull, tables = 0;
    if (beyond_memory(table)) return abort_access(va, access, FAULT_ADDRESS_SIZE);
    unsigned top = bits - (39 - 9 * level); // index bits of the first table
    for (;; level++) {
        unsigned shift = 39 - 9 * level;
        uint64_t index = va >> shift & ((1ull << top) - 1), where = table + index * 8, *entry = ram_entry(where);
        top = 9;
        if (entry == NULL) return abort_access(va, access, FAULT_EXTERNAL + 4 + level); // on a walk: 0b0101LL
        uint64_t desc = __atomic_load_n(entry, __ATOMIC_RELAXED);
        if ((desc & DESC_VALID) == 0 || ((desc & DESC_TABLE) == 0 && (level == 0 || level == 3)))
            return abort_access(va, access, FAULT_TRANSLATION + level);
        if (beyond_memory(desc & DESC_ADDRESS)) return abort_access(va, access, FAULT_ADDRESS_SIZE + level);
        if ((desc & DESC_TABLE) != 0 && level < 3) {
            tables |= desc;
            table = desc & DESC_ADDRESS;
            continue;
        }
        uint64_t wanted = desc, inside = (1ull << shift) - 1;
        if ((desc & DESC_AF) == 0) {
            if ((hart.tcr & TCR_HA) == 0) return abort_access(va, access, FAULT_ACCESS_FLAG + level);
            wanted |= DESC_AF;
        }
        bool tracked = (hart.tcr & (TCR_HA | TCR_HD)) == (TCR_HA | TCR_HD) && (desc & DESC_DBM) != 0;
        if (tracked && access == ACCESS_WRITE) wanted &= ~DESC_READ_ONLY;
        if (!permitted(wanted, tables, access, el)) return abort_access(va, access, FAULT_PERMISSION + level);
        if (wanted != desc) {
            // What another hart has just changed is walked again, but not for as long as it likes.
            if (!__atomic_compare_exchange_n(entry, &desc, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) && tries++ < MAX_TRIES) goto again;
            desc = wanted;
            ram_written(where, 8);
        }
        *m = (struct mapping){
            .gpa = (desc & DESC_ADDRESS & ~inside) | (va & inside),
            .desc = desc,
            .user_page = (desc & DESC_USER) != 0 && (tables & TABLE_NO_USER) == 0,
            .may_write = permitted(desc, tables, ACCESS_WRITE, el),
            .global = (desc & DESC_NOT_GLOBAL) == 0,
            .shift = (uint8_t)shift,
        };
        return true;
    }
}

// Filling -------------------------------------------------------------------------------------------------------

// Entries of EL1's set for pages of this address space only. Linux has none: its own pages are global.

// Entries for addresses whose top byte is a tag (TCR_EL1.TBI): the address that a program invalidates is another one's to the caches.

static void note_entry(const struct mapping *m, uint64_t va, unsigned el) {
    if ((uint64_t)((int64_t)(va << 8) >> 8) != va) hart.tagged_entries = true;
    if (m->shift > hart.largest_shift[va >> 63]) hart.largest_shift[va >> 63] = m->shift;
    if (el == 1 && !m->global) hart.local_entries = true;
}

// cached is where the TLB has the byte at va, NULL if it has it nowhere.
static uint8_t *cached(struct tlb *tlb, struct tlb_entry *entries, uint64_t va) {
    if (!recall(tlb, entries, va)) return NULL;
    const struct tlb_entry *e = &entries[tlb_index(va)];
    return (uint8_t *)(uintptr_t)((uint32_t)va + e->addend);
}

// data_pointer translates one access that stays within a page, fills the TLB, and returns where the bytes are in RAM. NULL with hart.cause unset
// means a device register at *gpa. EL1's accesses to pages of EL0 depend on PAN, so its set does not have them.
static uint8_t *data_pointer(uint64_t va, enum access access, unsigned el, uint64_t *gpa) {
    struct mapping m;
    if (!translate(va, access, el, &m)) return NULL;
    *gpa = m.gpa;
    uint8_t *host = ram_byte(m.gpa);
    if (host == NULL) return NULL;
    struct tlb *tlb = &hart.tlb[el];
    bool keep = el == 0 || !m.user_page || (hart.sctlr & SCTLR_M) == 0;
    if (keep) {
        note_entry(&m, va, el);
        fill(tlb, tlb->read, va, *gpa, host);
    }
    if (access == ACCESS_WRITE) {
        code_drop(frame_of(*gpa));
        mark_dirty(host);
        if (keep) fill(tlb, tlb->write, va, *gpa, host);
    } else if (keep && m.may_write && is_dirty(host) && !code_present(frame_of(*gpa))) {
        fill(tlb, tlb->write, va, *gpa, host); // a page that is read is often written next; a read marks none
    }
    return host;
}

static bool same_page(uint64_t va, uint32_t size) { return ((va ^ (va + size - 1)) & ~(uint64_t)(PAGE_SIZE - 1)) == 0; }

static uint64_t next_page(uint64_t va) { return (va | (PAGE_SIZE - 1)) + 1; }

static uint64_t load_within_page(uint64_t va, uint32_t size, unsigned el) {
    uint64_t gpa = 0, value = 0;
    struct tlb *tlb = &hart.tlb[el];
    uint8_t *host = cached(tlb, tlb->read, va);
    if (host == NULL) host = data_pointer(va, ACCESS_READ, el, &gpa);
    if (host != NULL) return load_bytes(host, size);
    if (hart.cause != 0) return 0;
    if ((gpa & (size - 1)) != 0 || !bus_read(gpa, size, &value)) return abort_access(va, ACCESS_READ, FAULT_EXTERNAL);
    return value;
}

uint64_t load(uint64_t va, uint32_t size, bool unprivileged) {
    unsigned el = unprivileged ? 0 : hart.el;
    if (same_page(va, size)) return load_within_page(va, size, el);
    uint64_t value = 0;
    for (uint32_t i = 0; i < size && hart.cause == 0; i++) value |= load_within_page(va + i, 1, el) << (8 * i);
    return value;
}

static void store_within_page(uint64_t va, uint64_t value, uint32_t size, unsigned el) {
    uint64_t gpa = 0;
    struct tlb *tlb = &hart.tlb[el];
    uint8_t *host = cached(tlb, tlb->write, va);
    if (host == NULL) host = data_pointer(va, ACCESS_WRITE, el, &gpa);
    if (host != NULL) {
        store_bytes(host, value, size);
        return;
    }
    if (hart.cause != 0) return;
    if ((gpa & (size - 1)) != 0 || !bus_write(gpa, value, size)) abort_access(va, ACCESS_WRITE, FAULT_EXTERNAL);
}

bool can_write(uint64_t va, uint32_t size) {
    struct mapping m;
    struct tlb *tlb = current_tlb();
    if (same_page(va, size) && recall(tlb, tlb->write, va)) return true;
    if (!translate(va, ACCESS_WRITE, hart.el, &m)) return false;
    return same_page(va, size) || translate(next_page(va), ACCESS_WRITE, hart.el, &m);
}

// A store that crosses pages writes nothing unless both pages can be written.
void store(uint64_t va, uint64_t value, uint32_t size, bool unprivileged) {
    unsigned el = unprivileged ? 0 : hart.el;
    if (same_page(va, size)) {
        store_within_page(va, value, size, el);
        return;
    }
    struct mapping m;
    if (!translate(va, ACCESS_WRITE, el, &m) || !translate(next_page(va), ACCESS_WRITE, el, &m)) return;
    for (uint32_t i = 0; i < size && hart.cause == 0; i++) store_within_page(va + i, value >> (8 * i), 1, el);
}

// The caller has seen to it that the address is aligned. A fault of what `loads` that a load would have is a load's (D24.2.40, WnR).
uint8_t *atomic_pointer(uint64_t va, bool loads) {
    uint64_t gpa = 0;
    struct mapping m;
    struct tlb *tlb = current_tlb();
    uint8_t *host = cached(tlb, tlb->write, va);
    if (host == NULL && (!loads || translate(va, ACCESS_READ, hart.el, &m))) host = data_pointer(va, ACCESS_WRITE, hart.el, &gpa);
    if (host == NULL && hart.cause == 0) abort_access(va, loads ? ACCESS_READ : ACCESS_WRITE, FAULT_EXTERNAL);
    return host;
}

// zero_block is DC ZVA, of a block of 64 bytes (DCZID_EL0). A fault has the address that the program gave.
void zero_block(uint64_t va) {
    uint64_t gpa = 0;
    struct tlb *tlb = current_tlb();
    uint8_t *host = cached(tlb, tlb->write, va);
    if (host == NULL) host = data_pointer(va, ACCESS_WRITE, hart.el, &gpa);
    if (host != NULL) __builtin_memset(host - (va & 63), 0, 64);
    else if (hart.cause == 0) abort_access(va, ACCESS_WRITE, FAULT_EXTERNAL);
}

// memory_attributes are those of PAR_EL1: the byte of MAIR_EL1, and the shareability, which is outer for what is not cached (D8.6).
static uint64_t memory_attributes(uint64_t desc) {
    uint64_t attribute = desc == 0 ? 0 : hart.mair >> (desc >> 2 & 7) * 8 & 255, shareability = desc >> 8 & 3;
    if (attribute >> 4 == 0 || attribute == 0x44) shareability = 2;
    return attribute << 56 | shareability << 7;
}

// address_translate is AT: PAR_EL1 for a read or write of exception level el, whatever PAN is (C6.2, AT; D24.2.139).
uint64_t address_translate(uint64_t va, bool write, unsigned el) {
    struct mapping m;
    uint64_t pstate = hart.pstate, par = 1ull << 11; // always one
    hart.pstate &= ~PSTATE_PAN;
    if (translate(va, write ? ACCESS_WRITE : ACCESS_READ, el, &m)) par |= (m.gpa & DESC_ADDRESS) | memory_attributes(m.desc);
    else par |= 1 | (uint64_t)(hart.cause & 63) << 1;
    hart.pstate = pstate;
    hart.cause = 0;
    return par;
}

// frame_at is what IC IVAU is for: any address that EL1 or EL0 could read has its frame.
bool frame_at(uint64_t va, uint32_t *frame) {
    struct mapping m;
    if (!translate(va, ACCESS_READ, hart.el, &m) || ram_byte(m.gpa) == NULL) return false;
    *frame = frame_of(m.gpa);
    return true;
}

// Code ----------------------------------------------------------------------------------------------------------

struct code_page *fetch_page(uint64_t va) {
    struct tlb *tlb = current_tlb();
    if (recall(tlb, tlb->code, va)) return (struct code_page *)(uintptr_t)tlb->code[tlb_index(va)].addend;
    struct mapping m;
    if (!translate(va, ACCESS_FETCH, hart.el, &m)) return NULL;
    if (ram_byte(m.gpa) == NULL) {
        abort_access(va, ACCESS_FETCH, FAULT_EXTERNAL);
        return NULL;
    }
    note_entry(&m, va, hart.el);
    struct code_page *page = code_page_for(frame_of(m.gpa));
    struct tlb_entry *e = place(tlb, tlb->code, va);
    e->addend = (uint32_t)(uintptr_t)page;
    e->frame = page->frame;
    return page;
}

// Forgetting ----------------------------------------------------------------------------------------------------

void tlb_flush_all(void) {
    for (unsigned set = 0; set < TLB_SETS; set++) flush_set(&hart.tlb[set]);
    hart.local_entries = hart.tagged_entries = false;
    hart.largest_shift[0] = hart.largest_shift[1] = 0;
}

// tlb_flush_space drops what is not global: the caches have translations of one address space only.
void tlb_flush_space(void) {
    if (hart.local_entries) flush_set(&hart.tlb[1]);
    hart.local_entries = false;
    flush_set(&hart.tlb[0]);
}

// tlb_invalidate_address is TLBI by an address, tagged or not.
void tlb_invalidate_address(uint64_t va) {
    if (hart.tagged_entries) tlb_flush_all();
    else tlb_flush_page(va);
}
