package images

import (
	"encoding/binary"
	"fmt"
)

// Architecture is the only one that the machine runs, as Linux distributions and OCI name it.
const Architecture = "riscv64"

// machineNames are the ELF machines that people are likely to import by mistake.
var machineNames = map[uint16]string{
	3: "386", 8: "mips", 20: "ppc", 21: "ppc64le", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 258: "loong64",
	machineRISCV32: "riscv32",
}

const (
	machineRISCV = 243
	// machineRISCV32 is not an ELF machine: RISC-V uses one number for both widths.
	machineRISCV32 = 0xF000 | machineRISCV
)

// elfMachine returns e_machine of the program that begins with p, or 0 when p is not one.
func elfMachine(p []byte) uint16 {
	if len(p) < 20 || string(p[:4]) != "\x7fELF" {
		return 0
	}
	if p[5] == 2 { // big endian
		return binary.BigEndian.Uint16(p[18:])
	}
	machine := binary.LittleEndian.Uint16(p[18:])
	if machine == machineRISCV && p[4] == 1 {
		return machineRISCV32
	}
	return machine
}

// ArchitectureError says that an image holds programs for another machine.
type ArchitectureError struct {
	Program string // path of a program in the image
	Machine string // the machine that the program is for
}

func (e *ArchitectureError) Error() string {
	return fmt.Sprintf("image is for %s (its %s is), but agentvm runs %s", e.Machine, e.Program, Architecture)
}

// architecture determines the tree's architecture by the first program that every system has. It returns "" when none of them is
// there: an image may hold only data.
func (b *diskBuilder) architecture() (string, error) {
	for _, path := range []string{"/bin/sh", "/bin/busybox", "/sbin/init", "/usr/bin/env", "/usr/bin/sh", "/bin/ls"} {
		n := b.root.follow(path)
		if n == nil || n.machine == 0 {
			continue
		}
		if n.machine == machineRISCV {
			return Architecture, nil
		}
		name := machineNames[n.machine]
		if name == "" {
			name = fmt.Sprintf("ELF machine %d", n.machine)
		}
		return "", &ArchitectureError{Program: path, Machine: name}
	}
	return "", nil
}
