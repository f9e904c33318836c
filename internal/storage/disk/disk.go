package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/lockfile"
)

// Sizes of a disk in bytes.
const (
	MinSize     = 64 << 20
	DefaultSize = 10 << 30
	MaxSize     = 1 << 40
)

// InUseError means that another VM has the disk open.
type InUseError struct{ Path string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("disk %s is in use by another VM: stop that VM, or give this one a disk of its own", e.Path)
}

// InvalidError means that a file is not a disk.
type InvalidError struct{ Path, Cause string }

func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s is not a disk: %s; put back what was there", e.Path, e.Cause)
}

// Disk is an open disk.
type Disk struct {
	path string
	lock *lockfile.Lock
	size int64
	boot uint64 // identifies the host's boot, see hostBoot; 0: unknown

	mu     sync.RWMutex // reads and writes in place share it
	stack  []*layer     // the lowest first; the last one is the top
	places places
	free   []uint32 // slots of the top that can be used again
	freed  []uint32 // slots that can be used again after the next sync, which makes the record about them durable
	closed bool

	syncing   sync.Mutex   // held by Sync; taken before mu
	freezing  sync.Mutex   // held from Freeze to Done; taken before syncing
	kept      atomic.Int32 // number of Frozen that are not closed
	broken    error        // guarded by mu: why the disk cannot be written any more
	committed uint64       // records of the top that are durable
	dirty     bool         // the manifest was replaced, and the directory is not synced yet
}

// Open opens a disk and locks it. The error is an *InUseError when it is in use, an *InvalidError when the file is not a disk
// or an incomplete one, and a *DamagedError when it was damaged on the host. A disk of a version without layers is converted.
func Open(path string) (*Disk, error) { return openIn(path, hostBoot()) }

// openIn opens a disk. boot changes whenever the host boots; 0 is unknown.
func openIn(path string, boot uint64) (*Disk, error) {
	if _, err := os.Stat(path); err != nil && restoreRaw(path) != nil {
		return nil, fmt.Errorf("open disk: %w", err) // and leave no lock file
	}
	lock, err := acquire(path)
	if err != nil {
		return nil, err
	}
	d := &Disk{path: path, lock: lock}
	if err := d.open(boot); err != nil {
		return nil, errors.Join(explain(path, err), d.closeLayers(), lock.Close())
	}
	return d, nil
}

// explain adds the path to errors that do not have it.
func explain(path string, err error) error {
	var invalid *InvalidError
	var damaged *DamagedError
	if errors.As(err, &invalid) || errors.As(err, &damaged) {
		return err
	}
	return wrap("open disk", path, err)
}

// open reads the manifest and then the layers from the lowest up, because each hides clusters of those below it.
func (d *Disk) open(boot uint64) error {
	m, err := d.manifest()
	if err != nil {
		return err
	}
	d.size, d.places, d.boot = m.Size, newPlaces(m.Size), boot
	removeUnnamed(d.path, m)
	for _, ref := range slices.Backward(m.Layers) {
		if err := d.openBelow(ref); err != nil {
			return err
		}
	}
	if err := d.openTop(m, boot); err != nil {
		return err
	}
	return d.checkContents()
}

// manifest reads the manifest, and converts a disk without layers, which has none.
func (d *Disk) manifest() (manifest, error) {
	m, raw, grown, err := readManifest(d.path)
	switch {
	case err != nil:
		return m, err
	case raw:
		return adoptRaw(d.path)
	case m.Top == "":
		return m, &InvalidError{d.path, "it is the disk in a snapshot, which no VM writes to"}
	case grown:
		return m, atomicfile.Write(d.path, m.encode())
	}
	return m, nil
}

// openBelow opens the next layer below the top, which never changes: it is sealed, or a disk of a version without layers.
func (d *Disk) openBelow(ref layerRef) error {
	l, c, err := openLayerAt(layersDir(d.path), ref, d.size, false)
	if errors.Is(err, fs.ErrNotExist) {
		return &DamagedError{filepath.Join(layersDir(d.path), ref.ID), "it is missing"}
	}
	if err != nil {
		return err
	}
	d.places.overlay(len(d.stack), c.slots, l.raw)
	d.stack = append(d.stack, l)
	return nil
}

// openTop opens the layer that is written to. What was written after its last commit counts only if the host has not booted since.
func (d *Disk) openTop(m manifest, boot uint64) error {
	dir := layersDir(d.path)
	l, c, err := openLayerAt(dir, layerRef{ID: m.Top}, d.size, true)
	if errors.Is(err, fs.ErrNotExist) {
		return &DamagedError{filepath.Join(dir, m.Top), "it is missing"}
	}
	if err != nil {
		return err
	}
	if !l.sealed {
		if c, err = l.resolveTail(c, boot); err != nil {
			return errors.Join(err, l.file.Close())
		}
	}
	d.places.overlay(len(d.stack), c.slots, false)
	d.stack = append(d.stack, l)
	d.committed = l.ordinal
	if !l.sealed {
		d.free = unused(l, c)
		return nil
	}
	// The process was killed before the sealed top became a layer below.
	m.Layers, m.Top = append([]layerRef{{ID: m.Top}}, m.Layers...), newID()
	top, err := createLayer(dir, m.Top, d.size)
	if err != nil {
		return err
	}
	if err := top.append(wideRecord(recordBegin, boot)); err != nil {
		return errors.Join(err, top.release())
	}
	d.stack, d.committed = append(d.stack, top), 0
	return errors.Join(atomicfile.SyncFolder(dir), atomicfile.Write(d.path, m.encode()))
}

// unused lists the slots that the map does not refer to.
func unused(l *layer, c *contents) (free []uint32) {
	used := make([]bool, l.next)
	for _, slot := range c.slots {
		used[slot] = true
	}
	for _, slot := range c.maps {
		used[slot] = true
	}
	for slot := uint32(firstSlot); slot < l.next; slot++ {
		if !used[slot] {
			free = append(free, slot)
		}
	}
	return free
}

// checkContents checks that the contents begin like a disk's.
func (d *Disk) checkContents() error {
	begin := make([]byte, superblockAt+superblockSize)
	if _, err := d.ReadAt(begin, 0); err != nil {
		return err
	}
	if cause := wrong(begin, d.size); cause != "" {
		return &InvalidError{d.path, cause}
	}
	return nil
}

// Size returns the disk's size in bytes. It does not change.
func (d *Disk) Size() int64 { return d.size }

// Path returns the path with which the disk was opened.
func (d *Disk) Path() string { return d.path }

// top returns the layer that is written to, and its number in places. The caller holds mu.
func (d *Disk) top() (*layer, int) { return d.stack[len(d.stack)-1], len(d.stack) - 1 }

// ReadAt implements io.ReaderAt.
func (d *Disk) ReadAt(p []byte, offset int64) (int, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return 0, os.ErrClosed
	}
	return readLayers(d.stack, d.places, d.size, p, offset)
}

// Sync makes what was written durable.
func (d *Disk) Sync() error {
	d.syncing.Lock()
	defer d.syncing.Unlock()
	if err := d.sync(); err != nil {
		return wrap("sync disk", d.path, err)
	}
	return nil
}

// sync is called with syncing held.
func (d *Disk) sync() error {
	d.mu.RLock()
	if d.closed {
		d.mu.RUnlock()
		return os.ErrClosed
	}
	top, _ := d.top()
	ordinal, freed := top.ordinal, slices.Clone(d.freed)
	d.mu.RUnlock()
	if err := d.syncName(); err != nil {
		return err
	}
	if err := syncData(top.file); err != nil {
		return err
	}
	if ordinal == d.committed {
		return nil
	}
	d.mu.Lock()
	err := top.append(wideRecord(recordCommit, ordinal))
	after := top.ordinal
	d.mu.Unlock()
	if err == nil {
		err = syncData(top.file)
	}
	if err != nil {
		return err
	}
	for _, slot := range freed { // without the lock: only what follows lets a write use them
		_ = punch(top.file, int64(slot)*clusterSize, clusterSize) // after a failure the slot keeps its space until it is used again
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.committed = ordinal; after == ordinal+1 {
		d.committed = after // only the commit itself was appended
	}
	d.free = append(d.free, freed...)
	d.freed = slices.Clone(d.freed[len(freed):])
	return nil
}

// syncName makes the name of the manifest durable. It is called with syncing held.
func (d *Disk) syncName() error {
	d.mu.RLock()
	dirty := d.dirty
	d.mu.RUnlock()
	if !dirty {
		return nil
	}
	if err := atomicfile.SyncFolder(filepath.Dir(d.path)); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dirty = false
	return nil
}

// Close unlocks the disk. It does not sync. A second Close only returns an error.
func (d *Disk) Close() error {
	d.syncing.Lock()
	defer d.syncing.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return os.ErrClosed
	}
	d.closed = true
	return errors.Join(d.closeLayers(), d.lock.Close())
}

// closeLayers gives up the disk's use of its layers; copies that share them keep theirs.
func (d *Disk) closeLayers() (err error) {
	for _, l := range d.stack {
		err = errors.Join(err, l.release())
	}
	d.stack = nil
	return err
}

// lockPath returns the file whose lock guards a disk. It is not the disk itself, because on Windows a lock would keep its holder's other
// handles from reading.
func lockPath(path string) string { return path + ".lock" }

// acquire takes the lock of a disk, or fails with an *InUseError.
func acquire(path string) (*lockfile.Lock, error) {
	lock, err := lockfile.Try(lockPath(path))
	if errors.Is(err, lockfile.ErrHeld) {
		return nil, &InUseError{path}
	}
	if err != nil {
		return nil, fmt.Errorf("lock disk %s: %w", path, err)
	}
	return lock, nil
}
