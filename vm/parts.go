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
	program   *program
	image     *images.Image
	disk      *os.File
	kernel    []byte
	initramfs []byte
	shares    shares
}

// gather gets the parts. On failure nothing of them is left.
func gather(ctx context.Context, c Config) (*parts, error) {
	storeDir := c.StoreDir
	if storeDir == "" {
		var err error
		if storeDir, err = images.DefaultDir(); err != nil {
			return nil, err
		}
	}
	p := &parts{}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(timed(c, "shares", func() (err error) { p.shares, err = openShares(c.Mounts, c.Logger); return err }))
	g.Go(timed(c, "image", func() error { return p.openImage(ctx, c, storeDir) }))
	g.Go(timed(c, "kernel", func() (err error) { p.kernel, err = kernelImage(c); return err }))
	g.Go(timed(c, "initramfs", func() (err error) { p.initramfs, err = initialRoot(); return err }))
	g.Go(timed(c, "program", func() (err error) {
		p.program, err = acquireProgram(ctx, filepath.Join(storeDir, "compiled"), c.Logger)
		return err
	}))
	if err := g.Wait(); err != nil {
		return nil, errors.Join(err, p.release())
	}
	return p, nil
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
func (p *parts) openImage(ctx context.Context, c Config, storeDir string) error {
	store, err := images.Config{Dir: storeDir, Progress: c.Progress, Logger: c.Logger}.Open()
	if err != nil {
		return fmt.Errorf("%w (set AGENTVM_STORE to a directory that can be written)", err)
	}
	if c.Image == "" {
		var notice string
		if p.image, notice, err = store.ResolveDefault(ctx); notice != "" {
			c.Logger.Warn(notice)
		}
	} else {
		p.image, err = store.Resolve(ctx, c.Image)
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

// release frees the parts. The machine closes the disk; a second time does no harm.
func (p *parts) release() error {
	if p.program != nil {
		p.program.release()
	}
	if p.disk != nil {
		_ = p.disk.Close()
	}
	return p.shares.close()
}
