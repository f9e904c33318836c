package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"agentvm/emulator"
	"agentvm/wasi"
)

// Start starts a VM and returns when it can run commands. ctx bounds the start only. The VM must be stopped with Stop or
// Close.
//
// The first VM of a kind boots and leaves a base in the store, the machine as it is after that; those that come later
// go on from there, which takes some milliseconds. docs/snapshots.md says when there is none.
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
			broken.remove() // else the configuration is what does not work
		}
	}
	if err != nil {
		return nil, fmt.Errorf("start a VM: %w", err)
	}
	return v, nil
}

func start(ctx context.Context, config Config) (*VM, error) {
	began := time.Now()
	id := newIdentity()
	p, err := gather(ctx, &parts{}, config, id, (*parts).toBoot)
	if err != nil {
		return nil, err
	}
	id.anew = p.memory != nil || p.layBase
	v, err := begin(ctx, config, p, id)
	if err != nil && p.saved != nil && ctx.Err() == nil {
		bad := p.saved.file
		err = &brokenBaseError{err, func() { p.removeBase(config, bad) }}
	}
	if err != nil {
		return nil, err
	}
	v.checkBase()
	config.Logger.Debug("timing: started", "took", time.Since(began), "guest", v.BootTime(), "kernel", v.KernelRelease())
	return v, nil
}

// begin makes a VM of its parts, which it owns from now on, and waits for its guest.
func begin(ctx context.Context, config Config, p *parts, id identity) (*VM, error) {
	v := newVM(config, p, id)
	began := time.Now()
	control, err := v.powerOn(ctx)
	if err != nil {
		return nil, err
	}
	config.Logger.Debug("timing: made the machine", "took", time.Since(began), "instructions", v.Instructions())
	v.greet(ctx, control)
	close(v.dialed)
	if err := v.greetErr; err != nil {
		return nil, errors.Join(fmt.Errorf("boot %s: %w", p.image.Name, err), v.Close())
	}
	return v, nil
}

func newVM(config Config, p *parts, id identity) *VM {
	v := &VM{
		config: config, parts: p, identity: id, image: *p.image, network: p.network, console: &console{copy: config.Console},
		bulk: newBulk(), desk: newDesk(), pause: newPause(),
		dialed: make(chan struct{}), halted: make(chan struct{}), done: make(chan struct{}),
	}
	v.locals = newLocals(v.warnLocal)
	v.network.showLocals(v.locals)
	return v
}

// powerOn makes the machine of its parts and starts the goroutines.
func (v *VM) powerOn(ctx context.Context) (*wasi.StreamHost, error) {
	p := v.parts
	control, screen := wasi.NewStream(streamSize), wasi.NewStream(consoleSize)
	config := emulator.Config{
		Memory: v.config.Memory, Console: screen, Control: control, Bulk: v.bulk.stream,
		Disks:  []emulator.Disk{{File: wasi.NewDisk(p.disk, p.image.Size, true), ReadOnly: true}},
		Shares: p.shares.devices(), Generation: v.identity.id, Logger: v.config.Logger,
	}
	p.upper.attach(&config)
	p.network.attach(&config)
	machine, err := v.makeMachine(ctx, config)
	if err != nil {
		return nil, errors.Join(err, p.release())
	}
	run, kill := context.WithCancelCause(context.Background())
	v.kill, v.machine = kill, machine
	v.streams.Go(func() { _, _ = io.Copy(v.console, screen.Host()) })
	p.shares.serve(run, &v.streams)
	go v.work(run, p)
	return control.Host(), nil
}

// makeMachine makes one that goes on from a saved one, or one that boots.
func (v *VM) makeMachine(ctx context.Context, config emulator.Config) (*emulator.Machine, error) {
	p := v.parts
	if p.memory != nil {
		return p.program.Restore(ctx, config, p.memory)
	}
	machine, err := p.program.NewMachine(ctx, config)
	if err != nil {
		return nil, err
	}
	err = machine.LoadLinux(emulator.Linux{Kernel: p.kernel, Initramfs: p.initramfs, CommandLine: v.commandLine()})
	if err != nil {
		return nil, errors.Join(err, machine.Close())
	}
	p.kernel, p.initramfs = nil, nil // the machine has them
	return machine, nil
}

// commandLine is the configuration's, and what a machine with a disk has to know that is to become a base.
func (v *VM) commandLine() string {
	line := v.config.commandLine()
	if v.parts.layBase && v.parts.upper != nil {
		line += " " + upperLate
	}
	return line
}

// commandLine is what the kernel is told; docs/kernel.md explains the words.
func (c Config) commandLine() string {
	line := "console=hvc0 quiet reboot=panic_warm"
	if c.KernelArguments != "" {
		line += " " + c.KernelArguments
	}
	return line
}
