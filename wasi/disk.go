package wasi

import (
	"errors"
	"io"
	"math"
	"syscall"
)

// disk is a File of fixed size on a reader or writer at offsets.
type disk struct {
	r    io.ReaderAt
	w    io.WriterAt // nil: read-only
	size int64
}

// NewDisk returns a File for fd_pread, fd_pwrite, fd_sync and fd_filestat_get on backing, of size bytes. It is read-only
// (ErrnoRofs) when readonly is set or backing is not an io.WriterAt. Reads past the end are short, writes past the end fail
// with ErrnoNospc; a backing that fails gives ErrnoIo, except that a full file system stays ErrnoNospc. A backing that
// has Sync() error is synced by fd_sync, one that has Discard(offset, length int64) error is called by fd_advise with "dontneed", one that is an io.Closer is closed with the descriptor, and one that is a [Notifier]
// learns how to say that it has room again.
func NewDisk(backing io.ReaderAt, size int64, readonly bool) File {
	d := &disk{r: backing, size: size}
	if !readonly {
		d.w, _ = backing.(io.WriterAt)
	}
	return d
}

// Attach passes on how a backing that has such a method says that it may be tried again what it had no room for.
func (d *disk) Attach(notify func()) {
	if n, ok := d.r.(Notifier); ok {
		n.Attach(notify)
	}
}

// Stat gives the size.
func (d *disk) Stat() (Filestat, Errno) {
	return Filestat{Type: FiletypeBlockDevice, Nlink: 1, Size: uint64(d.size)}, ErrnoSuccess
}

// Pread reads up to the disk's end.
func (d *disk) Pread(p []byte, offset int64) (int, Errno) {
	if offset < 0 {
		return 0, ErrnoInval
	}
	if offset >= d.size {
		return 0, ErrnoSuccess
	}
	p = p[:min(int64(len(p)), d.size-offset)]
	n, err := d.r.ReadAt(p, offset)
	if n < len(p) && (err == nil || errors.Is(err, io.EOF)) {
		// The backing is shorter than the disk, like a sparse file that was never extended: the rest reads as zeros.
		clear(p[n:])
		return len(p), ErrnoSuccess
	}
	if n < len(p) {
		return 0, diskErrno(err)
	}
	return n, ErrnoSuccess
}

// Pwrite writes all of p or fails.
func (d *disk) Pwrite(p []byte, offset int64) (int, Errno) {
	switch {
	case d.w == nil:
		return 0, ErrnoRofs
	case offset < 0 || offset > math.MaxInt64-int64(len(p)):
		return 0, ErrnoInval
	case offset+int64(len(p)) > d.size:
		return 0, ErrnoNospc
	}
	if _, err := d.w.WriteAt(p, offset); err != nil {
		return 0, diskErrno(err)
	}
	return len(p), ErrnoSuccess
}

// Sync makes the backing durable if it can.
func (d *disk) Sync() Errno {
	f, ok := d.r.(interface{ Sync() error })
	if !ok || d.w == nil {
		return ErrnoSuccess
	}
	if err := f.Sync(); err != nil {
		return diskErrno(err)
	}
	return ErrnoSuccess
}

// Discard implements Discarder.
func (d *disk) Discard(offset, length int64) Errno {
	f, ok := d.r.(interface {
		Discard(offset, length int64) error
	})
	switch {
	case d.w == nil:
		return ErrnoRofs
	case offset > d.size-length:
		return ErrnoInval
	case !ok:
		return ErrnoSuccess
	}
	if err := f.Discard(offset, length); err != nil {
		return diskErrno(err)
	}
	return ErrnoSuccess
}

// Close closes the backing if it can.
func (d *disk) Close() error {
	if c, ok := d.r.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// diskErrno reduces an error of a backing to the two that a guest's driver tells apart.
func diskErrno(err error) Errno {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, ErrnoNospc) {
		return ErrnoNospc
	}
	return ErrnoIo
}
