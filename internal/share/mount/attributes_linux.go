package mount

import (
	"bytes"
	"errors"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"agentvm/internal/host/errno"
	"agentvm/internal/host/hostfile"
)

// withName calls call with a path of the system's own that means the file which is at a name below the mount, whatever comes to be there.
func (s *Server) withName(name string, call func(path string) error) error {
	file, err := s.open(name, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	return hostfile.Control(file, func(fd int) error {
		path := "/proc/self/fd/" + strconv.Itoa(fd)
		return hostfile.Uninterrupted(func() error { return call(path) })
	})
}

func (s *Server) getAttribute(name, attribute string) (value []byte, err error) {
	buf := make([]byte, maxAttribute)
	err = s.withName(name, func(path string) error {
		n, err := unix.Getxattr(path, attribute, buf)
		value = buf[:max(n, 0)]
		return err
	})
	return value, err
}

func (s *Server) listAttributes(name string) (list []byte, err error) {
	buf := make([]byte, maxAttributes)
	err = s.withName(name, func(path string) error {
		n, err := unix.Listxattr(path, buf)
		list = buf[:max(n, 0)]
		return err
	})
	return list, err
}

// isPlain says that a file has no attributes user.*. The caller has its other attributes from before: one that comes later is a change of them.
func (s *Server) isPlain(name string) (plain bool) {
	err := s.inParent(name, func(dir int, base string) error {
		plain = isPlain(dir, base)
		return nil
	})
	return err == nil && plain
}

func (s *Server) isPlainIn(dir *os.File, name string) (plain bool) {
	err := hostfile.Control(dir, func(dir int) error {
		plain = isPlain(dir, path.Base(name))
		return nil
	})
	return err == nil && plain
}

func isPlain(dir int, base string) bool {
	var buf [256]byte // with more, the guest asks
	n, err := unix.Llistxattr("/proc/self/fd/"+strconv.Itoa(dir)+"/"+base, buf[:])
	list := buf[:max(n, 0)]
	return err == nil && !bytes.HasPrefix(list, []byte(userAttribute)) && !bytes.Contains(list, []byte("\x00"+userAttribute))
}

func (s *Server) setAttribute(name, attribute string, value []byte, flags int) error {
	return s.withOpen(name, func(fd int) error { return unix.Fsetxattr(fd, attribute, value, flags) })
}

func (s *Server) removeAttribute(name, attribute string) error {
	return s.withOpen(name, func(fd int) error { return unix.Fremovexattr(fd, attribute) })
}

// withOpen calls call with a file or directory, which is opened because a confined process may not change attributes by a path.
func (s *Server) withOpen(name string, call func(fd int) error) error {
	file, err := s.open(name, os.O_RDONLY|hostNonblock, 0)
	if errors.Is(err, unix.EACCES) { // a file may be only for writing
		file, err = s.open(name, os.O_WRONLY|hostNonblock, 0)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return hostfile.Control(file, func(fd int) error { return hostfile.Uninterrupted(func() error { return call(fd) }) })
}

// hostLocks says that the host has flock(2) locks.
const hostLocks = true

// hostLock takes or gives up a lock of an open file, or EAGAIN.
func hostLock(file *os.File, kind uint32) error {
	how := map[uint32]int{lockRead: unix.LOCK_SH | unix.LOCK_NB, lockWrite: unix.LOCK_EX | unix.LOCK_NB, lockNone: unix.LOCK_UN}[kind]
	err := hostfile.Control(file, func(fd int) error { return hostfile.Uninterrupted(func() error { return unix.Flock(fd, how) }) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errno.EAGAIN
	}
	return err
}

// hostLockRange takes or gives up a lock of some bytes of an open file, or EAGAIN.
func hostLockRange(file *os.File, r lockedRange) error {
	lock := hostRange(r)
	err := hostfile.Control(file, func(fd int) error {
		return hostfile.Uninterrupted(func() error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock) })
	})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return errno.EAGAIN
	}
	return err
}

// hostTestRange returns a lock of another open file that is in the way of one, or one of the kind lockNone.
func hostTestRange(file *os.File, r lockedRange) (lockedRange, error) {
	lock := hostRange(r)
	err := hostfile.Control(file, func(fd int) error {
		return hostfile.Uninterrupted(func() error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &lock) })
	})
	switch {
	case err != nil:
		return lockedRange{}, err
	case lock.Type == unix.F_UNLCK:
		return lockedRange{kind: lockNone}, nil
	}
	found := lockedRange{start: uint64(lock.Start), end: lastByte, kind: lockRead}
	if lock.Type == unix.F_WRLCK {
		found.kind = lockWrite
	}
	if lock.Len > 0 {
		found.end = uint64(lock.Start + lock.Len - 1)
	}
	return found, nil
}

// hostRange is a range as the system has it: of the length 0 if it reaches to the last byte that a file can have.
func hostRange(r lockedRange) unix.Flock_t {
	lock := unix.Flock_t{Type: []int16{unix.F_RDLCK, unix.F_WRLCK, unix.F_UNLCK}[r.kind], Start: int64(r.start)}
	if r.end < lastByte {
		lock.Len = int64(r.end - r.start + 1)
	}
	return lock
}
