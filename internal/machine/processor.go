package machine

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine/native/blocks"
)

// processor is what the Go side knows of a machine's instruction set. All else is in the machine's module.
type processor struct {
	architecture platform.Architecture
	name         string // for people
	elf          elf.Machine
	guest        blocks.Guest
	slotCode     uint32 // bytes of code that a decoded slot stands for
	module       []byte
	standalone   func() ([]byte, error) // the module with a main loop of its own, src/common/standalone.c
	harts        func() ([]byte, error) // the module for several harts; nil: there is none
	board        []string               // compatible with, in the device tree
	imageMagic   string                 // of a kernel's header
	textOffset   uint64                 // that the header must have

	// Offsets in struct hart_state: the program counter, and the register in which a kernel finds the device tree.
	pc, tree uint32

	// describe adds the processor and its interrupt controller, which has phandleInterrupts, to the device tree's root.
	describe func(t *fdtBuilder, harts int)
	// interrupt is how a device's node names one of the board's sources, 1 to 31.
	interrupt func(source uint32) []uint32
}

func (p *processor) digest(harts bool) string {
	module := p.module
	if harts {
		module, _ = p.moduleForHarts()
	}
	sum := sha256.Sum256(module)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (p *processor) moduleForHarts() ([]byte, error) {
	if p.harts == nil {
		return nil, fmt.Errorf("the machine for %s has one processor", p.name)
	}
	return p.harts()
}

// phandleInterrupts is the interrupt controller's, which describe adds.
const phandleInterrupts = 2

// processors has the machines that there are, the default one first.
var processors = []*processor{&riscv64Processor, &arm64Processor}

func processorOf(architecture platform.Architecture) (*processor, error) {
	for _, p := range processors {
		if p.architecture == architecture {
			return p, nil
		}
	}
	return nil, fmt.Errorf("there is no machine for %s", architecture)
}
