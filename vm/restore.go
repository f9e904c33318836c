package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"agentvm/images"
	"agentvm/internal/network/router"
	"agentvm/internal/storage/checkpoint"
	"agentvm/internal/storage/disk"
	"agentvm/internal/storage/snapshot"
)

// RestoreOptions say how a restored VM differs from the one that was saved.
type RestoreOptions struct {
	// KeepPrograms has programs that ran in the VM run on; their output is discarded and their input ends. Default: they are
	// killed.
	KeepPrograms bool
	// Adopt names, by Command.Key, those of them whose output is kept until VM.Adopt continues with them.
	Adopt []string
	// SameIdentity keeps MAC, machine-id and host name, and lets connections that lead nowhere time out: for the
	// one VM that takes the place of the saved one. Random numbers, clock and generation are always new.
	SameIdentity bool
	// ReplaceDisk says that there may be a disk at Config.Disk, which gets the contents of the saved one in one step, and after a later
	// failure once more. Default: nothing may be there yet, and nothing is there after a failure.
	ReplaceDisk bool
	// Trusted says that VM.Snapshot has written the file and that no other user or program can have changed it: the machine is taken as it
	// is, with its decoded code, which saves some milliseconds. A forged file can then make this process hang. Files that agentvm wrote
	// in its store are trusted without it. Default: only what can be checked is taken from the file.
	Trusted bool
}

// Restore starts a VM from a file that Snapshot has written, and returns when it can run commands. Any number of VMs can be
// started from one file; they share the memory that none of them writes. The contents are not verified: snapshot.File.Verify does that.
// The file may come from anyone: the result is a VM that is contained and can be stopped as any other, or an error
// (docs/guide/snapshots.md).
//
// Of c, Image, Memory, Network.MTU, Network.Subnet and Network.Address are the snapshot's unless given, and must then be the same, as must
// Network.Disabled and Network.DisableIPv6; Kernel and KernelArguments must be empty. There must be as many Mounts as the VM
// had: they are mounted anew. A writable disk is copied to c.Disk. Env, Hostname and the rest of
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
	s, err := checkpoint.Open(path, o.Trusted)
	if err != nil {
		return nil, err
	}
	meta := s.File.Meta()
	c, id, err := adopt(meta, c, o)
	if err == nil {
		c, err = c.withDefaults()
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	extra, _, _ := checkpoint.Describe(meta) // adopt has read it
	r := &resources{hostCommands: extra.Commands, usedDevices: extra.Added, saved: s, memory: s.Image, origin: &meta, architecture: meta.Architecture(), keepPrograms: o.KeepPrograms, adopts: o.Adopt}
	copied := false
	r, err = acquire(ctx, r, c, id, func(r *resources, ctx context.Context, c Config, decided func()) error {
		decided()
		return r.toRestore(ctx, c, o.ReplaceDisk, &copied)
	})
	var v *VM
	if err == nil {
		v, err = begin(ctx, c, r, id)
	}
	switch {
	case err == nil || !copied:
	case o.ReplaceDisk: // the guest may have written to it
		err = errors.Join(err, replaceDisk(context.WithoutCancel(ctx), path, c.Disk))
	default:
		err = errors.Join(err, disk.Discard(c.Disk))
	}
	return v, err
}

// replaceDisk gives the disk of a snapshot to a VM that could not be restored from it.
func replaceDisk(ctx context.Context, path, to string) error {
	saved, err := snapshot.OpenFiles(path)
	if err != nil {
		return err
	}
	return errors.Join(saved.Replace(ctx, to), saved.Close())
}

// adopt fills in c from the snapshot and refuses what the saved machine cannot have.
func adopt(m snapshot.Meta, c Config, o RestoreOptions) (Config, checkpoint.Identity, error) {
	extra, network, err := checkpoint.Describe(m)
	if err != nil {
		return c, checkpoint.Identity{}, fmt.Errorf("%w: what it says of its VM: %w", snapshot.ErrFormat, err)
	}
	mac, _ := net.ParseMAC(extra.MAC) // none: the default
	id := checkpoint.Identity{Generation: m.Generation, MAC: mac}.Successor(!o.SameIdentity)
	if asked := c.withMAC(id); !o.SameIdentity {
		id = asked
	} else if mac != nil && asked.MAC.String() != mac.String() {
		return c, id, fmt.Errorf("MAC %v: the VM keeps its identity, and with it %v: leave out Network.MAC", asked.MAC, mac)
	}
	if c.Hostname == "" {
		c.Hostname = id.Hostname(extra.Hostname)
	}
	if c.Image == "" || images.SameImage(c.Image, m.Image) { // a name may mean another release by now
		c.Image = m.Image
	}
	if c.Memory == 0 {
		c.Memory = m.Memory
	}
	c.Memory = wholePages(c.Memory)
	if saved := max(m.CPUs, 1); c.CPUs == 0 {
		c.CPUs = saved
	} else if c.CPUs != saved {
		return c, id, fmt.Errorf("%d processors: the VM was saved with %d, which cannot change: leave out their number", c.CPUs, saved)
	}
	if of := m.Architecture(); c.Platform != "" && c.architecture() != of {
		return c, id, fmt.Errorf("platform %s: the VM was saved on %s, which cannot change: leave out the platform", c.Platform, of.Platform())
	}
	shape := checkpoint.Shape{
		Machine: c.machineDigest(m.Architecture()), Program: c.Program, Memory: c.Memory, Mounts: len(c.Mounts), OwnKernel: c.Kernel != nil || c.KernelArguments != "", Disk: c.Disk,
	}
	return c, id, errors.Join(checkpoint.Admits(m, extra, shape), adoptNetwork(network, &c.Network))
}

// adoptNetwork fills in n from the snapshot.
func adoptNetwork(saved *checkpoint.Network, n *Network) error {
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
	if saved.Address != "" && !n.Address.IsValid() {
		if n.Address, err = netip.ParseAddr(saved.Address); err != nil {
			return fmt.Errorf("%w: its address: %w", snapshot.ErrFormat, err)
		}
	}
	full, err := router.Complete(*n)
	if err != nil {
		return err
	}
	return saved.Admits(networkShape(full))
}

// toRestore acquires what a saved machine needs beside its memory: its image, and a copy of its writable disk.
func (r *resources) toRestore(ctx context.Context, c Config, replace bool, copied *bool) error {
	if err := r.openImage(ctx, c); err != nil {
		return fmt.Errorf("the image of the saved VM: %w", err)
	}
	if digest := bareDigest(r.image.RootDiskDigest); digest != r.origin.RootDisk {
		former, err := r.disk.Value.FormerDigest(ctx) // which snapshots of earlier versions have
		if err != nil {
			return fmt.Errorf("root disk of image %s: %w", r.image.Name, err)
		}
		if bareDigest(former) != r.origin.RootDisk {
			return fmt.Errorf("image %s is not the one that the VM had (root disk %.12s, now %.12s)", r.image.Name, r.origin.RootDisk, digest)
		}
	}
	saved, err := r.saved.File.OpenDisk()
	if saved == nil || err != nil {
		return err
	}
	defer saved.Close()
	if replace {
		err = saved.Replace(ctx, c.Disk)
	} else {
		err = saved.Clone(ctx, c.Disk)
	}
	if *copied = err == nil; *copied {
		r.overlay, err = openOverlay(c.Disk, c.Logger)
	}
	return err
}
