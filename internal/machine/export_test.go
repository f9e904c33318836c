package machine

import "agentvm/internal/machine/native/blocks"

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

// Part is where a part of a machine's memory is.
type Part struct {
	Name     string
	At, Size int64
}

// StateParts are the parts that a machine takes from an untrusted image, besides its RAM and configuration.
func (m *Machine) StateParts() ([]Part, error) {
	at, err := m.call("adoption")
	if err != nil {
		return nil, err
	}
	var list abiAdoption
	if err := m.read(at, &list); err != nil {
		return nil, err
	}
	var parts []Part
	for i, p := range list.Part[:list.Count] {
		parts = append(parts, Part{stateNames[i], int64(p.State.Address), int64(p.State.Size)})
	}
	return parts, nil
}

// OtherParts are those with the configuration, the RAM and the decoded code.
func (m *Machine) OtherParts() (config, ram, code Part) {
	l := &m.layout
	return Part{"configuration", int64(l.Config), int64(l.ConfigSize)}, Part{"RAM", int64(l.RAM), int64(m.config.Memory)},
		Part{"decoded code", int64(l.CodePool.Address), int64(l.CodePool.Size)}
}

// Slice runs the guest once, for at most budget instructions: it may end sooner.
func (m *Machine) Slice(budget int64) error {
	_, err := m.slice(budget)
	return err
}

// SpoilTranslations has one of every `each` translations begin with a byte that the verifier refuses.
func (p *Program) SpoilTranslations(each int) {
	make, count := p.translator.make, 0
	p.translator.make = func(l *blocks.Layout, page blocks.Page) (blocks.Translation, bool) {
		made, ok := make(l, page)
		if count++; ok && count%each == 0 {
			made.Code[0] = 0xcc
		}
		return made, ok
	}
}

// EnterAt has a program begin, with this in the register that a kernel has its device tree in.
func (m *Machine) EnterAt(pc, argument uint64) error { return m.enterAt(pc, argument) }
