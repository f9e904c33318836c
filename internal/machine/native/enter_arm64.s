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
	VEOR V0.B16, V0.B16, V0.B16 // nor what was in vector registers
	VEOR V1.B16, V1.B16, V1.B16
	VEOR V2.B16, V2.B16, V2.B16
	VEOR V3.B16, V3.B16, V3.B16
	VEOR V4.B16, V4.B16, V4.B16
	VEOR V5.B16, V5.B16, V5.B16
	VEOR V6.B16, V6.B16, V6.B16
	VEOR V7.B16, V7.B16, V7.B16
	VEOR V8.B16, V8.B16, V8.B16
	VEOR V9.B16, V9.B16, V9.B16
	VEOR V10.B16, V10.B16, V10.B16
	VEOR V11.B16, V11.B16, V11.B16
	VEOR V12.B16, V12.B16, V12.B16
	VEOR V13.B16, V13.B16, V13.B16
	VEOR V14.B16, V14.B16, V14.B16
	VEOR V15.B16, V15.B16, V15.B16
	VEOR V16.B16, V16.B16, V16.B16
	VEOR V17.B16, V17.B16, V17.B16
	VEOR V18.B16, V18.B16, V18.B16
	VEOR V19.B16, V19.B16, V19.B16
	VEOR V20.B16, V20.B16, V20.B16
	VEOR V21.B16, V21.B16, V21.B16
	VEOR V22.B16, V22.B16, V22.B16
	VEOR V23.B16, V23.B16, V23.B16
	VEOR V24.B16, V24.B16, V24.B16
	VEOR V25.B16, V25.B16, V25.B16
	VEOR V26.B16, V26.B16, V26.B16
	VEOR V27.B16, V27.B16, V27.B16
	VEOR V28.B16, V28.B16, V28.B16
	VEOR V29.B16, V29.B16, V29.B16
	VEOR V30.B16, V30.B16, V30.B16
	VEOR V31.B16, V31.B16, V31.B16
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

// func enterA64(code, memory, entries, tlb, hart uintptr, page uint64)
// The same for arm64 guests, whose vector registers are the host's. FPCR is the guest's meanwhile, and what FPSR collects is added to the guest's.
TEXT ·enterA64(SB), 0, $32-48
	MOVD hart+32(FP), R0
	MRS  FPCR, R1
	MOVD R1, fpcr-8(SP)
	MOVWU 848(R0), R2
	CMP  R1, R2
	BEQ  same
	MSR  R2, FPCR

same:
	MSR  ZR, FPSR
	FLDPQ 256(R0), (F0, F1)
	FLDPQ 288(R0), (F2, F3)
	FLDPQ 320(R0), (F4, F5)
	FLDPQ 352(R0), (F6, F7)
	FLDPQ 384(R0), (F8, F9)
	FLDPQ 416(R0), (F10, F11)
	FLDPQ 448(R0), (F12, F13)
	FLDPQ 480(R0), (F14, F15)
	FLDPQ 512(R0), (F16, F17)
	FLDPQ 544(R0), (F18, F19)
	FLDPQ 576(R0), (F20, F21)
	FLDPQ 608(R0), (F22, F23)
	FLDPQ 640(R0), (F24, F25)
	FLDPQ 672(R0), (F26, F27)
	FLDPQ 704(R0), (F28, F29)
	FLDPQ 736(R0), (F30, F31)
	MOVD code+0(FP), R17
	MOVD memory+8(FP), R23
	MOVD entries+16(FP), R24
	MOVD tlb+24(FP), R25
	SUB  R23, R25, R25
	MOVD page+40(FP), R1
	MOVD R1, 768(R0) // pc
	MOVD 776(R0), R26
	LDP  0(R0), (R4, R5)
	LDP  16(R0), (R7, R9)
	LDP  32(R0), (R10, R11)
	MOVD 64(R0), R12
	LDP  152(R0), (R13, R14)
	LDP  168(R0), (R15, R16)
	MOVD 184(R0), R19
	LDP  232(R0), (R20, R21)
	MOVD 248(R0), R22
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
	MOVD R26, 776(R0)
	STP  (R4, R5), 0(R0)
	STP  (R7, R9), 16(R0)
	STP  (R10, R11), 32(R0)
	MOVD R12, 64(R0)
	STP  (R13, R14), 152(R0)
	STP  (R15, R16), 168(R0)
	MOVD R19, 184(R0)
	STP  (R20, R21), 232(R0)
	MOVD R22, 248(R0)
	FSTPQ (F0, F1), 256(R0)
	FSTPQ (F2, F3), 288(R0)
	FSTPQ (F4, F5), 320(R0)
	FSTPQ (F6, F7), 352(R0)
	FSTPQ (F8, F9), 384(R0)
	FSTPQ (F10, F11), 416(R0)
	FSTPQ (F12, F13), 448(R0)
	FSTPQ (F14, F15), 480(R0)
	FSTPQ (F16, F17), 512(R0)
	FSTPQ (F18, F19), 544(R0)
	FSTPQ (F20, F21), 576(R0)
	FSTPQ (F22, F23), 608(R0)
	FSTPQ (F24, F25), 640(R0)
	FSTPQ (F26, F27), 672(R0)
	FSTPQ (F28, F29), 704(R0)
	FSTPQ (F30, F31), 736(R0)
	MRS  FPSR, R1
	MOVD $0x0800009f, R2 // QC, IDC, IXC, UFC, OFC, DZC and IOC
	AND  R2, R1, R1
	MOVWU 852(R0), R2
	ORR  R1, R2, R2
	MOVW R2, 852(R0)
	MOVD fpcr-8(SP), R1
	MRS  FPCR, R2
	CMP  R1, R2
	BEQ  done
	MSR  R1, FPCR

done:
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
