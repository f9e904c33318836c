package machine

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
)

// Addresses and interrupt sources of the board; docs/internals/machine.md has the map, src/ the other half.
const (
	rtcBase      = 0x10_1000
	rtcSource    = 31
	vmgenidBase  = 0x10_2000
	vmgenidSize  = 16
	vmgenidIRQ   = 30
	plicBase     = 0xc00_0000
	plicSize     = 0x60_0000
	plicSources  = 31
	virtioBase   = 0x1000_1000
	virtioStride = 0x1000

	slotConsole = 0
	slotRNG     = 1
	slotNetwork = 2
	slotDisk    = 3
	slotShare   = 7
	slotBalloon = 27

	timebase    = 10_000_000 // ticks of the time CSR a second
	cacheBlock  = 4096       // bytes that cbo.zero clears: one instruction for a page
	externalS   = 9          // supervisor external interrupt
	phandleIntc = 1
	phandlePLIC = 2
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
		t.text("compatible", "agentvm,machine", "riscv-virtio")
		t.text("model", "agentvm")
		m.chosen(t, b, seed)
		t.node("memory@80000000", func() {
			t.text("device_type", "memory")
			t.reg(RAMBase, m.config.Memory)
		})
		cpus(t)
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

func cpus(t *fdtBuilder) {
	t.node("cpus", func() {
		t.cells("#address-cells", 1)
		t.cells("#size-cells", 0)
		t.cells("timebase-frequency", timebase)
		t.node("cpu@0", func() {
			t.text("device_type", "cpu")
			t.cells("reg", 0)
			t.text("status", "okay")
			t.text("compatible", "riscv")
			t.text("riscv,isa-base", "rv64i")
			// svvptc: the machine caches no invalid translations. Zba and Zbb are for programs that ask, as OpenSSL does: the
			// kernel is built without its variants of functions for them, which are longer, not faster, here.
			t.text("riscv,isa-extensions", "i", "m", "a", "f", "d", "c", "zicntr", "zicsr", "zifencei", "zicboz",
				"sstc", "svvptc", "svadu", "zba", "zbb")
			t.text("riscv,isa", "rv64imafdc_zicntr_zicsr_zifencei_zicboz_zba_zbb_sstc")
			t.cells("riscv,cboz-block-size", cacheBlock)
			t.text("mmu-type", "riscv,sv39")
			t.node("interrupt-controller", func() {
				t.cells("#interrupt-cells", 1)
				t.empty("interrupt-controller")
				t.text("compatible", "riscv,cpu-intc")
				t.cells("phandle", phandleIntc)
			})
		})
	})
}

func (m *Machine) devices(t *fdtBuilder) {
	t.cells("#address-cells", 2)
	t.cells("#size-cells", 2)
	t.text("compatible", "simple-bus")
	t.empty("ranges")
	t.node("plic@c000000", func() {
		t.text("compatible", "sifive,plic-1.0.0", "riscv,plic0")
		t.reg(plicBase, plicSize)
		t.cells("#interrupt-cells", 1)
		t.cells("#address-cells", 0)
		t.empty("interrupt-controller")
		t.cells("interrupts-extended", phandleIntc, externalS)
		t.cells("riscv,ndev", plicSources)
		t.cells("phandle", phandlePLIC)
	})
	device(t, "rtc", rtcBase, virtioStride, rtcSource, "google,goldfish-rtc")
	device(t, "rng", vmgenidBase, vmgenidSize, vmgenidIRQ, "microsoft,vmgenid")
	for _, slot := range m.slots() {
		device(t, "virtio_mmio", virtioBase+uint64(slot)*virtioStride, virtioStride, uint32(slot+1), "virtio,mmio")
	}
}

func device(t *fdtBuilder, name string, base, size uint64, source uint32, compatible string) {
	t.node(fmt.Sprintf("%s@%x", name, base), func() {
		t.text("compatible", compatible)
		t.reg(base, size)
		t.cells("interrupt-parent", phandlePLIC)
		t.cells("interrupts", source)
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
