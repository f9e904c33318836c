package blocks

// What a walk of arm64's page tables knows of registers and descriptors (DDI 0487, D8.3, D24.2).
const (
	SCTLRM = 1 << 0 // SCTLR_EL1: addresses are translated

	// Of TCR_EL1: T0SZ and T1SZ, EPD0 and EPD1, and in its upper half IPS.
	TCRSizes    = 63 | 63<<16
	TCRDisabled = 1<<7 | 1<<23
	TCR48       = 16 | 16<<16 // both halves have 48 bits
	TCRMemory   = 7
	TCRMemory40 = 2 // physical addresses have 40 bits

	DescriptorValid     = 1
	DescriptorTable     = 3 // or, at the last level, a page
	DescriptorUser      = 1 << 6
	DescriptorReadOnly  = 1 << 7
	DescriptorAF        = 1 << 10
	DescriptorNotGlobal = 1 << 11
	DescriptorTableAP   = 61 // the shift of APTable
)
