// The operands of a decoded instruction `d`, for the interpreter and its out-of-line groups.
#ifndef AGENTVM_OPERANDS_H
#define AGENTVM_OPERANDS_H

#include "hart.h"

// Register fields are byte offsets into hart.x, which is at a constant address: one load with an immediate offset.
#define X(offset) (*(uint64_t *)(uintptr_t)(HART_ADDRESS + offsetof(struct hart_state, x) + (offset)))
#define F(offset) (*(uint64_t *)(uintptr_t)(HART_ADDRESS + offsetof(struct hart_state, f) + (offset)))
#define RD X(d->rd)
#define RS1 X(d->rs1)
#define RS2 X(d->rs2)
#define IMM ((int64_t)d->imm)
#define SEXT32(v) ((uint64_t)(int64_t)(int32_t)(v))

#endif
