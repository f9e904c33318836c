package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"agentvm/emulator"
	"agentvm/images"
	"agentvm/rpc"
	"agentvm/wasi"
)

// VM is a running virtual machine. Its goroutines:
//
//	worker ── Machine.Run ──► closes the machine and thereby every stream ──► halted ──► frees the rest ──► done
//	                                     │                                                  │
//	console, one for each mount ◄────────┘ end with their streams     network's, client's ◄─┘
//	watch: ends the worker when the guest's supervisor has gone, and keeps the guest's clock right
type VM struct {
	config  Config
	image   images.Image
	console *console
	machine *emulator.Machine // the worker's; others may only ask for what it has Retired
	network *network          // nil: the VM has none
	client  *rpc.Client       // set before Start returns
	info    rpc.GuestInfo
	bulk    *bulk // files

	kill    context.CancelCauseFunc // ends the worker
	streams sync.WaitGroup          // goroutines that end with the machine's streams
	dialed  chan struct{}           // closed when client is set or will not be
	halted  chan struct{}           // closed when the machine has stopped and cause is set
	done    chan struct{}           // closed when nothing of the VM is left
	cause   error                   // why the machine stopped; read after halted
	owned   sync.WaitGroup          // goroutines that end after the machine, see own

	mu        sync.Mutex
	stopping  bool
	ended     bool                // own starts no more goroutines
	processes map[string]*Process // durable ones
	started   int                 // how many of them ever
}

const (
	// streamSize is the capacity in bytes of the control stream: a few messages, so that neither side waits for each.
	streamSize  = 256 << 10
	consoleSize = 64 << 10
	// lostTime is how long the machine may run on after its supervisor has gone: a kernel panic takes a moment to print.
	lostTime = 5 * time.Second
	// drainTime is how long answers that have arrived may take to be read after the machine has stopped.
	drainTime = time.Second
)

// Start boots a VM and returns when it can run commands. ctx bounds the start only. The VM must be stopped with Stop or
// Close.
func Start(ctx context.Context, config Config) (*VM, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("start a VM: %w", err)
	}
	v, err := start(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("start a VM: %w", err)
	}
	return v, nil
}

func start(ctx context.Context, config Config) (*VM, error) {
	p, err := gather(ctx, config)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	v := &VM{
		config: config, image: *p.image, network: p.network, console: &console{copy: config.Console}, bulk: newBulk(),
		dialed: make(chan struct{}), halted: make(chan struct{}), done: make(chan struct{}),
	}
	control, err := v.powerOn(ctx, p)
	if err != nil {
		return nil, err
	}
	err = v.greet(ctx, control, p.shares)
	close(v.dialed)
	if err != nil {
		err = v.explain(err)
		return nil, errors.Join(fmt.Errorf("boot %s: %w", p.image.Name, err), v.Close())
	}
	config.Logger.Debug("timing: booted", "took", time.Since(began), "guest", v.info.Boot, "kernel", v.info.Release)
	return v, nil
}

// powerOn makes the machine of its parts, which it owns from now on, and starts the goroutines.
func (v *VM) powerOn(ctx context.Context, p *parts) (*wasi.StreamHost, error) {
	control, screen := wasi.NewStream(streamSize), wasi.NewStream(consoleSize)
	config := emulator.Config{
		Memory: v.config.Memory, Console: screen, Control: control, Bulk: v.bulk.stream,
		Disks:  []emulator.Disk{{File: wasi.NewDisk(p.disk, p.image.Size, true), ReadOnly: true}},
		Shares: p.shares.devices(), Logger: v.config.Logger,
	}
	p.upper.attach(&config)
	p.network.attach(&config)
	machine, err := p.program.NewMachine(ctx, config)
	if err == nil {
		err = machine.LoadLinux(emulator.Linux{Kernel: p.kernel, Initramfs: p.initramfs, CommandLine: v.commandLine()})
		if err != nil {
			err = errors.Join(err, machine.Close())
		}
	}
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

// commandLine is what the kernel is told; docs/kernel.md explains the words.
func (v *VM) commandLine() string {
	line := "console=hvc0 quiet reboot=panic_warm"
	if v.config.KernelArguments != "" {
		line += " " + v.config.KernelArguments
	}
	return line
}

// greet waits until the guest answers and gives it its parameters.
func (v *VM) greet(ctx context.Context, control *wasi.StreamHost, s shares) error {
	ctx, cancel := context.WithTimeoutCause(ctx, v.config.BootTimeout,
		fmt.Errorf("the guest has not answered for %v", v.config.BootTimeout))
	defer cancel()
	client, err := rpc.Dial(ctx, control, rpc.ClientConfig{Logger: v.config.Logger})
	if err != nil {
		return withCause(ctx, err)
	}
	v.client = client
	v.network.connect(client)
	go v.watch()
	v.info, err = client.Start(ctx, rpc.StartParams{
		Time: time.Now(), Hostname: v.config.Hostname,
		Env: append(append([]string(nil), v.image.Env...), v.config.Env...), Mounts: s.mounts(),
		Network:       v.network.params(),
		CACertificate: v.config.CACertificate, NoNewPrivileges: v.config.NoNewPrivileges,
		UnixSockets: rpcSockets(v.config.UnixSockets), Connect: v.socketConnector(),
	})
	if w := v.info.NetworkWarning; w != "" {
		v.config.Logger.Warn("the guest's network: " + readable([]byte(w), 1))
	}
	return withCause(ctx, err)
}

// withCause says why ctx ended when it did.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}

// work is the goroutine that owns the machine. It ends the VM when the machine stops.
func (v *VM) work(ctx context.Context, p *parts) {
	defer close(v.done)
	exit, err := v.machine.Run(ctx)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if e := v.machine.Close(); e != nil {
		v.config.Logger.Warn("close the machine", "error", e)
	}
	v.streams.Wait()
	v.setCause(exit, err)
	close(v.halted)
	v.config.Logger.Debug("machine stopped", "instructions", v.Instructions(), "cause", v.cause)
	<-v.dialed
	if err := v.network.close(); err != nil {
		v.config.Logger.Warn("close the network", "error", err)
	}
	v.hangUp()
	v.endOwned()
	if err := p.release(); err != nil {
		v.config.Logger.Warn("free the VM", "error", err)
	}
}

func (v *VM) setCause(exit emulator.Exit, err error) {
	var lost *GuestError
	switch {
	case v.isStopping():
		v.cause = ErrStopped
	case errors.As(err, &lost):
		lost.Console = v.console.bytes()
		v.cause = lost
	default:
		v.cause = explain(exit, err, v.console.bytes())
	}
}

// hangUp ends the client after it has read what the guest said last: a result that has arrived is not lost.
func (v *VM) hangUp() {
	if v.client == nil {
		return
	}
	select {
	case <-v.client.Done():
	case <-time.After(drainTime):
	}
	_ = v.client.Close()
}

// watch stops a machine whose supervisor has gone, and keeps the guest's clock right. It ends with the machine.
func (v *VM) watch() {
	clock := newClockWatch(hostClocks(), v.syncClockSoon)
	ticker := time.NewTicker(clockInterval)
	defer ticker.Stop()
	for gone := false; !gone; {
		select {
		case <-v.client.Done():
			gone = true
		case <-ticker.C:
			clock.check()
		case <-v.halted:
			return
		}
	}
	select {
	case <-time.After(lostTime):
		v.kill(&GuestError{Reason: Lost})
	case <-v.halted:
	}
}

// explain replaces err by the reason of the VM's end when that is what caused it.
func (v *VM) explain(err error) error {
	if err == nil || !errors.Is(err, rpc.ErrClosed) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	select {
	case <-v.halted:
		return v.cause
	case <-time.After(lostTime + time.Second):
		return err
	}
}

// Image is what the VM has booted.
func (v *VM) Image() images.Image { return v.image }

// KernelRelease is the release of the running kernel, as uname -r prints it.
func (v *VM) KernelRelease() string { return v.info.Release }

// BootTime is how long the guest took from its kernel's first instruction until it answered, by its own clock.
func (v *VM) BootTime() time.Duration { return v.info.Boot }

// Instructions is how many instructions the guest has executed since power-on. It lags by up to a millisecond while the
// guest computes and is exact while it waits.
func (v *VM) Instructions() uint64 { return v.machine.Retired() }

// Console returns the last ConsoleTail bytes of what the guest's kernel printed.
func (v *VM) Console() []byte { return v.console.bytes() }
