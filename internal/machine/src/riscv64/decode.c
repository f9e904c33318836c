// Decoding: an instruction word becomes a struct insn for the interpreter.
//
// What imm holds: for ALU, load and store operations the immediate; for branches and jumps within the page the
// distance in bytes of slots (8 bytes a halfword, so 4 times the distance in code bytes); for the out-of-line
// groups imm = id | extra << 8, where extra is the immediate, the CSR number, the rounding mode and rs3, or nothing.
#include "jit.h"

static inline uint32_t bits(uint32_t w, unsigned hi, unsigned lo) { return w >> lo & ((1u << (hi - lo + 1)) - 1); }

static inline int32_t sign(uint32_t value, unsigned width) {
    return (int32_t)(value << (32 - width)) >> (32 - width);
}

static inline uint8_t reg(uint32_t number) { return (uint8_t)(number * 8); }
static inline uint8_t creg(uint32_t number) { return (uint8_t)((number + 8) * 8); } // x8..x15

static int32_t imm_s(uint32_t w) { return sign(bits(w, 31, 25) << 5 | bits(w, 11, 7), 12); }

static int32_t imm_b(uint32_t w) {
    return sign(bits(w, 31, 31) << 12 | bits(w, 7, 7) << 11 | bits(w, 30, 25) << 5 | bits(w, 11, 8) << 1, 13);
}

static int32_t imm_j(uint32_t w) {
    return sign(bits(w, 31, 31) << 20 | bits(w, 19, 12) << 12 | bits(w, 20, 20) << 11 | bits(w, 30, 21) << 1, 21);
}

static int32_t imm_cj(uint32_t w) {
    return sign(bits(w, 12, 12) << 11 | bits(w, 11, 11) << 4 | bits(w, 10, 9) << 8 | bits(w, 8, 8) << 10 |
                    bits(w, 7, 7) << 6 | bits(w, 6, 6) << 7 | bits(w, 5, 3) << 1 | bits(w, 2, 2) << 5,
                12);
}

static int32_t imm_cb(uint32_t w) {
    return sign(bits(w, 12, 12) << 8 | bits(w, 11, 10) << 3 | bits(w, 6, 5) << 6 | bits(w, 4, 3) << 1 |
                    bits(w, 2, 2) << 5,
                9);
}

static int32_t imm_ci(uint32_t w) { return sign(bits(w, 12, 12) << 5 | bits(w, 6, 2), 6); }
static int32_t imm_clw(uint32_t w) { return (int32_t)(bits(w, 12, 10) << 3 | bits(w, 6, 6) << 2 | bits(w, 5, 5) << 6); }
static int32_t imm_cld(uint32_t w) { return (int32_t)(bits(w, 12, 10) << 3 | bits(w, 6, 5) << 6); }
static uint32_t shamt_c(uint32_t w) { return bits(w, 12, 12) << 5 | bits(w, 6, 2); }

static int32_t imm_ci16(uint32_t w) {
    return sign(bits(w, 12, 12) << 9 | bits(w, 6, 6) << 4 | bits(w, 5, 5) << 6 | bits(w, 4, 3) << 7 |
                    bits(w, 2, 2) << 5,
                10);
}

static int32_t imm_ciw(uint32_t w) {
    return (int32_t)(bits(w, 12, 11) << 4 | bits(w, 10, 7) << 6 | bits(w, 6, 6) << 2 | bits(w, 5, 5) << 3);
}

static void operands(struct insn *d, uint8_t rd, uint8_t rs1, uint8_t rs2, int32_t imm) {
    d->rd = rd;
    d->rs1 = rs1;
    d->rs2 = rs2;
    d->imm = imm;
}

// operands32 fills the fields of a 32-bit instruction.
static void operands32(uint32_t w, const struct instruction_row *row, struct insn *d) {
    uint8_t rd = reg(bits(w, 11, 7)), rs1 = reg(bits(w, 19, 15)), rs2 = reg(bits(w, 24, 20));
    int32_t id = row->id;
    switch (row->format) {
    case FORMAT_U: operands(d, rd, 0, 0, (int32_t)(w & 0xfffff000)); break;
    case FORMAT_J: operands(d, rd, 0, 0, imm_j(w)); break;
    case FORMAT_I: case FORMAT_L: case FORMAT_FL: operands(d, rd, rs1, 0, (int32_t)w >> 20); break;
    case FORMAT_B: operands(d, 0, rs1, rs2, imm_b(w)); break;
    case FORMAT_S: case FORMAT_FS: operands(d, 0, rs1, rs2, imm_s(w)); break;
    case FORMAT_SH6: operands(d, rd, rs1, 0, (int32_t)bits(w, 25, 20)); break;
    case FORMAT_SH5: operands(d, rd, rs1, 0, (int32_t)bits(w, 24, 20)); break;
    case FORMAT_CSR: case FORMAT_CSRI: operands(d, rd, rs1, 0, id | (int32_t)(bits(w, 31, 20) << 8)); break;
    case FORMAT_R4: operands(d, rd, rs1, rs2, id | (int32_t)(bits(w, 14, 12) << 8 | bits(w, 31, 27) << 11)); break;
    case FORMAT_FRM: case FORMAT_FXM: case FORMAT_XFM:
        operands(d, rd, rs1, rs2, id | (int32_t)(bits(w, 14, 12) << 8));
        break;
    default: operands(d, rd, rs1, rs2, id); break;
    }
    bool immediate = row->format == FORMAT_I || row->format == FORMAT_SH6 || row->format == FORMAT_SH5;
    if (immediate && (row->op == OP_GROUP_BIT || row->op == OP_GROUP_ALU)) d->imm = id | d->imm << 8;
}

// operands16 does the same for a compressed instruction; false when its operand values are reserved.
static bool operands16(uint32_t w, uint8_t format, struct insn *d) {
    uint8_t r7 = reg(bits(w, 11, 7)), r2 = reg(bits(w, 6, 2)), c7 = creg(bits(w, 9, 7)), c2 = creg(bits(w, 4, 2));
    uint8_t sp = reg(2);
    switch (format) {
    case FORMAT_CIW: operands(d, c2, sp, 0, imm_ciw(w)); return d->imm != 0;
    case FORMAT_CLW: operands(d, c2, c7, 0, imm_clw(w)); return true;
    case FORMAT_CLD: case FORMAT_CLFD: operands(d, c2, c7, 0, imm_cld(w)); return true;
    case FORMAT_CSW: operands(d, 0, c7, c2, imm_clw(w)); return true;
    case FORMAT_CSD: case FORMAT_CSFD: operands(d, 0, c7, c2, imm_cld(w)); return true;
    case FORMAT_CNOP: operands(d, 0, 0, 0, 0); return true;
    case FORMAT_CI: operands(d, r7, r7, 0, imm_ci(w)); return true;
    case FORMAT_CIW1: operands(d, r7, r7, 0, imm_ci(w)); return r7 != 0;
    case FORMAT_CLI: operands(d, r7, 0, 0, imm_ci(w)); return true;
    case FORMAT_CI16: operands(d, sp, sp, 0, imm_ci16(w)); return d->imm != 0;
    case FORMAT_CLUI: operands(d, r7, 0, 0, (int32_t)((uint32_t)imm_ci(w) << 12)); return d->imm != 0;
    case FORMAT_CBSH: operands(d, c7, c7, 0, (int32_t)shamt_c(w)); return true;
    case FORMAT_CBI: operands(d, c7, c7, 0, imm_ci(w)); return true;
    case FORMAT_CA: operands(d, c7, c7, c2, 0); return true;
    case FORMAT_CJ: operands(d, 0, 0, 0, imm_cj(w)); return true;
    case FORMAT_CB: operands(d, 0, c7, 0, imm_cb(w)); return true;
    case FORMAT_CISH: operands(d, r7, r7, 0, (int32_t)shamt_c(w)); return true;
    case FORMAT_CIFD:
        operands(d, r7, sp, 0, (int32_t)(bits(w, 12, 12) << 5 | bits(w, 6, 5) << 3 | bits(w, 4, 2) << 6));
        return true;
    case FORMAT_CILW:
        operands(d, r7, sp, 0, (int32_t)(bits(w, 12, 12) << 5 | bits(w, 6, 4) << 2 | bits(w, 3, 2) << 6));
        return r7 != 0;
    case FORMAT_CILD:
        operands(d, r7, sp, 0, (int32_t)(bits(w, 12, 12) << 5 | bits(w, 6, 5) << 3 | bits(w, 4, 2) << 6));
        return r7 != 0;
    case FORMAT_CJR: operands(d, 0, r7, 0, 0); return r7 != 0;
    case FORMAT_CJALR: operands(d, reg(1), r7, 0, 0); return true;
    case FORMAT_CMV: operands(d, r7, 0, r2, 0); return true;
    case FORMAT_CADD: operands(d, r7, r7, r2, 0); return true;
    case FORMAT_CSSW: operands(d, 0, sp, r2, (int32_t)(bits(w, 12, 9) << 2 | bits(w, 8, 7) << 6)); return true;
    case FORMAT_CSSD: case FORMAT_CSSFD:
        operands(d, 0, sp, r2, (int32_t)(bits(w, 12, 10) << 3 | bits(w, 9, 7) << 6));
        return true;
    default: operands(d, 0, 0, 0, 0); return true;
    }
}

static const struct instruction_row *find_row(uint32_t w) {
    if ((w & 3) == 3) {
        uint32_t key = (w >> 2 & 31) << 3 | (w >> 12 & 7);
        for (unsigned i = bucket32_start[key]; i < bucket32_start[key + 1]; i++) {
            const struct instruction_row *row = &instruction_rows[bucket32_rows[i]];
            if ((w & row->mask) == row->match) return row;
        }
        return NULL;
    }
    uint32_t key = (w & 3) << 3 | (w >> 13 & 7);
    for (unsigned i = bucket16_start[key]; i < bucket16_start[key + 1]; i++) {
        const struct instruction_row *row = &instruction_rows[bucket16_rows[i]];
        if ((w & row->mask) == row->match) return row;
    }
    return NULL;
}

// writes_only_rd tells the instructions whose sole effect is on rd, so that they do nothing when rd is x0.
static bool writes_only_rd(unsigned id) {
    return (id >= ID_ADDI && id <= ID_SRAW) || (id >= ID_MUL && id <= ID_REMUW) || id == ID_LUI || id == ID_AUIPC ||
           (id >= ID_ADD_UW && id <= ID_REV8) || (id >= ID_C_ADDI && id <= ID_C_LUI) || id == ID_C_SLLI ||
           id == ID_C_MV || id == ID_C_ADD;
}

// branch replaces the target of a branch or jump by a distance in slots, or by its far form when the target is in
// another page. `offset` is the instruction's place in its page.
static void branch(struct insn *d, uint32_t offset, bool is_long) {
    uint32_t target = offset + (uint32_t)d->imm;
    // The translator counts jumps back and calls.
    bool counted = jit.enabled && (d->imm < 0 || (d->op == OP_JAL && d->rd != 0)), here = target < PAGE_SIZE, near = here && !counted;
    switch (d->op) {
    case OP_JAL:
    case OP_C_J:
        if (!near) d->op = here ? OP_JUMP_COUNTED : OP_JUMP_FAR;
        else if (d->rd == 0) d->op = OP_J;
        break;
    default:
        if (near) break;
        unsigned condition = d->op == OP_C_BEQZ ? 0 : d->op == OP_C_BNEZ ? 1 : d->op - OP_BEQ + (d->op > OP_BNE ? 2 : 0);
        d->op = here ? OP_BRANCH_COUNTED : OP_BRANCH_FAR;
        d->imm = (int32_t)((uint32_t)d->imm << 4 | (is_long ? 8u : 0) | condition);
        return;
    }
    if (near) d->imm *= 4;
}

// without_destination picks the form of an operation that leaves x0 alone.
static void without_destination(struct insn *d, unsigned id, bool is_long) {
    if (writes_only_rd(id)) {
        d->op = is_long ? OP_NOP : OP_C_NOP2;
    } else if (d->op == OP_JALR) {
        d->op = OP_JR;
    } else if (id >= ID_LB && id <= ID_LWU) {
        d->rs2 = (uint8_t)(id - ID_LB);
        d->op = OP_LOAD_X0;
    }
}

// alone gives an operation of the group OP_GROUP_ALU its own case of the interpreter if it has one.
static void alone(struct insn *d, unsigned id) {
    switch (id) {
    case ID_SLTI: d->op = OP_SLTI; break;
    case ID_ORI: d->op = OP_ORI; break;
    case ID_SRAI: d->op = OP_SRAI; break;
    case ID_SRAIW: d->op = OP_SRAIW; break;
    case ID_SLT: d->op = OP_SLT; break;
    case ID_SLL: d->op = OP_SLL; break;
    case ID_SRL: d->op = OP_SRL; break;
    case ID_SRA: d->op = OP_SRA; break;
    default: return;
    }
    d->imm >>= 8;
}

bool decode_word(uint32_t w, struct insn *d, uint32_t offset) {
    const struct instruction_row *row = find_row(w);
    bool is_long = (w & 3) == 3;
    if (row == NULL || row->op == OP_C_ILLEGAL) goto illegal;
    d->op = row->op;
    if (is_long) operands32(w, row, d);
    else if (!operands16(w, row->format, d)) goto illegal;
    if ((d->op >= OP_BEQ && d->op <= OP_BGEU) || d->op == OP_JAL || d->op == OP_C_J || d->op == OP_C_BEQZ ||
        d->op == OP_C_BNEZ)
        branch(d, offset, is_long);
    else if (d->rd == 0) without_destination(d, row->id, is_long);
    if (d->op == OP_ADDI && d->rs1 == 0) d->op = OP_LI;
    else if (d->op == OP_GROUP_ALU) alone(d, row->id);
    return true;
illegal:
    *d = (struct insn){.op = OP_ILLEGAL, .imm = (int32_t)(is_long ? w : w & 0xffff)};
    return false;
}

// decode_slot decodes the instruction at halfword `index` of the page. The second half of a 32-bit instruction in
// the last halfword belongs to a page that may be mapped differently each time: it is decoded at each execution.
void decode_slot(struct code_page *page, uint32_t index) {
    const uint16_t *code = ram_at(RAM_BASE + (uint64_t)page->frame * PAGE_SIZE, PAGE_SIZE);
    uint32_t word = code[index];
    struct insn *slot = &page->slot[index];
    if ((word & 3) == 3) {
        if (index == PAGE_SLOTS - 1) {
            *slot = (struct insn){.op = OP_CROSSING};
            return;
        }
        word |= (uint32_t)code[index + 1] << 16;
    }
    decode_word(word, slot, index * 2);
}
