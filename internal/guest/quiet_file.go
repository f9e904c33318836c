//go:build linux

package guest

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// quietFile is a pipe or the master of a terminal that wakes this process only while a goroutine waits for it. A file that Go's poller
// watches wakes it at each byte that is written, whether a goroutine reads just then or not: a shell that echoes a paste of 100 KB byte by
// byte would wake the supervisor 60,000 times, for 500 reads. So Go's poller watches a second epoll instance, which has the file only from
// a Read or Write that would block until the file is ready, once.
//
// Read and Write may be called from one goroutine each; Close from any, and it ends both.
type quietFile struct {
	readable, writable readiness

	mu     sync.Mutex // held during system calls, which do not block
	fd     int
	closed bool
}

// readiness waits for one kind of event. It has no descriptor before the first wait.
type readiness struct {
	events uint32
	epoll  *os.File        // nil before the first wait
	conn   syscall.RawConn // of epoll
	number int             // descriptor of epoll, which is valid until the quietFile is closed
	armed  bool
}

// newQuietFile takes over fd, which it makes non-blocking.
func newQuietFile(fd int) *quietFile {
	_ = syscall.SetNonblock(fd, true)
	return &quietFile{fd: fd, readable: readiness{events: unix.EPOLLIN}, writable: readiness{events: unix.EPOLLOUT}}
}

// Read implements io.Reader.
func (f *quietFile) Read(b []byte) (int, error) {
	n, err := f.do(&f.readable, func(fd int) (int, error) { return unix.Read(fd, b) })
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// Write implements io.Writer.
func (f *quietFile) Write(b []byte) (done int, err error) {
	for done < len(b) && err == nil {
		var n int
		n, err = f.do(&f.writable, func(fd int) (int, error) { return unix.Write(fd, b[done:]) })
		done += n
	}
	return done, err
}

// do calls call, and waits and calls it again as long as it fails with EAGAIN.
func (f *quietFile) do(r *readiness, call func(fd int) (int, error)) (n int, err error) {
	try := func(uintptr) (done bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.closed {
			n, err = 0, os.ErrClosed
			return true
		}
		r.disarm()
		for n, err = call(f.fd); err == unix.EINTR; n, err = call(f.fd) {
		}
		n = max(n, 0)
		if err == unix.EAGAIN {
			err = r.arm(f.fd)
			return err != nil
		}
		return true
	}
	if try(0) {
		return n, err
	}
	if err := r.conn.Read(try); err != nil { // closed meanwhile
		return 0, os.ErrClosed
	}
	return n, err
}

// arm has the epoll instance become readable once when fd is ready, which may be at once.
func (r *readiness) arm(fd int) error {
	event := unix.EpollEvent{Events: r.events | unix.EPOLLONESHOT}
	r.armed = true
	if r.epoll != nil {
		return os.NewSyscallError("epoll_ctl", unix.EpollCtl(r.number, unix.EPOLL_CTL_MOD, fd, &event))
	}
	number, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	err = unix.EpollCtl(number, unix.EPOLL_CTL_ADD, fd, &event)
	r.epoll, r.number = pollable(number, "readiness"), number
	if err == nil {
		r.conn, err = r.epoll.SyscallConn()
	}
	return err
}

// disarm takes the event that arm has asked for. If it has not come, it is still to come, and at worst wakes this process once without need.
func (r *readiness) disarm() {
	if r.armed {
		_, _ = unix.EpollWait(r.number, make([]unix.EpollEvent, 1), 0)
		r.armed = false
	}
}

// arrived reports whether there are bytes to read, or the end.
func (f *quietFile) arrived() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	ready, err := unix.Poll([]unix.PollFd{{Fd: int32(f.fd), Events: unix.POLLIN}}, 0)
	return err == nil && ready > 0
}

// control calls do with the descriptor, unless the file is closed.
func (f *quietFile) control(do func(fd int) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return os.ErrClosed
	}
	return do(f.fd)
}

// Close ends Read and Write.
func (f *quietFile) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return os.ErrClosed
	}
	f.closed = true
	err := unix.Close(f.fd)
	waits := []*os.File{f.readable.epoll, f.writable.epoll}
	f.mu.Unlock()
	for _, epoll := range waits { // without the lock, because Close waits for the goroutine that may want it
		if epoll != nil {
			err = errors.Join(err, epoll.Close())
		}
	}
	return err
}
