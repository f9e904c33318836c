package arm64_test

import (
	"fmt"
	"strings"
	"testing"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/arm64"
	"agentvm/internal/machine/native/blocks"
)

var a64Layout = blocks.Layout{
	Guest: blocks.GuestARM64, X: 0x10000, F: 0x10100, PC: 0x10300, Reservation: 0x10400, Reserved: 0x10408,
	Write: 0x10000, Code: 0x20000, Entries: 4096, Other: 2048, EntrySize: 16, Addend: 8, Generation: 0x30410, Jumps: 0x30420,
	Walk: blocks.Walk{Scratch: 0x10500, RAMBytes: 0x10520, CodeIndex: 0x20000, Dirty: 0x30000, SlowLeft: 0x10530, LargestShift: 0x10538, EntryFrame: 12, Filled: 0x30000, Noted: 0x30004, MaxNoted: 512},
	ARM64: blocks.ARM64{
		FlagA: 0x10318, FlagB: 0x10320, Flags: 0x10328, EL: 0x10330, FPCR: 0x10350, FPSR: 0x10354, IRQ: 0x10358, PState: 0x10360, SP: 0x10368, SPSelect: 0x10378,
		ELR: 0x10380, SPSR: 0x10388, ESR: 0x10390, FAR: 0x10398, SCTLR: 0x103a8, TPIDR: 0x103e0, TPIDRRO: 0x103e8, TPIDR1: 0x103f0, CPACR: 0x103f8, UserTLB: 0x10800,
		TTBR0: 0x103b0, TTBR1: 0x103b8, TCR: 0x103c0,
	},
	Host: blocks.Host{AES: true, Carryless: true, SHA: true, CRC: true, RDM: true, DotProduct: true},
}

// TestA64Golden: the code of each instruction of arm64 guests is that of testdata/a64.txt, with operands in the hart and, where no memory is accessed, with operands in registers
// of the host. Of instructions on vector registers, which are translated to themselves, only those are there that are not.
func TestA64Golden(t *testing.T) {
	var text strings.Builder
	for i := range a64.Table {
		row := &a64.Table[i]
		for i, operands := range []uint32{0x2<<16 | 0x1<<10 | 0x1<<5, 0x6<<16 | 0x0<<12 | 0x7<<5 | 0x9} {
			if i == 0 && row.Group != "alu" && row.Group != "branch" && row.Group != "system" {
				continue
			}
			word := row.Bits.Match | operands&^row.Bits.Mask
			page := blocks.Page{Code: make([]byte, blocks.PageSize), Entries: []uint16{0}, Seen: make([]byte, blocks.PageSize/16)}
			page.Seen[0] = 1
			for b := range 4 {
				page.Code[b] = byte(word >> (8 * b))
			}
			if a64.Lookup(word) != row {
				continue
			}
			made, ok := arm64.TranslateA64(&a64Layout, page)
			if !ok {
				continue
			}
			code := listing(t, made.Code)
			if isSame := strings.Contains(code, fmt.Sprintf("\t%08x\t", word)); isSame && (row.Group == "simd" || row.Group == "vfp" || row.Group == "fp" || row.Group == "crypto") {
				continue
			}
			code, _, _ = strings.Cut(code, "\taa1e03f1\t") // where a miss of the TLB calls its routine
			lines := strings.SplitAfter(code, "\n")
			fmt.Fprintf(&text, "%s %08x\n%s", row.Name, word, strings.Join(lines[2:], "")) // behind the look at the budget
		}
	}
	compareGolden(t, "testdata/a64.txt", text.String())
}
