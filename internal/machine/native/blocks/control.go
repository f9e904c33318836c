package blocks

import (
	"strings"

	"agentvm/internal/machine/riscv"
)

// The CSR instructions with which a kernel enters and leaves traps, and disables interrupts. Native code does them in S-mode alone; where what they
// do concerns more than words of the hart, the interpreter does them.

// Numbers of registers (Privileged Architecture, "Control and Status Registers").
const (
	sstatus  = 0x100
	stvec    = 0x105
	sscratch = 0x140
	sepc     = 0x141
	scause   = 0x142
	stval    = 0x143
)

// Bits of mstatus. Those of sstatus that can be written, Status, are in its lower half.
const (
	StatusSIE   = 1 << 1
	FloatStates = 3 << 13 // FS: zero is off, all ones changed
	StatusMPRV  = 1 << 17
	StatusSUM   = 1 << 18
	StatusMXR   = 1 << 19
	Status      = StatusSIE | 1<<5 | 1<<8 | FloatStates | StatusSUM | StatusMXR // with SPIE and SPP
)

// PrivilegeS is Supervisor.Privilege in S-mode.
const PrivilegeS = 1

// PlainRegister is a CSR that is a word of the hart.
type PlainRegister struct {
	At     uint32 // its address
	Clears int64  // the bit that a write does not set; 0: none
}

// Plain gives a register that is a word.
func (s *Supervisor) Plain(number uint16) (PlainRegister, bool) {
	switch number {
	case stvec:
		return PlainRegister{s.STVec, 2}, true
	case sscratch:
		return PlainRegister{s.SScratch, 0}, true
	case sepc:
		return PlainRegister{s.SEPC, 1}, true
	case scause:
		return PlainRegister{s.SCause, 0}, true
	case stval:
		return PlainRegister{s.STVal, 0}, true
	}
	return PlainRegister{}, false
}

// HasRegister says whether an instruction is none of the CSR ones, or one of a register that native code reaches.
func HasRegister(d *riscv.Decoded) bool {
	_, isPlain := (&Supervisor{}).Plain(d.CSR)
	switch d.Name {
	case "csrrw":
		return d.CSR == sstatus || isPlain
	case "csrrs", "csrrc":
		return d.CSR == sstatus || d.Rs1 == 0 && isPlain
	case "csrrsi", "csrrci":
		return d.CSR == sstatus
	case "csrrwi":
		return false
	}
	return true
}

// writesStatus says whether an instruction changes sstatus, which ends a block: what is known of the state does not hold any more, and the
// interpreter does some of them.
func writesStatus(d *riscv.Decoded) bool {
	return d.CSR == sstatus && (d.Name == "csrrw" || d.Name == "csrrwi" || d.Rs1 != 0 && strings.HasPrefix(d.Name, "csrr"))
}
