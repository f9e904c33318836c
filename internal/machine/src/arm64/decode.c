// Decoding: an instruction word becomes a struct insn for the interpreter. What has no operation of its own is one of its group's: imm is then the
// word, and rd and rn the two bytes of the instruction's number.
#include "jit.h"

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

// compare_branch has the operations of conditions that the operands of a comparison tell.
static const uint8_t compare_branch[16] = {
    OP_B_EQ, OP_B_NE, OP_B_HS, OP_B_LO, 0, 0, 0, 0, OP_B_HI, OP_B_LS, OP_B_GE, OP_B_LT, OP_B_GT, OP_B_LE, 0, 0,
};

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
    // The translator counts jumps back and calls, which those to other pages are counted as.
    bool counted = jit.enabled && (d->imm < 0 || id == ID_BL);
    if ((target >= PAGE_SIZE || counted) && d->op != OP_NOP) d->op += OP_B_FAR - OP_B;
    else if (d->op == OP_B_COND && compare_branch[d->rm] != 0) d->op = compare_branch[d->rm];
}

// Operations of the interpreter's own ------------------------------------------------------------------------------
//
// Each of these functions returns false for what has none: the group's function executes it. Register 31 has none where it is XZR, except in the
// forms that are made for it: moves, comparisons, stores of zero.

// sized_op is the operation for 64 bits, or the one after it in enum operation, for 32.
static uint8_t sized_op(uint32_t w, unsigned wide) { return (uint8_t)(w >> 31 ? wide : wide + 1); }

static bool constant(struct insn *d, uint32_t w, uint64_t value) {
    if (w >> 31 && (int64_t)value != (int32_t)value) return false;
    d->op = sized_op(w, OP_MOV_X_I);
    d->imm = (int32_t)value;
    return true;
}

static bool decode_add_immediate(struct insn *d, uint32_t w) {
    bool subtracts = w >> 30 & 1, flags = w >> 29 & 1;
    d->imm = (int32_t)(field(w, 10, 12) << (w >> 22 & 1 ? 12 : 0));
    if (!flags) {
        if (subtracts) d->imm = -d->imm;
        d->op = sized_op(w, OP_ADD_X_I);
        return true;
    }
    if (!subtracts) return false;
    d->op = sized_op(w, rd_of(w) == 31 ? OP_CMP_X_I : OP_SUBS_X_I);
    return true;
}

static bool decode_logic_immediate(struct insn *d, uint32_t w) {
    static const uint8_t op[] = {OP_AND_X_I, OP_ORR_X_I, OP_EOR_X_I, OP_TST_X_I};
    unsigned kind = field(w, 29, 2);
    uint64_t mask = 0;
    logical_immediate(w, &mask);
    if (rn_of(w) == 31) return kind == 1 && rd_of(w) != 31 && constant(d, w, mask); // MOV
    if (kind == 3 && rd_of(w) != 31) return false;
    if (w >> 31 && (int64_t)mask != (int32_t)mask) return false;
    d->op = sized_op(w, op[kind]);
    d->imm = (int32_t)mask;
    return true;
}

static bool decode_move_wide(struct insn *d, uint32_t w) {
    unsigned shift = field(w, 21, 2) * 16;
    uint64_t value = (uint64_t)field(w, 5, 16) << shift;
    if (rd_of(w) == 31) return false;
    switch (field(w, 29, 2)) {
    case 0: return constant(d, w, ~value);
    case 2: return constant(d, w, value);
    default:
        d->op = sized_op(w, OP_MOVK_X);
        d->rm = (uint8_t)shift;
        d->imm = (int32_t)field(w, 5, 16);
        return true;
    }
}

static bool decode_bit_field(struct insn *d, uint32_t w) {
    unsigned top = w >> 31 ? 63 : 31, r = field(w, 16, 6), s = field(w, 10, 6), kind = field(w, 29, 2);
    if (kind == 1 || rd_of(w) == 31 || rn_of(w) == 31) return false;
    d->op = sized_op(w, kind == 0 ? OP_SBFM_X : OP_UBFM_X);
    d->rm = (uint8_t)(top - s);
    d->imm = (int32_t)(s >= r ? top - s + r : r - s - 1);
    return true;
}

static bool decode_shifted(struct insn *d, uint32_t w) {
    static const uint8_t arithmetic[] = {OP_ADD_X, 0, OP_SUB_X, OP_SUBS_X}, logic[] = {OP_AND_X, OP_ORR_X, OP_EOR_X, OP_TST_X};
    bool is_logic = (w >> 24 & 1) == 0;
    unsigned kind = field(w, 29, 2), op = is_logic ? logic[kind] : arithmetic[kind];
    if (w >> 31 == 0 && op == OP_EOR_X && field(w, 21, 3) == 6 && rd_of(w) != 31 && rn_of(w) != 31 && rm_of(w) != 31) {
        d->op = OP_EOR_W_ROR; // SHA and the like
        d->imm = (int32_t)field(w, 10, 6);
        return true;
    }
    if (op == 0 || field(w, 22, 2) != 0 || rm_of(w) == 31 || (is_logic && (w >> 21 & 1) != 0)) return false; // shifts left alone, no BIC and the like
    d->imm = (int32_t)field(w, 10, 6);
    if (rn_of(w) == 31) {
        if (op != OP_ORR_X || d->imm != 0 || rd_of(w) == 31) return false;
        op = OP_MOV_X;
    } else if (rd_of(w) == 31) {
        if (op == OP_SUBS_X) op = OP_CMP_X;
        else if (op != OP_TST_X) return false;
    } else if (op == OP_TST_X) {
        return false;
    }
    d->op = sized_op(w, op);
    return true;
}

// decode_extended is an address's calculation: ADD of 64 bits.
static bool decode_extended(struct insn *d, uint32_t w) {
    unsigned option = field(w, 13, 3);
    if (field(w, 29, 3) != 4 || rm_of(w) == 31) return false;
    d->op = option == 2 ? OP_ADD_X_UXTW : option == 6 ? OP_ADD_X_SXTW : OP_ADD_X;
    d->imm = (int32_t)field(w, 10, 3);
    return option == 2 || option == 6 || (option & 3) == 3;
}

static bool decode_extract(struct insn *d, uint32_t w) {
    d->op = OP_EXTR_W;
    d->imm = (int32_t)field(w, 10, 6);
    return w >> 31 == 0 && rd_of(w) != 31 && rn_of(w) != 31 && rm_of(w) != 31;
}

static bool decode_select(struct insn *d, uint32_t w) {
    unsigned condition = field(w, 12, 4);
    bool increments = w >> 10 & 1;
    if (w >> 30 & 1 || rd_of(w) == 31) return false;
    d->imm = (int32_t)condition;
    if (increments && rn_of(w) == 31 && rm_of(w) == 31 && condition < 14) {
        d->op = OP_CSET;
        d->imm ^= 1;
        return true;
    }
    if (rn_of(w) == 31 || rm_of(w) == 31) return false;
    d->op = sized_op(w, increments ? OP_CSINC_X : OP_CSEL_X);
    return true;
}

static bool decode_alu(struct insn *d, unsigned id, uint32_t w) {
    switch (instruction_rows[id].format) {
    case FORMAT_ADDI: return decode_add_immediate(d, w);
    case FORMAT_LOGI: return decode_logic_immediate(d, w);
    case FORMAT_MOVW: return decode_move_wide(d, w);
    case FORMAT_BFM: return decode_bit_field(d, w);
    case FORMAT_SHIFT: return decode_shifted(d, w);
    case FORMAT_CSEL: return decode_select(d, w);
    case FORMAT_EXT: return decode_extended(d, w);
    case FORMAT_EXTR: return decode_extract(d, w);
    default:
        if ((id != ID_MADD_W && id != ID_MADD_X) || rd_of(w) == 31 || rn_of(w) == 31 || rm_of(w) == 31) return false;
        d->op = sized_op(w, OP_MADD_X);
        d->imm = ra_of(w) == 31 ? -1 : offset_of(ra_of(w));
        return true;
    }
}

// Loads and stores by what bits 31, 30, 23 and 22 say: the operation by SP if there is one, the one of XZR, by an index, after and before.
static const struct access_operations {
    uint8_t plain, stack, zero, indexed, post, pre;
} access_operations[16] = {
    [0] = {OP_STRB, 0, OP_STRB_Z, OP_STRB_R, OP_STRB_POST, OP_STRB_PRE},
    [1] = {OP_LDRB, 0, 0, OP_LDRB_R, OP_LDRB_POST, OP_LDRB_PRE},
    [2] = {OP_LDRSB_X, 0, 0, 0, 0, 0},
    [4] = {OP_STRH, 0, 0, 0, 0, 0},
    [5] = {OP_LDRH, 0, 0, OP_LDRH_R, 0, 0},
    [8] = {OP_STR_W, OP_STR_W_SP, OP_STR_W_Z, OP_STR_W_R, 0, 0},
    [9] = {OP_LDR_W, OP_LDR_W_SP, 0, OP_LDR_W_R, 0, 0},
    [10] = {OP_LDRSW, 0, 0, OP_LDRSW_R, 0, 0},
    [12] = {OP_STR_X, OP_STR_X_SP, OP_STR_X_Z, OP_STR_X_R, OP_STR_X_POST, OP_STR_X_PRE},
    [13] = {OP_LDR_X, OP_LDR_X_SP, 0, OP_LDR_X_R, OP_LDR_X_POST, OP_LDR_X_PRE},
};

static bool decode_single(struct insn *d, unsigned format, uint32_t w) {
    const struct access_operations *of = &access_operations[w >> 30 << 2 | field(w, 22, 2)];
    unsigned op = of->plain, scale = w >> 30;
    bool by_sp = rn_of(w) == 31, zero = rd_of(w) == 31;
    switch (format) {
    case FORMAT_LSU:
        d->imm = (int32_t)(field(w, 10, 12) << scale);
        break;
    case FORMAT_LSI: {
        unsigned way = field(w, 10, 2);
        if (way == 2) return false; // unprivileged
        d->imm = (int32_t)signed_field(w, 12, 9);
        if (way == 0) break;
        d->op = way == 1 ? of->post : of->pre;
        return d->op != 0 && !zero;
    }
    default: // FORMAT_LSR
        if (rm_of(w) == 31 || by_sp || zero) return false;
        if (of->plain == OP_LDRB && field(w, 13, 3) != 3) {
            unsigned option = field(w, 13, 3);
            d->op = option == 2 ? OP_LDRB_UXTW : OP_LDRB_SXTW;
            return option == 2 || option == 6;
        }
        if (field(w, 13, 3) != 3) return false;
        d->imm = w >> 12 & 1 ? (int32_t)scale : 0;
        d->op = of->indexed;
        return d->op != 0;
    }
    if (by_sp && zero) return false;
    d->op = (uint8_t)(by_sp ? of->stack : zero ? of->zero : op);
    return d->op != 0;
}

static bool decode_pair(struct insn *d, uint32_t w) {
    static const uint8_t stores[] = {OP_STP_X, OP_STP_X_POST, OP_STP_X, OP_STP_X_PRE}, loads[] = {OP_LDP_X, OP_LDP_X_POST, OP_LDP_X, OP_LDP_X_PRE};
    bool is_load = w >> 22 & 1;
    unsigned way = field(w, 23, 2);
    if (w >> 30 != 2) return false;
    d->rm = offset_of(ra_of(w));
    d->imm = (int32_t)signed_field(w, 15, 7) * 8;
    if (rd_of(w) == 31 && ra_of(w) == 31 && !is_load && (way & 1) == 0) {
        d->op = OP_STP_X_Z;
        return true;
    }
    d->op = is_load ? loads[way] : stores[way];
    return rd_of(w) != 31 && ra_of(w) != 31;
}

// decode_short gives an instruction an operation of its own.
static bool decode_short(struct insn *d, unsigned id, uint32_t w) {
    unsigned format = instruction_rows[id].format;
    *d = (struct insn){.rd = offset_of(rd_of(w)), .rn = offset_of(rn_of(w)), .rm = offset_of(rm_of(w))};
    switch (instruction_rows[id].group) {
    case GROUP_ALU: return decode_alu(d, id, w);
    case GROUP_MEMORY:
        if (format == FORMAT_LSP) return decode_pair(d, w);
        return (format == FORMAT_LSU || format == FORMAT_LSI || format == FORMAT_LSR) && decode_single(d, format, w);
    default: return false;
    }
}

// group_form is what the instruction's group executes.
static struct insn group_form(unsigned id, uint32_t w) {
    bool barrier = MAX_HARTS > 1 && (id == ID_DSB || id == ID_DMB); // of one hart they do nothing
    return (struct insn){.op = barrier ? OP_GROUP_SYSTEM : group_operation[instruction_rows[id].group], .rd = (uint8_t)id, .rn = (uint8_t)(id >> 8), .imm = (int32_t)w};
}

void decode_whole(uint32_t w, struct insn *d, uint32_t at) {
    int id = instruction_of(w);
    if (id < 0) {
        *d = (struct insn){.op = OP_UNDEFINED, .imm = (int32_t)w};
    } else if (instruction_rows[id].group == GROUP_BRANCH) {
        *d = (struct insn){.rd = offset_of(rd_of(w)), .rn = offset_of(rn_of(w))};
        branch(d, (unsigned)id, w, at);
    } else {
        *d = group_form((unsigned)id, w);
    }
}

// decode_slot decodes the instruction at word `index` of the page.
void decode_slot(struct code_page *page, uint32_t index) {
    const uint32_t *code = ram_at(RAM_BASE + (uint64_t)page->frame * PAGE_SIZE, PAGE_SIZE);
    uint32_t w = code[index];
    int id = instruction_of(w);
    struct insn own;
    if (id >= 0 && decode_short(&own, (unsigned)id, w)) page->slot[index] = own;
    else decode_whole(w, &page->slot[index], index * 4);
}
