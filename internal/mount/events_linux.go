package mount

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"agentvm/internal/errno"
	"agentvm/internal/hostfile"
)

// watcher is an inotify instance. A directory is given to it by a descriptor, never by a path: what a path means could be changed by the guest
// in between, and then it would learn the names of another directory.
type watcher struct {
	file   *os.File
	raw    syscall.RawConn
	buf    []byte
	closed atomic.Bool
	count  atomic.Int64
	limit  int64
}

// reportingSystems are the file systems that report all changes to names and, except through mappings, to files: those that only this host
// changes. Others, as NFS, may change without this host's kernel.
var reportingSystems = map[int64]bool{
	unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true, unix.BTRFS_SUPER_MAGIC: true, unix.F2FS_SUPER_MAGIC: true,
	unix.TMPFS_MAGIC: true, unix.OVERLAYFS_SUPER_MAGIC: true,
	0x2fc12fc1: true, // ZFS
	0xca451a4e: true, // bcachefs
}

func newWatcher(dir *os.File) (*watcher, error) {
	var st unix.Statfs_t
	if err := hostfile.Control(dir, func(fd int) error { return unix.Fstatfs(fd, &st) }); err != nil {
		return nil, err
	}
	if !reportingSystems[int64(st.Type)] {
		return nil, errors.ErrUnsupported
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &watcher{file: os.NewFile(uintptr(fd), "inotify"), buf: make([]byte, 64<<10), limit: maxWatches}
	if text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_watches"); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			w.limit = min(w.limit, n/8)
		}
	}
	if w.raw, err = w.file.SyscallConn(); err != nil {
		w.file.Close()
		return nil, err
	}
	return w, nil
}

func (w *watcher) close() {
	w.closed.Store(true)
	w.file.Close()
}

func (w *watcher) open() bool { return !w.closed.Load() }

func (w *watcher) reserve() bool {
	if w.count.Add(1) > w.limit {
		w.count.Add(-1)
		return false
	}
	return true
}

func (w *watcher) unreserve() { w.count.Add(-1) }

// watchDir watches the directory of a path if it is still the one of an identity.
func (s *Server) watchDir(w *watcher, path string, want identity) (id watchID, err error) {
	dir, err := s.open(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	info, err := dir.Stat()
	if err != nil {
		return 0, err
	}
	if a := s.attrOf(info, path); a.identity() != want && path != "." || a.host.Device != s.rootDev {
		return 0, errno.ESTALE
	}
	const mask = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_CLOSE_WRITE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_CREATE | unix.IN_DELETE |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
	err = hostfile.Control(dir, func(fd int) error {
		return hostfile.Control(w.file, func(instance int) error {
			n, err := unix.InotifyAddWatch(instance, "/proc/self/fd/"+strconv.Itoa(fd), mask)
			id = watchID(n)
			return err
		})
	})
	return id, err
}

func (w *watcher) remove(id watchID) {
	_ = hostfile.Control(w.file, func(instance int) error {
		_, err := unix.InotifyRmWatch(instance, uint32(id))
		return err
	})
}

// wait waits for events; false after close.
func (w *watcher) wait() bool {
	err := w.raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
	return err == nil && w.open()
}

// read calls note with each event that is there.
func (w *watcher) read(note func(id watchID, mask, cookie uint32, name string)) {
	for {
		n := 0
		err := w.raw.Read(func(fd uintptr) bool {
			n, _ = unix.Read(int(fd), w.buf)
			return true
		})
		if err != nil || n <= 0 {
			return
		}
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			head := w.buf[at:]
			size := int(binary.LittleEndian.Uint32(head[12:]))
			name, _, _ := bytes.Cut(head[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size], []byte{0})
			note(watchID(binary.LittleEndian.Uint32(head)), binary.LittleEndian.Uint32(head[4:]), binary.LittleEndian.Uint32(head[8:]), string(name))
			at += unix.SizeofInotifyEvent + size
		}
	}
}
