package machine

import (
	"encoding/binary"
	"time"
)

// ReleasePages gives back ranges of linear memory, address and size each, as if the module had listed them; it claims
// that there are `count` of them. It returns how many wait afterwards.
func (m *Machine) ReleasePages(count uint32, ranges ...[2]uint32) (left uint32, err error) {
	list, _ := m.memory.Read(m.layout.Released, releasedHeader+releasedMax*releasedRange)
	clear(list)
	binary.LittleEndian.PutUint32(list, count)
	for i, r := range ranges {
		binary.LittleEndian.PutUint32(list[releasedHeader+releasedRange*i:], r[0])
		binary.LittleEndian.PutUint32(list[releasedHeader+releasedRange*i+4:], r[1])
	}
	err = m.releasePages(&m.hart)
	return binary.LittleEndian.Uint32(list), err
}

// ReleaseAt is ReleasePages, with nothing to release, at the end of a slice that ended for a reason. It returns the reason that
// is left.
func (m *Machine) ReleaseAt(reason Reason) (Reason, error) {
	m.stack[0] = uint64(reason)
	_, err := m.ReleasePages(0)
	return Reason(m.stack[0]), err
}

// The reasons of slices that do not end a run.
const (
	ReasonBudget = reasonBudget
	ReasonIdle   = reasonIdle
)

// RAMAddress is where RAM begins in linear memory.
func (m *Machine) RAMAddress() uint32 { return m.layout.RAM }

// Trim trims the machine's memory between two slices, as when it has been idle for long.
func (m *Machine) Trim() error {
	if m.trimWait() < 0 {
		return nil
	}
	return m.trim()
}

// TrimWait is how long the guest has to stay idle until the memory is trimmed.
func (m *Machine) TrimWait() time.Duration { return m.trimWait() }

// TrimAfter has the memory trimmed when the guest has been idle for so long since its last trim.
func (m *Machine) TrimAfter(d time.Duration) { m.trimming.after = d }

// LinearMemory is all of the machine's memory.
func (m *Machine) LinearMemory() []byte { return m.linear.memory[:m.memory.Size()] }
