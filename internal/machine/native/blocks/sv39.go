package blocks

// Entries of Sv39's page tables (Privileged Architecture, "Sv39: Page-Based 39-bit Virtual-Memory System"), and what else a walk knows.
const (
	EntryV = 1 << iota
	EntryR
	EntryW
	EntryX
	EntryU
	EntryG
	EntryA
	EntryD

	EntryNumber   = 10 // the shift of the page's number
	EntryReserved = 54 // of these on, bits are zero
	SATPSv39      = 8  // the mode, in the upper 4 bits

	RAMBase    = 0x8000_0000
	Superpage  = 21 // the shift of its size
	WalkCharge = 40 // SLOW_TRANSLATE of src/common/processor.h
)
