// What the interpreter switches on.
#ifndef AGENTVM_OPERATIONS_H
#define AGENTVM_OPERATIONS_H

enum operation {
    OP_UNDECODED, // decode this slot, then execute it
    OP_PAGE_END,  // continue at the next page
    OP_UNDEFINED,
    OP_NOP,
    // Branches within the page, and in the same order those to others.
    OP_B,
    OP_BL,
    OP_B_COND,
    OP_CBZ_W,
    OP_CBZ_X,
    OP_CBNZ_W,
    OP_CBNZ_X,
    OP_TBZ,
    OP_TBNZ,
    OP_B_FAR,
    OP_BL_FAR,
    OP_B_COND_FAR,
    OP_CBZ_W_FAR,
    OP_CBZ_X_FAR,
    OP_CBNZ_W_FAR,
    OP_CBNZ_X_FAR,
    OP_TBZ_FAR,
    OP_TBNZ_FAR,
    OP_BR,
    OP_BLR,
    OP_BR_ZERO, // to the address in XZR
    OP_ADR,
    OP_ADRP,
    OP_GROUP_ALU,
    OP_GROUP_MEMORY,
    OP_GROUP_VMEMORY,
    OP_GROUP_STRUCTURE,
    OP_GROUP_EXCLUSIVE,
    OP_GROUP_ATOMIC,
    OP_GROUP_FP,
    OP_GROUP_SIMD,
    OP_GROUP_VFP,
    OP_GROUP_CRYPTO,
    OP_GROUP_SYSTEM,
};

#endif
