//go:build linux || darwin || windows

#include "textflag.h"

// func enter(code, memory, entries, tlb, hart uintptr, page uint64)
// The registers are those of package amd64; places in the hart those of struct hart_state: x2, x8, x10 to x15, the budget, fflags.
// The code keeps SP, so that its ret comes back here. BP is saved by the frame, R14 and X15 are restored by the caller's wrapper.
TEXT ·enter(SB), 0, $16-48
	MOVQ code+0(FP), AX
	MOVQ AX, 0(SP)
	MOVQ memory+8(FP), R15
	MOVQ entries+16(FP), R14
	MOVQ tlb+24(FP), R12
	MOVQ hart+32(FP), DX
	MOVQ page+40(FP), CX
	MOVQ CX, 512(DX) // pc
	MOVQ 520(DX), R13
	MOVQ 16(DX), BX
	MOVQ 64(DX), BP
	MOVQ 80(DX), SI
	MOVQ 88(DX), DI
	MOVQ 96(DX), R8
	MOVQ 104(DX), R9
	MOVQ 112(DX), R10
	MOVQ 120(DX), R11
	XORL AX, AX // the code must not see addresses of this process
	XORL DX, DX
	XORPS X0, X0
	XORPS X1, X1
	XORPS X2, X2
	XORPS X3, X3
	XORPS X4, X4
	XORPS X5, X5
	MOVL $0x1f80, 8(SP) // MXCSR of Go: no exceptions, to nearest; and no flag
	LDMXCSR 8(SP)
	BYTE $0xff; BYTE $0x14; BYTE $0x24 // call [rsp]
	MOVQ hart+32(FP), DX
	MOVQ R13, 520(DX)
	MOVQ BX, 16(DX)
	MOVQ BP, 64(DX)
	MOVQ SI, 80(DX)
	MOVQ DI, 88(DX)
	MOVQ R8, 96(DX)
	MOVQ R9, 104(DX)
	MOVQ R10, 112(DX)
	MOVQ R11, 120(DX)
	STMXCSR 8(SP)
	MOVL 8(SP), AX
	SHRL $5, AX // what was inexact
	ANDL $1, AX
	ORL AX, 580(DX) // fflags
	RET

// func enterA64(code, memory, entries, tlb, hart uintptr, page uint64)
// The registers are those of package amd64; places in the hart those of struct hart_state: x0 to x3, x19 to x21, sp, the budget, fpsr.
// The code keeps SP, so that its ret comes back here. BP is saved by the frame, R14 and X15 are restored by the caller's wrapper.
TEXT ·enterA64(SB), 0, $16-48
	MOVQ code+0(FP), AX
	MOVQ AX, 0(SP)
	MOVQ memory+8(FP), R15
	MOVQ entries+16(FP), R14
	MOVQ tlb+24(FP), R12
	MOVQ hart+32(FP), DX
	MOVQ page+40(FP), CX
	MOVQ CX, 768(DX) // pc
	MOVQ 776(DX), R13
	MOVQ 0(DX), BX
	MOVQ 8(DX), BP
	MOVQ 16(DX), SI
	MOVQ 24(DX), DI
	MOVQ 152(DX), R8
	MOVQ 160(DX), R9
	MOVQ 168(DX), R10
	MOVQ 248(DX), R11
	XORL AX, AX // the code must not see addresses of this process
	XORL DX, DX
	XORPS X0, X0
	XORPS X1, X1
	XORPS X2, X2
	XORPS X3, X3
	XORPS X4, X4
	XORPS X5, X5
	MOVL $0x1f80, 8(SP) // MXCSR of Go: no exceptions, to nearest; and no flag
	LDMXCSR 8(SP)
	BYTE $0xff; BYTE $0x14; BYTE $0x24 // call [rsp]
	MOVQ hart+32(FP), DX
	MOVQ R13, 776(DX)
	MOVQ BX, 0(DX)
	MOVQ BP, 8(DX)
	MOVQ SI, 16(DX)
	MOVQ DI, 24(DX)
	MOVQ R8, 152(DX)
	MOVQ R9, 160(DX)
	MOVQ R10, 168(DX)
	MOVQ R11, 248(DX)
	STMXCSR 8(SP)
	MOVL 8(SP), AX
	SHRL $1, AX // what was inexact: IXC is bit 4
	ANDL $16, AX
	ORL AX, 852(DX) // fpsr
	RET
