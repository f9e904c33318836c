package machine

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"agentvm/wasi"
)

// Limits of a Machine.
const (
	MinMemory     = 16 << 20   // bytes of RAM
	MaxMemory     = 3584 << 20 // bytes of RAM; WebAssembly's linear memory ends at 4 GiB
	DefaultMemory = 512 << 20  // bytes of RAM when Config.Memory is 0
	MaxDisks      = 4
	MaxShares     = 20

	shareTagSize = 32
	defaultMTU   = 1500
)

// MaxHarts bounds the processors of a machine.
const MaxHarts = 8

// Disk is the backend of a virtio block device: a File with Pread, and Pwrite unless it is read-only.
type Disk struct {
	File     wasi.File
	ReadOnly bool
}

// Share is the backend of a virtio-fs mount: a stream of FUSE messages.
type Share struct {
	Tag  string // what the guest mounts, 1 to 31 bytes
	File wasi.File
}

// Config describes a Machine. Absent (nil) files leave their device out. The machine closes the files with itself.
type Config struct {
	Memory  uint64    // RAM in bytes, a multiple of 4096; 0 is DefaultMemory
	Console wasi.File // hvc0, both ways
	Control wasi.File // console port "agentvm.control"
	Bulk    wasi.File // console port "agentvm.bulk"

	Network       wasi.File        // QEMU-framed Ethernet
	NetworkHeader bool             // frames carry a 12-byte virtio_net_hdr, which permits offloads
	MAC           net.HardwareAddr // 6 bytes; nil is 02:00:00:00:00:01
	MTU           int              // bytes of an Ethernet payload; 0 is 1500

	Disks  []Disk  // vda, vdb, ...; at most MaxDisks
	Shares []Share // at most MaxShares

	// Harts is how many processors the machine has, of a Program for several; 0 is 1.
	Harts int

	// MachineMode starts the hart in M-mode, for bare programs; otherwise it starts in S-mode and the machine answers
	// SBI calls.
	MachineMode bool
	// Deterministic makes time pass by retired instructions (10 ns each) and idle time at once, starting at
	// 2026-01-01; with a fixed Rand and no input, two runs are the same in every bit.
	Deterministic bool

	// Generation is what the VM generation device shows. A machine that was restored with another one than it had tells
	// its guest that it is a copy.
	Generation [16]byte

	// Busy, when not nil, is called by Run with true before it executes and with false before it waits or returns. It must not block.
	Busy func(bool)

	Rand   io.Reader    // entropy of the device tree and the rng device; nil is crypto/rand
	Logger *slog.Logger // nil discards
}

// File descriptors of the machine's devices; docs/internals/machine.md has the table.
const (
	fdConsoleIn  = 0
	fdConsoleOut = 1
	fdNetwork    = 4
	fdControl    = 5
	fdBulk       = 6
	fdDisk       = 8
	fdShare      = 16
	fdWake       = 63 // no file: another processor wakes the first one
)

func (c *Config) harts() int { return max(c.Harts, 1) }

func (c *Config) validate() error {
	if c.Memory == 0 {
		c.Memory = DefaultMemory
	}
	if c.MTU == 0 {
		c.MTU = defaultMTU
	}
	if c.MAC == nil {
		c.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	}
	if c.Busy == nil {
		c.Busy = func(bool) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.Memory < MinMemory || c.Memory > MaxMemory:
		return fmt.Errorf("memory of %d MiB: must be between %d and %d MiB", c.Memory>>20, MinMemory>>20, MaxMemory>>20)
	case c.Memory%4096 != 0:
		return fmt.Errorf("memory of %d bytes is not a multiple of 4096", c.Memory)
	case c.Harts < 0 || c.Harts > MaxHarts:
		return fmt.Errorf("%d processors: must be between 1 and %d", c.Harts, MaxHarts)
	case c.Harts > 1 && c.Deterministic:
		return errors.New("a deterministic machine has one processor: what several do in which order depends on the host")
	case len(c.MAC) != 6:
		return fmt.Errorf("MAC address %q has %d bytes, Ethernet needs 6", c.MAC, len(c.MAC))
	case c.MTU < 68 || c.MTU > 65535:
		return fmt.Errorf("MTU of %d: must be between 68 and 65535", c.MTU)
	case len(c.Disks) > MaxDisks:
		return fmt.Errorf("%d disks: at most %d", len(c.Disks), MaxDisks)
	case len(c.Shares) > MaxShares:
		return fmt.Errorf("%d shares: at most %d", len(c.Shares), MaxShares)
	}
	return c.validateShares()
}

func (c *Config) validateShares() error {
	for _, s := range c.Shares {
		if len(s.Tag) == 0 || len(s.Tag) >= shareTagSize {
			return fmt.Errorf("share tag %q: must have 1 to %d bytes", s.Tag, shareTagSize-1)
		}
		if s.File == nil {
			return errors.New("share " + s.Tag + " has no file")
		}
	}
	return nil
}
