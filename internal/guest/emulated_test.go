//go:build linux

package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"agentvm/images"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/kernel"
	"agentvm/wasi"
)

// emulated is our own machine with a control port, and no other device than its root disk. It does not run between pause and run.
type emulated struct {
	testing.TB
	*machine.Machine
	program *machine.Program
	disk    []byte // of the root
	config  machine.Config
	control *wasi.Stream
	screen  bytes.Buffer // complete when the machine is closed
	copied  sync.WaitGroup
	stop    context.CancelFunc
	stopped chan struct{}
}

// emulatedProgram compiles a machine's module once for a test.
func emulatedProgram(t testing.TB, architecture platform.Architecture) *machine.Program {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a machine")
	}
	p, err := machine.NewProgram(t.Context(), machine.ProgramConfig{Architecture: architecture})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	return p
}

func newEmulated(t testing.TB, p *machine.Program, disk []byte) *emulated {
	e := &emulated{TB: t, program: p, disk: disk, control: wasi.NewStream(256 << 10), stop: func() {}, stopped: make(chan struct{})}
	close(e.stopped)
	console := wasi.NewStream(64 << 10)
	e.config = machine.Config{
		Memory: 128 << 20, Console: console, Control: e.control,
		Disks: []machine.Disk{{File: wasi.NewDisk(bytes.NewReader(disk), int64(len(disk)), true), ReadOnly: true}},
	}
	e.copied.Go(func() { _, _ = io.Copy(&e.screen, console.Host()) })
	return e
}

// bootEmulated boots a machine on the built-in root.
func bootEmulated(t testing.TB, architecture platform.Architecture) *emulated {
	t.Helper()
	p := emulatedProgram(t, architecture)
	store, err := images.Config{Dir: t.TempDir()}.Open()
	if err != nil {
		t.Fatal(err)
	}
	image, err := store.For(architecture).Resolve(t.Context(), "busybox")
	if err != nil {
		t.Fatal(err)
	}
	root, err := store.OpenRootDisk(image)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	disk := make([]byte, root.Size())
	if _, err := root.ReadAt(disk, 0); err != nil {
		t.Fatal(err)
	}
	linux, err := kernel.Image(architecture)
	if err != nil {
		t.Fatal(err)
	}
	e := newEmulated(t, p, disk)
	if e.Machine, err = p.NewMachine(t.Context(), e.config); err != nil {
		t.Fatal(err)
	}
	if err := e.LoadLinux(machine.Linux{Kernel: linux, Initramfs: firstRoot(t, architecture), CommandLine: "console=hvc0 quiet reboot=panic_warm fb_tunnels=none dummy.numdummies=0 ifb.numifbs=0"}); err != nil {
		t.Fatal(err)
	}
	e.Cleanup(e.close)
	e.run()
	return e
}

// copy makes a copy of this machine, which is paused. The copy does not run yet.
func (e *emulated) copy(t testing.TB) *emulated {
	t.Helper()
	image, err := e.Capture(machine.ExtentsForMany)
	if err != nil {
		t.Fatal(err)
	}
	another := newEmulated(t, e.program, e.disk)
	another.config.Generation = [16]byte{1}
	another.Machine, err = e.program.Restore(t.Context(), another.config, image)
	if err := errors.Join(err, image.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(another.close)
	return another
}

func (e *emulated) run() {
	ctx, stop := context.WithCancel(context.Background())
	e.stop, e.stopped = stop, make(chan struct{})
	go func() {
		defer close(e.stopped)
		if _, err := e.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			e.Error(err)
		}
	}()
}

func (e *emulated) pause() { e.stop(); <-e.stopped }

func (e *emulated) close() {
	e.pause()
	if e.Machine == nil {
		return
	}
	if err := e.Close(); err != nil {
		e.Error(err)
	}
	e.Machine = nil
	e.copied.Wait()
	if e.Failed() {
		e.Logf("console:\n%s", e.screen.String())
	}
}

func (e *emulated) dial(cfg guestrpc.ClientConfig) *guestrpc.Client {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), time.Minute)
	defer cancel()
	c, err := guestrpc.Dial(ctx, e.control.Host(), cfg)
	if err != nil {
		e.Fatal(err)
	}
	return c
}
