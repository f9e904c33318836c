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

// PageSize is the size of a guest page, in bytes.
const PageSize = 4096

// Layout says where the machine has what translations use.
type Layout struct {
	X, F, PC, MStatus     uint32 // addresses in linear memory; registers have 8 bytes each
	Reservation, Reserved uint32 // addresses of LR's address and value
	Read, Write, Code     uint32 // offsets of the tables in the TLB of a privilege level
	RAM                   uint32 // address of the first page
	Frame                 uint32 // offset in a decoded page of the number of the page of RAM
	Entries, EntrySize    uint32 // of a table; the size is 16
	Tag, Addend           uint32 // offsets in its entries
}

// MaxEntries is the size of the table of entries. An entry is an address, then the decoded slot that stands for it, of 8 bytes each. The
// slot has its index from bit 8 on.
const MaxEntries = 1 << 18

// Page is what to translate.
type Page struct {
	Code    []byte   // PageSize bytes
	Entries []uint16 // offsets where to begin
	Second  uint16   // second half of an instruction that begins in the last halfword, to be checked when it is executed; 0: not known
	Seen    []byte   // a bit for each halfword, the lowest first: what was executed before, and no more is translated; nil: all
}

// Translation is a page's code.
type Translation struct {
	Code         []byte
	Entries      []Entry // where it may be entered, ascending: all places that control reaches from elsewhere
	Instructions int     // of the guest
}

// Entry is an offset in the page, and where its code is.
type Entry struct{ Offset, At int }
