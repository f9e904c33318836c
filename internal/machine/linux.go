package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Linux is what LoadLinux puts into RAM.
type Linux struct {
	Kernel      []byte // an uncompressed Image for the machine's processor
	Initramfs   []byte // a cpio archive, compressed or not; may be empty
	CommandLine string
}

// The header of an Image, where both architectures have the same; sources: Documentation/arch/riscv/boot-image-header.rst and
// Documentation/arch/arm64/booting.rst of the kernel.
const (
	imageTextOffset = 8  // u64
	imageSize       = 16 // u64, with BSS
	imageMagic2     = 56 // u32
	imageHeaderSize = 64

	bootAlign      = 2 << 20 // the kernel wants its load address aligned to 2 MiB
	deviceTreeRoom = 64 << 10
)

// ErrNotKernel is returned for a kernel that is no Image for the machine's processor.
var ErrNotKernel = errors.New("not a Linux Image")

// LoadLinux places the kernel 2 MiB above the start of RAM, the initramfs and the device tree at its end, and sets
// the hart's registers as the boot protocol asks.
func (m *Machine) LoadLinux(l Linux) error {
	ram, err := m.ram()
	if err != nil {
		return err
	}
	kernelEnd, err := m.placeKernel(ram, l.Kernel)
	if err != nil {
		return err
	}
	treeAt := uint64(len(ram)) - deviceTreeRoom
	initramfsAt := (treeAt - min(treeAt, uint64(len(l.Initramfs)))) &^ 4095
	if initramfsAt < kernelEnd {
		return fmt.Errorf("%d MiB of memory are too little for the kernel and an initramfs of %d KiB",
			len(ram)>>20, len(l.Initramfs)>>10)
	}
	copy(ram[initramfsAt:], l.Initramfs)
	b := boot{commandLine: l.CommandLine}
	if len(l.Initramfs) > 0 {
		b.initramfsStart = RAMBase + initramfsAt
		b.initramfsEnd = b.initramfsStart + uint64(len(l.Initramfs))
	}
	tree, err := m.deviceTree(b)
	if err != nil {
		return err
	}
	if len(tree) > deviceTreeRoom {
		return fmt.Errorf("the kernel command line of %d bytes is too long", len(l.CommandLine))
	}
	copy(ram[treeAt:], tree)
	m.markRAM(bootAlign, uint64(len(l.Kernel)))
	m.markRAM(initramfsAt, uint64(len(l.Initramfs)))
	m.markRAM(treeAt, uint64(len(tree)))
	return m.enterAt(RAMBase+bootAlign, RAMBase+treeAt)
}

// placeKernel copies the kernel and returns the offset in RAM where its BSS ends.
func (m *Machine) placeKernel(ram, kernel []byte) (uint64, error) {
	if len(kernel) < imageHeaderSize || string(kernel[imageMagic2:imageMagic2+4]) != m.processor.imageMagic {
		return 0, fmt.Errorf("%w for %s", ErrNotKernel, m.processor.name)
	}
	if offset := binary.LittleEndian.Uint64(kernel[imageTextOffset:]); offset != m.processor.textOffset {
		return 0, fmt.Errorf("%w that loads at %#x: text_offset is %#x, not %#x", ErrNotKernel, uint64(RAMBase+bootAlign), offset, m.processor.textOffset)
	}
	size := max(binary.LittleEndian.Uint64(kernel[imageSize:]), uint64(len(kernel)))
	if size > uint64(len(ram))-bootAlign {
		return 0, fmt.Errorf("%d MiB of memory are too little for a kernel of %d MiB", len(ram)>>20, size>>20)
	}
	copy(ram[bootAlign:], kernel)
	return bootAlign + size, nil
}
