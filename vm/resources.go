package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"agentvm/images"
	"agentvm/internal/guest/supervisor"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/hostpath"
	"agentvm/internal/host/platform"
	"agentvm/internal/host/private"
	"agentvm/internal/host/refcount"
	"agentvm/internal/machine"
	"agentvm/internal/machine/initramfs"
	"agentvm/internal/machine/kernel"
	"agentvm/internal/network/reach"
	"agentvm/internal/network/router"
	"agentvm/internal/share/mount"
	"agentvm/internal/storage/checkpoint"
	"agentvm/internal/storage/snapshot"
	"agentvm/wasi"
)

// resources are what a VM is made of. All are acquired at the same time, since each takes some milliseconds.
type resources struct {
	store        *images.Store
	temporary    *atomicfile.Folder // a store that is removed with the VM, or nil
	architecture platform.Architecture
	program      *refcount.Ref[*machine.Program] // nil: the VM has another emulator
	image        *images.Image
	disk         *refcount.Ref[*images.RootDisk] // forks share it, since it may have left the store by then
	overlay      *overlayDisk                    // nil: none
	shares       shares
	guard        *mount.Guard       // of the mounts; nil: there are none
	sockets      []*hostpath.Socket // of Config.UnixSockets, in its order
	network      *router.Router     // nil: none
	link         *wasi.Stream       // of its frames
	ports        *reach.Ports       // which of them who may reach
	connections  *reach.Connections // of the host with the guest's loopback interface

	// The machine continues from memory, or boots kernel and initramfs when that is nil.
	memory    *machine.MemoryImage
	saved     *checkpoint.Saved // the file that has all or most of memory; nil: none
	origin    *snapshot.Meta    // of the file that Restore was given, also in forks; nil: none
	kernel    []byte
	initramfs []byte

	base         *checkpoint.Base // nil: the VM neither starts from one nor leaves one
	createBase   bool             // the VM leaves a base
	keepPrograms bool             // the saved machine's programs continue
	adopts       []string         // see RestoreOptions.Adopt
	hostCommands bool             // the saved machine has commands of its host
	usedDevices  []string         // tags of devices on which the saved machine has mounts that were added
}

// toStart acquires what a machine starts from, and calls decided as soon as r.architecture is known.
type toStart func(r *resources, ctx context.Context, c Config, decided func()) error

// acquire completes r. On failure everything is released.
func acquire(ctx context.Context, r *resources, c Config, id checkpoint.Identity, start toStart) (*resources, error) {
	if r.store == nil {
		if err := r.openStore(c); err != nil {
			return nil, errors.Join(err, r.release())
		}
	}
	r.ports, r.connections = reach.NewPorts(c.Access, c.Network.Forwards), reach.NewConnections(c.Logger)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(timed(c, "shares", func() error { return r.openHostPaths(ctx, c) }))
	g.Go(timed(c, "network", func() error { return r.openNetwork(c, id.MAC) }))
	decided := make(chan struct{})
	likely := cmp.Or(r.architecture, c.architecture(), platform.Default) // whose program is made while the image is looked for
	g.Go(timed(c, "machine", func() error { return start(r, ctx, c, sync.OnceFunc(func() { close(decided) })) }))
	if c.emulator == nil {
		g.Go(timed(c, "program", func() (err error) {
			cacheDir := filepath.Join(r.store.Dir(), "compiled")
			if r.temporary != nil {
				cacheDir = "" // it would not be used again
			}
			if r.program, err = acquireProgram(ctx, likely, c.CPUs > 1, cacheDir, c.Logger); err != nil {
				return err
			}
			select {
			case <-decided:
			case <-ctx.Done():
				return ctx.Err()
			}
			if r.architecture != likely {
				r.program.Release()
				r.program, err = acquireProgram(ctx, r.architecture, c.CPUs > 1, cacheDir, c.Logger)
			}
			return err
		}))
	}
	if err := g.Wait(); err != nil {
		return nil, errors.Join(err, r.release())
	}
	return r, nil
}

// toBoot acquires what a new machine starts from: a base, or what it boots.
func (r *resources) toBoot(ctx context.Context, c Config, decided func()) error {
	var g errgroup.Group
	g.Go(timed(c, "image", func() error {
		err := r.openImage(ctx, c)
		if err == nil {
			decided()
		}
		return err
	}))
	g.Go(timed(c, "disk", func() (err error) { r.overlay, err = openOverlay(c.Disk, c.Logger); return err }))
	if err := g.Wait(); err != nil {
		return err
	}
	if c.usesBase() && r.temporary == nil {
		r.openBase(c)
	}
	if r.memory != nil {
		return nil
	}
	return r.unpackLinux(c)
}

// unpackLinux acquires what a machine boots.
func (r *resources) unpackLinux(c Config) error {
	var g errgroup.Group
	g.Go(timed(c, "kernel", func() (err error) {
		if r.kernel = c.Kernel; r.kernel == nil {
			r.kernel, err = kernel.Image(r.architecture)
		}
		return err
	}))
	g.Go(timed(c, "initramfs", func() error {
		program, err := supervisor.Binary(r.architecture)
		if err == nil {
			r.initramfs = initramfs.Of(program)
		}
		return err
	}))
	return g.Wait()
}

// timed logs how long do takes.
func timed(c Config, what string, do func() error) func() error {
	return func() error {
		start := time.Now()
		err := do()
		c.Logger.Debug("timing: got the "+what, "took", time.Since(start))
		return err
	}
}

// openImage finds the image, downloading it when it is missing, and opens its disk.
func (r *resources) openImage(ctx context.Context, c Config) (err error) {
	if IsModule(c.Image) {
		return fmt.Errorf("image %s: %w", c.Image, ErrModule)
	}
	store := r.store.For(cmp.Or(r.architecture, c.architecture())) // of a restored VM it is known
	if c.Image == "" {
		var notice string
		if r.image, notice, err = store.ResolveDefault(ctx); notice != "" {
			c.Logger.Warn(notice)
		}
	} else {
		r.image, err = store.Resolve(ctx, c.Image)
	}
	if err != nil {
		return err
	}
	if r.architecture == "" { // else it is read meanwhile
		r.architecture = r.image.Architecture
	}
	disks := refcount.Map[*images.RootDisk]{Free: func(d *images.RootDisk) { _ = d.Close() }}
	r.disk, err = disks.Acquire("", func() (*images.RootDisk, error) { return r.store.OpenRootDisk(r.image) })
	return err
}

// release frees everything. Calling it twice does no harm.
func (r *resources) release() error {
	r.program.Release()
	r.disk.Release()
	r.saved.Close()
	_ = r.overlay.Close()
	for _, s := range r.sockets {
		_ = s.Close()
	}
	err := errors.Join(r.shares.close(), r.guard.Close(), r.network.Close())
	if r.temporary != nil {
		err = errors.Join(err, r.temporary.Remove())
	}
	return err
}

// openStore opens the image store. When no place is configured and the usual one cannot be written, as in a container with a
// read-only root, it makes a temporary store: everything works, but the image is downloaded again each time.
func (r *resources) openStore(c Config) error {
	config := images.Config{Dir: c.StoreDir, PublicRegistries: c.PublicRegistries, Progress: c.Progress, Logger: c.Logger}
	var err error
	if r.store, err = config.Open(); err == nil || errors.Is(err, images.ErrMirror) {
		return err
	}
	if !errors.Is(err, images.ErrNoPlace) && !errors.Is(err, private.ErrNotPrivate) { // their messages say what to do
		err = fmt.Errorf("%w (set AGENTVM_STORE to a directory that can be written)", err)
	}
	if c.StoreDir != "" || os.Getenv("AGENTVM_STORE") != "" {
		return err
	}
	var tempErr error
	if r.temporary, tempErr = atomicfile.MkdirTemp(os.TempDir(), "agentvm"); tempErr != nil {
		return errors.Join(err, tempErr)
	}
	c.Logger.Warn("the image store cannot be used, so everything is got again each time", "error", err)
	config.Dir = r.temporary.Path()
	r.store, err = config.Open()
	return err
}
