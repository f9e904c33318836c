#include "textflag.h"

// func exchange128(at unsafe.Pointer, operands *[6]uint64)
// What was found is written back where it is not what was expected: only then is it known to have been there at once (DDI 0487, B2.2.1).
TEXT ·exchange128(SB), NOSPLIT, $0-16
	MOVD at+0(FP), R0
	MOVD operands+8(FP), R1
	LDP  0(R1), (R2, R3)
	LDP  16(R1), (R4, R5)
again:
	LDAXP (R0), (R6, R7)
	CMP   R2, R6
	BNE   differs
	CMP   R3, R7
	BNE   differs
	STLXP (R4, R5), (R0), R8
	CBNZ  R8, again
	STP   (R6, R7), 32(R1)
	RET
differs:
	STLXP (R6, R7), (R0), R8
	CBNZ  R8, again
	STP   (R6, R7), 32(R1)
	RET
