#include "textflag.h"

// Each thread of a litmus test is a function of two words of memory, in lines of their own, that returns what it has read. The order of the
// instructions is the test; names are those of the literature (Alglave, Maranget, Sarkar, Sewell, "Litmus: running tests against hardware").

#define DMB WORD $0xd5033bbf // dmb ish

// func storeLoad(x, y *uint64) uint64: SB with a full barrier.
TEXT ·storeLoad(SB), NOSPLIT, $0-24
	MOVD x+0(FP), R0
	MOVD y+8(FP), R1
	MOVD $1, R2
	MOVD R2, (R0)
	DMB
	MOVD (R1), R3
	MOVD R3, ret+16(FP)
	RET

// func releaseAcquire(x, y *uint64) uint64: SB with a store-release and a load-acquire.
TEXT ·releaseAcquire(SB), NOSPLIT, $0-24
	MOVD x+0(FP), R0
	MOVD y+8(FP), R1
	MOVD $1, R2
	STLR R2, (R0)
	LDAR (R1), R3
	MOVD R3, ret+16(FP)
	RET

// func swapLoad(x, y *uint64) uint64: SB with an atomic operation that acquires and releases, and a load-acquire.
TEXT ·swapLoad(SB), NOSPLIT, $0-24
	MOVD x+0(FP), R0
	MOVD y+8(FP), R1
	MOVD $1, R2
	SWPALD R2, (R0), R4
	DMB
	MOVD (R1), R3
	MOVD R3, ret+16(FP)
	RET

// func storeStore(x, y *uint64) uint64: the writer of MP, and both threads of 2+2W with other values.
TEXT ·storeStore(SB), NOSPLIT, $0-24
	MOVD x+0(FP), R0
	MOVD y+8(FP), R1
	MOVD $1, R2
	MOVD R2, (R0)
	DMB
	MOVD R2, (R1)
	MOVD ZR, ret+16(FP)
	RET

// func loadLoad(x, y *uint64) uint64: the reader of MP: bit 0 is y, bit 1 is x, which it reads after it.
TEXT ·loadLoad(SB), NOSPLIT, $0-24
	MOVD x+0(FP), R0
	MOVD y+8(FP), R1
	MOVD (R1), R2
	DMB
	MOVD (R0), R3
	ORR  R3<<1, R2
	MOVD R2, ret+16(FP)
	RET

// func storeRelease(x, y *uint64) uint64: the writer of MP with a store-release.
TEXT ·storeRelease(SB), NOSPLIT, $0-24
	MOVD x+0(FP), R0
	MOVD y+8(FP), R1
	MOVD $1, R2
	MOVD R2, (R0)
	STLR R2, (R1)
	MOVD ZR, ret+16(FP)
	RET

// func loadAcquire(x, y *uint64) uint64: the reader of MP with a load-acquire.
TEXT ·loadAcquire(SB), NOSPLIT, $0-24
	MOVD x+0(FP), R0
	MOVD y+8(FP), R1
	LDAR (R1), R2
	MOVD (R0), R3
	ORR  R3<<1, R2
	MOVD R2, ret+16(FP)
	RET

// func loadStore(x, y *uint64) uint64: LB with barriers.
TEXT ·loadStore(SB), NOSPLIT, $0-24
	MOVD x+0(FP), R0
	MOVD y+8(FP), R1
	MOVD (R0), R3
	DMB
	MOVD $1, R2
	MOVD R2, (R1)
	MOVD R3, ret+16(FP)
	RET

// func addExclusive(at *uint64, rounds uint64): LDAXR and STLXR.
TEXT ·addExclusive(SB), NOSPLIT, $0-16
	MOVD at+0(FP), R0
	MOVD rounds+8(FP), R1
again:
	LDAXR (R0), R2
	ADD   $1, R2
	STLXR R2, (R0), R3
	CBNZ  R3, again
	SUB   $1, R1
	CBNZ  R1, again
	RET

// func addAtomic(at *uint64, rounds uint64): LDADD.
TEXT ·addAtomic(SB), NOSPLIT, $0-16
	MOVD at+0(FP), R0
	MOVD rounds+8(FP), R1
	MOVD $1, R2
again:
	LDADDALD R2, (R0), R3
	SUB      $1, R1
	CBNZ     R1, again
	RET

// func flipAtomic(at *uint64, bit, rounds uint64): LDEOR by a bit of this thread's, an even number of times.
TEXT ·flipAtomic(SB), NOSPLIT, $0-24
	MOVD at+0(FP), R0
	MOVD bit+8(FP), R2
	MOVD rounds+16(FP), R1
again:
	LDEORALD R2, (R0), R3
	SUB      $1, R1
	CBNZ     R1, again
	RET

// func addByCAS(at *uint64, rounds uint64): CAS.
TEXT ·addByCAS(SB), NOSPLIT, $0-16
	MOVD at+0(FP), R0
	MOVD rounds+8(FP), R1
	MOVD (R0), R2
again:
	ADD  $1, R2, R3
	MOVD R2, R4
	CASALD R4, (R0), R3
	CMP  R4, R2
	MOVD R4, R2
	BNE  again
	ADD  $1, R2
	SUB  $1, R1
	CBNZ R1, again
	RET

// func addPair(at *[2]uint64, rounds uint64): CASP of both words, of which the second goes down.
TEXT ·addPair(SB), NOSPLIT, $0-16
	MOVD at+0(FP), R0
	MOVD rounds+8(FP), R1
	LDP  (R0), (R2, R3)
again:
	ADD  $1, R2, R4
	SUB  $1, R3, R5
	MOVD R2, R6
	MOVD R3, R7
	CASPD (R6, R7), (R0), (R4, R5)
	CMP  R6, R2
	BNE  differs
	CMP  R7, R3
	BNE  differs
	MOVD R4, R2
	MOVD R5, R3
	SUB  $1, R1
	CBNZ R1, again
	RET
differs:
	MOVD R6, R2
	MOVD R7, R3
	B    again

// func publishCode(at *uint32, instruction uint32): a store of code, as DDI 0487, B2.2.5, wants it.
TEXT ·publishCode(SB), NOSPLIT, $0-12
	MOVD  at+0(FP), R0
	MOVWU instruction+8(FP), R1
	MOVW  R1, (R0)
	WORD  $0xd50b7b20 // dc cvau, x0
	WORD  $0xd5033b9f // dsb ish
	WORD  $0xd50b7520 // ic ivau, x0
	WORD  $0xd5033b9f
	ISB   $15
	RET

// func callCode(at uintptr) uint64: the code returns a value in X0 and changes nothing else.
TEXT ·callCode(SB), NOSPLIT, $16-16
	MOVD at+0(FP), R1
	ISB  $15
	CALL (R1)
	MOVD R0, ret+8(FP)
	RET
