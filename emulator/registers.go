package emulator

import (
	"encoding/binary"
	"errors"
)

var errHart = errors.New("the hart is outside the machine's memory")

// Registers is the part of the hart's state that programs see.
type Registers struct {
	X  [32]uint64 // integer registers; x0 stays zero
	F  [32]uint64 // floating-point registers, singles NaN-boxed
	PC uint64
}

// Registers reads the hart's registers between two slices.
func (m *Machine) Registers() (Registers, error) {
	var r Registers
	err := m.read(m.layout.Hart, &r)
	return r, err
}

// SetRegisters replaces the hart's registers between two slices.
func (m *Machine) SetRegisters(r Registers) error {
	data, ok := m.memory.Read(m.layout.Hart, uint32(binary.Size(r)))
	if !ok {
		return errHart
	}
	r.X[0] = 0
	_, err := binary.Encode(data, binary.LittleEndian, r)
	return err
}
