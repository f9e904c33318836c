// Package disk makes and opens the writable disks of named VMs: sparse files with an ext4 file system, which the guest
// grows to the file's size when it mounts it. docs/disks.md has the format and what the guest has to do.
//
// A Disk may be used by several goroutines. From Open to Close it is locked against other processes and against a second
// Open in this one; the lock ends with the process. Writes are in the order of the calls, survive the death of the
// process, and are durable after Sync.
//
// What is on a disk is the guest's and is not looked into, apart from the mark that Create leaves. The package does not
// mount, check, grow or copy file systems.
package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/gofrs/flock"
)

// Sizes of a disk in bytes.
const (
	MinSize     = 64 << 20
	DefaultSize = 10 << 30
	MaxSize     = 1 << 40
)

// InUseError says that somebody else has the disk open.
type InUseError struct{ Path string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("disk %s is in use by another VM: stop that VM, or give this one a disk of its own", e.Path)
}

// InvalidError says that a file is not a disk.
type InvalidError struct{ Path, Cause string }

func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s is not a disk: %s; remove it to start with an empty one", e.Path, e.Cause)
}

// Disk is an open disk.
type Disk struct {
	file *os.File
	lock *flock.Flock
	size int64
}

// Open opens a disk and locks it. When it is in use the error is an *InUseError, when it is something else or was left half
// made an *InvalidError.
func Open(path string) (*Disk, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("open disk: %w", err) // and leave no lock file
	}
	lock, err := acquire(path)
	if err != nil {
		return nil, err
	}
	d, err := openLocked(path, lock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return d, nil
}

func openLocked(path string, lock *flock.Flock) (*Disk, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open disk: %w", err)
	}
	size, err := check(path, file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Disk{file: file, lock: lock, size: size}, nil
}

// check returns the size of a file that is a disk.
func check(path string, file *os.File) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, fmt.Errorf("open disk: %w", err)
	}
	if !info.Mode().IsRegular() {
		return 0, &InvalidError{path, "not a regular file"}
	}
	begin := make([]byte, superblockAt+superblockSize)
	if n, err := file.ReadAt(begin, 0); err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("open disk %s: %w", path, err)
	} else if cause := wrong(begin[:n], info.Size()); cause != "" {
		return 0, &InvalidError{path, cause}
	}
	return info.Size(), nil
}

// Size returns the disk's size in bytes. It does not change.
func (d *Disk) Size() int64 { return d.size }

// Path returns what the disk was opened as.
func (d *Disk) Path() string { return d.file.Name() }

// ReadAt implements io.ReaderAt.
func (d *Disk) ReadAt(p []byte, offset int64) (int, error) { return d.file.ReadAt(p, offset) }

// WriteAt implements io.WriterAt. It never grows the file: a write that is not inside of it fails with ENOSPC and changes
// nothing. Zeros take no room where the file system of the host can do without.
func (d *Disk) WriteAt(p []byte, offset int64) (int, error) {
	if offset < 0 || offset > d.size-int64(len(p)) {
		return 0, &fs.PathError{Op: "write", Path: d.Path(), Err: syscall.ENOSPC}
	}
	if len(p) >= blockSize && zero(p) && punch(d.file, offset, int64(len(p))) == nil {
		return len(p), nil
	}
	return d.file.WriteAt(p, offset)
}

// Sync makes what was written durable.
func (d *Disk) Sync() error { return d.file.Sync() }

// Close unlocks the disk. It does not sync. A second Close does nothing but fail.
func (d *Disk) Close() error {
	err := d.file.Close()
	return errors.Join(err, d.lock.Close())
}
