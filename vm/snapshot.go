package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"agentvm/internal/machine"
	"agentvm/internal/storage/checkpoint"
	"agentvm/internal/storage/disk"
	"agentvm/internal/storage/snapshot"
)

// syncTime bounds how long a guest may take to write its disk back before the disk is copied.
const syncTime = 10 * time.Second

// SnapshotOptions are the options of Snapshot.
type SnapshotOptions struct {
	// Comment is kept in the file.
	Comment string
	// Base leaves out of the file what is unchanged since the file that this VM was started from, which must then not be removed: the
	// store keeps bases that snapshots need. A VM that continues from such a file has up to a thousand mappings, of which Linux allows a
	// process 65530. It has no effect where there is none, or where it has been removed already. Default: the file has everything.
	Base bool
	// Brief leaves out the hashes of the disk's contents, for a file that is not kept for long: on a large disk they take time, once for
	// what has changed. Default: snapshot.File.Verify can verify the disk.
	Brief bool
	// Started is kept in the file for whoever restores it elsewhere: how the VM was started, in the caller's words, as JSON. It is
	// neither read nor used by this package, and not encrypted: nothing that is secret, and no paths of the host, belong into it.
	Started json.RawMessage
}

// SnapshotInfo is what the file of a snapshot says of itself: when it was made and why, and the VM's memory, image and disk. Anybody may
// have written it.
type SnapshotInfo = snapshot.Meta

// SnapshotDisk is the writable disk of a snapshot: its size, and where it is.
type SnapshotDisk = snapshot.Disk

// Snapshot writes the VM to a file, with what is in its memory and on its writable disk; the VM runs on. The guest is stopped only
// while what has changed in its memory is noted and its disk copied; the file is written meanwhile. Only its owner can read it:
// it holds whatever secrets the guest has in its memory. When there is something at path already the error is fs.ErrExist.
func (v *VM) Snapshot(ctx context.Context, path string, o SnapshotOptions) (SnapshotInfo, error) {
	meta, err := v.snapshot(ctx, path, o)
	if err != nil {
		return snapshot.Meta{}, fmt.Errorf("snapshot of the VM: %w", err)
	}
	return meta, nil
}

func (v *VM) snapshot(ctx context.Context, path string, o SnapshotOptions) (snapshot.Meta, error) {
	if _, err := os.Lstat(path); err == nil {
		return snapshot.Meta{}, &fs.PathError{Op: "create", Path: path, Err: fmt.Errorf("%w: remove it, or write to another path", syscall.EEXIST)}
	}
	meta, err := v.describe(o)
	if err != nil {
		return meta, err
	}
	if err := v.waitReady(ctx); err != nil {
		return meta, err
	}
	extents := machine.ExtentsForMany
	if o.Base {
		extents = machine.ExtentsForOne
	}
	began := time.Now()
	c, err := v.capture(ctx, extents, func() {})
	if err != nil {
		return meta, err
	}
	defer c.Close()
	v.config.Logger.Debug("timing: captured the machine", "took", time.Since(began))
	meta, err = c.Write(ctx, path, meta, o.Base, !o.Brief, v.config.Logger)
	v.config.Logger.Debug("timing: wrote the snapshot", "took", time.Since(began), "error", err)
	return meta, err
}

// describe returns the snapshot's description of the VM.
func (v *VM) describe(o SnapshotOptions) (snapshot.Meta, error) {
	meta, err := v.resources.meta(v.config)
	if err != nil {
		return meta, err
	}
	extra := checkpoint.Extra{Hostname: v.config.Hostname, MAC: v.identity.MAC.String(), Started: o.Started, Commands: len(v.config.HostCommands) > 0, Added: v.added.used(), Program: v.config.Program}
	for _, m := range v.config.Mounts {
		extra.Mounts = append(extra.Mounts, m.GuestPath)
	}
	meta.Comment, meta.Generation = o.Comment, v.identity.Generation
	meta.Extra, err = json.Marshal(extra)
	return meta, err
}

// capture captures the machine's memory and its disk, if any, at one moment, at which the worker also calls also. extents is Machine.Capture's.
func (v *VM) capture(ctx context.Context, extents int, also func()) (*checkpoint.Capture, error) {
	v.syncDisk(ctx)
	var freezing *disk.Freezing
	if v.resources.overlay != nil {
		var err error
		if freezing, err = v.resources.overlay.Freeze(); err != nil {
			return nil, err
		}
	}
	c := &checkpoint.Capture{}
	err := v.withMachine(ctx, func(m emulator) (err error) {
		if freezing != nil {
			if err := freezing.At(); err != nil {
				return err
			}
		}
		also()
		c.Saved = v.resources.saved.Retain()
		c.Image, err = m.Capture(extents)
		return err
	})
	if freezing != nil {
		var done error
		c.Disk, done = freezing.Done(ctx)
		err = errors.Join(err, done)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// syncDisk has the guest write back what it has of its disk in memory. The snapshot is complete without: what is missing on the
// disk is in the memory that is saved with it.
func (v *VM) syncDisk(ctx context.Context) {
	if v.resources.overlay == nil || v.Paused() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	client, err := v.guest(ctx)
	if err == nil {
		err = client.WriteBack(ctx)
	}
	if err != nil {
		v.config.Logger.Debug("the guest did not write its disk back", "error", err)
	}
}
