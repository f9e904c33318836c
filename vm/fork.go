package vm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"agentvm/disk"
	"agentvm/emulator"
	"agentvm/nat"
)

// ForkOptions say how forks differ from the VM they are made of.
type ForkOptions struct {
	// KeepPrograms has programs that run in the VM run on in the forks, each copy on its own; nobody sees their output, and their
	// input ends. Default: they are killed in the forks. In the VM itself they run on in any case.
	KeepPrograms bool
	// Configure changes the configuration of fork i, which is the VM's own but for this: Hostname has a suffix that no other
	// fork has, ports of the host in Network.Forwards are 0, so that each fork gets others, and Console, Network.Capture,
	// Network.Audit and Disk are not set. For a VM with a writable disk it must set Disk, to a path where a copy of
	// the disk can be made. Memory, Image, Kernel, KernelArguments, the number of Mounts, and of Network Disabled,
	// DisableIPv6, MTU and Subnet must stay. Default: nothing is changed.
	Configure func(i int, c *Config)
}

// Fork makes n VMs that go on from where this one is, which itself goes on undisturbed but for the moment that it takes to
// note what has changed in its memory; with a writable disk, also to copy that. All share the memory that none of them writes. Each is another
// computer than this VM: it has its own random numbers, MAC, machine-id, host name and generation, and its connections to others
// are reset. docs/snapshots.md has what that means for programs.
//
// The forks' machines run when Fork returns; the first call on one waits until its guest has taken its new identity. Each
// must be stopped by itself, and none needs this VM any more. On failure there are none.
func (v *VM) Fork(ctx context.Context, n int, o ForkOptions) ([]*VM, error) {
	began := time.Now()
	forks, err := v.fork(ctx, n, o)
	if err != nil {
		return nil, fmt.Errorf("fork the VM: %w", err)
	}
	v.config.Logger.Debug("timing: forked", "took", time.Since(began), "forks", n)
	return forks, nil
}

// offspring is a fork in the making.
type offspring struct {
	config Config
	id     identity
	parts  *parts // its own
	held   *parts // what it shares with its VM, and its disk
	copied bool   // its disk
	vm     *VM
}

func (v *VM) fork(ctx context.Context, n int, o ForkOptions) (forks []*VM, err error) {
	list, err := v.plan(n, o)
	if err != nil {
		return nil, err
	}
	if err := v.settled(ctx); err != nil {
		return nil, err
	}
	var image *emulator.Image
	var g errgroup.Group // side by side: each takes a good part of the time that a fork takes
	g.Go(func() error { return v.gatherForks(ctx, list, o) })
	g.Go(func() (err error) { image, err = v.divide(ctx, list); return err })
	if err := g.Wait(); err != nil {
		if image != nil {
			err = errors.Join(err, image.Close())
		}
		return nil, errors.Join(err, dropForks(list))
	}
	err = v.startForks(ctx, list, image)
	if err = errors.Join(err, image.Close()); err != nil {
		return nil, errors.Join(err, dropForks(list))
	}
	for _, f := range list {
		forks = append(forks, f.vm)
	}
	return forks, nil
}

// settled waits until the VM is what it is to be: a fork may be forked before its guest has answered.
func (v *VM) settled(ctx context.Context) error {
	if err := v.alive(); err != nil || v.Paused() {
		return err
	}
	return v.ready(ctx)
}

// plan says what each fork is to be.
func (v *VM) plan(n int, o ForkOptions) (list []*offspring, err error) {
	if n < 1 {
		return nil, fmt.Errorf("%d forks: want at least one", n)
	}
	for i := range n {
		f := &offspring{config: v.config, id: v.identity.successor(true)}
		c := &f.config
		c.Hostname, c.Disk, c.Console = f.id.hostname(c.Hostname), "", nil
		c.Network.Capture, c.Network.Audit, c.Network.Forwards = nil, nil, anyPorts(c.Network.Forwards)
		c.Mounts, c.Env, c.Access = slices.Clone(c.Mounts), slices.Clone(c.Env), c.Access.clone()
		if o.Configure != nil {
			o.Configure(i, c)
		}
		if f.config, err = c.withDefaults(); err == nil {
			err = v.sameShape(f.config)
		}
		if err != nil {
			return nil, fmt.Errorf("fork %d: %w", i, err)
		}
		list = append(list, f)
	}
	return list, nil
}

// anyPorts are the forwards without their ports of the host, which one VM at a time can have.
func anyPorts(forwards []nat.Forward) []nat.Forward {
	forwards = slices.Clone(forwards)
	for i, f := range forwards {
		forwards[i].Listen = netip.AddrPortFrom(f.Listen.Addr(), 0)
	}
	return forwards
}

// sameShape finds what in a fork's configuration a machine that runs cannot become.
func (v *VM) sameShape(c Config) error {
	switch own := v.config; {
	case c.Memory != own.Memory, c.Image != own.Image, len(c.Kernel) != len(own.Kernel), c.KernelArguments != own.KernelArguments:
		return errors.New("a fork has the memory, image and kernel of its VM")
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
	return v.config.Network.shape().admits(c.Network)
}

// gatherForks gets what of the forks' parts is not the VM's own.
func (v *VM) gatherForks(ctx context.Context, list []*offspring, o ForkOptions) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, f := range list {
		g.Go(func() (err error) {
			p := &parts{store: v.parts.store, keepPrograms: o.KeepPrograms}
			f.parts, err = gather(ctx, p, f.config, f.id, func(*parts, context.Context, Config) error { return nil })
			return err
		})
	}
	return g.Wait()
}

// divide notes the machine's memory and copies its disk, and gives the forks their hold on what they share with the VM.
func (v *VM) divide(ctx context.Context, list []*offspring) (image *emulator.Image, err error) {
	v.syncDisk(ctx)
	err = v.atDesk(ctx, func(m *emulator.Machine) (err error) {
		for _, f := range list {
			f.share(v)
		}
		if v.parts.upper != nil {
			if err := v.parts.upper.Clone(ctx, list[0].config.Disk); err != nil {
				return err
			}
			list[0].copied = true
		}
		image, err = m.Capture()
		return err
	})
	if err == nil {
		err = openCopies(ctx, list)
	}
	if err != nil && image != nil {
		err = errors.Join(err, image.Close())
	}
	return image, err
}

// share gives the fork its hold on what it shares with v, whose machine exists.
func (f *offspring) share(v *VM) {
	f.held = &parts{image: v.parts.image, disk: v.parts.disk.again(), saved: v.parts.saved.again(), origin: v.parts.origin}
}

// join makes the fork's parts complete.
func (f *offspring) join() {
	p, held := f.parts, f.held
	p.image, p.disk, p.saved, p.origin, p.upper = held.image, held.disk, held.saved, held.origin, held.upper
	f.held = nil
}

// Generation counts the forks and restores from snapshots that led to this VM: 0 for one that Start has made. Programs of the guest find it in
// /run/agentvm/generation.
func (v *VM) Generation() uint64 { return v.identity.generation }

// openCopies makes the other copies of the first fork's disk, which nobody uses yet, and opens all.
func openCopies(ctx context.Context, list []*offspring) (err error) {
	for i, f := range list {
		if i > 0 && f.config.Disk != "" {
			if err := disk.Clone(ctx, list[0].config.Disk, f.config.Disk); err != nil {
				return err
			}
			f.copied = true
		}
	}
	for _, f := range list {
		if f.held.upper, err = openUpper(f.config.Disk); err != nil {
			return err
		}
	}
	return nil
}

// startForks has the forks' machines run.
func (v *VM) startForks(ctx context.Context, list []*offspring, image *emulator.Image) error {
	var g errgroup.Group
	for _, f := range list {
		g.Go(func() error { return v.startFork(ctx, f, image) })
	}
	return g.Wait()
}

func (v *VM) startFork(ctx context.Context, f *offspring, image *emulator.Image) error {
	f.join()
	f.parts.memory = image
	fork := newVM(f.config, f.parts, f.id)
	fork.knownInfo = v.guestInfo()
	control, err := fork.powerOn(ctx)
	f.parts = nil // the fork's, or gone
	if err != nil {
		return err
	}
	f.vm = fork
	go func() { // work waits for it
		fork.greet(context.Background(), control)
		if err := fork.greetErr; err != nil {
			fork.kill(&GuestError{Reason: Lost, Err: err})
		}
		close(fork.dialed)
	}()
	return nil
}

// dropForks ends what there is of forks.
func dropForks(list []*offspring) error {
	var errs []error
	for _, f := range list {
		if f.vm != nil {
			errs = append(errs, f.vm.Close())
		}
		if f.parts != nil {
			errs = append(errs, f.parts.release())
		}
		if f.held != nil {
			errs = append(errs, f.held.release())
		}
		if f.copied {
			errs = append(errs, os.Remove(f.config.Disk))
		}
	}
	return errors.Join(errs...)
}
