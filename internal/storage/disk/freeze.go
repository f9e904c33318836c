package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"

	"agentvm/internal/host/atomicfile"
)

// Freezing is a disk whose contents at one moment will be kept. The slow steps come before and after that moment:
//
//	Freeze ── synced, new top and manifest made ──► Freezing ── At: the top is sealed, the new one takes its place ──► Done ──► Frozen
type Freezing struct {
	disk   *Disk
	top    *layer           // the new one
	staged *atomicfile.File // the new manifest
	m      manifest
	kept   *Frozen // set by At
	moved  bool    // the new top is the disk's
}

// Freeze prepares. Other calls of Freeze wait until Done.
func (d *Disk) Freeze() (*Freezing, error) {
	d.freezing.Lock()
	f := &Freezing{disk: d}
	if err := f.prepare(); err != nil {
		f.discard()
		d.freezing.Unlock()
		return nil, wrap("freeze disk", d.path, err)
	}
	return f, nil
}

// prepare does what takes long: it syncs, so that At has little to sync, and makes the new top and its manifest durable under names that nothing
// refers to yet. Each waits for the host's disk, so they do it at the same time.
func (f *Freezing) prepare() error {
	f.m = f.disk.describe()
	f.m.Layers = append([]layerRef{{ID: f.m.Top}}, f.m.Layers...)
	f.m.Top = newID()
	var g errgroup.Group
	g.Go(f.disk.Sync)
	g.Go(f.makeTop)
	g.Go(func() (err error) {
		f.staged, err = stageManifest(f.disk.path, f.m)
		return err
	})
	return g.Wait()
}

// makeTop makes the new top.
func (f *Freezing) makeTop() (err error) {
	dir := layersDir(f.disk.path)
	if f.top, err = newLayer(dir, f.m.Top, f.disk.size); err != nil {
		return err
	}
	if err := f.top.append(wideRecord(recordBegin, f.disk.boot)); err != nil {
		return err
	}
	if err := f.top.sync(); err != nil {
		return err
	}
	return atomicfile.SyncFolder(dir)
}

// describe returns the manifest of an open disk.
func (d *Disk) describe() manifest {
	d.mu.RLock()
	defer d.mu.RUnlock()
	m := manifest{Size: d.size}
	for i, l := range d.stack {
		if i == len(d.stack)-1 {
			m.Top = l.id
		} else {
			m.Layers = append([]layerRef{{ID: l.id, Raw: l.raw}}, m.Layers...)
		}
	}
	return m
}

// At freezes the contents. It takes some milliseconds, in which writes wait.
func (f *Freezing) At() error {
	d := f.disk
	d.syncing.Lock()
	defer d.syncing.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return os.ErrClosed
	}
	top, number := d.top()
	if top.used {
		if err := top.seal(); err != nil {
			return wrap("freeze disk", d.path, d.stopWrites(top, err))
		}
		if err := f.staged.Rename(); err != nil {
			return wrap("freeze disk", d.path, d.stopWrites(top, err))
		}
		f.moved, d.dirty = true, true
		d.stack = append(d.stack, f.top)
		d.free, d.freed, d.committed = nil, nil, 0
		number++
	}
	f.kept = &Frozen{path: d.path, size: d.size, places: d.places.clone(), of: d}
	d.kept.Add(1)
	for _, l := range d.stack[:number] {
		f.kept.stack = append(f.kept.stack, l.addUser())
	}
	return nil
}

// stopWrites makes the disk read-only when its top is sealed and could not be replaced, because records behind the seal would count as
// damage. The next Open makes a new top.
func (d *Disk) stopWrites(top *layer, err error) error {
	if top.sealed {
		d.broken = fmt.Errorf("it was being frozen, which has failed: %w; restart the VM", err)
	}
	return err
}

// Done ends the freezing. It returns the contents that a successful At has kept, else nil. It merges layers when the disk has many.
func (f *Freezing) Done(ctx context.Context) (*Frozen, error) {
	defer f.disk.freezing.Unlock()
	f.discard()
	if f.kept == nil {
		return nil, nil
	}
	f.disk.syncing.Lock()
	err := f.disk.syncName()
	f.disk.syncing.Unlock()
	if err != nil {
		return nil, wrap("freeze disk", f.disk.path, errors.Join(err, f.kept.Close()))
	}
	_ = f.disk.merge(ctx, f.kept) // a failure, as when there is no room, leaves the disk as it is
	return f.kept, nil
}

// discard removes the prepared files that are not used.
func (f *Freezing) discard() {
	if f.staged != nil {
		_ = f.staged.Discard()
	}
	if f.moved {
		return
	}
	if f.top != nil {
		_ = f.top.release()
		_ = os.Remove(f.top.path)
	}
}

// Frozen is a disk as it was at one moment. It may be used by several goroutines, and does not need the open
// disk. Its copies share its layers.
type Frozen struct {
	path   string
	size   int64
	stack  []*layer
	places places
	of     *Disk // the open disk, whose count kept includes this one; nil: none
}

// OpenFrozen opens a disk that Frozen.Keep has made. Any number of processes can have it open.
func OpenFrozen(path string) (*Frozen, error) {
	m, raw, _, err := readManifest(path)
	if err == nil && (raw || m.Top != "") {
		err = &InvalidError{path, "it is not the disk in a snapshot"}
	}
	if err != nil {
		return nil, explain(path, err)
	}
	d := &Disk{path: path, size: m.Size, places: newPlaces(m.Size)}
	for _, ref := range slices.Backward(m.Layers) {
		if err == nil {
			err = d.openBelow(ref)
		}
	}
	if err == nil {
		err = d.checkContents()
	}
	if err != nil {
		return nil, errors.Join(explain(path, err), d.closeLayers())
	}
	return &Frozen{path: path, size: d.size, stack: d.stack, places: d.places}, nil
}

// Size returns the disk's size in bytes.
func (f *Frozen) Size() int64 { return f.size }

// ReadAt implements io.ReaderAt.
func (f *Frozen) ReadAt(p []byte, offset int64) (int, error) {
	return readLayers(f.stack, f.places, f.size, p, offset)
}

// NextData returns the first part of the disk at or after offset that may be other than zeros; its length is 0 when there is none.
func (f *Frozen) NextData(offset int64) (start, length int64, err error) {
	start, length = f.places.nextData(offset, f.size)
	return start, length, nil
}

// Close closes the disk's files. A second Close does nothing.
func (f *Frozen) Close() (err error) {
	if f.of != nil {
		f.of.kept.Add(-1)
		f.of = nil
	}
	for _, l := range f.stack {
		err = errors.Join(err, l.release())
	}
	f.stack = nil
	return err
}
