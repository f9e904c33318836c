package machine_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"

	"agentvm/internal/machine"
	"agentvm/internal/machine/riscv"
)

// makeELF wraps instructions in a program that is loaded at the start of RAM.
func makeELF(code []uint32) []byte {
	var text bytes.Buffer
	for _, word := range code {
		text.Write(instructionBytes(word))
	}
	return wrapELF(machine.RAMBase, text.Bytes())
}

func instructionBytes(word uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, word)
	if word&3 != 3 {
		return b[:2]
	}
	return b
}

// wrapELF makes a static program of one segment that may be read, written and executed and starts at its begin.
func wrapELF(base uint64, content []byte) []byte {
	const headers = 64 + 56
	header := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_RISCV), Version: 1, Entry: base, Phoff: 64,
		Flags: 5, Ehsize: 64, Phentsize: 56, Phnum: 1, Shentsize: 64, // compressed, double-float
	}
	copy(header.Ident[:], "\x7fELF\x02\x01\x01")
	const pageSize = 4096
	segment := elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W | elf.PF_X), Off: pageSize, Vaddr: base, Paddr: base,
		Filesz: uint64(len(content)), Memsz: uint64(len(content)), Align: pageSize,
	}
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, header)
	_ = binary.Write(&b, binary.LittleEndian, segment)
	b.Write(make([]byte, pageSize-headers))
	b.Write(content)
	return b.Bytes()
}

// loadImmediate puts any 64-bit value into a register without using another one.
func loadImmediate(rd uint8, value uint64) []uint32 {
	words := []uint32{encode("addi", riscv.Operands{Rd: rd, Imm: int64(value) >> 55})}
	for shift := 44; shift >= 0; shift -= 11 {
		words = append(words, encode("slli", riscv.Operands{Rd: rd, Rs1: rd, Imm: 11}),
			encode("addi", riscv.Operands{Rd: rd, Rs1: rd, Imm: int64(value >> shift & 0x7ff)}))
	}
	return words
}

func finisher(value uint64) []uint32 {
	code := append(loadImmediate(5, 0x10_0000), loadImmediate(6, value)...)
	return append(code, encode("sw", riscv.Operands{Rs1: 5, Rs2: 6}), jumpToSelf)
}
