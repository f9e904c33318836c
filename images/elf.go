package images

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"agentvm/internal/host/platform"
)

// machines are the ELF machines of VMs (64-bit, little-endian).
var machines = map[uint16]platform.Architecture{machineRISCV: platform.RISCV64, machineARM64: platform.ARM64}

// machineNames are the ELF machines that people are likely to import by mistake.
var machineNames = map[uint16]string{
	3: "386", 8: "mips", 20: "ppc", 21: "ppc64le", 22: "s390x", 40: "arm", 62: "x86_64", 258: "loong64",
	machineRISCV | otherForm: "riscv32", machineARM64 | otherForm: "aarch64_be or ilp32",
}

const (
	machineRISCV = 243
	machineARM64 = 183
	// otherForm is set for machines that VMs have in another width or byte order, for which ELF uses the same number.
	otherForm = 0xF000
)

// elfMachine returns e_machine of the program that begins with p, or 0 when p is not one.
func elfMachine(p []byte) uint16 {
	if len(p) < 20 || string(p[:4]) != "\x7fELF" {
		return 0
	}
	machine := binary.LittleEndian.Uint16(p[18:])
	if p[5] == 2 { // big endian
		machine = binary.BigEndian.Uint16(p[18:])
	}
	if machines[machine] != "" && (p[4] != 2 || p[5] != 1) {
		machine |= otherForm
	}
	return machine
}

// ArchitectureError says that an image holds programs for another machine than VMs have, or than the image is said to be for.
type ArchitectureError struct {
	Program string                // path of a program in the image; may be empty
	Machine string                // the machine that the program is for
	Stated  platform.Architecture // what the image's configuration says, or who imports it; empty when nothing is said
}

func (e *ArchitectureError) Error() string {
	program := cmp.Or(e.Program, "program")
	if e.Stated != "" {
		return fmt.Sprintf("image is said to be for %s, but its %s is for %s: have it built or imported for the platform of its programs", e.Stated.Platform(), program, e.Machine)
	}
	return fmt.Sprintf("image is for %s (its %s is), but agentvm runs %s", e.Machine, program, platform.Names())
}

// checkArchitecture refuses an image that is said to be for another architecture than that of its programs, of which program is one. Neither
// wins: a VM for the one could not run the programs, and one for the other is not what was asked for.
func checkArchitecture(stated, found platform.Architecture, program string) error {
	if stated == "" || found == "" || stated == found {
		return nil
	}
	return &ArchitectureError{Program: program, Machine: found.Platform(), Stated: stated}
}

// architecture determines the tree's architecture by the first program that every system has, and returns that program's path, too. Both are
// empty when none of them is there: an image may hold only data.
func (b *diskBuilder) architecture() (platform.Architecture, string, error) {
	for _, path := range []string{"/bin/sh", "/bin/busybox", "/sbin/init", "/usr/bin/env", "/usr/bin/sh", "/bin/ls"} {
		n := b.root.follow(path)
		if n == nil || n.machine == 0 {
			continue
		}
		if a := machines[n.machine]; a != "" {
			return a, path, nil
		}
		name := machineNames[n.machine]
		if name == "" {
			name = fmt.Sprintf("ELF machine %d", n.machine)
		}
		return "", "", &ArchitectureError{Program: path, Machine: name}
	}
	return "", "", nil
}
