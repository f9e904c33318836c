#include "textflag.h"

// func vforkExec(clone *cloneArgs, calls *spawnCall, count uintptr, masks *signalMasks, failure *uintptr) (result int)
//
// Without a frame, so that the child, which runs on the parent's stack while that waits, leaves no trace on it.
TEXT ·vforkExec(SB),NOSPLIT|NOFRAME,$0-48
	MOV	masks+24(FP), A1	// rt_sigprocmask(SIG_SETMASK, &masks.all, &masks.old, 8)
	ADD	$8, A1, A2
	MOV	$2, A0
	MOV	$8, A3
	MOV	$135, A7
	ECALL
	MOV	clone+0(FP), A0	// clone3(clone, sizeof *clone)
	MOV	$88, A1
	MOV	$435, A7
	ECALL
	BEQ	A0, ZERO, child
	MOV	A0, X6
	MOV	masks+24(FP), A1	// rt_sigprocmask(SIG_SETMASK, &masks.old, NULL, 8)
	ADD	$8, A1, A1
	MOV	$2, A0
	MOV	ZERO, A2
	MOV	$8, A3
	MOV	$135, A7
	ECALL
	MOV	X6, result+40(FP)
	RET
child:
	MOV	calls+8(FP), X5
	MOV	count+16(FP), X6
next:
	BEQ	X6, ZERO, exit
	MOV	0(X5), A7
	MOV	8(X5), A0
	MOV	16(X5), A1
	MOV	24(X5), A2
	MOV	32(X5), A3
	ECALL
	MOV	$-4096, X7
	BLTU	X7, A0, failed
	ADD	$40, X5, X5
	SUB	$1, X6, X6
	JMP	next
failed:
	SUB	A0, ZERO, A0
	MOV	failure+32(FP), X7
	MOV	A0, 0(X7)
exit:
	MOV	$253, A0	// exit_group
	MOV	$94, A7
	ECALL
	JMP	exit
