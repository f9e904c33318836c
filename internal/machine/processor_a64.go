package machine

import (
	"debug/elf"
	"fmt"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine/native/blocks"
)

// Places and interrupts of the arm64 board: src/arm64/bus.c and gic.c have the other half.
const (
	gicdBase = 0x800_0000 // distributor
	gicdSize = 0x1_0000
	gicrBase = 0x80a_0000 // redistributor
	gicrSize = 0x2_0000   // of each processor

	// First cell of an interrupt, and the third (Documentation/devicetree/bindings/interrupt-controller/arm,gic-v3.yaml).
	gicShared  = 0
	gicPrivate = 1
	gicLevel   = 4
)

var arm64Processor = processor{
	architecture: platform.ARM64,
	name:         "arm64",
	elf:          elf.EM_AARCH64,
	guest:        blocks.GuestARM64,
	slotCode:     4,
	module:       arm64Module,
	standalone:   unpackOnce("standalone-arm64.wasm", standaloneARM64),
	harts:        arm64HartsModule,
	board:        []string{"agentvm,machine", "linux,dummy-virt"},
	imageMagic:   "ARM\x64",
	textOffset:   0,
	pc:           768,
	tree:         0, // x0
	describe:     describeA64,
	interrupt:    func(source uint32) []uint32 { return []uint32{gicShared, source, gicLevel} },
}

func describeA64(t *fdtBuilder, harts int) {
	t.node("psci", func() {
		t.text("compatible", "arm,psci-1.0")
		t.text("method", "hvc")
	})
	t.node("cpus", func() {
		t.cells("#address-cells", 1)
		t.cells("#size-cells", 0)
		for i := range harts {
			t.node(fmt.Sprintf("cpu@%x", i), func() {
				t.text("device_type", "cpu")
				t.cells("reg", uint32(i))
				t.text("compatible", "arm,armv8")
				t.text("enable-method", "psci")
			})
		}
	})
	t.node("timer", func() {
		t.text("compatible", "arm,armv8-timer")
		t.cells("interrupt-parent", phandleInterrupts)
		// Secure, non-secure, virtual and hypervisor timer, of which the machine has the second and third.
		t.cells("interrupts", gicPrivate, 13, gicLevel, gicPrivate, 14, gicLevel, gicPrivate, 11, gicLevel, gicPrivate, 10, gicLevel)
		t.empty("always-on")
	})
	t.node("interrupt-controller@8000000", func() {
		t.text("compatible", "arm,gic-v3")
		t.cells("reg", 0, gicdBase, 0, gicdSize, 0, gicrBase, 0, gicrSize*uint32(harts))
		t.cells("#interrupt-cells", 3)
		t.cells("#address-cells", 0)
		t.empty("interrupt-controller")
		t.cells("phandle", phandleInterrupts)
	})
}
