// Package disk makes and opens the writable disks of named VMs: sparse files with an ext4 file system, which the guest
// grows to the file's size when it mounts it. docs/disks.md has the format and what the guest has to do.
//
// A Disk may be used by several goroutines. It is locked against other processes, and against a second Open in this
// one, from Open to Close; the lock ends with the process. What is written is ordered as the caller orders it and is
// durable after Sync.
package disk

import "errors"

// Sizes of a disk in bytes.
const (
	MinSize     = 64 << 20
	DefaultSize = 10 << 30
	MaxSize     = 1 << 40
)

// Create makes a disk of size bytes, rounded up to 4 KiB, in a new file; 0 is DefaultSize.
func Create(path string, size int64) error { return errors.ErrUnsupported }

// Remove deletes a disk that nobody uses.
func Remove(path string) error { return errors.ErrUnsupported }

// InUseError says that somebody else has the disk open.
type InUseError struct{ Path string }

func (e *InUseError) Error() string {
	return "disk " + e.Path + " is in use by another VM: stop that VM first, or give this one a disk of its own"
}

// Disk is an open disk.
type Disk struct{}

// Open opens a disk and locks it. When it is in use the error is an *InUseError.
func Open(path string) (*Disk, error) { return nil, errors.ErrUnsupported }

// ReadAt implements io.ReaderAt.
func (d *Disk) ReadAt(p []byte, offset int64) (int, error) { return 0, errors.ErrUnsupported }

// WriteAt implements io.WriterAt. It never grows the file.
func (d *Disk) WriteAt(p []byte, offset int64) (int, error) { return 0, errors.ErrUnsupported }

// Size returns the disk's size in bytes. It does not change.
func (d *Disk) Size() int64 { return 0 }

// Sync makes what was written durable.
func (d *Disk) Sync() error { return errors.ErrUnsupported }

// Close unlocks the disk.
func (d *Disk) Close() error { return nil }
