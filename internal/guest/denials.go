//go:build linux

package guest

import (
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/errno"
)

const (
	// runtimeDir has the supervisor's files for programs in the guest.
	runtimeDir  = "/run/agentvm"
	denialsName = "denials"
	// maxDenials bounds the file in bytes; a file that would become larger loses its older half.
	maxDenials = 64 << 10
	// maxDenialLine bounds a line in bytes; the rest of a longer one is left out.
	maxDenialLine = 4 << 10
	// denialsTimeout bounds how long a report waits until its lines are in the file.
	denialsTimeout = 100 * time.Millisecond
)

// denials is the file that says which connections were refused, and why. The guest can change it, so writing it may fail or
// block, for example when a program has mounted something there. One goroutine writes while there is something to write;
// callers wait for it with a timeout.
type denials struct {
	dir string
	mu  sync.Mutex
	// waiting are the newest bytes that are not in the file yet, at most maxDenials.
	waiting []byte
	// written is closed when there is nothing left to write; nil while no goroutine writes.
	written chan struct{}
}

// ReportDenials appends lines to /run/agentvm/denials; see guestrpc.Handler. A file that cannot be written is no
// error: it only informs.
func (s *Supervisor) ReportDenials(lines []string) error {
	written := s.denials.add(lines, s.tasks.Go)
	select {
	case <-written:
		return nil
	case <-time.After(denialsTimeout):
		return &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.EBUSY, Message: "the file of denials is not written: a program in the VM hinders it"}
	}
}

// add queues lines for the goroutine that writes, which it starts by begin when there is none.
func (d *denials) add(lines []string, begin func(func())) (written <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, line := range lines {
		d.waiting = append(d.waiting, oneLine(line)...)
	}
	d.waiting = newest(d.waiting, maxDenials)
	if d.written == nil {
		d.written = make(chan struct{})
		begin(d.run)
	}
	return d.written
}

func (d *denials) run() {
	for {
		d.mu.Lock()
		b := d.waiting
		d.waiting = nil
		if len(b) == 0 {
			close(d.written)
			d.written = nil
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
		_ = d.write(b)
	}
}

// oneLine returns line with a newline at its end and none inside.
func oneLine(line string) string {
	line = strings.TrimRight(line[:min(len(line), maxDenialLine)], "\r\n")
	return strings.NewReplacer("\n", " ", "\r", " ").Replace(line) + "\n"
}

// newest returns the last lines of b that fit into limit bytes.
func newest(b []byte, limit int) []byte {
	if len(b) <= limit {
		return b
	}
	b = b[len(b)-limit-1:]
	for i, c := range b {
		if c == '\n' {
			return b[i+1:]
		}
	}
	return nil
}

// write appends b to the file. When it would become too large, a file with the newer half takes its place, so that a reader
// never sees part of it. Anything else than a regular file is replaced.
func (d *denials) write(b []byte) error {
	if err := syscall.Mkdir(d.dir, 0o755); err != nil && err != syscall.EEXIST {
		return err
	}
	dir, err := unix.Open(d.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	fd, err := unix.Openat(dir, denialsName, unix.O_RDWR|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return replaceFile(dir, denialsName, b)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return replaceFile(dir, denialsName, b)
	case st.Size+int64(len(b)) > maxDenials:
		return replaceFile(dir, denialsName, newest(append(newerHalf(fd, st.Size), b...), maxDenials))
	}
	_, err = unix.Write(fd, b)
	return err
}

// newerHalf reads the last lines of a file of size bytes, at most maxDenials/2 bytes.
func newerHalf(fd int, size int64) []byte {
	b := make([]byte, maxDenials/2+1)
	n, err := unix.Pread(fd, b, max(0, size-int64(len(b))))
	if err != nil {
		return nil
	}
	return newest(b[:n], maxDenials/2)
}
