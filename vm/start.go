package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"agentvm/internal/machine"
	"agentvm/internal/storage/checkpoint"
	"agentvm/internal/work/job"
	"agentvm/wasi"
)

// Start starts a VM and returns when it can run commands. ctx bounds the start only. The VM must be stopped with Stop or
// Close.
//
// The first VM of a kind boots and leaves a base in the store: the machine as it is after that. Later VMs of that kind
// continue from it, which takes some milliseconds. docs/internals/saved-machines.md says when there is none.
func Start(ctx context.Context, config Config) (*VM, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("start a VM: %w", err)
	}
	v, err := start(ctx, config)
	if broken := (*brokenBaseError)(nil); errors.As(err, &broken) && ctx.Err() == nil {
		config.Logger.Warn("the saved machine that VMs of this kind start from does not work, so this one boots", "error", err)
		config.ColdBoot = true
		if v, err = start(ctx, config); err == nil {
			broken.remove() // when booting fails, too, the configuration is at fault
		}
	}
	if err != nil {
		return nil, fmt.Errorf("start a VM: %w", err)
	}
	return v, nil
}

func start(ctx context.Context, config Config) (*VM, error) {
	began := time.Now()
	id := config.withMAC(checkpoint.NewIdentity())
	r, err := acquire(ctx, &resources{}, config, id, (*resources).toBoot)
	if err != nil {
		return nil, err
	}
	id.Renewed = r.memory != nil || r.createBase
	v, err := begin(ctx, config, r, id)
	if err != nil && r.saved != nil && ctx.Err() == nil {
		err = &brokenBaseError{err, func() { r.base.Remove(r.saved) }}
	}
	if err != nil {
		return nil, err
	}
	v.checkBase()
	config.Logger.Debug("timing: started", "took", time.Since(began), "guest", v.BootTime(), "kernel", v.KernelRelease())
	return v, nil
}

// brokenBaseError says that a VM could not be started from its base.
type brokenBaseError struct {
	error
	remove func() // removes the base
}

func (e *brokenBaseError) Unwrap() error { return e.error }

// begin makes a VM of its resources, which it owns from now on, and waits for its guest.
func begin(ctx context.Context, config Config, r *resources, id checkpoint.Identity) (*VM, error) {
	if config.BeforeRun != nil {
		if r.program != nil {
			r.program.Retain() // for good: the process may not be able to read compiled code any more
		}
		config.BeforeRun()
	}
	v := newVM(config, r, id)
	began := time.Now()
	control, err := v.powerOn(ctx)
	if err != nil {
		return nil, err
	}
	config.Logger.Debug("timing: made the machine", "took", time.Since(began), "instructions", v.Instructions())
	v.handshake(ctx, control)
	close(v.connected)
	if err := v.readyErr; err != nil {
		return nil, errors.Join(fmt.Errorf("boot %s: %w", r.image.Name, err), v.Close())
	}
	v.prepareImage(ctx)
	return v, nil
}

func newVM(config Config, r *resources, id checkpoint.Identity) *VM {
	config.Mounts = r.shares.specs() // with the directories' identities, which forks need
	v := &VM{
		config: config, resources: r, identity: id, image: *r.image, console: &console{copy: config.Console},
		bulk: newBulk(), queue: newWorkQueue(), pause: newPause(),
		connected: make(chan struct{}), halted: make(chan struct{}), done: make(chan struct{}), stuck: make(chan struct{}),
	}
	v.added = r.newAddedMounts(config)
	v.dialer = v.newDialer()
	v.jobs = job.NewTable(job.Config{Logger: config.Logger, Now: time.Now, MaxJobs: maxJobs})
	return v
}

// powerOn makes the machine of the VM's resources and starts the goroutines.
func (v *VM) powerOn(ctx context.Context) (*wasi.StreamHost, error) {
	r := v.resources
	control, screen := wasi.NewStream(streamSize), wasi.NewStream(consoleSize)
	root := io.NewSectionReader(r.disk.Value, 0, r.disk.Value.Size()) // which the machine does not close: forks share the disk
	v.slices = newSliceWatch(v.overrun)
	devices := machine.Config{
		Busy:   v.slices.setBusy,
		Memory: v.config.Memory, Harts: v.config.CPUs, Console: screen, Control: control, Bulk: v.bulk.stream,
		Disks:  []machine.Disk{{File: wasi.NewDisk(root, root.Size(), true), ReadOnly: true}},
		Shares: append(r.shares.devices(), v.added.devices()...), Generation: v.identity.ID, Logger: v.config.Logger,
	}
	if r.overlay != nil {
		devices.Disks = append(devices.Disks, machine.Disk{File: wasi.NewDisk(r.overlay, r.overlay.Size(), false)})
	}
	if r.network != nil {
		devices.Network, devices.NetworkHeader = r.link, true
		devices.MAC, devices.MTU = r.network.Card()
	}
	linux := machine.Linux{Kernel: r.kernel, Initramfs: r.initramfs, CommandLine: v.commandLine()}
	var err error
	if kind := v.config.emulator; kind != nil {
		v.machine, err = kind.start(ctx, devices, linux, r.memory)
	} else {
		v.machine, err = startMachine(ctx, r.program.Value, devices, linux, r.memory)
	}
	if err != nil {
		return nil, errors.Join(err, r.release())
	}
	r.kernel, r.initramfs = nil, nil // the machine has them
	run, kill := context.WithCancelCause(context.Background())
	v.kill = kill
	v.streams.Go(func() { _, _ = io.Copy(v.console, screen.Host()) })
	r.shares.serve(run, &v.streams)
	v.added.serve(&v.streams)
	v.slices.start(v.machine.Progress)
	go v.work(run, r)
	return control.Host(), nil
}

// commandLine is the kernel's command line. The guest of a VM with a disk that leaves a base must not touch the disk at first.
//
//   - reboot=panic_warm: a panic asks SBI SRST for a warm reset, an ordinary reboot for a cold one, so that the host can distinguish them.
//   - fb_tunnels=none dummy.numdummies=0 ifb.numifbs=0: only links that someone has made; they would take 1.5 M instructions of a boot.
//   - bdev_allow_write_mounted=1: as in Debian's kernels, a mounted device may be open for writing. BusyBox's mount -o loop has the loop device so.
func (v *VM) commandLine() string {
	line := "console=hvc0 quiet reboot=panic_warm fb_tunnels=none dummy.numdummies=0 ifb.numifbs=0 bdev_allow_write_mounted=1"
	if v.config.KernelArguments != "" {
		line += " " + v.config.KernelArguments
	}
	if v.resources.createBase && v.resources.overlay != nil {
		line += " " + overlayDeferred
	}
	return line
}
