#include "textflag.h"

// func exchange128(at unsafe.Pointer, operands *[6]uint64)
TEXT ·exchange128(SB), NOSPLIT, $0-16
	MOVQ at+0(FP), DI
	MOVQ operands+8(FP), SI
	MOVQ 0(SI), AX
	MOVQ 8(SI), DX
	MOVQ 16(SI), BX
	MOVQ 24(SI), CX
	LOCK
	CMPXCHG16B (DI)
	MOVQ AX, 32(SI)
	MOVQ DX, 40(SI)
	RET
