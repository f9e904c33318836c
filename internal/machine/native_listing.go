package machine

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/arch/arm64/arm64asm"
	"golang.org/x/arch/x86/x86asm"

	"agentvm/internal/machine/native/amd64"
	"agentvm/internal/machine/native/arm64"
	arm64verify "agentvm/internal/machine/native/arm64/verify"
	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/native/verify"
	"agentvm/internal/machine/riscv"
)

// ListOptions says of which part of a program the translation is listed. The zero value is all of it.
type ListOptions struct {
	Function string // the symbol of a function, instead of addresses
	From, To uint64 // virtual addresses of instructions, To is the first one behind; both 0: all
	Arch     string // of the host, amd64 or arm64; empty: amd64
}

// listedLayout is where listed code has the hart and the TLB; a machine has its own addresses.
var listedLayout = blocks.Layout{
	X: 0x10000, F: 0x10100, PC: 0x10200, MStatus: 0x10248, RoundingMode: 0x10240, Reservation: 0x10300, Reserved: 0x10308, RAM: 0x100000, Frame: 0x4000,
	Write: 0x10000, Code: 0x20000, Entries: 4096, Other: 2048, EntrySize: 16, Addend: 8,
	Supervisor: blocks.Supervisor{Privilege: 0x10220, STVec: 0x10310, SScratch: 0x10318, SEPC: 0x10320, SCause: 0x10328, STVal: 0x10330, MIP: 0x10338, MIE: 0x10340, UserEntries: 0x10348, UserEntry: 0x10350},
	ARM64: blocks.ARM64{
		Flags: 0x10600, FlagA: 0x10608, FlagB: 0x10610, FPCR: 0x10618, FPSR: 0x1061c, CPACR: 0x10620, SCTLR: 0x10628, EL: 0x10630, IRQ: 0x10634, SPSelect: 0x10638,
		PState: 0x10640, TPIDR: 0x10648, TPIDRRO: 0x10650, TPIDR1: 0x10658, SP: 0x10660, ELR: 0x10668, SPSR: 0x10670, ESR: 0x10678, FAR: 0x10680,
		TTBR0: 0x10688, TTBR1: 0x10690, TCR: 0x10698, UserTLB: 0x80000,
	},
	Generation: 0x30410, Jumps: 0x30420,
	Walk: blocks.Walk{Scratch: 0x10500, RAMBytes: 0x10520, CodeIndex: 0x20000, Dirty: 0x30000, SATP: 0x10528, SlowLeft: 0x10530, LargestShift: 0x10538, EntryFrame: 12, Filled: 0x30000, Noted: 0x30004, MaxNoted: 512},
}

// listedGuest is what a listing needs of a program's instruction set.
type listedGuest struct {
	align       uint64
	size        func(low uint16) uint64 // of an instruction, whose first 16 bits are known
	disassemble func(word uint32, at uint64) string
}

var listedGuests = map[blocks.Guest]listedGuest{
	blocks.GuestRISCV64: {2, func(low uint16) uint64 {
		if low&3 == 3 {
			return 4
		}
		return 2
	}, riscv.Disassemble},
	blocks.GuestARM64: {4, func(uint16) uint64 { return 4 }, func(word uint32, at uint64) string {
		inst, err := arm64asm.Decode(binary.LittleEndian.AppendUint32(nil, word))
		if err != nil { // it does not know all
			return fmt.Sprintf(".word %#08x", word)
		}
		return arm64asm.GNUSyntax(inst)
	}},
}

type translate func(*blocks.Layout, blocks.Page) (blocks.Translation, bool)

// listedHost is what a listing needs for an architecture.
type listedHost struct {
	translate   map[blocks.Guest]translate
	prove       func(code []byte, entries []int, proof func(at int, text string)) error
	disassemble func(code []byte, at int) (text string, size int, err error)
}

var listedHosts = map[string]listedHost{
	"amd64": {map[blocks.Guest]translate{blocks.GuestRISCV64: amd64.Translate, blocks.GuestARM64: amd64.TranslateA64}, func(code []byte, entries []int, proof func(int, string)) error {
		proofs, err := verify.Prove(code, entries)
		for _, p := range proofs {
			proof(p.At, p.Text)
		}
		return err
	}, func(code []byte, at int) (string, int, error) {
		inst, err := x86asm.Decode(code, 64)
		return x86asm.IntelSyntax(inst, uint64(at), nil), inst.Len, err
	}},
	"arm64": {map[blocks.Guest]translate{blocks.GuestRISCV64: arm64.Translate, blocks.GuestARM64: arm64.TranslateA64}, func(code []byte, entries []int, proof func(int, string)) error {
		proofs, err := arm64verify.Prove(code, entries)
		for _, p := range proofs {
			proof(p.At, p.Text)
		}
		return err
	}, func(code []byte, _ int) (string, int, error) {
		inst, err := arm64asm.Decode(code)
		if err != nil { // of most instructions on vector registers
			return fmt.Sprintf(".inst %#08x", binary.LittleEndian.Uint32(code)), 4, nil
		}
		return arm64asm.GNUSyntax(inst), 4, nil
	}},
}

// elfProcessor gives the one that an ELF file is for, that of riscv64 when it is for another.
func elfProcessor(program io.ReaderAt) *processor {
	const at = 18 // e_machine
	var machine [2]byte
	if _, err := program.ReadAt(machine[:], at); err == nil && elf.Machine(binary.LittleEndian.Uint16(machine[:])) == elf.EM_AARCH64 {
		return &arm64Processor
	}
	return &riscv64Processor
}

// ListTranslation writes the instructions of a program for riscv64 or arm64 beside the native code that they become, page by page, each operand in memory
// with the verifier's proof. A page is translated as if all its instructions that are listed had been executed.
func ListTranslation(w io.Writer, program io.ReaderAt, o ListOptions) error {
	guest := elfProcessor(program)
	file, err := guest.openELF(program)
	if err != nil {
		return fmt.Errorf("want a linked program for riscv64 or arm64 in ELF: %w", err)
	}
	host, ok := listedHosts[cmp.Or(o.Arch, "amd64")]
	if !ok {
		return fmt.Errorf("there is no native code for %q, only for amd64 and arm64", o.Arch)
	}
	l := listing{w: w, guest: listedGuests[guest.guest], translate: host.translate[guest.guest], layout: listedLayout, host: host, from: o.From, to: o.To, functions: map[uint64]string{}}
	l.layout.Guest = guest.guest
	if l.from == 0 && l.to == 0 {
		l.to = ^uint64(0)
	}
	symbols, err := file.Symbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return fmt.Errorf("read the program's symbols: %w", err)
	}
	found := false
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC {
			continue
		}
		l.functions[s.Value] = s.Name
		if o.Function != "" && s.Name == o.Function && !found {
			found, l.from, l.to = true, s.Value, s.Value+s.Size
		}
	}
	if o.Function != "" && (!found || l.to <= l.from) {
		return fmt.Errorf("the program has no function %q with a size among its %d symbols", o.Function, len(symbols))
	}
	any := false
	for _, c := range codeOf(file) {
		if c.to < c.from || c.to > 1<<63 {
			return fmt.Errorf("the program has %#x bytes of code at %#x, more than there are addresses", c.to-c.from, c.from)
		}
		if c.from < l.to && c.to > l.from {
			any = true
			if err := l.code(c); err != nil {
				return err
			}
		}
	}
	if !any {
		return fmt.Errorf("the program has no code from %#x to %#x", l.from, l.to)
	}
	return nil
}

// codePart is executable bytes of a file, with the virtual addresses of the first one and behind the last.
type codePart struct {
	from, to uint64
	bytes    io.ReaderAt
}

// codeOf gives the executable sections, or segments when there are none. Compressed sections are not what a segment loads.
func codeOf(file *elf.File) []codePart {
	var parts []codePart
	for _, s := range file.Sections {
		if s.Flags&(elf.SHF_EXECINSTR|elf.SHF_COMPRESSED) == elf.SHF_EXECINSTR && s.Type == elf.SHT_PROGBITS {
			parts = append(parts, codePart{s.Addr, s.Addr + s.FileSize, s.ReaderAt})
		}
	}
	if len(parts) > 0 {
		return parts
	}
	for _, s := range file.Progs {
		if s.Type == elf.PT_LOAD && s.Flags&elf.PF_X != 0 {
			parts = append(parts, codePart{s.Vaddr, s.Vaddr + s.Filesz, s.ReaderAt})
		}
	}
	return parts
}

type listing struct {
	w         io.Writer
	guest     listedGuest
	translate translate
	layout    blocks.Layout
	host      listedHost
	from, to  uint64
	functions map[uint64]string // by address
}

// code lists the wanted instructions of a part.
func (l *listing) code(c codePart) error {
	next, end := (max(c.from, l.from)+l.guest.align-1)&^(l.guest.align-1), min(c.to, l.to)
	for next < end {
		page := next &^ (blocks.PageSize - 1)
		first, last := max(page, c.from), min(page+blocks.PageSize+2, c.to) // with the second half of an instruction across the pages
		content := make([]byte, blocks.PageSize+2)
		if n, _ := c.bytes.ReadAt(content[first-page:last-page], int64(first-c.from)); n < int(last-first) {
			return fmt.Errorf("the file ends within the program's code, at %#x", first+uint64(n))
		}
		offsets := []int{}
		for next < min(end, page+blocks.PageSize) {
			offsets = append(offsets, int(next-page))
			next += l.guest.size(binary.LittleEndian.Uint16(content[next-page:]))
		}
		if err := l.page(page, content, offsets); err != nil {
			return err
		}
	}
	return nil
}

// page lists the instructions at some offsets of a page.
func (l *listing) page(address uint64, content []byte, offsets []int) error {
	request := blocks.Page{
		Code: content[:blocks.PageSize], Second: binary.LittleEndian.Uint16(content[blocks.PageSize:]), Seen: make([]byte, blocks.PageSize/16), Places: true,
	}
	for _, at := range offsets {
		request.Seen[at/16] |= 1 << (at / 2 % 8)
	}
	made, _ := l.translate(&l.layout, request)
	var entries []int
	for _, e := range made.Entries {
		entries = append(entries, e.At)
	}
	why := map[int]string{}
	if err := l.host.prove(made.Code, entries, func(at int, text string) { why[at] = "; " + text }); err != nil {
		return fmt.Errorf("the translation of the page at %#x is refused: %w", address, err)
	}
	host := map[int][]string{} // by the offset of the guest's instruction
	for i, p := range made.Places {
		end := len(made.Code)
		if i+1 < len(made.Places) {
			end = made.Places[i+1].At
		}
		for at := p.At; at < end; {
			text, size, err := l.host.disassemble(made.Code[at:end], at)
			if err != nil {
				return fmt.Errorf("disassemble % x: %w", made.Code[at:min(at+15, end)], err)
			}
			line := fmt.Sprintf("%5x  %-22x %-44s %s", at, made.Code[at:at+size], text, why[at])
			host[p.Offset] = append(host[p.Offset], strings.TrimRight(line, " "))
			at += size
		}
	}
	for _, at := range offsets {
		if name := l.functions[address+uint64(at)]; name != "" {
			fmt.Fprintf(l.w, "%s:\n", printable(name))
		}
		word := uint32(binary.LittleEndian.Uint16(content[at:]))
		if l.guest.size(uint16(word)) == 4 {
			word |= uint32(binary.LittleEndian.Uint16(content[at+2:])) << 16
		}
		guest := fmt.Sprintf("%10x  %s", address+uint64(at), strings.Replace(l.guest.disassemble(word, address+uint64(at)), "\t", " ", 1))
		if host[at] == nil {
			host[at] = []string{"       left to the interpreter"}
		}
		if err := l.lines(guest, host[at]); err != nil {
			return err
		}
	}
	return l.lines(fmt.Sprintf("            ways out of page %x:", address), host[blocks.PageSize])
}

// lines writes lines of the host, the first one beside the guest's.
func (l *listing) lines(guest string, host []string) error {
	for _, line := range host {
		if _, err := fmt.Fprintf(l.w, "%-42s%s\n", guest, line); err != nil {
			return err
		}
		guest = ""
	}
	return nil
}

// printable is a name from the file without what a terminal would obey.
func printable(name string) string {
	return cmp.Or(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, name), "?")
}
