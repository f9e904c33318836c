// Package jit translates pages of RISC-V code to WebAssembly: a pure function from the bytes of a page and a set of
// entries to a module. It knows nothing of wazero, files or time; the same input gives the same bytes, so that compiled
// modules can be kept and shared.
//
// A region is the code of some 4 KiB pages that its entries reach without leaving their page. It becomes one function,
// which keeps the guest's registers in locals, and goes from page to page by the machine's TLB. What a region cannot do, it
// leaves to the interpreter, with the pc of the instruction that is next. docs/internals/translator.md has what the machine does with it.
//
//	(func $region (param $hart i32) (param $tlb i32) (param $page i64) (param $self i64) (param $entry i32))
//
// Only code that was executed before is translated ("seen"); where control would continue elsewhere, or where another region begins
// ("stops"), the region leaves. Nothing depends on addresses: the virtual address of the executed page is a local.
//
//   - Between pages: a jump to another page, and an indirect one, looks up the code TLB and the decoded slot of its target, as the interpreter
//     does, and continues when the slot stands for this very function. So what ends a mapping or a translation for the interpreter
//     (sfence.vma, fence.i, a store to the code) ends it here.
//   - Registers: in loops of up to 400 instructions guest registers are in locals, loaded where the loop is entered and stored where it is
//     left. Elsewhere a local holds a value only within a run of blocks without a join. Floating-point registers stay in the hart.
//   - Control flow is structured by the dominator tree. A loop with several heads gets a dispatcher; an indirect jump to an entry of the same
//     region goes through the region's root. Both choose among entries by halves, without br_table.
//   - Loads and stores look up the TLB. Accesses by one register, near each other, look once; where they turn out to lie in two pages, the
//     region is translated again with each looking by itself (Page.Single). A miss leaves the region.
//   - The machine is called for CSR instructions, and for floating point where the host's arithmetic does not provably give the same bits and
//     flags.
//   - The interpreter keeps fence.i, ecall, ebreak, returns from traps, wfi, sfence.vma, cache blocks, orc.b, rev8, and 32-bit instructions
//     across two pages.
//   - Budget: each loop head, each entry, and places after many instructions compare what is left with the longest way to the next such
//     place, and leave when it might not suffice.
//
// All functions are safe for concurrent use; a Request and a Layout are only read.
package jit

// PageSize is the size of a guest page, in bytes.
const PageSize = 4096

// Layout says where the machine has what regions use. Addresses are in linear memory; offsets are relative to the
// structure named. The machine reports it (struct jit_layout of internal/machine/src/jit.h), in this order.
type Layout struct {
	X, F, PC, Budget       uint32 // offsets in the hart; registers have 8 bytes each
	MStatus, FRM, FFlags   uint32 // offsets in the hart
	Reservation, Reserved  uint32 // offsets of LR's address and value
	Read, Write, Code      uint32 // offsets of the TLB's tables in the set of a privilege level
	Entries, EntrySize     uint32 // of a table; both powers of two
	Tag, Addend            uint32 // offsets in an entry
	SlotSize, OpTranslated uint32 // bytes of a decoded slot; the operation that stands for a translated one
	Version                uint32 // of the contract
}

// Version of the contract between regions and the machine that this package was written for.
const Version = 5

// Request is what to translate.
type Request struct {
	Pages []Page
	Limit int // guest instructions at most; 0 is DefaultLimit
}

// Page is code of a request. Nothing depends on where the pages are mapped.
type Page struct {
	Code    []byte   // PageSize bytes
	Entries []uint16 // offsets where the machine enters; even, ascending, without duplicates
	Keep    []uint16 // of Entries: those that stay entries although code of the region leads there; nil: all
	Stops   []uint16 // offsets that other regions begin at: this one leaves there
	Seen    []byte   // a bit for each halfword, the lowest first: what was executed before; nil: all. Regions have nothing else
	Single  []byte   // a bit for each halfword, too; nil: none. An access there shares no look at the TLB with those near it
}

// DefaultLimit of the instructions of a region.
const DefaultLimit = 600

// Region is a translated region.
type Region struct {
	Module       []byte  // exports "get": get(0) is the function
	Entries      []Entry // what can be entered; the index is the function's argument
	Instructions int     // of the guest
}

// Entry is a place of a request: an offset in one of its pages.
type Entry struct {
	Page   int
	Offset uint16
}
