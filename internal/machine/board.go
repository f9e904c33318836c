package machine

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
)

// Addresses and interrupt sources of the board, beside what each processor has; docs/internals/machine.md has the map, src/ the other half.
const (
	rtcBase      = 0x10_1000
	rtcSource    = 31
	vmgenidBase  = 0x10_2000
	vmgenidSize  = 16
	vmgenidIRQ   = 30
	virtioBase   = 0x1000_1000
	virtioStride = 0x1000

	slotConsole = 0
	slotRNG     = 1
	slotNetwork = 2
	slotDisk    = 3
	slotShare   = 7
	slotBalloon = 27
)

// boot says what the device tree's chosen node tells the kernel.
type boot struct {
	commandLine                  string
	initramfsStart, initramfsEnd uint64
}

// deviceTree describes the machine to a kernel.
func (m *Machine) deviceTree(b boot) ([]byte, error) {
	seed := make([]byte, 64)
	source := m.config.Rand
	if source == nil {
		source = rand.Reader
	}
	if _, err := io.ReadFull(source, seed); err != nil {
		return nil, fmt.Errorf("read entropy: %w", err)
	}
	t := newFDT()
	t.node("", func() {
		t.cells("#address-cells", 2)
		t.cells("#size-cells", 2)
		t.text("compatible", m.processor.board...)
		t.text("model", "agentvm")
		m.chosen(t, b, seed)
		t.node("memory@80000000", func() {
			t.text("device_type", "memory")
			t.reg(RAMBase, m.config.Memory)
		})
		m.processor.describe(t, m.config.harts())
		t.node("soc", func() { m.devices(t) })
	})
	return t.bytes(), nil
}

func (m *Machine) chosen(t *fdtBuilder, b boot, seed []byte) {
	t.node("chosen", func() {
		t.text("bootargs", b.commandLine)
		t.property("rng-seed", seed)
		if b.initramfsEnd != 0 {
			t.property("linux,initrd-start", binary.BigEndian.AppendUint64(nil, b.initramfsStart))
			t.property("linux,initrd-end", binary.BigEndian.AppendUint64(nil, b.initramfsEnd))
		}
	})
}

func (m *Machine) devices(t *fdtBuilder) {
	t.cells("#address-cells", 2)
	t.cells("#size-cells", 2)
	t.text("compatible", "simple-bus")
	t.empty("ranges")
	m.device(t, "rtc", rtcBase, virtioStride, rtcSource, "google,goldfish-rtc")
	m.device(t, "rng", vmgenidBase, vmgenidSize, vmgenidIRQ, "microsoft,vmgenid")
	for _, slot := range m.slots() {
		m.device(t, "virtio_mmio", virtioBase+uint64(slot)*virtioStride, virtioStride, uint32(slot+1), "virtio,mmio")
	}
}

func (m *Machine) device(t *fdtBuilder, name string, base, size uint64, source uint32, compatible string) {
	t.node(fmt.Sprintf("%s@%x", name, base), func() {
		t.text("compatible", compatible)
		t.reg(base, size)
		t.cells("interrupt-parent", phandleInterrupts)
		t.cells("interrupts", m.processor.interrupt(source)...)
	})
}

// slots lists the virtio slots that have a device.
func (m *Machine) slots() []int {
	c := &m.config
	var slots []int
	if c.Console != nil || c.Control != nil || c.Bulk != nil {
		slots = append(slots, slotConsole)
	}
	slots = append(slots, slotRNG)
	if c.Network != nil {
		slots = append(slots, slotNetwork)
	}
	for i := range c.Disks {
		slots = append(slots, slotDisk+i)
	}
	for i := range c.Shares {
		slots = append(slots, slotShare+i)
	}
	return append(slots, slotBalloon)
}
