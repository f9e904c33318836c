#include "textflag.h"

// func vforkExec(clone *cloneArgs, calls *spawnCall, count uintptr, masks *signalMasks, failure *uintptr) (result int)
//
// Without a frame, so that the child, which runs on the parent's stack while that waits, leaves no trace on it.
TEXT ·vforkExec(SB),NOSPLIT|NOFRAME,$0-48
	MOVD	masks+24(FP), R1	// rt_sigprocmask(SIG_SETMASK, &masks.all, &masks.old, 8)
	ADD	$8, R1, R2
	MOVD	$2, R0
	MOVD	$8, R3
	MOVD	$135, R8
	SVC
	MOVD	clone+0(FP), R0	// clone3(clone, sizeof *clone)
	MOVD	$88, R1
	MOVD	$435, R8
	SVC
	CBZ	R0, child
	MOVD	R0, R6
	MOVD	masks+24(FP), R1	// rt_sigprocmask(SIG_SETMASK, &masks.old, NULL, 8)
	ADD	$8, R1, R1
	MOVD	$2, R0
	MOVD	ZR, R2
	MOVD	$8, R3
	MOVD	$135, R8
	SVC
	MOVD	R6, result+40(FP)
	RET
child:
	MOVD	calls+8(FP), R5
	MOVD	count+16(FP), R6
next:
	CBZ	R6, exit
	MOVD	0(R5), R8
	LDP	8(R5), (R0, R1)
	LDP	24(R5), (R2, R3)
	SVC
	CMN	$4095, R0	// carries when it is a negated error
	BCS	failed
	ADD	$40, R5
	SUB	$1, R6
	JMP	next
failed:
	NEG	R0, R0
	MOVD	failure+32(FP), R7
	MOVD	R0, (R7)
exit:
	MOVD	$253, R0	// exit_group
	MOVD	$94, R8
	SVC
	JMP	exit
