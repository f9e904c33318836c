//go:build linux

package files

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/errno"
)

// maxDepth bounds how deep trees are walked. It is as deep as a path can name. Each level holds a descriptor.
const maxDepth = unix.PathMax / 2

// errTooDeep is the error for a tree that a guest made too deep on purpose.
var errTooDeep = &capnprpc.Error{Kind: capnprpc.KindLimit, Errno: errno.ENAMETOOLONG, Message: "directories are nested too deep (limit 2048)"}

// Remove removes a file or directory; with recursive also everything below. It removes nothing that is mounted there,
// and fails with EBUSY at the mount.
func (s *Service) Remove(path string, recursive bool) error {
	dir, name, err := s.tree.parent(path)
	if err != nil {
		if recursive && isErrno(err, unix.ENOENT) {
			return nil
		}
		return err
	}
	defer closeFD(dir)
	err = removeName(dir, name)
	if recursive && (err == unix.ENOTEMPTY || err == unix.EEXIST) {
		var st unix.Stat_t
		if err = unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
			err = removeTree(dir, name, st.Dev, 0)
		}
	}
	if err == nil || recursive && err == unix.ENOENT {
		return nil
	}
	return &os.PathError{Op: "remove", Path: path, Err: err}
}

func removeName(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == unix.EISDIR || err == unix.EPERM {
		if e := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); e != unix.ENOTDIR {
			return e
		}
	}
	return err
}

// removeTree removes a directory that is not empty.
func removeTree(dir int, name string, device uint64, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Dev != device {
		return unix.EBUSY
	}
	// A directory from which names are removed while it is read may hide some, and programs may add more.
	for range 100 {
		if err := removeNames(f, device, depth); err != nil {
			return err
		}
		if err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != unix.ENOTEMPTY && err != unix.EEXIST {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	return unix.ENOTEMPTY
}

func removeNames(f *os.File, device uint64, depth int) error {
	for {
		names, err := f.Readdirnames(1024)
		for _, name := range names {
			if err := removeBelow(int(f.Fd()), name, device, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func removeBelow(dir int, name string, device uint64, depth int) error {
	err := removeName(dir, name)
	if err == unix.ENOTEMPTY || err == unix.EEXIST {
		err = removeTree(dir, name, device, depth+1)
	}
	if err == unix.ENOENT {
		return nil
	}
	return err
}
