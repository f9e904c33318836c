#include "textflag.h"

// func instructions() uint64
TEXT ·instructions(SB), NOSPLIT, $0-8
	RDINSTRET X10
	MOV X10, ret+0(FP)
	RET
