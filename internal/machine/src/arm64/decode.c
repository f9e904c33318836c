// Decoding: an instruction word becomes a struct insn for the interpreter. What has no operation of its own is one of its group's: imm is then the
// word, and rd and rn the two bytes of the instruction's number.
#include "hart.h"

static bool is(const struct instruction_row *row, uint32_t w) {
    if ((w & row->bits.mask) != row->bits.match) return false;
    for (unsigned i = 0; i < row->excepts; i++) {
        const struct instruction_bits *e = &instruction_exceptions[row->except + i];
        if ((w & e->mask) == e->match) return false;
    }
    return true;
}

int instruction_of(uint32_t w) {
    uint32_t key = w >> 21 & 255;
    for (unsigned i = bucket_start[key]; i < bucket_start[key + 1]; i++)
        if (is(&instruction_rows[bucket_rows[i]], w)) return bucket_rows[i];
    return -1;
}

// logical_immediate gives the mask of a logical instruction: a run of ones, rotated and repeated (C3.4.2, DecodeBitMasks). false: reserved.
bool logical_immediate(uint32_t w, uint64_t *mask) {
    unsigned rotation = field(w, 16, 6), ones = field(w, 10, 6), size = 64;
    if ((w >> 22 & 1) == 0) {
        for (size = 32; size > 1 && (ones & size) != 0;) size /= 2;
        if (size < 2) return false;
    }
    ones &= size - 1;
    rotation &= size - 1;
    if (ones == size - 1) return false;
    uint64_t element = (1ull << (ones + 1)) - 1, all = size == 64 ? ~0ull : (1ull << size) - 1;
    if (rotation != 0) element = (element >> rotation | element << (size - rotation)) & all;
    for (; size < 64; size *= 2) element |= element << size;
    *mask = w >> 31 ? element : (uint32_t)element;
    return true;
}

static const uint8_t group_operation[] = {
    [GROUP_ALU] = OP_GROUP_ALU,         [GROUP_MEMORY] = OP_GROUP_MEMORY,       [GROUP_VMEMORY] = OP_GROUP_VMEMORY,
    [GROUP_STRUCTURE] = OP_GROUP_STRUCTURE, [GROUP_EXCLUSIVE] = OP_GROUP_EXCLUSIVE, [GROUP_ATOMIC] = OP_GROUP_ATOMIC,
    [GROUP_FP] = OP_GROUP_FP,           [GROUP_SIMD] = OP_GROUP_SIMD,           [GROUP_CRYPTO] = OP_GROUP_CRYPTO,
    [GROUP_VFP] = OP_GROUP_VFP,
    [GROUP_SYSTEM] = OP_GROUP_SYSTEM,   [GROUP_NOP] = OP_NOP,
};

static uint8_t offset_of(unsigned r) { return (uint8_t)(r * 8); }

// branch fills in what a branch of the format has: the distance in bytes of code, which are half those of slots.
static void branch(struct insn *d, unsigned id, uint32_t w, uint32_t at) {
    int64_t distance = 0;
    switch (id) {
    case ID_B: d->op = OP_B; distance = signed_field(w, 0, 26); break;
    case ID_BL: d->op = OP_BL; distance = signed_field(w, 0, 26); break;
    case ID_B_COND: d->op = OP_B_COND; d->rm = w & 15; distance = signed_field(w, 5, 19); break;
    case ID_CBZ_W: d->op = OP_CBZ_W; distance = signed_field(w, 5, 19); break;
    case ID_CBZ_X: d->op = OP_CBZ_X; distance = signed_field(w, 5, 19); break;
    case ID_CBNZ_W: d->op = OP_CBNZ_W; distance = signed_field(w, 5, 19); break;
    case ID_CBNZ_X: d->op = OP_CBNZ_X; distance = signed_field(w, 5, 19); break;
    case ID_TBZ: case ID_TBNZ:
        d->op = id == ID_TBZ ? OP_TBZ : OP_TBNZ;
        d->rm = (uint8_t)(w >> 31 << 5 | field(w, 19, 5));
        distance = signed_field(w, 5, 14);
        break;
    case ID_ADR: case ID_ADRP:
        d->op = rd_of(w) == 31 ? OP_NOP : id == ID_ADR ? OP_ADR : OP_ADRP;
        d->imm = (int32_t)((uint32_t)signed_field(w, 5, 19) << 2 | field(w, 29, 2));
        return;
    default: // br, blr, ret
        d->op = rn_of(w) == 31 ? OP_BR_ZERO : id == ID_BLR ? OP_BLR : OP_BR;
        d->imm = id == ID_BLR;
        return;
    }
    d->imm = (int32_t)distance * 4;
    uint32_t target = at + (uint32_t)d->imm;
    bool test = id != ID_B && id != ID_BL && id != ID_B_COND;
    if (test && rd_of(w) == 31) { // XZR is zero: always, or never
        bool taken = id == ID_CBZ_W || id == ID_CBZ_X || id == ID_TBZ;
        d->op = taken ? OP_B : OP_NOP;
    }
    if (target >= PAGE_SIZE && d->op != OP_NOP) d->op += OP_B_FAR - OP_B;
}

// decode_slot decodes the instruction at word `index` of the page.
void decode_slot(struct code_page *page, uint32_t index) {
    const uint32_t *code = ram_at(RAM_BASE + (uint64_t)page->frame * PAGE_SIZE, PAGE_SIZE);
    uint32_t w = code[index];
    struct insn *d = &page->slot[index];
    int id = instruction_of(w);
    if (id < 0) {
        *d = (struct insn){.op = OP_UNDEFINED, .imm = (int32_t)w};
        return;
    }
    unsigned group = instruction_rows[id].group;
    if (group == GROUP_BRANCH) {
        *d = (struct insn){.rd = offset_of(rd_of(w)), .rn = offset_of(rn_of(w))};
        branch(d, (unsigned)id, w, index * 4);
        return;
    }
    *d = (struct insn){.op = group_operation[group], .rd = (uint8_t)id, .rn = (uint8_t)(id >> 8), .imm = (int32_t)w};
}
