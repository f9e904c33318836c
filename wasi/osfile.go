package wasi

import (
	"io"
	"math"
	"os"
	"time"

	"agentvm/internal/host/hostfile"
)

// osFile is a file of the host that never blocks for long: a regular file, or a device that the owner of a preopen
// put there. The guest's APPEND is done here, not by the host's O_APPEND, because the guest may change it at any time
// and Go offers no way to; it is not atomic against other writers of the file.
type osFile struct {
	f        *os.File
	append   bool
	flags    Fdflags // as opened
	readonly bool
}

// Stat describes the file.
func (o *osFile) Stat() (Filestat, Errno) {
	info, err := o.f.Stat()
	if err != nil {
		return Filestat{}, errnoOf(err)
	}
	return filestatOf(info), ErrnoSuccess
}

// Close closes the file.
func (o *osFile) Close() error { return o.f.Close() }

// Read reads at the position.
func (o *osFile) Read(p []byte) (int, Errno) {
	n, err := o.f.Read(p)
	return n, readErrno(err)
}

// Write writes at the position, or at the end in append mode.
func (o *osFile) Write(p []byte) (int, Errno) {
	if o.append {
		if _, err := o.f.Seek(0, io.SeekEnd); err != nil {
			return 0, errnoOf(err)
		}
	}
	n, err := o.f.Write(p)
	return n, errnoOf(err)
}

// Pread reads at an offset.
func (o *osFile) Pread(p []byte, offset int64) (int, Errno) {
	n, err := o.f.ReadAt(p, offset)
	return n, readErrno(err)
}

// Pwrite writes at an offset. In append mode it writes at the end instead, as on Linux and in other runtimes; POSIX would
// keep the offset.
func (o *osFile) Pwrite(p []byte, offset int64) (int, Errno) {
	if o.append {
		info, err := o.f.Stat()
		if err != nil {
			return 0, errnoOf(err)
		}
		offset = info.Size()
	}
	n, err := o.f.WriteAt(p, offset)
	return n, errnoOf(err)
}

// SeekTo moves the position.
func (o *osFile) SeekTo(offset int64, whence int) (int64, Errno) {
	n, err := o.f.Seek(offset, whence)
	return n, errnoOf(err)
}

// Sync makes the content durable.
func (o *osFile) Sync() Errno { return errnoOf(o.f.Sync()) }

// Truncate changes the size.
func (o *osFile) Truncate(size int64) Errno {
	if o.readonly {
		return ErrnoRofs
	}
	return errnoOf(o.f.Truncate(size))
}

// SetTimes sets both times.
func (o *osFile) SetTimes(atim, mtim int64) Errno {
	if o.readonly {
		return ErrnoRofs
	}
	return errnoOf(hostfile.SetTimes(o.f, time.Unix(0, atim), time.Unix(0, mtim)))
}

// Fdflags returns the flags that the file was opened with.
func (o *osFile) Fdflags() Fdflags { return o.flags }

// SetFdflags changes APPEND and NONBLOCK; the host's open file keeps its synchronous flags, as with fcntl elsewhere.
func (o *osFile) SetFdflags(flags Fdflags) Errno {
	if flags&^(FdAppend|FdNonblock) != 0 {
		return ErrnoInval
	}
	o.append = flags&FdAppend != 0
	return ErrnoSuccess
}

// readErrno is errnoOf without the end of the file, which is not an error for a guest.
func readErrno(err error) Errno {
	if err == io.EOF {
		return ErrnoSuccess
	}
	return errnoOf(err)
}

// grow makes the file at least size bytes long.
func (o *osFile) grow(size uint64) Errno {
	st, errno := o.Stat()
	switch {
	case errno != ErrnoSuccess:
		return errno
	case size > math.MaxInt64:
		return ErrnoFbig
	case st.Size >= size:
		return ErrnoSuccess
	}
	return o.Truncate(int64(size))
}
