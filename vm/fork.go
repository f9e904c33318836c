package vm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/machine"
	"agentvm/internal/storage/checkpoint"
	"agentvm/internal/storage/disk"
)

// ForkOptions say how forks differ from the VM they are made of.
type ForkOptions struct {
	// KeepPrograms has programs that run in the VM run on in the forks, each copy on its own; their output is discarded and their
	// input ends. Default: they are killed in the forks. In the VM itself they always run on.
	KeepPrograms bool
	// Configure changes the configuration of fork i, which is the VM's own except for this: Hostname has a suffix that no other
	// fork has, ports of the host in Network.Forwards are 0, so that each fork gets others, and Console, Network.Capture,
	// Network.Audit and Disk are not set. For a VM with a writable disk it must set Disk, to a path where a copy of
	// the disk can be made. Memory, Image, Kernel, KernelArguments, the number of Mounts, and of Network Disabled,
	// DisableIPv6, MTU, Subnet and Address must stay. Default: nothing is changed.
	Configure func(i int, c *Config)
}

// Fork makes n VMs that continue from this one's memory. This VM is stopped only for the moment that it takes to note what has
// changed in its memory and to copy its writable disk, if it has one. All share the memory that none of them writes. Each fork has an
// identity of its own: random numbers, MAC, machine-id, host name and generation. Its connections to others
// are reset. docs/guide/snapshots.md says what that means for programs.
//
// The forks' machines run when Fork returns; the first call on one waits until its guest has taken its new identity. Each
// must be stopped by itself, and none needs this VM any more. On failure no fork is left.
func (v *VM) Fork(ctx context.Context, n int, o ForkOptions) ([]*VM, error) {
	began := time.Now()
	forks, err := v.fork(ctx, n, o)
	if err != nil {
		return nil, fmt.Errorf("fork the VM: %w", err)
	}
	v.config.Logger.Debug("timing: forked", "took", time.Since(began), "forks", n)
	return forks, nil
}

// forkState is a fork that is being made.
type forkState struct {
	config    Config
	id        checkpoint.Identity
	resources *resources // its own; nil when vm owns them
	held      *resources // what it shares with its VM, and its disk, until resources has them
	copied    bool       // its disk's file exists
	vm        *VM
}

func (v *VM) fork(ctx context.Context, n int, o ForkOptions) (forks []*VM, err error) {
	list, err := v.plan(n, o)
	if err != nil {
		return nil, err
	}
	if err := v.waitReady(ctx); err != nil {
		return nil, err
	}
	var capture *checkpoint.Capture
	var g errgroup.Group // at the same time: both take long compared with the rest
	g.Go(func() error { return v.acquireForks(ctx, list, o) })
	g.Go(func() (err error) { capture, err = v.captureForForks(ctx, list); return err })
	if err = g.Wait(); err == nil {
		err = startForks(ctx, list, capture.Image, v.guestInfo())
	}
	if capture != nil {
		err = errors.Join(err, capture.Close())
	}
	if err != nil {
		return nil, errors.Join(err, dropForks(list))
	}
	for _, f := range list {
		forks = append(forks, f.vm)
	}
	return forks, nil
}

// waitReady waits for the handshake, unless the VM is paused: a fork may be forked before its guest has answered.
func (v *VM) waitReady(ctx context.Context) error {
	if err := v.alive(); err != nil || v.Paused() {
		return err
	}
	return v.ready(ctx)
}

// plan makes each fork's configuration and identity.
func (v *VM) plan(n int, o ForkOptions) (list []*forkState, err error) {
	if n < 1 {
		return nil, fmt.Errorf("%d forks: want at least one", n)
	}
	for i := range n {
		f := &forkState{config: v.config, id: v.identity.Successor(true)}
		c := &f.config
		c.Hostname, c.Disk, c.Console, c.Recorder = f.id.Hostname(c.Hostname), "", nil, nil
		c.Network.Capture, c.Network.Audit, c.Network.Forwards = nil, nil, slices.Clone(c.Network.Forwards)
		for i, f := range c.Network.Forwards {
			c.Network.Forwards[i].Listen = netip.AddrPortFrom(f.Listen.Addr(), 0) // a port can be open in one VM only
		}
		c.Mounts, c.Env, c.Access = slices.Clone(c.Mounts), slices.Clone(c.Env), c.Access.Clone()
		if o.Configure != nil {
			o.Configure(i, c)
		}
		if f.config, err = c.withDefaults(); err == nil {
			f.id = f.config.withMAC(f.id)
			err = v.sameShape(f.config)
		}
		if err != nil {
			return nil, fmt.Errorf("fork %d: %w", i, err)
		}
		list = append(list, f)
	}
	return list, nil
}

// sameShape refuses a configuration that differs in what a running machine cannot change.
func (v *VM) sameShape(c Config) error {
	switch own := v.config; {
	case c.Memory != own.Memory, c.CPUs != own.CPUs, c.Image != own.Image, c.Platform != own.Platform, len(c.Kernel) != len(own.Kernel), c.KernelArguments != own.KernelArguments:
		return errors.New("a fork has the memory, processors, image, platform and kernel of its VM")
	case len(c.Mounts) != len(own.Mounts):
		return fmt.Errorf("%d mounts: a fork has as many as its VM, %d", len(c.Mounts), len(own.Mounts))
	case c.Network.Disabled != own.Network.Disabled:
		return errors.New("a fork has a network, or none, like its VM")
	case own.Disk != "" && c.Disk == "":
		return errors.New("the VM has a writable disk: name a path for the fork's copy (ForkOptions.Configure, Config.Disk)")
	case own.Disk == "" && c.Disk != "":
		return fmt.Errorf("writable disk %s: the VM has none, so its forks can have none", c.Disk)
	}
	if c.Network.Disabled {
		return nil
	}
	return networkShape(v.config.Network).Admits(networkShape(c.Network))
}

// acquireForks acquires the forks' resources that they do not share with the VM.
func (v *VM) acquireForks(ctx context.Context, list []*forkState, o ForkOptions) error {
	g, ctx := errgroup.WithContext(ctx)
	used := v.added.used()
	for _, f := range list {
		g.Go(func() (err error) {
			r := &resources{store: v.resources.store, architecture: v.resources.architecture, usedDevices: used, keepPrograms: o.KeepPrograms, hostCommands: len(v.config.HostCommands) > 0}
			f.resources, err = acquire(ctx, r, f.config, f.id, func(_ *resources, _ context.Context, _ Config, decided func()) error { decided(); return nil })
			return err
		})
	}
	return g.Wait()
}

// captureForForks captures the VM, copies its disk for each fork, and gives the forks references to what they share with it.
func (v *VM) captureForForks(ctx context.Context, list []*forkState) (*checkpoint.Capture, error) {
	own := v.resources
	c, err := v.capture(ctx, machine.ExtentsForMany, func() {
		for _, f := range list { // while the machine still exists
			f.held = &resources{image: own.image, disk: own.disk.Retain(), saved: own.saved.Retain(), origin: own.origin}
		}
	})
	if err != nil || c.Disk == nil {
		return c, err
	}
	for _, f := range list {
		if err := c.Disk.Clone(ctx, f.config.Disk); err != nil {
			return c, err
		}
		f.copied = true
		if f.held.overlay, err = openOverlay(f.config.Disk, f.config.Logger); err != nil {
			return c, err
		}
	}
	err = c.Disk.Close()
	c.Disk = nil
	return c, err
}

// Generation counts the forks and restores that led to this VM: 0 for one that Start has made. The guest's programs find it in
// /run/agentvm/generation.
func (v *VM) Generation() uint64 { return v.identity.Generation }

// startForks starts the forks' machines. info is what they know of the guest until it answers.
func startForks(ctx context.Context, list []*forkState, image *machine.MemoryImage, info guestrpc.GuestInfo) error {
	var g errgroup.Group
	for _, f := range list {
		g.Go(func() error {
			r, held := f.resources, f.held
			r.image, r.disk, r.saved, r.origin, r.overlay, r.memory = held.image, held.disk, held.saved, held.origin, held.overlay, image
			fork := newVM(f.config, r, f.id)
			fork.knownInfo = info
			control, err := fork.powerOn(ctx)
			f.resources, f.held = nil, nil // owned by the fork, or released
			if err != nil {
				return err
			}
			f.vm = fork
			go func() { // work waits for it
				fork.handshake(context.Background(), control)
				if err := fork.readyErr; err != nil {
					fork.kill(&GuestError{Reason: Lost, Err: err})
				}
				close(fork.connected)
			}()
			return nil
		})
	}
	return g.Wait()
}

// dropForks closes and releases what was made of the forks.
func dropForks(list []*forkState) error {
	var errs []error
	for _, f := range list {
		if f.vm != nil {
			errs = append(errs, f.vm.Close())
		}
		if f.resources != nil {
			errs = append(errs, f.resources.release())
		}
		if f.held != nil {
			errs = append(errs, f.held.release())
		}
		if f.copied {
			errs = append(errs, disk.Discard(f.config.Disk))
		}
	}
	return errors.Join(errs...)
}
