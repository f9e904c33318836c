package machine

import (
	"encoding/binary"
	"fmt"
)

// abiConfig mirrors struct machine_config of src/common/config.h. Every member is naturally aligned there, so that the
// layout has no padding but at the end.
type abiConfig struct {
	RAMSize               uint64
	ConsoleIn, ConsoleOut int32
	Control, Bulk         int32
	Net                   int32
	NetFlags              uint32
	NetMAC                [6]uint8
	NetMTU                uint16
	DiskFD                [MaxDisks]int32
	DiskFlags             [MaxDisks]uint32
	ShareFD               [MaxShares]int32
	ShareTag              [MaxShares][shareTagSize]byte
	ClockMode, HartFlags  uint32
	Harts, Reserved       uint32
	RealtimeNanoseconds   uint64
	Generation            [16]byte
}

const (
	clockInstructions = 1
	diskReadOnly      = 1
	netHeader         = 1
	hartStartM        = 1

	deterministicEpoch = 1767225600 * 1e9 // 2026-01-01T00:00:00Z in nanoseconds
)

// abiLayout mirrors struct machine_layout of src/common/machine.c.
type abiLayout struct {
	Version, ConfigSize       uint32
	Config, Result, Hart, RAM uint32
	HartSize                  uint32
	Dirty, Released           uint32 // addresses of dirty_pages and released_pages
	ScratchCount, HashedCount uint32
	CodePool, CodeIndex       abiRange
	Scratch, Hashed           [4]abiRange
	Harts                     [8]uint32 // their addresses, of a machine of several
}

// abiRange mirrors struct memory_range of src/common/machine.h: a part of linear memory.
type abiRange struct{ Address, Size uint32 }

// abiResult mirrors struct machine_result of src/common/machine.c.
type abiResult struct {
	Retired    uint64
	DeadlineNS uint64
	Code       uint32
	Released   uint32 // entries of released_pages
	PC         uint64
}

const layoutVersion = 3

// check refuses a module that was built from other sources than this package.
func (l *abiLayout) check() error {
	size := uint32(binary.Size(abiConfig{}))
	if l.Version != layoutVersion || l.ConfigSize != size || int(max(l.ScratchCount, l.HashedCount)) > len(l.Scratch) {
		return fmt.Errorf("machine.wasm has layout %d with a configuration of %d bytes, this program needs layout %d with %d: rebuild it with `make wasm`",
			l.Version, l.ConfigSize, layoutVersion, size)
	}
	return nil
}

// present gives the descriptor of a device that is there, -1 for one that is not.
func present(there bool, fd int32) int32 {
	if there {
		return fd
	}
	return -1
}

func flag(set bool, bit uint32) uint32 {
	if set {
		return bit
	}
	return 0
}

func (c *Config) abi() abiConfig {
	a := abiConfig{
		RAMSize:             c.Memory,
		ConsoleIn:           present(c.Console != nil, fdConsoleIn),
		ConsoleOut:          present(c.Console != nil, fdConsoleOut),
		Control:             present(c.Control != nil, fdControl),
		Bulk:                present(c.Bulk != nil, fdBulk),
		Net:                 present(c.Network != nil, fdNetwork),
		NetFlags:            flag(c.NetworkHeader, netHeader),
		NetMTU:              uint16(c.MTU),
		ClockMode:           flag(c.Deterministic, clockInstructions),
		HartFlags:           flag(c.MachineMode, hartStartM),
		Harts:               uint32(c.harts()),
		RealtimeNanoseconds: deterministicEpoch,
		Generation:          c.Generation,
	}
	copy(a.NetMAC[:], c.MAC)
	for i := range a.DiskFD {
		a.DiskFD[i] = present(i < len(c.Disks), int32(fdDisk+i))
		a.DiskFlags[i] = flag(i < len(c.Disks) && c.Disks[i].ReadOnly, diskReadOnly)
	}
	for i := range a.ShareFD {
		a.ShareFD[i] = present(i < len(c.Shares), int32(fdShare+i))
		if i < len(c.Shares) {
			copy(a.ShareTag[i][:], c.Shares[i].Tag)
		}
	}
	return a
}
