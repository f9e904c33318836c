package snapshot

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/storage/disk"
)

// A disk beside a snapshot is in a directory of its own, NAME.snap.RANDOM.disk, which the snapshot names. It shares its layers with the VM's
// disk and with other snapshots by hard links. Under the lock of the directory that both are in, the disk's directory gets its name before
// the snapshot's file and is removed after it; one that no file names was left by a killed process.
const (
	besideSuffix = ".disk"
	besideDisk   = "disk.img" // in the directory
)

// isBeside reports whether a directory has a name that a disk beside a snapshot can have.
func isBeside(name string) bool {
	rest, ok := strings.CutSuffix(name, besideSuffix)
	dot := strings.LastIndexByte(rest, '.')
	if !ok || dot < 1 || strings.ContainsAny(name, "/\\:") || name[0] == '.' {
		return false
	}
	random, err := hex.DecodeString(rest[dot+1:])
	return err == nil && len(random) == 8
}

// isBesideOf reports whether name can be that of a disk beside the snapshot at path.
func isBesideOf(name, path string) bool {
	rest, ok := strings.CutPrefix(name, filepath.Base(path)+".")
	return ok && isBeside(name) && strings.Count(rest, ".") == 1
}

// keepDisk copies a disk into a temporary directory, and returns the name that the directory will get.
func (t *temporary) keepDisk(ctx context.Context, d *disk.Frozen) (name string, err error) {
	t.place = t.name + scratchSuffix
	if err := os.Mkdir(t.place, 0o700); err != nil {
		return "", err
	}
	durable := !isFork(t.path)
	if err := d.Keep(ctx, filepath.Join(t.place, besideDisk), durable); err != nil {
		return "", err
	}
	random := strings.TrimSuffix(t.name, temporarySuffix)
	t.beside = filepath.Base(t.path) + random[strings.LastIndexByte(random, '.'):] + besideSuffix
	if !durable {
		return t.beside, nil
	}
	return t.beside, atomicfile.SyncFolder(t.place)
}

// renameDisk gives the temporary directory its final name.
func (t *temporary) renameDisk() error {
	if t.place == "" {
		return nil
	}
	to := filepath.Join(filepath.Dir(t.path), t.beside)
	if err := os.Rename(t.place, to); err != nil {
		return err
	}
	t.place = to // discard removes it until the file has its name too
	return nil
}

// removeBeside removes the disks beside the snapshot at path, except the one named stays.
func removeBeside(path, stays string) {
	entries, _ := os.ReadDir(filepath.Dir(path))
	for _, e := range entries {
		if name := e.Name(); name != stays && isBesideOf(name, path) {
			_ = os.RemoveAll(filepath.Join(filepath.Dir(path), name))
		}
	}
}

// sweepBeside removes the disks in dir that no snapshot names. The caller has the lock of the directory.
func sweepBeside(dir string) {
	entries, _ := os.ReadDir(dir) // whoever uses the directory reports the error
	for _, e := range entries {
		name := e.Name()
		if !isBeside(name) {
			continue
		}
		owner := strings.TrimSuffix(name, besideSuffix)
		owner = filepath.Join(dir, owner[:strings.LastIndexByte(owner, '.')])
		f, err := openAlone(owner)
		switch {
		case errors.Is(err, os.ErrNotExist):
			_ = os.RemoveAll(filepath.Join(dir, name))
		case err == nil:
			if f.besideName() != name {
				_ = os.RemoveAll(filepath.Join(dir, name))
			}
			f.file.Close()
		}
	}
}

func (f *File) besideName() string {
	if f.meta.Disk == nil {
		return ""
	}
	return f.meta.Disk.Beside
}

// SavedDisk is the writable disk of a snapshot.
type SavedDisk interface {
	io.ReaderAt
	DataSeeker
	io.Closer
	Size() int64
	// Verify compares the contents with their hashes, if there are some.
	Verify(ctx context.Context) error
	// Clone copies it to a new disk at to.
	Clone(ctx context.Context, to string) error
	// Replace gives these contents to the disk at to, if there is one, in one step.
	Replace(ctx context.Context, to string) error
}

// OpenDisk opens the writable disk; nil when there is none. It can be used until f is closed.
func (f *File) OpenDisk() (SavedDisk, error) {
	if name := f.besideName(); name != "" {
		d, err := openBeside(f.path, name)
		if err == nil && d.Size() != f.meta.Disk.Size {
			err = errors.Join(fmt.Errorf("the disk of snapshot %s: %w: it has %d bytes, not %d", f.path, ErrCorrupt, d.Size(), f.meta.Disk.Size), d.Close())
		}
		if err != nil {
			return nil, err
		}
		return d, nil
	}
	if f.header.diskSize == 0 {
		return nil, nil
	}
	return &diskReader{f.file, f.header.disk.offset, f.header.diskSize, f.disk}, nil
}

// openBeside opens the disk beside the snapshot at path.
func openBeside(path, name string) (*disk.Frozen, error) {
	d, err := disk.OpenFrozen(filepath.Join(filepath.Dir(path), name, besideDisk))
	if err != nil {
		return nil, fmt.Errorf("the disk of snapshot %s: %w", path, err)
	}
	return d, nil
}
