package arm64

import (
	"math/bits"

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
			value := t.value(d.Rs1, x1)
			t.constant(x2, blocks.Status)
			t.three(true, opAnd, x1, value, x2)
			t.inHart(access{size: 2, op: load}, x0, t.inHartAt(t.layout.MStatus))
			t.three(true, opAndNot, x2, x0, x2)
			t.three(true, opOr, x1, x1, x2)
			t.setStatus(d, true)
		},
		"csrrs":  func(t *translator, d *riscv.Decoded) { t.changeStatus(d, opOr) },
		"csrrc":  func(t *translator, d *riscv.Decoded) { t.changeStatus(d, opAndNot) },
		"csrrsi": func(t *translator, d *riscv.Decoded) { t.changeStatus(d, opOr) },
		"csrrci": func(t *translator, d *riscv.Decoded) { t.changeStatus(d, opAndNot) },
	}
}

// inHartAt is where in the hart an address is.
func (t *pageCode) inHartAt(address uint32) uint32 { return address - t.layout.X }

// supervisor leaves when the privilege is not S.
func (t *translator) supervisor() {
	if t.isSupervisor {
		return
	}
	t.isSupervisor = true
	t.inHart(access{size: 2, op: load}, x0, t.inHartAt(t.layout.Supervisor.Privilege))
	t.compareWith(x0, blocks.PrivilegeS)
	t.jumpIf(notEqual, t.miss())
}

// exchange writes a register, and reads it before when the instruction does.
func (t *translator) exchange(d *riscv.Decoded, r blocks.PlainRegister) {
	value := t.value(d.Rs1, x1)
	if d.Rd != 0 {
		t.inHart(access{size: 3, op: load}, x0, t.inHartAt(r.At))
	}
	if r.Clears != 0 {
		t.constant(x2, r.Clears)
		t.three(true, opAndNot, x1, value, x2)
		value = x1
	}
	t.inHart(access{size: 3, op: store}, value, t.inHartAt(r.At))
	t.setGuest(d.Rd, x0)
}

// changeStatus combines sstatus with an operand, or reads a register.
func (t *translator) changeStatus(d *riscv.Decoded, op uint32) {
	immediate := d.Name == "csrrsi" || d.Name == "csrrci" // whose operand is in Rs1
	t.supervisor()
	if r, ok := t.layout.Supervisor.Plain(d.CSR); ok {
		t.inHart(access{size: 3, op: load}, x0, t.inHartAt(r.At))
		t.setGuest(d.Rd, x0)
		return
	}
	t.inHart(access{size: 2, op: load}, x0, t.inHartAt(t.layout.MStatus))
	switch {
	case d.Rs1 == 0:
		t.readStatus(d.Rd)
		return
	case immediate:
		t.constant(x1, int64(d.Rs1)&blocks.Status)
	default:
		value := t.value(d.Rs1, x1)
		t.constant(x2, blocks.Status)
		t.three(true, opAnd, x1, value, x2)
	}
	t.three(true, op, x1, x0, x1)
	t.setStatus(d, op == opAndNot && !immediate)
}

// setStatus ends a block (blocks.Discover). It makes the lower half of mstatus what is in x1, in place of what is in x0, and leaves when more than the
// word changes: with MXR; with SIE, when an interrupt is pending; and where SUM may be cleared, when more than one page of the TLB needed it.
func (t *translator) setStatus(d *riscv.Decoded, clears bool) {
	s := &t.layout.Supervisor
	disabled, done := t.newLabel(), t.newLabel()
	t.bit(x2, x0, blocks.StatusMPRV)
	t.jumpIf(notEqual, t.miss())
	t.three(true, opXor, x2, x0, x1)
	t.bit(x2, x2, blocks.StatusMXR)
	t.jumpIf(notEqual, t.miss())
	if clears {
		t.inHart(access{size: 3, op: load}, x2, t.inHartAt(s.UserEntries))
		t.compareWith(x2, 2)
		t.jumpIf(notBelow, t.miss())
	}
	t.bit(x2, x1, blocks.StatusSIE)
	t.jumpIf(equal, disabled)
	t.inHart(access{size: 3, op: load}, x2, t.inHartAt(s.MIP))
	t.inHart(access{size: 3, op: load}, x3, t.inHartAt(s.MIE))
	t.three(true, opAnd, x2, x2, x3)
	t.compareWith(x2, 0)
	t.jumpIf(notEqual, t.miss())
	t.bind(disabled)
	t.inHart(access{size: 2, op: store}, x1, t.inHartAt(t.layout.MStatus))
	if clears {
		t.inHart(access{size: 3, op: load}, x2, t.inHartAt(s.UserEntries))
		t.compareWith(x2, 0)
		t.jumpIf(equal, done)
		t.forgetUserEntry()
		t.bind(done)
	}
	t.readStatus(d.Rd)
}

// bit is to = a bit of from, compared with zero.
func (t *pageCode) bit(to, from register, one uint64) {
	low := uint32(bits.TrailingZeros64(one))
	t.mask(to, from, low, low+1)
	t.compareWith(to, 0)
}

// forgetUserEntry drops the page that needed SUM, from both of its places in both tables of data. It keeps x0.
func (t *translator) forgetUserEntry() {
	s := &t.layout.Supervisor
	t.inHart(access{size: 1, op: load}, x2, t.inHartAt(s.UserEntry))
	for place := range 2 {
		if place > 0 {
			t.constant(x3, int64(t.layout.Other))
			t.three(true, opXor, x2, x2, x3)
		}
		t.constant(x3, -1) // the tag of no page
		t.addShifted(x1, tlb, x2, 4)
		t.add(x1, x1, int64(t.layout.Read+t.layout.Tag))
		t.inMemory(access{size: 3, op: store}, x3, x1)
		t.add(x1, x1, int64(t.layout.Write)-int64(t.layout.Read))
		t.inMemory(access{size: 3, op: store}, x3, x1)
	}
	t.inHart(access{size: 3, op: store}, zero, t.inHartAt(s.UserEntries))
}

// readStatus gives a guest register sstatus; the lower half of mstatus is in x0.
func (t *translator) readStatus(rd uint8) {
	if rd == 0 {
		return
	}
	t.constant(x1, blocks.Status)
	t.three(true, opAnd, x0, x0, x1)
	t.field(field, x1, x0, 13, 14)
	t.compareWith(x1, 3) // SD: the unit is changed, both bits of its state are set
	t.set(x1, equal)
	t.shiftLeft(x1, x1, 63)
	t.three(true, opOr, x0, x0, x1)
	t.constant(x1, 2<<32) // UXL: 64 bits
	t.three(true, opOr, x0, x0, x1)
	t.setGuest(rd, x0)
}
