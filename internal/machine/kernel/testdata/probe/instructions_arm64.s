#include "textflag.h"

// func instructions() uint64
TEXT ·instructions(SB), NOSPLIT, $0-8
	MRS CNTVCT_EL0, R0
	LSL $4, R0
	MOVD R0, ret+0(FP)
	RET
