package machine

import (
	"debug/elf"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine/native/blocks"
)

const (
	plicBase    = 0xc00_0000
	plicSize    = 0x60_0000
	plicSources = 31

	timebase    = 10_000_000 // ticks of the time CSR a second
	cacheBlock  = 4096       // bytes that cbo.zero clears: one instruction for a page
	externalS   = 9          // supervisor external interrupt
	phandleIntc = 1
)

var riscv64Processor = processor{
	architecture: platform.RISCV64,
	name:         "RISC-V",
	elf:          elf.EM_RISCV,
	guest:        blocks.GuestRISCV64,
	slotCode:     2,
	module:       riscv64Module,
	standalone:   unpackOnce("standalone.wasm", standaloneRISCV64),
	board:        []string{"agentvm,machine", "riscv-virtio"},
	imageMagic:   "RSC\x05",
	textOffset:   bootAlign,
	pc:           512,
	tree:         11 * 8, // a1; a0, the hart's number, is 0
	describe:     describeRV64,
	interrupt:    func(source uint32) []uint32 { return []uint32{source} },
}

func describeRV64(t *fdtBuilder, _ int) {
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
	t.node("plic@c000000", func() {
		t.text("compatible", "sifive,plic-1.0.0", "riscv,plic0")
		t.reg(plicBase, plicSize)
		t.cells("#interrupt-cells", 1)
		t.cells("#address-cells", 0)
		t.empty("interrupt-controller")
		t.cells("interrupts-extended", phandleIntc, externalS)
		t.cells("riscv,ndev", plicSources)
		t.cells("phandle", phandleInterrupts)
	})
}
