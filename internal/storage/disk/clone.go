package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"agentvm/internal/host/atomicfile"
)

// Clone makes a disk with these contents in a new file, which is durable when it returns. The two share the layers by hard links, which
// takes the same short time for any size; across file systems, or without hard links, it copies them. A failure leaves no files.
func (f *Frozen) Clone(ctx context.Context, to string) error {
	return wrap("clone disk "+f.path+" to", to, f.share(ctx, to, newID(), true))
}

// Keep is like Clone, but makes a read-only disk, which OpenFrozen opens. One that is not durable may be damaged, or missing, after a failure of the
// power; the layers that it shares are not.
func (f *Frozen) Keep(ctx context.Context, to string, durable bool) error {
	return wrap("keep disk "+f.path+" as", to, f.share(ctx, to, "", durable))
}

// Replace gives the disk at to these contents, in one step: a failure before it leaves that disk as it was. Without one there it is Clone. The
// error is an *InUseError when the disk is open.
func (f *Frozen) Replace(ctx context.Context, to string) error {
	err := vacant(to)
	switch {
	case err == nil:
		return f.Clone(ctx, to)
	case errors.Is(err, fs.ErrExist):
		err = f.replace(ctx, to)
	}
	return wrap("replace disk", to, err)
}

func (f *Frozen) replace(ctx context.Context, to string) error {
	lock, err := acquire(to)
	if err != nil {
		return err
	}
	dir, top := layersDir(to), newID()
	if err = os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
		err = nil
	}
	var l *layer
	if err == nil {
		l, err = f.fill(ctx, dir, top)
	}
	if err == nil {
		err = publish(to, f.manifest(top), l.sync, func() error { return atomicfile.SyncFolder(dir) })
	}
	if l != nil {
		err = errors.Join(err, l.release())
	}
	if err != nil { // other layers that the manifest does not name stay until the disk is opened
		_ = os.Remove(filepath.Join(dir, top))
	}
	return errors.Join(err, lock.Close())
}

// share makes a disk of the same layers at to; without a top it is read-only. The manifest comes last, as in buildIn.
func (f *Frozen) share(ctx context.Context, to, top string, durable bool) error {
	if err := vacant(to); err != nil {
		return err
	}
	dir := layersDir(to)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	l, err := f.fill(ctx, dir, top)
	switch {
	case err != nil:
	case durable:
		err = publish(to, f.manifest(top), l.sync, func() error { return atomicfile.SyncFolder(dir) })
	default:
		err = atomicfile.WriteVolatile(to, f.manifest(top).encode())
	}
	if l != nil {
		err = errors.Join(err, l.release())
	}
	if err != nil {
		return errors.Join(err, removeFiles(to))
	}
	return nil
}

// fill puts the layers into a directory, where their names are not durable, and returns a new top if it has a name, which is not durable at all.
func (f *Frozen) fill(ctx context.Context, dir, top string) (*layer, error) {
	for _, l := range f.stack {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := shareLayer(l.path, filepath.Join(dir, l.id)); err != nil {
			return nil, err
		}
	}
	if top == "" {
		return nil, nil
	}
	return newLayer(dir, top, f.size)
}

// manifest lists the layers, the newest first.
func (f *Frozen) manifest(top string) manifest {
	m := manifest{Size: f.size, Top: top}
	for _, l := range slices.Backward(f.stack) {
		m.Layers = append(m.Layers, layerRef{ID: l.id, Raw: l.raw})
	}
	return m
}

// vacant checks that there is no disk at path, and removes what a killed process has left there.
func vacant(path string) error {
	if err := restoreRaw(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return cmp.Or(err, os.ErrExist)
	}
	return os.RemoveAll(layersDir(path))
}

// removeFiles removes a disk's files, first the manifest, without which there is no disk. It takes no lock.
func removeFiles(path string) error {
	err := os.Remove(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	atomicfile.RemoveTemporary(path)
	if removed := os.RemoveAll(layersDir(path)); removed != nil {
		return fmt.Errorf("remove the layers of %s: %w", path, removed)
	}
	return err
}

// Discard removes a disk, if there is one, that this process has made and no VM uses.
func Discard(path string) error {
	if err := removeFiles(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Remove(lockPath(path))
	return nil
}
