package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"agentvm/emulator"
	"agentvm/guest/supervisor"
	"agentvm/images"
	"agentvm/kernel"
	"agentvm/snapshot"
)

// parts are what a VM is made of. They are got all at once, for each takes some milliseconds.
type parts struct {
	store     *images.Store
	temporary string // directory of a store that goes with the VM, or empty
	program   *program
	image     *images.Image
	disk      *rootDisk
	upper     *upper // nil: none
	shares    shares
	network   *network // nil: none

	// What the machine goes on from: memory, or when there is none kernel and initramfs.
	memory    *emulator.Image
	saved     *saved         // the file that has memory, or most of it; nil: none
	origin    *snapshot.Meta // of the file that Restore was given, for it and its forks; nil: none
	kernel    []byte
	initramfs []byte

	layBase      bool   // it is to leave a base
	baseKey      string // which
	keepPrograms bool   // those of the saved machine
}

// gather gets the parts that p has not. toStart gets those of which the machine starts. On failure nothing of them is left.
func gather(ctx context.Context, p *parts, c Config, id identity, toStart func(*parts, context.Context, Config) error) (*parts, error) {
	var err error
	if p.store == nil {
		err = p.openStore(c)
	}
	if err == nil {
		err = p.getAll(ctx, c, id, toStart)
	}
	if err != nil {
		return nil, errors.Join(err, p.release())
	}
	return p, nil
}

func (p *parts) getAll(ctx context.Context, c Config, id identity, toStart func(*parts, context.Context, Config) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(timed(c, "shares", func() (err error) { p.shares, err = openShares(c.Mounts, c.Logger); return err }))
	g.Go(timed(c, "network", func() (err error) { p.network, err = openNetwork(c, id.mac); return err }))
	g.Go(timed(c, "machine", func() error { return toStart(p, ctx, c) }))
	g.Go(timed(c, "program", func() (err error) {
		p.program, err = acquireProgram(ctx, filepath.Join(p.store.Dir(), "compiled"), c.Logger)
		return err
	}))
	return g.Wait()
}

// toBoot gets what a new machine needs: a base, or all to boot.
func (p *parts) toBoot(ctx context.Context, c Config) error {
	base := c.usesBase() && p.temporary == ""
	var g errgroup.Group
	g.Go(timed(c, "image", func() error { return p.openImage(ctx, c) }))
	g.Go(timed(c, "disk", func() (err error) { p.upper, err = openUpper(c.Disk); return err }))
	if !base {
		g.Go(func() error { return p.unpackLinux(c) })
	}
	if err := g.Wait(); err != nil || !base {
		return err
	}
	if p.openBase(ctx, c); p.memory != nil {
		return nil
	}
	return p.unpackLinux(c)
}

// unpackLinux gets what a machine boots.
func (p *parts) unpackLinux(c Config) error {
	var g errgroup.Group
	g.Go(timed(c, "kernel", func() (err error) { p.kernel, err = kernelImage(c); return err }))
	g.Go(timed(c, "initramfs", func() (err error) { p.initramfs, err = initialRoot(); return err }))
	return g.Wait()
}
func timed(c Config, what string, do func() error) func() error {
	return func() error {
		start := time.Now()
		err := do()
		c.Logger.Debug("timing: got the "+what, "took", time.Since(start))
		return err
	}
}

// openImage finds the image, downloading it when it is missing, and opens its disk.
func (p *parts) openImage(ctx context.Context, c Config) (err error) {
	if c.Image == "" {
		var notice string
		if p.image, notice, err = p.store.ResolveDefault(ctx); notice != "" {
			c.Logger.Warn(notice)
		}
	} else {
		p.image, err = p.store.Resolve(ctx, c.Image)
	}
	if err != nil {
		return err
	}
	file, err := os.Open(p.image.RootDisk)
	if err != nil {
		return fmt.Errorf("root disk of image %s: %w", p.image.Name, err)
	}
	p.disk = newRootDisk(file)
	return nil
}

func kernelImage(c Config) ([]byte, error) {
	if c.Kernel != nil {
		return c.Kernel, nil
	}
	return kernel.Image()
}

// initialRoot packs the supervisor for the kernel.
func initialRoot() ([]byte, error) {
	program, err := supervisor.Binary()
	if err != nil {
		return nil, err
	}
	return initramfs(program), nil
}

// release frees the parts. The machine closes the disks; a second time does no harm.
func (p *parts) release() error {
	if p.program != nil {
		p.program.release()
	}
	if p.disk != nil {
		_ = p.disk.Close()
	}
	p.saved.close()
	_ = p.upper.Close()
	err := errors.Join(p.shares.close(), p.network.close())
	if p.temporary != "" {
		err = errors.Join(err, os.RemoveAll(p.temporary))
	}
	return err
}
