package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"agentvm/images"
	"agentvm/internal/storage/disk"
	"agentvm/internal/storage/snapshot"
	"agentvm/vm"
)

// A snapshot's files can be had without its memory, which may be of another version or damaged: a VM that is hibernated boots from its disk
// when its memory is given up (Config.Cold), and a new one from a copy of the saved disk (Restoration.FilesOnly). What the saved guest had not
// written back is lost then, as when a VM is switched off.

// wakes reports whether a VM that was hibernated continues. It may be nil.
func (r *Restoration) wakes() bool { return r != nil && r.Hibernated && !r.FilesOnly }

// adviseCold says what helps when a VM cannot be woken.
func adviseCold(name string) string {
	return fmt.Sprintf("agentvm start --cold %s gives up its memory and boots its disk", name)
}

// stillAsleep ends the start of a VM that was hibernated and could not be started: it is as it was before.
func (d *daemon) stillAsleep(r *Restoration, err error) error {
	switch {
	case r == nil || !r.Hibernated:
		return err
	case r.FilesOnly:
		again := *r
		again.FilesOnly = false
		return errors.Join(err, d.paths.writeRestoration(again))
	case errors.Is(err, errGivenUp):
		return err
	}
	return fmt.Errorf("the VM cannot be woken and stays hibernated: %w; %s", err, adviseCold(d.name))
}

// giveUpMemory makes the next start of the VM boot from its disk. The saved state stays until the VM runs. The caller has the locks.
func (p paths) giveUpMemory() error {
	r, err := p.readRestoration()
	if err != nil {
		saved, _ := filepath.Glob(filepath.Join(p.dir, hibernatedFiles))
		if len(saved) == 0 { // then there is at most the VM's own disk
			return os.Remove(p.restore())
		}
		r = &Restoration{Snapshot: saved[len(saved)-1], Hibernated: true}
	}
	if r == nil {
		return nil
	}
	r.FilesOnly = true
	return p.writeRestoration(*r)
}

// restoreDisk has the files of the saved VM at path. A VM that is hibernated has them there already, unless its disk was damaged since.
func (r *Restoration) restoreDisk(ctx context.Context, path string) error {
	if path == "" {
		return nil
	}
	var damage error
	if r.Hibernated {
		own, err := disk.Open(path)
		if err == nil {
			return own.Close()
		}
		damage = err
	} else if err := disk.Discard(path); err != nil { // left by an interrupted start
		return err
	}
	saved, err := snapshot.OpenFiles(r.Snapshot)
	if err == nil {
		give := saved.Clone // also of a disk inside an imported snapshot
		if r.Hibernated {
			give = saved.Replace
		}
		err = errors.Join(give(ctx, path), saved.Close())
	}
	if err != nil {
		return errors.Join(damage, err)
	}
	return nil
}

// adoptFiles copies from a snapshot of which only the files are wanted what later starts need without it.
func (c *Config) adoptFiles(path string) error {
	files, err := snapshot.OpenFiles(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, missing := os.Lstat(path); missing != nil {
			return missing
		}
	}
	if err != nil {
		return err
	}
	if m := files.Meta; m != nil {
		c.adoptMachine(*m)
	}
	c.DiskSize = files.Size()
	return files.Close()
}

// adoptMachine takes image and memory from a snapshot's description where c leaves them open.
func (c *Config) adoptMachine(m snapshot.Meta) {
	if c.Image == "" || images.SameImage(c.Image, m.Image) { // a name may mean another release by now
		c.Image = m.Image
	}
	if c.Platform == "" {
		c.Platform = m.Architecture().Platform()
	}
	if c.Memory == 0 {
		c.Memory = m.Memory
	}
}

// syncTime bounds how long a guest may take to write its files back before it is hibernated.
const syncTime = 10 * time.Second

// syncFiles makes the guest write its files to its disk, so that they are there should its memory be given up. A failure does no harm: what is
// missing on the disk is in the memory.
func (d *daemon) syncFiles(ctx context.Context, v VM) {
	if d.config.DiskSize < 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	p, err := v.Start(ctx, vm.Command{Args: []string{"sync"}})
	if err == nil {
		_, err = p.Wait(ctx)
	}
	if err != nil {
		d.logger.Debug("the guest did not write its disk back", "error", err)
	}
}
