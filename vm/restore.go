package vm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"agentvm/disk"
	"agentvm/snapshot"
)

// RestoreOptions say how a restored VM differs from the one that was saved.
type RestoreOptions struct {
	// KeepPrograms has programs that ran in the VM run on; nobody sees their output, and their input ends. Default: they are
	// killed.
	KeepPrograms bool
	// SameIdentity leaves MAC, machine-id and host name as they were, and connections that lead nowhere to time out: for the
	// one VM that takes the place of the saved one. Random numbers, clock and generation are new in any case.
	SameIdentity bool
	// Trusted says that VM.Snapshot has written the file and that nobody else can have changed it: the machine is taken as it is, with
	// its decoded code, which saves some milliseconds. A file that was made up can then make its process stand still. Files in a
	// store of agentvm that were written there need no such word. Default: of the file, only what was checked is taken over.
	Trusted bool
}

// Restore starts a VM from a file that Snapshot has written, and returns when it can run commands. Any number of VMs can be
// started from one file; they share the memory that none of them writes. The contents are not verified: snapshot.File.Verify does that.
// The file may be anybody's: what comes of it is a VM that is contained and can be stopped as any other, or an error
// (docs/snapshots.md).
//
// Of c, Image, Memory, Network.MTU and Network.Subnet are the snapshot's unless given, and must then be the same, as must
// Network.Disabled and Network.DisableIPv6; Kernel and KernelArguments must be empty. There must be as many Mounts as the VM
// had: they are mounted anew. A writable disk is copied to c.Disk, where nothing may be yet. Env, Hostname and the rest of
// Network are c's alone: a policy is not part of a snapshot.
func Restore(ctx context.Context, path string, c Config, o RestoreOptions) (*VM, error) {
	began := time.Now()
	v, err := restore(ctx, path, c, o)
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", path, err)
	}
	v.config.Logger.Debug("timing: restored", "took", time.Since(began), "guest", v.BootTime())
	return v, nil
}

func restore(ctx context.Context, path string, c Config, o RestoreOptions) (*VM, error) {
	s, err := openSaved(path, o.Trusted)
	if err != nil {
		return nil, err
	}
	meta := s.file.Meta()
	c, id, err := adopt(meta, c, o)
	if err == nil {
		c, err = c.withDefaults()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	p := &parts{saved: s, memory: s.image, origin: &meta, keepPrograms: o.KeepPrograms}
	copied := false
	p, err = gather(ctx, p, c, id, func(p *parts, ctx context.Context, c Config) error { return p.toRestore(ctx, c, &copied) })
	var v *VM
	if err == nil {
		v, err = begin(ctx, c, p, id)
	}
	if err != nil && copied {
		err = errors.Join(err, os.Remove(c.Disk))
	}
	return v, err
}

// openSaved opens a snapshot, or shares it when a VM of this process goes on from the same one: the same by its ID and its place. The
// ID alone would not do. It stands for contents that nobody has verified yet, and who copies the header of another's file must not
// have that one's VMs start from his.
func openSaved(path string, trusted bool) (*saved, error) {
	file, err := snapshot.Open(path)
	if err != nil {
		return nil, err
	}
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	used := false
	s, err := acquireSaved("snapshot\x00"+file.ID()+"\x00"+path, trusted, func() (*snapshot.File, error) { used = true; return file, nil })
	if !used {
		_ = file.Close()
	}
	return s, err
}

// adopt fills in of c what is the snapshot's, and finds what of it cannot be.
func adopt(m snapshot.Meta, c Config, o RestoreOptions) (Config, identity, error) {
	var extra savedExtra
	var shape *networkShape
	err := errors.Join(unmarshal(m.Extra, &extra), unmarshal(m.Network, &shape))
	if err != nil {
		return c, identity{}, fmt.Errorf("%w: what it says of its VM: %w", snapshot.ErrFormat, err)
	}
	mac, _ := net.ParseMAC(extra.MAC) // none: the default
	id := identity{generation: m.Generation, mac: mac}.successor(!o.SameIdentity)
	if c.Hostname == "" {
		c.Hostname = id.hostname(extra.Hostname)
	}
	if c.Image == "" {
		c.Image = m.Image
	}
	if c.Memory == 0 {
		c.Memory = m.Memory
	}
	c.Memory = wholePages(c.Memory)
	return c, id, errors.Join(fits(m, c, extra), adoptNetwork(shape, &c.Network))
}

// unmarshal reads what may be missing.
func unmarshal(raw json.RawMessage, into any) error {
	if raw == nil {
		return nil
	}
	return json.Unmarshal(raw, into)
}

// fits says what of a configuration the saved machine cannot have.
func fits(m snapshot.Meta, c Config, extra savedExtra) error {
	switch {
	case m.Machine != machineDigest():
		return fmt.Errorf("%w: it is of a machine of another version of agentvm (machine %.12s, this one has %.12s): restore it with that version",
			snapshot.ErrVersion, m.Machine, machineDigest())
	case c.Memory != m.Memory:
		return fmt.Errorf("memory of %d MiB: the VM had %d MiB, which cannot change", c.Memory>>20, m.Memory>>20)
	case c.Kernel != nil || c.KernelArguments != "":
		return errors.New("a restored VM has its kernel already: leave out Kernel and KernelArguments")
	case len(c.Mounts) != m.Shares:
		return fmt.Errorf("%d mounts: the VM had %d, at %q, and needs as many, at whatever places", len(c.Mounts), m.Shares, extra.Mounts)
	case m.Disk != nil && c.Disk == "":
		return fmt.Errorf("the snapshot has a writable disk of %d MiB: name a path where it is to be copied (Config.Disk)", m.Disk.Size>>20)
	case m.Disk == nil && c.Disk != "":
		return fmt.Errorf("writable disk %s: the VM had none, so it can have none", c.Disk)
	}
	return nil
}

// adoptNetwork fills in of n what is the snapshot's.
func adoptNetwork(saved *networkShape, n *Network) error {
	if n.Disabled != (saved == nil) {
		return errors.New("the VM had a network and needs one, or had none and can have none (Network.Disabled)")
	}
	if saved == nil {
		return nil
	}
	subnet, err := netip.ParsePrefix(saved.Subnet)
	if err != nil {
		return fmt.Errorf("%w: its subnet: %w", snapshot.ErrFormat, err)
	}
	if !n.Subnet.IsValid() {
		n.Subnet = subnet
	}
	n.MTU = cmp.Or(n.MTU, saved.MTU)
	return saved.admits(*n)
}

// admits says whether the guest of a saved machine, which has its addresses, can live in a network.
func (saved *networkShape) admits(n Network) error {
	switch {
	case n.MTU != saved.MTU:
		return fmt.Errorf("MTU of %d: the VM has %d, which cannot change", n.MTU, saved.MTU)
	case n.Subnet.Masked().String() != saved.Subnet:
		return fmt.Errorf("subnet %v: the VM has its address in %s, which cannot change", n.Subnet, saved.Subnet)
	case n.DisableIPv6 != saved.DisableIPv6:
		return errors.New("IPv6: the VM has it and needs it, or has none and can have none (Network.DisableIPv6)")
	}
	return nil
}

// toRestore gets what a saved machine needs beside its memory: its image, and its writable disk.
func (p *parts) toRestore(ctx context.Context, c Config, copied *bool) error {
	if err := p.openImage(ctx, c); err != nil {
		return fmt.Errorf("the image of the saved VM: %w", err)
	}
	if digest := bareDigest(p.image.RootDiskDigest); digest != p.origin.RootDisk {
		return fmt.Errorf("image %s is not the one that the VM had (root disk %.12s, now %.12s)", p.image.Name, p.origin.RootDisk, digest)
	}
	r, size := p.saved.file.Disk()
	if r == nil {
		return nil
	}
	err := disk.CloneFrom(ctx, r, size, c.Disk)
	if *copied = err == nil; *copied {
		p.upper, err = openUpper(c.Disk)
	}
	return err
}
