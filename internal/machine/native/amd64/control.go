package amd64

import (
	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/riscv"
)

func controlEmitters() map[string]emitter {
	return map[string]emitter{
		"csrrw": func(t *translator, d *riscv.Decoded) {
			t.supervisor()
			if r, ok := t.layout.Supervisor.Plain(d.CSR); ok {
				t.exchange(d, r)
				return
			}
			t.copyOf(d.Rs1, rdx)
			t.immediate(false, immediateAnd, rdx, blocks.Status)
			t.hart(false, opLoad, rax, t.layout.MStatus)
			t.move32(rcx, rax)
			t.immediate(false, immediateAnd, rcx, ^int32(blocks.Status))
			t.pair(false, opOr, rcx, rdx)
			t.setStatus(d, true)
		},
		"csrrs":  func(t *translator, d *riscv.Decoded) { t.changeStatus(d, true) },
		"csrrc":  func(t *translator, d *riscv.Decoded) { t.changeStatus(d, false) },
		"csrrsi": func(t *translator, d *riscv.Decoded) { t.changeStatus(d, true) },
		"csrrci": func(t *translator, d *riscv.Decoded) { t.changeStatus(d, false) },
	}
}

// supervisor leaves when the privilege is not S.
func (t *translator) supervisor() {
	if t.isSupervisor {
		return
	}
	t.isSupervisor = true
	t.hart(false, opLoad, rax, t.layout.Supervisor.Privilege)
	t.immediate(false, immediateCmp, rax, blocks.PrivilegeS)
	t.jumpIf(notEqual, t.miss())
}

// exchange writes a register, and reads it before when the instruction does.
func (t *translator) exchange(d *riscv.Decoded, r blocks.PlainRegister) {
	t.copyOf(d.Rs1, rdx)
	if d.Rd != 0 {
		t.hart(true, opLoad, rax, r.At)
	}
	if r.Clears != 0 {
		t.immediate(true, immediateAnd, rdx, int32(^r.Clears))
	}
	t.hart(true, opMove, rdx, r.At)
	t.setGuest(d.Rd, rax)
}

// changeStatus sets or clears bits of sstatus, or reads a register.
func (t *translator) changeStatus(d *riscv.Decoded, sets bool) {
	immediate := d.Name == "csrrsi" || d.Name == "csrrci" // whose operand is in Rs1
	t.supervisor()
	if r, ok := t.layout.Supervisor.Plain(d.CSR); ok {
		t.hart(true, opLoad, rax, r.At)
		t.setGuest(d.Rd, rax)
		return
	}
	switch {
	case d.Rs1 == 0:
		t.hart(false, opLoad, rax, t.layout.MStatus)
		t.readStatus(d.Rd)
		return
	case immediate:
		t.constant(rdx, int32(d.Rs1)&blocks.Status)
	default:
		t.copyOf(d.Rs1, rdx)
		t.immediate(false, immediateAnd, rdx, blocks.Status)
	}
	t.hart(false, opLoad, rax, t.layout.MStatus)
	if sets {
		t.pair(false, opOr, rax, rdx)
	} else {
		t.immediate(false, immediateXor, rdx, -1)
		t.pair(false, opAnd, rax, rdx)
	}
	t.setStatus(d, !sets && !immediate)
}

// setStatus ends a block (blocks.Discover). It makes the lower half of mstatus what is in edx, in place of what is in eax, and leaves when more
// than the word changes: with MXR; with SIE, when an interrupt is pending; and where SUM may be cleared, when more than one page of the TLB needed it.
func (t *translator) setStatus(d *riscv.Decoded, clears bool) {
	disabled, done := t.newLabel(), t.newLabel()
	t.move32(rcx, rax)
	t.immediate(false, immediateAnd, rcx, blocks.StatusMPRV)
	t.jumpIf(notEqual, t.miss())
	t.move32(rcx, rax)
	t.pair(false, opXor, rdx, rcx)
	t.immediate(false, immediateAnd, rcx, blocks.StatusMXR)
	t.jumpIf(notEqual, t.miss())
	if clears {
		t.hart(true, opLoad, rcx, t.layout.Supervisor.UserEntries)
		t.immediate(true, immediateCmp, rcx, 2)
		t.jumpIf(notBelow, t.miss())
	}
	t.move32(rcx, rdx)
	t.immediate(false, immediateAnd, rcx, blocks.StatusSIE)
	t.jumpIf(equal, disabled)
	t.hart(true, opLoad, rcx, t.layout.Supervisor.MIP)
	t.hart(true, opAndTo, rcx, t.layout.Supervisor.MIE)
	t.jumpIf(notEqual, t.miss())
	t.bind(disabled)
	t.hart(false, opMove, rdx, t.layout.MStatus)
	if clears {
		t.hart(true, opLoad, rcx, t.layout.Supervisor.UserEntries)
		t.immediate(true, immediateCmp, rcx, 0)
		t.jumpIf(equal, done)
		t.forgetUserEntry()
		t.bind(done)
	}
	t.readStatus(d.Rd)
}

// forgetUserEntry drops the page that needed SUM, from both of its places in both tables of data.
func (t *translator) forgetUserEntry() {
	t.hart(false, opLoad16, rcx, t.layout.Supervisor.UserEntry)
	t.shift(false, shiftLeft, rcx, 4)
	t.constant(rdx, -1) // the tag of no page
	for range 2 {
		t.maskEntry(rcx)
		t.indexed(true, opMove, rdx, tlb, rcx, t.layout.Read+t.layout.Tag)
		t.indexed(true, opMove, rdx, tlb, rcx, t.layout.Write+t.layout.Tag)
		t.immediate(false, immediateXor, rcx, int32(t.layout.Other*t.layout.EntrySize))
	}
	t.constant(rcx, 0)
	t.hart(true, opMove, rcx, t.layout.Supervisor.UserEntries)
}

// readStatus gives a guest register sstatus; the lower half of mstatus is in eax.
func (t *translator) readStatus(rd uint8) {
	if rd == 0 {
		return
	}
	t.immediate(false, immediateAnd, rax, blocks.Status)
	t.move32(rcx, rax)
	t.immediate(false, immediateAnd, rcx, blocks.FloatStates)
	t.immediate(false, immediateAdd, rcx, 1<<13) // SD: the unit is changed, both bits of its state are set
	t.immediate(false, immediateAnd, rcx, 1<<15)
	t.shift(true, shiftLeft, rcx, 63-15)
	t.pair(true, opOr, rcx, rax)
	t.constant(rcx, 2) // UXL: 64 bits
	t.shift(true, shiftLeft, rcx, 32)
	t.pair(true, opOr, rcx, rax)
	t.setGuest(rd, rax)
}
