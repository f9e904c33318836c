#include "textflag.h"

// The kernel has put the address of rt_sigreturn into the return address.
TEXT quietHandler<>(SB),NOSPLIT|NOFRAME,$0-0
	RET

// func quietHandlerAddress() uintptr
TEXT ·quietHandlerAddress(SB),NOSPLIT,$0-8
	MOVD	$quietHandler<>(SB), R0
	MOVD	R0, ret+0(FP)
	RET
