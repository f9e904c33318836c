package emulator

// CopyImages makes the program's machines copy images instead of mapping them, as some systems have to.
func (p *Program) CopyImages() *Program {
	c := *p
	c.copyImages = true
	return &c
}

// WriteRAM writes to the guest's memory as a device does, which is noticed.
func (m *Machine) WriteRAM(offset int, data []byte) error {
	ram, err := m.ram()
	if err != nil {
		return err
	}
	copy(ram[offset:], data)
	m.markRAM(uint64(offset), uint64(len(data)))
	return nil
}
