//go:build linux || darwin || windows

#include "textflag.h"

// func enter(code, memory, entries, tlb, hart uintptr, page uint64)
// The registers are those of package arm64; places in the hart those of struct hart_state: the guest's registers at 8 bytes each, then the pc
// and the budget. The code keeps RSP, R18, g, R29 and R30; the frame has the way back.
TEXT ·enter(SB), 0, $16-48
	MOVD code+0(FP), R17
	MOVD memory+8(FP), R23
	MOVD entries+16(FP), R24
	MOVD tlb+24(FP), R25
	SUB  R23, R25, R25
	MOVD hart+32(FP), R0
	MOVD page+40(FP), R1
	MOVD R1, 512(R0) // pc
	MOVD 520(R0), R26
	LDP  8(R0), (R4, R5)
	MOVD 48(R0), R7
	MOVD 64(R0), R9
	LDP  72(R0), (R10, R11)
	LDP  88(R0), (R12, R13)
	LDP  104(R0), (R14, R15)
	LDP  120(R0), (R16, R19)
	LDP  136(R0), (R20, R21)
	MOVD 152(R0), R22
	MOVD R0, R27
	MOVD R23, R6 // places are in linear memory always
	MOVD R23, R8
	MOVD $0, R0 // the code must not see addresses of this process
	MOVD $0, R1
	MOVD $0, R2
	MOVD $0, R3
	ISB  $15    // another processor may have written the code
	CALL (R17)
	MOVD hart+32(FP), R0
	MOVD R26, 520(R0)
	STP  (R4, R5), 8(R0)
	MOVD R7, 48(R0)
	MOVD R9, 64(R0)
	STP  (R10, R11), 72(R0)
	STP  (R12, R13), 88(R0)
	STP  (R14, R15), 104(R0)
	STP  (R16, R19), 120(R0)
	STP  (R20, R21), 136(R0)
	MOVD R22, 152(R0)
	RET

// func flush(address unsafe.Pointer, size uintptr)
TEXT ·flush(SB), NOSPLIT, $0-16
	MOVD address+0(FP), R0
	MOVD size+8(FP), R1
	ADD  R0, R1, R1
	WORD $0xd53b0022 // mrs x2, ctr_el0: lengths of cache lines
	MOVD $4, R3
	UBFX $16, R2, $4, R4
	LSL  R4, R3, R4
	SUB  $1, R4, R5
	BIC  R5, R0, R5

clean:
	WORD $0xd50b7b25 // dc cvau, x5
	ADD  R4, R5, R5
	CMP  R1, R5
	BLO  clean
	DSB  $11
	UBFX $0, R2, $4, R4
	LSL  R4, R3, R4
	SUB  $1, R4, R5
	BIC  R5, R0, R5

invalidate:
	WORD $0xd50b7525 // ic ivau, x5
	ADD  R4, R5, R5
	CMP  R1, R5
	BLO  invalidate
	DSB  $11
	ISB  $15
	RET
