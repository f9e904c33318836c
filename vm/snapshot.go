package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
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
	// Started is kept in the file for whoever restores it elsewhere: how the VM was started, in the caller's words, as JSON. It is
	// neither read nor used by this package, and not encrypted: nothing that is secret, and no paths of the host, belong into it.
	Started json.RawMessage
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
	Hostname string          `json:"hostname"`
	MAC      string          `json:"mac,omitempty"` // empty: the default
	Mounts   []string        `json:"mounts,omitempty"`
	Started  json.RawMessage `json:"started,omitempty"` // SnapshotOptions.Started
}

// StartedAs is the SnapshotOptions.Started of a snapshot; nil when it has none. Anybody may have written it.
func StartedAs(m snapshot.Meta) (json.RawMessage, error) {
	var extra savedExtra
	err := unmarshal(m.Extra, &extra)
	return extra.Started, err
}

func (v *VM) snapshot(ctx context.Context, path string, o SnapshotOptions) (snapshot.Meta, error) {
	meta, err := v.describe(o)
	if err != nil {
		return meta, err
	}
	if err := v.settled(ctx); err != nil {
		return meta, err
	}
	began := time.Now()
	p, err := v.photograph(ctx, path)
	if err != nil {
		return meta, err
	}
	defer p.close()
	v.config.Logger.Debug("timing: captured the machine", "took", time.Since(began))
	content := snapshot.Content{Meta: meta}
	if o.Base {
		content.Base = p.saved.base()
	}
	content.Meta.LinearMemory, content.Memory = p.image.Size(), extents(p.image, content.Base)
	if p.disk != nil {
		content.Disk, content.DiskSize = p.disk.File, p.diskSize
		content.Meta.Disk = &snapshot.Disk{Size: content.DiskSize}
	}
	err = snapshot.Write(ctx, path, content)
	v.config.Logger.Debug("timing: wrote the snapshot", "took", time.Since(began), "error", err)
	return content.Meta, err
}

// describe says what the VM is.
func (v *VM) describe(o SnapshotOptions) (snapshot.Meta, error) {
	meta, err := v.parts.meta(v.config)
	if err != nil {
		return meta, err
	}
	extra := savedExtra{Hostname: v.config.Hostname, MAC: v.identity.mac.String(), Started: o.Started}
	for _, m := range v.config.Mounts {
		extra.Mounts = append(extra.Mounts, m.GuestPath)
	}
	meta.Comment, meta.Generation = o.Comment, v.identity.generation
	meta.Extra, err = json.Marshal(extra)
	return meta, err
}

// base is the file to layer a snapshot on, or nil: it is the one that itself is layered on none.
func (s *saved) base() *snapshot.File {
	if s == nil {
		return nil
	}
	if base := s.file.Base(); base != nil {
		return base
	}
	return s.file
}

// photo is a machine at one moment. It needs the VM no more.
type photo struct {
	image    *emulator.Image
	saved    *saved    // the file that has parts of image; nil: none
	disk     *diskCopy // nil: none
	diskSize int64
}

// photograph notes the machine's memory and copies its disk, both at one moment.
func (v *VM) photograph(ctx context.Context, path string) (*photo, error) {
	v.syncDisk(ctx)
	p := &photo{}
	err := v.atDesk(ctx, func(m *emulator.Machine) (err error) {
		if u := v.parts.upper; u != nil {
			p.diskSize = u.Size()
			if p.disk, err = copyDisk(ctx, u, path); err != nil {
				return err
			}
		}
		p.saved = v.parts.saved.again()
		p.image, err = m.Capture()
		return err
	})
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *photo) close() {
	if p.image != nil {
		_ = p.image.Close()
	}
	p.disk.remove()
	p.saved.close()
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
type diskCopy struct {
	*os.File
	place *snapshot.Scratch
}

// copyDisk copies a disk for the snapshot at path.
func copyDisk(ctx context.Context, u *upper, path string) (*diskCopy, error) {
	place, err := snapshot.NewScratch(path)
	if err != nil {
		return nil, err
	}
	c := &diskCopy{place: place}
	if err = u.Clone(ctx, place.Path()); err == nil {
		c.File, err = os.Open(place.Path())
	}
	if err != nil {
		c.remove()
		return nil, err
	}
	return c, nil
}

func (c *diskCopy) remove() {
	if c == nil {
		return
	}
	if c.File != nil {
		_ = c.Close()
	}
	_ = c.place.Close()
}
