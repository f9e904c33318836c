package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"agentvm/guest/supervisor"
	"agentvm/images"
	"agentvm/kernel"
)

// parts are what a VM is made of. They are got all at once, for each takes some milliseconds.
type parts struct {
	store     *images.Store
	temporary string // directory of a store that goes with the VM, or empty
	program   *program
	image     *images.Image
	disk      *os.File
	upper     *upper // nil: none
	kernel    []byte
	initramfs []byte
	shares    shares
	network   *network // nil: none
}

// gather gets the parts. On failure nothing of them is left.
func gather(ctx context.Context, c Config) (*parts, error) {
	p := &parts{}
	err := p.openStore(c)
	if err == nil {
		err = p.getAll(ctx, c)
	}
	if err != nil {
		return nil, errors.Join(err, p.release())
	}
	return p, nil
}

func (p *parts) getAll(ctx context.Context, c Config) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(timed(c, "shares", func() (err error) { p.shares, err = openShares(c.Mounts, c.Logger); return err }))
	g.Go(timed(c, "network", func() (err error) { p.network, err = openNetwork(c); return err }))
	g.Go(timed(c, "image", func() error { return p.openImage(ctx, c) }))
	g.Go(timed(c, "disk", func() (err error) { p.upper, err = openUpper(c.Disk); return err }))
	g.Go(timed(c, "kernel", func() (err error) { p.kernel, err = kernelImage(c); return err }))
	g.Go(timed(c, "initramfs", func() (err error) { p.initramfs, err = initialRoot(); return err }))
	g.Go(timed(c, "program", func() (err error) {
		p.program, err = acquireProgram(ctx, filepath.Join(p.store.Dir(), "compiled"), c.Logger)
		return err
	}))
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
	if p.disk, err = os.Open(p.image.RootDisk); err != nil {
		return fmt.Errorf("root disk of image %s: %w", p.image.Name, err)
	}
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
	_ = p.upper.Close()
	err := errors.Join(p.shares.close(), p.network.close())
	if p.temporary != "" {
		err = errors.Join(err, os.RemoveAll(p.temporary))
	}
	return err
}
