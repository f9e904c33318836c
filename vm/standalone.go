package vm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"agentvm/images"
	"agentvm/internal/guest/supervisor"
	"agentvm/internal/machine"
	"agentvm/internal/machine/initramfs"
	"agentvm/internal/machine/kernel"
	"agentvm/internal/work/headtail"
	"agentvm/wasi"
)

const (
	// exportSettle is how long a guest that is ready runs on before it is captured, so that what follows a boot is not done in each run.
	exportSettle = 200 * time.Millisecond
	// exportMemory is the default of ExportWASI, in bytes.
	exportMemory = 256 << 20
)

// ExportWASI boots the image of a root disk and writes it to w as a WASI preview 1 command: the machine, the booted guest and the disk in one
// module, which runs the image's command, or its arguments, in any runtime. memory is the guest's RAM in bytes, 0 for 256 MiB. The
// disk stays the caller's. The module's guest has preopened directories as mounts, and a network as container2wasm's modules have it. An image that does not fit into WebAssembly's 4 GiB of
// memory with its RAM is an error.
func ExportWASI(ctx context.Context, image *images.Image, disk *images.RootDisk, memory uint64, w io.Writer) error {
	m, err := bootForExport(ctx, image, disk, memory)
	if err == nil {
		err = errors.Join(m.WriteStandalone(w, disk, disk.Size()), m.Close())
	}
	if err != nil {
		return fmt.Errorf("export image %s: %w", image.Name, err)
	}
	return nil
}

// exported is a machine with the program that it needs.
type exported struct {
	*machine.Machine
	program *machine.Program
}

func (e *exported) Close() error {
	return errors.Join(e.Machine.Close(), e.program.Close(context.Background()))
}

// bootForExport returns a machine whose guest has the image's settings, and waits for what to run.
func bootForExport(ctx context.Context, image *images.Image, disk *images.RootDisk, memory uint64) (_ *exported, err error) {
	settings, err := exportSettings(image)
	if err != nil {
		return nil, err
	}
	if memory == 0 {
		memory = exportMemory
	}
	linux := machine.Linux{CommandLine: "console=hvc0 quiet reboot=panic_warm panic=-1 fb_tunnels=none dummy.numdummies=0 ifb.numifbs=0 bdev_allow_write_mounted=1 agentvm.standalone"}
	if linux.Kernel, err = kernel.Image(image.Architecture); err != nil {
		return nil, err
	}
	program, err := supervisor.Binary(image.Architecture)
	if err != nil {
		return nil, err
	}
	linux.Initramfs = initramfs.Of(program)
	e := &exported{}
	if e.program, err = machine.NewStandaloneProgram(ctx, image.Architecture); err != nil {
		return nil, err
	}
	control, screen, idle := wasi.NewStream(streamSize), wasi.NewStream(consoleSize), func() wasi.File { return wasi.NewStream(consoleSize) }
	root := io.NewSectionReader(disk, 0, disk.Size()) // which the machine does not close
	e.Machine, err = e.program.NewMachine(ctx, machine.Config{
		Memory: memory, Console: screen, Control: control,
		// The guest uses these when it is asked for a network, and when the runtime gives it directories.
		Network: idle(), Shares: []machine.Share{{Tag: "runtime", File: idle()}},
		Disks: []machine.Disk{{File: wasi.NewDisk(root, root.Size(), true), ReadOnly: true}},
	})
	if err != nil {
		return nil, errors.Join(err, e.program.Close(ctx))
	}
	if err = e.LoadLinux(linux); err == nil {
		err = e.runUntilReady(ctx, settings, control.Host(), screen.Host())
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// exportSettings is the list that invocation.read of package guest reads.
func exportSettings(image *images.Image) ([]byte, error) {
	list := []byte{'s', 0, 0, 0, 0}
	put := func(letter byte, texts ...string) {
		for _, text := range texts {
			list = append(append(append(list, letter), text...), 0)
		}
	}
	entrypoint, cmd := image.Entrypoint, image.Cmd
	if len(entrypoint)+len(cmd) == 0 {
		cmd = []string{"/bin/sh"} // as agentvm run
	}
	put('e', entrypoint...)
	put('c', cmd...)
	put('n', image.Env...)
	put('u', image.User)
	put('w', image.WorkingDir)
	texts := append(append(append([]string{image.User, image.WorkingDir}, entrypoint...), cmd...), image.Env...)
	for _, text := range texts {
		if strings.ContainsRune(text, 0) {
			return nil, errors.New("its configuration has a NUL byte")
		}
	}
	binary.LittleEndian.PutUint32(list[1:], uint32(len(list)-5))
	return list, nil
}

// runUntilReady boots the guest, until it has taken the settings.
func (e *exported) runUntilReady(ctx context.Context, settings []byte, control, screen *wasi.StreamHost) error {
	ctx, cancel := context.WithTimeout(ctx, moduleBootTimeout)
	defer cancel()
	run, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		exit, err := e.Run(run)
		if err == nil {
			err = fmt.Errorf("the guest ended while booting (%v)", exit.Reason)
		}
		_ = control.Close() // which ends the reads below
		_ = screen.Close()
		ended <- err
	}()
	console, printed := headtail.New(moduleTail), make(chan struct{})
	go func() { defer close(printed); _, _ = io.Copy(console, screen) }()
	var answer [5]byte
	_, err := control.Write(settings)
	if err == nil {
		_, err = io.ReadFull(control, answer[:])
	}
	if err == nil && answer != [5]byte{'k'} {
		err = fmt.Errorf("the guest answered %q", answer)
	}
	if err == nil {
		select {
		case <-time.After(exportSettle):
		case <-ctx.Done():
		}
	}
	stop()
	runErr := <-ended
	<-printed
	if ctx.Err() == nil && errors.Is(runErr, context.Canceled) && err == nil {
		return nil
	}
	last, _ := console.Take()
	return fmt.Errorf("boot: %w: %s", errors.Join(ctx.Err(), runErr, err), strings.TrimSpace(string(last)))
}
