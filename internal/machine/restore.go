package machine

import (
	"context"
	"errors"
	"fmt"
)

// ErrShape is returned by Restore when the image's machine had other devices or another size of RAM than the
// configuration says, or was one of another build of this package.
var ErrShape = errors.New("the image is of a machine of another shape")

// Restore makes a machine that continues where the image's was. cfg must name the same devices and the same size of RAM;
// their files are new: whatever was half done on the old ones is forgotten, and outstanding requests of virtio-fs fail with EIO.
// For the guest no time has passed. MAC and Generation may differ. The files in cfg belong to the machine from now on,
// also when Restore fails.
//
// The memory is mapped copy-on-write where the system can, so that machines of one image share what they do not write.
// An image from NewImage is untrusted: it may contain anything. That gives it power over its own guest, but none over the
// host. Its machine is made anew, with the image's RAM and what of its state passes the checks of src/common/adopt.c; else the error is
// ErrState. That costs the code that was decoded, and is the way to take an image from an untrusted source. An image
// from Capture or NewTrustedImage is trusted and taken as it is.
func (p *Program) Restore(ctx context.Context, cfg Config, i *MemoryImage) (*Machine, error) {
	m := newMachine(p, cfg)
	if err := m.startFrom(ctx, p, i); err != nil {
		m.Close()
		return nil, fmt.Errorf("restore a machine: %w", err)
	}
	return m, nil
}

func (m *Machine) startFrom(ctx context.Context, p *Program, i *MemoryImage) error {
	if err := m.config.validate(); err != nil {
		return err
	}
	c := i.content
	if i.closed.Load() || !c.tryRetain() {
		return errors.New("the image is closed")
	}
	if !i.trusted {
		return m.startUntrusted(ctx, p, c)
	}
	m.base = c
	if err := m.instantiate(ctx, p); err != nil {
		return err
	}
	touched := int64(m.memory.Size())
	if c.size < touched {
		return fmt.Errorf("%w: %d bytes of memory, the module alone has %d", ErrShape, c.size, touched)
	}
	if _, ok := m.memory.Grow(uint32((c.size - touched) / wasmPage)); !ok {
		return fmt.Errorf("%w: %d MiB of memory, the configuration's has up to %d", ErrShape, c.size>>20, len(m.linear.memory)>>20)
	}
	m.linear.copies = p.copyImages
	if err := m.linear.load(touched, c); err != nil {
		return fmt.Errorf("map the image: %w", err)
	}
	m.trimming.mapped = true
	m.warm(c.expected)
	if err := m.resume(); err != nil {
		return err
	}
	return m.startJIT(p)
}

// resume checks that the memory is one of this machine, and tells it that its outside is new.
func (m *Machine) resume() error {
	if err := m.adoptLayout(); err != nil {
		return err
	}
	var saved abiConfig
	if err := m.read(m.layout.Config, &saved); err != nil {
		return err
	}
	wanted := m.config.abi()
	if err := saved.sameShape(&wanted); err != nil {
		return err
	}
	if err := m.placeOthers(); err != nil {
		return err
	}
	if err := m.write(m.layout.Config, &wanted); err != nil {
		return err
	}
	if err := m.callNothing("restored"); err != nil {
		return err
	}
	return m.readResult()
}

// adoptLayout takes from the image only what init has found out; all else is known from this instance.
func (m *Machine) adoptLayout() error {
	var saved abiLayout
	if err := m.read(m.layoutAddress, &saved); err != nil {
		return err
	}
	known := saved
	known.RAM, known.CodePool, known.CodeIndex, known.Harts = m.layout.RAM, m.layout.CodePool, m.layout.CodeIndex, m.layout.Harts
	if known != m.layout {
		return fmt.Errorf("%w: it is of another build of the machine", ErrShape)
	}
	size := uint64(m.memory.Size())
	if saved.RAM%imagePage != 0 || saved.RAM < m.layoutAddress || uint64(saved.RAM)+m.config.Memory > size {
		return fmt.Errorf("%w: %d MiB of RAM are not in its memory of %d MiB", ErrShape, m.config.Memory>>20, size>>20)
	}
	for _, at := range saved.Harts {
		if at != 0 && (at < m.layout.Hart || at > saved.RAM-min(saved.RAM, m.layout.HartSize)) {
			return fmt.Errorf("%w: a processor at %#x is outside the machine's own memory", ErrShape, at)
		}
	}
	m.layout = saved
	return nil
}

// sameShape compares what a guest has found out at boot and could not cope with if it changed.
func (a *abiConfig) sameShape(b *abiConfig) error {
	differs := func(what string, was, is any) error {
		return fmt.Errorf("%w: it has %s %v, the configuration %v", ErrShape, what, was, is)
	}
	switch {
	case a.RAMSize != b.RAMSize:
		return differs("a RAM in MiB of", a.RAMSize>>20, b.RAMSize>>20)
	case a.ConsoleIn != b.ConsoleIn || a.ConsoleOut != b.ConsoleOut:
		return differs("a console:", a.ConsoleIn >= 0, b.ConsoleIn >= 0)
	case a.Control != b.Control:
		return differs("a control port:", a.Control >= 0, b.Control >= 0)
	case a.Bulk != b.Bulk:
		return differs("a bulk port:", a.Bulk >= 0, b.Bulk >= 0)
	case a.Net != b.Net:
		return differs("a network:", a.Net >= 0, b.Net >= 0)
	case a.NetFlags != b.NetFlags || a.NetMTU != b.NetMTU:
		return differs("a network with flags and MTU", [2]uint32{a.NetFlags, uint32(a.NetMTU)}, [2]uint32{b.NetFlags, uint32(b.NetMTU)})
	case a.DiskFD != b.DiskFD || a.DiskFlags != b.DiskFlags:
		return differs("disks", describeDisks(a), describeDisks(b))
	case a.ShareFD != b.ShareFD || a.ShareTag != b.ShareTag:
		return differs("shares", describeShares(a), describeShares(b))
	case a.ClockMode != b.ClockMode || a.RealtimeNanoseconds != b.RealtimeNanoseconds:
		return differs("a deterministic clock:", a.ClockMode != 0, b.ClockMode != 0)
	case a.Harts != b.Harts:
		return differs("processors:", a.Harts, b.Harts)
	case a.HartFlags != b.HartFlags:
		return differs("a start in machine mode:", a.HartFlags != 0, b.HartFlags != 0)
	}
	return nil
}

func describeDisks(a *abiConfig) []string {
	disks := []string{}
	for i, fd := range a.DiskFD {
		switch {
		case fd >= 0 && a.DiskFlags[i]&diskReadOnly != 0:
			disks = append(disks, "read-only")
		case fd >= 0:
			disks = append(disks, "writable")
		}
	}
	return disks
}

func describeShares(a *abiConfig) []string {
	shares := []string{}
	for i, fd := range a.ShareFD {
		if fd >= 0 {
			shares = append(shares, fmt.Sprintf("%q", a.ShareTag[i][:clen(a.ShareTag[i][:])]))
		}
	}
	return shares
}

// clen is the length of a NUL-terminated text.
func clen(text []byte) int {
	for i, b := range text {
		if b == 0 {
			return i
		}
	}
	return len(text)
}

// StopClock makes the guest's time stand still, between two slices, until StartClock.
func (m *Machine) StopClock() error { return m.callNothing("clock_stop") }

// StartClock continues the guest's time where StopClock stopped it.
func (m *Machine) StartClock() error { return m.callNothing("clock_start") }
