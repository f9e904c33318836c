package wasi

// File is what a descriptor refers to. Further interfaces say what else it can do: [Reader], [Writer], [ReaderAt],
// [WriterAt], [Seeker], [Syncer], [Poller], [Notifier] and others in this file. A call that the file has no method for
// fails with ErrnoBadf (not open for that) or ErrnoSpipe (not seekable).
//
// Methods never block for long; they return [ErrnoAgain] when there is nothing to do yet.
type File interface {
	// Stat describes the file.
	Stat() (Filestat, Errno)
	// Close frees the file; it is called once, when the guest closes the descriptor or by System.Close.
	Close() error
}

// Reader is a File that fd_read and sock_recv can read. Zero bytes without an error mean the end of the file.
type Reader interface {
	Read(p []byte) (int, Errno)
}

// Writer is a File that fd_write and sock_send can write. A short count is allowed.
type Writer interface {
	Write(p []byte) (int, Errno)
}

// ReaderAt is a File that fd_pread can read at an offset in bytes.
type ReaderAt interface {
	Pread(p []byte, offset int64) (int, Errno)
}

// WriterAt is a File that fd_pwrite can write at an offset in bytes.
type WriterAt interface {
	Pwrite(p []byte, offset int64) (int, Errno)
}

// Seeker is a File with a position. The whence values are those of package io.
type Seeker interface {
	SeekTo(offset int64, whence int) (int64, Errno)
}

// Syncer is a File whose content can be made durable.
type Syncer interface {
	Sync() Errno
}

// Discarder is a File that can free the room of a part of its content. fd_advise calls it with the advice "dontneed": here, that the content
// of this part is not needed any more.
type Discarder interface {
	Discard(offset, length int64) Errno
}

// Sizer is a File whose size can be changed.
type Sizer interface {
	Truncate(size int64) Errno
}

// Timer is a File whose times can be set; both are nanoseconds since the Unix epoch.
type Timer interface {
	SetTimes(atim, mtim int64) Errno
}

// Flagger is a File that starts with status flags other than none, or that must learn when they change.
type Flagger interface {
	Fdflags() Fdflags
	SetFdflags(Fdflags) Errno
}

// Event is what a guest polls a descriptor for.
type Event uint8

// The two events; the values are those of witx "eventtype".
const (
	EventRead  Event = 1
	EventWrite Event = 2
)

// Readiness answers a poll: whether the call would not block, how many bytes are known to be there, and whether the
// other side is gone.
type Readiness struct {
	Ready, Hangup bool
	Bytes         uint64
}

// Poller is a File that is not always ready.
type Poller interface {
	Poll(Event) Readiness
}

// Notifier is a File that tells its System when the answer of Poll may have changed. The function may be called from any
// goroutine, must not be called with a lock held that the File's methods take, and is nil once the file is detached.
type Notifier interface {
	Attach(notify func())
}

// halfCloser is a socket that sock_shutdown can close in one or both directions.
type halfCloser interface {
	shutdown(read, write bool) Errno
}

// acceptor is a socket that sock_accept can take connections from.
type acceptor interface {
	accept() (File, Errno)
}
