package machine_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"agentvm/internal/machine"
	"agentvm/internal/machine/riscv"
)

// TestRunELFRefuses: files that are no programs for this machine.
func TestRunELFRefuses(t *testing.T) {
	good := makeELF(finisher(0x5555))
	change := func(offset int, value byte) []byte {
		b := bytes.Clone(good)
		b[offset] = value
		return b
	}
	low := wrapELF(0x1_0000, []byte{0x13, 0, 0, 0})
	cases := []struct {
		name    string
		program []byte
		message string
	}{
		{"empty", nil, "read the program"},
		{"text", []byte("#!/bin/sh\necho\n"), "read the program"},
		{"x86-64", change(18, 62), "not for 64-bit RISC-V"},
		{"an object file", change(16, 1), "not a linked program"},
		{"below RAM", low, "outside the machine's"},
		{"shorter than it says", good[:len(good)-8], "read the program's segment"},
		{"larger than RAM", wrapELF(machine.RAMBase+64<<20-4, make([]byte, 8)), "outside the machine's"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := testProgram(t).RunELF(t.Context(), bytes.NewReader(c.program), machine.ELFOptions{})
			if err == nil || !strings.Contains(err.Error(), c.message) {
				t.Errorf("error %v, want one about %q", err, c.message)
			}
		})
	}
}

// TestRunELFMode: which programs start in M-mode by default.
func TestRunELFMode(t *testing.T) {
	poweroff := finisher(0x5555)
	usesMachine := append([]uint32{csrr(5, "mhartid")}, poweroff...)
	sbiShutdown := append(loadImmediate(17, 8), 0x73, jumpToSelf)
	cases := []struct {
		name   string
		code   []uint32
		mode   machine.ELFMode
		passes bool
	}{
		{"a machine-level CSR", usesMachine, machine.ELFAuto, true},
		{"a machine-level CSR in S-mode", usesMachine, machine.ELFSupervisor, false},
		{"SBI", sbiShutdown, machine.ELFAuto, true},
		{"SBI in M-mode", sbiShutdown, machine.ELFMachine, false},
		{"neither", poweroff, machine.ELFAuto, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			result, err := testProgram(t).RunELF(t.Context(), bytes.NewReader(makeELF(c.code)), machine.ELFOptions{Mode: c.mode, MaxInstructions: 10_000})
			if result.Passed != c.passes || c.passes && err != nil {
				t.Errorf("%+v, %v; should pass: %v", result, err, c.passes)
			}
		})
	}
}

// FuzzELF runs damaged programs: an error or a result, but no panic and no hang.
func FuzzELF(f *testing.F) {
	f.Add(makeELF(finisher(0x5555)))
	f.Add(makeELF([]uint32{encode("addi", riscv.Operands{}), jumpToSelf}))
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, program []byte) {
		result, err := testProgram(t).RunELF(t.Context(), bytes.NewReader(program), machine.ELFOptions{
			Memory: machine.MinMemory, MaxInstructions: 20_000, Timeout: 5 * time.Second,
		})
		if err == nil && !result.Passed && result.ExitCode() == 0 {
			t.Errorf("%+v", result)
		}
		if err != nil && result.Passed {
			t.Errorf("%+v with %v", result, err)
		}
	})
}

// FuzzHTIF lets a program store any word to tohost.
func FuzzHTIF(f *testing.F) {
	for _, word := range []uint64{1, 3, 0x8000_0000, 0x0101_0000_0000_0041, ^uint64(0), 0x8000_0100} {
		f.Add(word, uint64(64), uint64(machine.RAMBase), uint64(4))
	}
	f.Fuzz(func(t *testing.T, word, number, address, length uint64) {
		var console bytes.Buffer
		result, err := testProgram(t).RunELF(t.Context(), bytes.NewReader(toHostELF(word, number, address, length)), machine.ELFOptions{
			Memory: machine.MinMemory, MaxInstructions: 20_000, Timeout: 5 * time.Second, Console: &console,
		})
		if err == nil && result.Passed != (result.Code == 0) {
			t.Errorf("%+v", result)
		}
		if word != 0 && word&1 == 0 && err == nil && word>>48 != 0x101 && number != 93 && word>>48 != 0x100 {
			t.Errorf("tohost %#x, call %d: no error, %+v", word, number, result)
		}
		if errors.Is(err, machine.ErrELFLimit) && console.Len() > 20_000 {
			t.Errorf("%d bytes printed", console.Len())
		}
	})
}

// toHostELF is a program with a section .tohost that holds the word from the start, and a system call's block at 0x100.
func toHostELF(word, number, address, length uint64) []byte {
	content := make([]byte, 0x200)
	binary.LittleEndian.PutUint32(content, jumpToSelf)
	binary.LittleEndian.PutUint64(content[0x80:], word)
	for i, v := range []uint64{number, 1, address, length} {
		binary.LittleEndian.PutUint64(content[0x100+8*i:], v)
	}
	return withSection(wrapELF(machine.RAMBase, content), ".tohost", machine.RAMBase+0x80)
}

// withSection adds section headers: none, one by name, and the names.
func withSection(program []byte, name string, address uint64) []byte {
	const headerSize = 64
	names := "\x00" + name + "\x00.shstrtab\x00"
	at := uint64(len(program))
	program = append(program, names...)
	headers := make([]byte, 3*headerSize)
	put := func(section int, nameAt, kind uint32, addr, offset, size uint64) {
		h := headers[section*headerSize:]
		binary.LittleEndian.PutUint32(h, nameAt)
		binary.LittleEndian.PutUint32(h[4:], kind)
		binary.LittleEndian.PutUint64(h[16:], addr)
		binary.LittleEndian.PutUint64(h[24:], offset)
		binary.LittleEndian.PutUint64(h[32:], size)
	}
	put(1, 1, 1, address, 4096, 8)
	put(2, uint32(len(name)+2), 3, 0, at, uint64(len(names)))
	binary.LittleEndian.PutUint64(program[40:], uint64(len(program)))
	binary.LittleEndian.PutUint16(program[60:], 3)
	binary.LittleEndian.PutUint16(program[62:], 2)
	return append(program, headers...)
}
