package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentvm/internal/disk"
	"agentvm/internal/machine"
	"agentvm/internal/snapshot"
)

// syncTime bounds how long a guest may take to write its disk back before the disk is copied.
const syncTime = 10 * time.Second

// SnapshotOptions are the options of Snapshot.
type SnapshotOptions struct {
	// Comment is kept in the file.
	Comment string
	// Base leaves out of the file what is unchanged since the file that this VM was started from, which must then not be removed: the
	// store keeps bases that snapshots need. It has no effect where there is none, or where it has been removed already. Default: the
	// file has everything.
	Base bool
	// Started is kept in the file for whoever restores it elsewhere: how the VM was started, in the caller's words, as JSON. It is
	// neither read nor used by this package, and not encrypted: nothing that is secret, and no paths of the host, belong into it.
	Started json.RawMessage
}

// Snapshot writes the VM to a file, with what is in its memory and on its writable disk; the VM runs on. The guest is stopped only
// while what has changed in its memory is noted and its disk copied; the file is written meanwhile. Only its owner can read it:
// it holds whatever secrets the guest has in its memory.
func (v *VM) Snapshot(ctx context.Context, path string, o SnapshotOptions) (snapshot.Meta, error) {
	meta, err := v.snapshot(ctx, path, o)
	if err != nil {
		return snapshot.Meta{}, fmt.Errorf("snapshot of the VM: %w", err)
	}
	return meta, nil
}

// savedExtra is what only this package records about a saved machine.
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
	if err := v.waitReady(ctx); err != nil {
		return meta, err
	}
	began := time.Now()
	p, err := v.capture(ctx)
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
		content.Disk, content.Meta.Disk = p.disk, &snapshot.Disk{Size: p.disk.Size()}
	}
	err = snapshot.Write(ctx, path, content)
	if content.Base != nil && errors.Is(err, snapshot.ErrNoBase) {
		// The base has left the store since this VM was started from it. The VM has it open, so the file gets everything.
		v.config.Logger.Debug("the base is gone: the snapshot is written whole", "error", err)
		content.Base, content.Memory = nil, extents(p.image, nil)
		err = snapshot.Write(ctx, path, content)
	}
	v.config.Logger.Debug("timing: wrote the snapshot", "took", time.Since(began), "error", err)
	return content.Meta, err
}

// describe returns the snapshot's description of the VM.
func (v *VM) describe(o SnapshotOptions) (snapshot.Meta, error) {
	meta, err := v.resources.meta(v.config)
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

// base returns the file to layer a snapshot on, or nil. That file is itself layered on none.
func (s *saved) base() *snapshot.File {
	if s == nil {
		return nil
	}
	if base := s.file.Base(); base != nil {
		return base
	}
	return s.file
}

// capture is a machine at one moment. It does not need the VM any more.
type capture struct {
	image *machine.MemoryImage
	saved *saved       // the file that has parts of image; nil: none
	disk  *disk.Frozen // nil: none
}

// capture captures the machine's memory and its disk at one moment.
func (v *VM) capture(ctx context.Context) (*capture, error) {
	p := &capture{}
	kept, err := v.freeze(ctx, func(m emulator) (err error) {
		p.saved = v.resources.saved.retain()
		p.image, err = m.Capture()
		return err
	})
	p.disk = kept
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// freeze calls do with the machine and freezes its disk, if any, at the same moment.
func (v *VM) freeze(ctx context.Context, do func(m emulator) error) (*disk.Frozen, error) {
	v.syncDisk(ctx)
	if v.resources.overlay == nil {
		return nil, v.withMachine(ctx, do)
	}
	f, err := v.resources.overlay.Freeze()
	if err != nil {
		return nil, err
	}
	err = v.withMachine(ctx, func(m emulator) error {
		if err := f.At(); err != nil {
			return err
		}
		return do(m)
	})
	kept, done := f.Done(ctx)
	return kept, errors.Join(err, done)
}

func (p *capture) close() {
	if p.image != nil {
		_ = p.image.Close()
	}
	if p.disk != nil {
		_ = p.disk.Close()
	}
	p.saved.close()
}

// syncDisk has the guest write back what it has of its disk in memory. The snapshot is complete without: what is missing on the
// disk is in the memory that is saved with it.
func (v *VM) syncDisk(ctx context.Context) {
	if v.resources.overlay == nil || v.Paused() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	_, err := v.Run(ctx, Command{Args: []string{"sync"}})
	if err != nil {
		v.config.Logger.Debug("the guest did not write its disk back", "error", err)
	}
}
