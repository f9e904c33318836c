package machine

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
)

// ELFInfo is what LoadELF found out about a bare program. Addresses are guest physical ones.
type ELFInfo struct {
	Entry    uint64 // first instruction
	ToHost   uint64 // address of the symbol (or section) `tohost`, 0 when there is none
	FromHost uint64 // address of the symbol `fromhost`, 0 when there is none
}

// LoadELF copies a static program into RAM and sets the hart's pc to its entry. Segments outside RAM, other
// machines' programs and damaged files are errors; the machine is then unusable.
func (m *Machine) LoadELF(r io.ReaderAt) (ELFInfo, error) {
	file, err := m.processor.openELF(r)
	if err != nil {
		return ELFInfo{}, err
	}
	return m.loadELF(file)
}

func (p *processor) openELF(r io.ReaderAt) (*elf.File, error) {
	file, err := elf.NewFile(r)
	if err != nil {
		return nil, fmt.Errorf("read the program: %w", err)
	}
	if file.Machine != p.elf || file.Class != elf.ELFCLASS64 || file.Data != elf.ELFDATA2LSB {
		return nil, fmt.Errorf("the program is for %v %v, not for 64-bit %s", file.Class, file.Machine, p.name)
	}
	if file.Type != elf.ET_EXEC && file.Type != elf.ET_DYN {
		return nil, fmt.Errorf("the file is of type %v, not a linked program", file.Type)
	}
	return file, nil
}

func (m *Machine) loadELF(file *elf.File) (ELFInfo, error) {
	ram, err := m.RAM()
	if err != nil {
		return ELFInfo{}, err
	}
	for _, segment := range file.Progs {
		if segment.Type != elf.PT_LOAD || segment.Memsz == 0 || holdsFileHeader(segment) {
			continue
		}
		if err := loadSegment(ram, segment); err != nil {
			return ELFInfo{}, err
		}
	}
	info := inspectELF(file)
	return info, m.write(m.layout.Hart+m.processor.pc, info.Entry)
}

// holdsFileHeader recognises the segment of headers and notes that linkers put at a low address of their own when a
// program's code is placed with -Ttext.
func holdsFileHeader(segment *elf.Prog) bool {
	return segment.Off == 0 && segment.Flags == elf.PF_R && segment.Paddr < RAMBase
}

func inspectELF(file *elf.File) ELFInfo {
	info := ELFInfo{
		Entry:    physical(file, file.Entry),
		ToHost:   physical(file, symbol(file, "tohost")),
		FromHost: physical(file, symbol(file, "fromhost")),
	}
	if section := file.Section(".tohost"); info.ToHost == 0 && section != nil {
		info.ToHost = physical(file, section.Addr) // a stripped program
	}
	return info
}

// physical turns an address that the program is linked at into the one that it is loaded at.
func physical(file *elf.File, address uint64) uint64 {
	for _, s := range file.Progs {
		if s.Type == elf.PT_LOAD && address >= s.Vaddr && address-s.Vaddr < s.Memsz {
			return address - s.Vaddr + s.Paddr
		}
	}
	return address
}

func loadSegment(ram []byte, segment *elf.Prog) error {
	offset := segment.Paddr - RAMBase
	if offset >= uint64(len(ram)) || segment.Memsz > uint64(len(ram))-offset || segment.Filesz > segment.Memsz {
		return fmt.Errorf("the program's segment of %d bytes at %#x is outside the machine's %d MiB of RAM at %#x",
			segment.Memsz, segment.Paddr, len(ram)>>20, uint64(RAMBase))
	}
	into := ram[offset : offset+segment.Memsz]
	if _, err := io.ReadFull(segment.Open(), into[:segment.Filesz]); err != nil {
		return fmt.Errorf("read the program's segment at %#x: %w", segment.Paddr, err)
	}
	clear(into[segment.Filesz:])
	return nil
}

func symbol(file *elf.File, name string) uint64 {
	symbols, err := file.Symbols()
	if err != nil {
		return 0
	}
	for _, s := range symbols {
		if s.Name == name {
			return s.Value
		}
	}
	return 0
}

// usesMachineMode tells whether the program has instructions that only M-mode may execute: mret, or an access to a
// machine-level CSR. It reads executable sections, or segments when there are none, from start to end, as a
// disassembler does.
func usesMachineMode(file *elf.File) bool {
	for _, s := range file.Sections {
		if s.Flags&elf.SHF_EXECINSTR != 0 && s.Type == elf.SHT_PROGBITS && hasMachineInstruction(s.Open(), s.FileSize) {
			return true
		}
	}
	if len(file.Sections) > 1 {
		return false
	}
	for _, s := range file.Progs {
		if s.Type == elf.PT_LOAD && s.Flags&elf.PF_X != 0 && hasMachineInstruction(s.Open(), s.Filesz) {
			return true
		}
	}
	return false
}

func hasMachineInstruction(code io.Reader, size uint64) bool {
	data, err := io.ReadAll(io.LimitReader(code, int64(min(size, MaxMemory))))
	if err != nil {
		return false // loading will say so
	}
	for len(data) >= 4 {
		word := binary.LittleEndian.Uint32(data)
		if word&3 != 3 {
			data = data[2:]
			continue
		}
		if isMachineInstruction(word) {
			return true
		}
		data = data[4:]
	}
	return false
}

func isMachineInstruction(word uint32) bool {
	const system, mret = 0x73, 0x30200073
	accessesCSR := word>>12&3 != 0 // funct3 1-3 and 5-7
	return word == mret || word&0x7f == system && accessesCSR && word>>28&3 == 3
}
