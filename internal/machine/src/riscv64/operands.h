// The operands of a decoded instruction `d`, for the interpreter and its out-of-line groups.
#ifndef AGENTVM_OPERANDS_H
#define AGENTVM_OPERANDS_H

#include "hart.h"

// Register fields are byte offsets into hart.x, which is at a constant address: one load with an immediate offset.
#define X(offset) (*(uint64_t *)((uintptr_t)&hart + offsetof(struct hart_state, x) + (offset)))
#define F(offset) (*(uint64_t *)((uintptr_t)&hart + offsetof(struct hart_state, f) + (offset)))
#ifndef SLOT_RD // the interpreter's loop has the slot's fields elsewhere
#define SLOT_RD d->rd
#define SLOT_RS1 d->rs1
#define SLOT_RS2 d->rs2
#define SLOT_IMM d->imm
#endif
#define RD X(SLOT_RD)
#define RS1 X(SLOT_RS1)
#define RS2 X(SLOT_RS2)
#define IMM ((int64_t)SLOT_IMM)
#define SEXT32(v) ((uint64_t)(int64_t)(int32_t)(v))

#endif
