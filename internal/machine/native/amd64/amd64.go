// Package amd64 translates pages of RISC-V code to native code of amd64 in a single pass: a pure function from a page's bytes and some
// entries to position-independent code. It is trusted with nothing: package verify proves of each translation, from its bytes alone, that
// it reaches nothing outside of the machine's linear memory.
//
//	r15  linear memory                       rbx rbp rsi rdi r8 r9 r10 r11  sp s0 a0 a1 a2 a3 a4 a5 of the guest
//	r14  table of entries                    rax rcx rdx                    free
//	r13  what is left of the budget          rsp                            where ret returns to the machine
//	r12  TLB of the current privilege level
//
// The other guest registers are in the hart. While translated code runs, the hart's pc is the virtual address of the executed page; where it
// is left, that of the next instruction, and nothing else is half done: the interpreter executes what is not translated, misses the TLB or
// might exceed the budget.
package amd64

import "agentvm/internal/machine/native/blocks"

// What all translators share.
type (
	Layout      = blocks.Layout
	Page        = blocks.Page
	Translation = blocks.Translation
	Entry       = blocks.Entry
)

const (
	PageSize   = blocks.PageSize
	MaxEntries = blocks.MaxEntries
)
