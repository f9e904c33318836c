package vm

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"agentvm/emulator"
	"agentvm/snapshot"
)

// syncTime bounds how long a guest may take to write its disk back before that is copied.
const syncTime = 10 * time.Second

// SnapshotOptions say what a snapshot is to be.
type SnapshotOptions struct {
	// Comment is kept in the file.
	Comment string
	// Base leaves out of the file what is as in the file that this VM was started from, which must then not be removed: the
	// store keeps bases that snapshots need. Without effect where there is none. Default: the file has everything.
	Base bool
}

// Snapshot writes the VM to a file, with what is in its memory and on its writable disk, and goes on. The guest stands still only
// while what has changed in its memory is noted and its disk copied; the file is written meanwhile. It is readable by its
// owner only: it holds whatever secrets the guest has in its memory.
func (v *VM) Snapshot(ctx context.Context, path string, o SnapshotOptions) (snapshot.Meta, error) {
	meta, err := v.snapshot(ctx, path, o)
	if err != nil {
		return snapshot.Meta{}, fmt.Errorf("snapshot of the VM: %w", err)
	}
	return meta, nil
}

// savedExtra is what of a saved machine only this package knows.
type savedExtra struct {
	Hostname string   `json:"hostname"`
	MAC      string   `json:"mac,omitempty"` // empty: the default
	Mounts   []string `json:"mounts,omitempty"`
}

func (v *VM) snapshot(ctx context.Context, path string, o SnapshotOptions) (snapshot.Meta, error) {
	meta, err := v.describe(o.Comment)
	if err != nil {
		return meta, err
	}
	if err := v.settled(ctx); err != nil {
		return meta, err
	}
	began := time.Now()
	image, copied, err := v.photograph(ctx, path)
	if err != nil {
		return meta, err
	}
	v.config.Logger.Debug("timing: captured the machine", "took", time.Since(began))
	defer image.Close()
	defer copied.remove()
	content := snapshot.Content{Meta: meta, Base: v.baseFile(o)}
	content.Meta.LinearMemory, content.Memory = image.Size(), extents(image, content.Base)
	if copied != nil {
		content.Disk, content.DiskSize = copied.File, v.parts.upper.Size()
		content.Meta.Disk = &snapshot.Disk{Size: content.DiskSize}
	}
	err = snapshot.Write(ctx, path, content)
	v.config.Logger.Debug("timing: wrote the snapshot", "took", time.Since(began), "error", err)
	return content.Meta, err
}

// describe says what the VM is.
func (v *VM) describe(comment string) (snapshot.Meta, error) {
	meta, err := v.parts.meta(v.config)
	if err != nil {
		return meta, err
	}
	extra := savedExtra{Hostname: v.config.Hostname, MAC: v.identity.mac.String()}
	for _, m := range v.config.Mounts {
		extra.Mounts = append(extra.Mounts, m.GuestPath)
	}
	meta.Comment, meta.Generation = comment, v.identity.generation
	meta.Extra, err = json.Marshal(extra)
	return meta, err
}

// baseFile is the file to layer a snapshot on, or nil: it is the one that itself is layered on none.
func (v *VM) baseFile(o SnapshotOptions) *snapshot.File {
	if !o.Base || v.parts.saved == nil {
		return nil
	}
	if base := v.parts.saved.file.Base(); base != nil {
		return base
	}
	return v.parts.saved.file
}

// photograph notes the machine's memory and copies its disk, both at one moment. Without a disk the copy is nil.
func (v *VM) photograph(ctx context.Context, path string) (image *emulator.Image, copied *diskCopy, err error) {
	v.syncDisk(ctx)
	err = v.atDesk(ctx, func(m *emulator.Machine) (err error) {
		if copied, err = copyDisk(ctx, v.parts.upper, path); err != nil {
			return err
		}
		image, err = m.Capture()
		return err
	})
	if err != nil {
		copied.remove()
		return nil, nil, err
	}
	return image, copied, nil
}

// syncDisk has the guest write back what it has of its disk in memory. The copy is as good without: what is missing on the
// disk is in the memory that is saved with it.
func (v *VM) syncDisk(ctx context.Context) {
	if v.parts.upper == nil || v.Paused() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	_, err := v.Run(ctx, Command{Args: []string{"sync"}})
	if err != nil {
		v.config.Logger.Debug("the guest did not write its disk back", "error", err)
	}
}

// diskCopy is a copy of a writable disk that is there for a moment.
type diskCopy struct{ *os.File }

// copyDisk copies a disk for the snapshot at path; of no disk there is no copy. Its name is that of a temporary file of
// package snapshot, which removes what a process leaves that was killed.
func copyDisk(ctx context.Context, u *upper, path string) (*diskCopy, error) {
	if u == nil {
		return nil, nil
	}
	random := make([]byte, 8)
	_, _ = rand.Read(random)
	dir, base := filepath.Split(path)
	name := filepath.Join(dir, fmt.Sprintf(".%s.%x.tmp", base, random))
	if err := u.Clone(ctx, name); err != nil {
		return nil, err
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, errors.Join(err, os.Remove(name))
	}
	return &diskCopy{file}, nil
}

func (c *diskCopy) remove() {
	if c != nil {
		_ = c.Close()
		_ = os.Remove(c.Name())
	}
}
