// Package blocks has what the translators to native code share: their input and output, and the blocks of a page.
package blocks

import "slices"

// PageSize is the size of a guest page, in bytes.
const PageSize = 4096

// Guest is a machine's instruction set.
type Guest uint8

// The guests that there are.
const (
	GuestRISCV64 Guest = iota
	GuestARM64
)

// Layout says where the machine has what translations use.
type Layout struct {
	Guest                 Guest
	X, F, PC, MStatus     uint32 // addresses in linear memory; registers have 8 bytes each
	RoundingMode, Flags   uint32 // addresses of frm and fflags, of 4 bytes
	Supervisor            Supervisor
	ARM64                 ARM64
	Reservation, Reserved uint32 // addresses of LR's address and value
	Read, Write, Code     uint32 // offsets of the tables in the TLB of a privilege level
	RAM                   uint32 // address of the first page
	Frame                 uint32 // offset in a decoded page of the number of the page of RAM
	Entries, EntrySize    uint32 // of a table; the size is 16
	Other                 uint32 // a page is at one of two entries; the number of the second is that of the first xor this
	Tag, Addend           uint32 // offsets in its entries
	Jumps                 uint32 // offset in the TLB of a cache of MaxJumps jumps: the address, then entry and generation, of 8 bytes each
	Generation            uint32 // offset in the TLB of the generation of the jumps that are valid, in the upper half of 8 bytes
	Places                uint32 // address of a word of 8 bytes for each guest register, for the place of a group of accesses by it
	Walk                  Walk
	Host                  Host
	Harts                 bool // the machine has several: what is atomic is so by the host's atomic instructions
}

// Host is what translated code may use of the host's processor, which not all have.
type Host struct {
	Fused     bool // it multiplies and adds with one rounding: FMA3 on amd64
	AES       bool // AES-NI on amd64, FEAT_AES on arm64
	Carryless bool // PCLMULQDQ, FEAT_PMULL
	SHA       bool // SHA-NI, FEAT_SHA1 and FEAT_SHA256

	CRC, RDM, DotProduct bool // FEAT_CRC32, FEAT_RDM and FEAT_DotProd
}

// Walk says where the machine has what a walk of page tables uses. The order is that of struct jit_layout of src/common/jit.c.
type Walk struct {
	Scratch                      uint32 // address of 16 words of 8 bytes for native code alone
	RAMBytes                     uint32 // address of the size of RAM, 8 bytes
	CodeIndex                    uint32 // address of 2 bytes for each page of RAM: not zero where it is code
	Dirty                        uint32 // address of a byte for each page of linear memory: zero where a store is to be noted
	SATP, SlowLeft, LargestShift uint32 // addresses of words of 8 bytes; the last are two, for addresses of each half
	EntryFrame                   uint32 // offset in an entry of the TLB of the number of the page of RAM
	Filled, Noted, MaxNoted      uint32 // offsets in the TLB of how many of its entries are filled, and of the numbers of the first MaxNoted, of 2 bytes
}

// At adds the address of the hart to offsets in it.
func (w Walk) At(hart uint32) Walk {
	for _, place := range []*uint32{&w.SATP, &w.SlowLeft, &w.LargestShift} {
		*place += hart
	}
	return w
}

// MaxEntries is the size of the table of entries. An entry is an address, then the decoded slot that stands for it, of 8 bytes each. The
// slot has its index from bit 8 on.
const MaxEntries = 1 << 18

// Supervisor has the addresses of what CSR instructions of S-mode use. Words have 8 bytes, but the privilege, which has 4.
type Supervisor struct {
	Privilege                            uint32
	STVec, SScratch, SEPC, SCause, STVal uint32
	MIP, MIE                             uint32
	UserEntries, UserEntry               uint32 // how many pages of the TLB go when SUM is cleared, and the number, of 2 bytes, of the first one's entry
}

// At adds the address of the hart to offsets in it.
func (s Supervisor) At(hart uint32) Supervisor {
	for _, place := range []*uint32{&s.Privilege, &s.STVec, &s.SScratch, &s.SEPC, &s.SCause, &s.STVal, &s.MIP, &s.MIE, &s.UserEntries, &s.UserEntry} {
		*place += hart
	}
	return s
}

// ARM64 has the addresses of what translations of arm64 code use. Registers have 8 bytes, but fpcr, fpsr, the exception level, the interrupt line and
// SPSel, which have 4. The flags are those of enum flags in src/arm64/hart.h, with both operands.
type ARM64 struct {
	Flags, FlagA, FlagB        uint32
	FPCR, FPSR, CPACR          uint32
	SCTLR, EL, IRQ, SPSelect   uint32
	PState                     uint32 // DAIF, PAN and IL
	TPIDR, TPIDRRO, TPIDR1, SP uint32 // the last is that of EL0
	ELR, SPSR, ESR, FAR        uint32
	UserTLB                    uint32 // that of EL0
	TTBR0, TTBR1, TCR          uint32
}

// At adds the address of the hart to offsets in it.
func (a ARM64) At(hart uint32) ARM64 {
	for _, place := range []*uint32{
		&a.Flags, &a.FlagA, &a.FlagB, &a.FPCR, &a.FPSR, &a.CPACR, &a.SCTLR, &a.EL, &a.IRQ, &a.SPSelect, &a.PState, &a.TPIDR, &a.TPIDRRO, &a.TPIDR1, &a.SP,
		&a.ELR, &a.SPSR, &a.ESR, &a.FAR, &a.UserTLB, &a.TTBR0, &a.TTBR1, &a.TCR,
	} {
		*place += hart
	}
	return a
}

// MaxJumps is the size of the cache of jumps, and a jump's the entry's offset in the table of entries.
const MaxJumps = 1 << 10

// Page is what to translate.
type Page struct {
	Code    []byte   // PageSize bytes
	Entries []uint16 // offsets where to begin
	Second  uint16   // second half of an instruction that begins in the last halfword, to be checked when it is executed; 0: not known
	Seen    []byte   // a bit for each halfword, the lowest first: what was executed before, and no more is translated; nil: all
	Places  bool     // wanted of the translation
}

// Translation is a page's code.
type Translation struct {
	Code         []byte
	Entries      []Entry // where it may be entered, ascending: all places that control reaches from elsewhere
	Instructions int     // of the guest
	Places       []Entry // if wanted, where the code of each instruction begins, in the order of the code; the last one is that of the ways out
}

// Entry is an offset in the page, and where its code is.
type Entry struct{ Offset, At int }

// maxBlock is how many instructions are executed at most between two looks at the budget.
const maxBlock = 64

// Step is what discovery knows of an instruction.
type Step struct {
	Size    int // bytes; 0: it is not translated
	Flow    Flow
	Target  int  // of a branch or jump, an offset from the page's start
	Returns bool // control comes to what is behind it later, as behind a call
	Ends    bool // no block continues behind it
}

// Blocks is what is known of a page, by halfword. I is a decoded instruction.
type Blocks[I any] struct {
	Page
	Decoded [PageSize / 2]I
	Steps   [PageSize / 2]Step
	Leader  [PageSize / 2]bool // control may reach it from elsewhere; it may still be untranslated

	decode func(p *Page, at int) (I, Step)
}

// Discover finds what the entries reach in the page, and then what else was executed there: code that only other pages lead to. A step without a
// size is where the code cannot be decoded.
func Discover[I any](p Page, decode func(p *Page, at int) (I, Step)) *Blocks[I] {
	b := &Blocks[I]{Page: p, decode: decode}
	b.reach(slices.Clone(p.Entries))
	if p.Seen != nil {
		for at := 0; at < PageSize; at += 2 {
			if b.seen(at) && b.Steps[at/2].Size == 0 {
				b.reach([]uint16{uint16(at)})
			}
		}
	}
	return b
}

// Block gives the number of instructions of the block that begins at a halfword, and the halfword behind it, which then leads when the block
// was cut for its length.
func (b *Blocks[I]) Block(first int) (count, end int) {
	end = first
	for {
		s := &b.Steps[end]
		count++
		end += s.Size / 2
		if s.Flow != FlowNext || end >= len(b.Steps) || b.Steps[end].Size == 0 || b.Leader[end] {
			return count, end
		}
		if count == maxBlock {
			b.Leader[end] = true
			return count, end
		}
	}
}

// reach finds what places lead to.
func (b *Blocks[I]) reach(work []uint16) {
	for len(work) > 0 {
		at := int(work[len(work)-1])
		work = work[:len(work)-1]
		lead := func(to int) {
			if to >= 0 && to < PageSize {
				work = append(work, uint16(to))
			}
		}
		for first := true; at < PageSize && b.seen(at); first = false {
			if first {
				b.Leader[at/2] = true
			}
			if b.Steps[at/2].Size != 0 {
				break
			}
			d, s := b.decode(&b.Page, at)
			if s.Size == 0 {
				break
			}
			next := at + s.Size
			if s.Flow == FlowLeave {
				lead(next) // where the interpreter is done
				break
			}
			b.Decoded[at/2], b.Steps[at/2] = d, s
			if s.Flow == FlowBranch || s.Flow == FlowJump {
				lead(s.Target)
			}
			if s.Flow == FlowBranch || s.Returns || s.Ends {
				lead(next)
			}
			if s.Flow != FlowNext || s.Ends {
				break
			}
			at = next
		}
	}
}

func (b *Blocks[I]) seen(at int) bool {
	return b.Seen == nil || b.Seen[at/16]>>(at/2%8)&1 != 0
}

// Flow is where control goes after an instruction.
type Flow int

const (
	FlowNext     Flow = iota
	FlowBranch        // to its target or the next one
	FlowJump          // to its target
	FlowIndirect      // to an address in a register
	FlowLeave         // the interpreter executes it
)
