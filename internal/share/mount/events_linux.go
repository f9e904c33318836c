package mount

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/internal/host/errno"
	"agentvm/internal/host/hostfile"
)

// Watcher is an inotify instance, which all sessions of a process can share: a user may have few. It is open while a session uses it. The zero value
// is ready.
//
//	inotify ──► Watcher.run ──► hostEvents.note of each session that watches the directory ──► hostEvents.run
//
// A directory is given to it by a descriptor, never by a path: what a path means could be changed by the guest in between, and then it would learn the
// names of another directory.
type Watcher struct {
	mu       sync.Mutex
	file     *os.File // nil: no session uses it
	sessions map[*hostEvents]struct{}
	watched  map[watchID]map[*hostEvents]struct{}
	done     chan struct{} // closed when run has ended
}

// reportingSystems are the file systems that report all changes to names and, except through mappings, to files: those that only this host
// changes. Others, as NFS, may change without this host's kernel.
var reportingSystems = map[int64]bool{
	unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true, unix.BTRFS_SUPER_MAGIC: true, unix.F2FS_SUPER_MAGIC: true,
	unix.TMPFS_MAGIC: true, unix.OVERLAYFS_SUPER_MAGIC: true,
	0x2fc12fc1: true, // ZFS
	0xca451a4e: true, // bcachefs
}

// join has the watcher serve a session. It fails where the host's system does not report changes of the directory.
func (w *Watcher) join(e *hostEvents, dir *os.File) error {
	var st unix.Statfs_t
	if err := hostfile.Control(dir, func(fd int) error { return unix.Fstatfs(fd, &st) }); err != nil {
		return err
	}
	if !reportingSystems[int64(st.Type)] {
		return errors.ErrUnsupported
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		if err := w.openLocked(); err != nil {
			return err
		}
	}
	w.sessions[e] = struct{}{}
	return nil
}

func (w *Watcher) openLocked() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), "inotify")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return err
	}
	w.file, w.done = file, make(chan struct{})
	w.sessions, w.watched = make(map[*hostEvents]struct{}), make(map[watchID]map[*hostEvents]struct{})
	go w.run(raw, w.done)
	return nil
}

// leave ends the watches of a session. With the last one the instance is closed, and its goroutine has ended.
func (w *Watcher) leave(e *hostEvents) {
	w.mu.Lock()
	delete(w.sessions, e)
	for id, watching := range w.watched {
		if _, there := watching[e]; there {
			w.removeLocked(e, id)
		}
	}
	last, done := w.file != nil && len(w.sessions) == 0, w.done
	if last {
		w.file.Close()
		w.file = nil
	}
	w.mu.Unlock()
	if last {
		<-done
	}
}

// watchDir has a session watch the directory of a path if it is still the one of an identity.
func (s *Server) watchDir(e *hostEvents, path string, want identity) (id watchID, err error) {
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
	w := s.config.Watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return 0, os.ErrClosed
	}
	err = hostfile.Control(dir, func(fd int) error {
		return hostfile.Control(w.file, func(instance int) error {
			n, err := unix.InotifyAddWatch(instance, "/proc/self/fd/"+strconv.Itoa(fd), mask)
			id = watchID(n)
			return err
		})
	})
	if err != nil {
		return 0, err
	}
	if w.watched[id] == nil {
		w.watched[id] = make(map[*hostEvents]struct{})
	}
	w.watched[id][e] = struct{}{}
	return id, nil
}

// maxUserWatches is how many directories the programs of a user may watch; many where the system does not say.
func maxUserWatches() int64 {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_watches")
	if err != nil {
		return math.MaxInt32
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return math.MaxInt32
	}
	return n
}

// remove ends a session's watch. The system's ends with the last session's.
func (w *Watcher) remove(e *hostEvents, id watchID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeLocked(e, id)
}

func (w *Watcher) removeLocked(e *hostEvents, id watchID) {
	delete(w.watched[id], e)
	if len(w.watched[id]) > 0 || w.file == nil {
		return
	}
	delete(w.watched, id)
	_ = hostfile.Control(w.file, func(instance int) error {
		_, err := unix.InotifyRmWatch(instance, uint32(id)) // fails when the directory is gone
		return err
	})
}

// run hands events on until the instance is closed.
func (w *Watcher) run(raw syscall.RawConn, done chan<- struct{}) {
	defer close(done)
	buf := make([]byte, 64<<10)
	for {
		err := raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 || err != nil && err != unix.EINTR
		})
		if err != nil {
			return
		}
		time.Sleep(eventDelay)
		woken := make(map[*hostEvents]struct{})
		for w.read(raw, buf, woken) {
		}
		for e := range woken {
			e.wakeUp()
		}
	}
}

// read notes the events that are there, as far as they fit into the buffer. It returns false when there are none.
func (w *Watcher) read(raw syscall.RawConn, buf []byte, woken map[*hostEvents]struct{}) bool {
	n := 0
	err := raw.Read(func(fd uintptr) bool {
		n, _ = unix.Read(int(fd), buf)
		return true
	})
	if err != nil || n <= 0 {
		return false
	}
	for at := 0; at+unix.SizeofInotifyEvent <= n; {
		head := buf[at:]
		size := int(binary.LittleEndian.Uint32(head[12:]))
		name, _, _ := bytes.Cut(head[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size], []byte{0})
		id, mask := watchID(binary.LittleEndian.Uint32(head)), binary.LittleEndian.Uint32(head[4:])
		for _, e := range w.watching(id, mask) {
			e.note(id, mask, binary.LittleEndian.Uint32(head[8:]), string(name))
			woken[e] = struct{}{}
		}
		at += unix.SizeofInotifyEvent + size
	}
	return true
}

// watching are the sessions that an event is for.
func (w *Watcher) watching(id watchID, mask uint32) []*hostEvents {
	w.mu.Lock()
	defer w.mu.Unlock()
	if mask&eventOverflow != 0 {
		return slices.Collect(maps.Keys(w.sessions))
	}
	return slices.Collect(maps.Keys(w.watched[id]))
}
