//go:build linux

package files

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"golang.org/x/sys/unix"

	"agentvm/rpc"
)

// Open opens a regular file; see rpc.OpenOptions.
func (s *Service) Open(path string, o rpc.OpenOptions) (rpc.FileHandler, error) {
	if o.Atomic {
		return s.openAtomic(path, o)
	}
	fd, err := s.tree.open(path, openFlags(o), creationMode(o))
	if err != nil {
		return nil, err
	}
	f, err := regular(fd, path)
	if err != nil {
		return nil, err
	}
	if o.Truncate {
		if err := f.Truncate(0); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return &file{File: f}, nil
}

// openFlags has no O_TRUNC: the file may be anything yet.
func openFlags(o rpc.OpenOptions) int {
	flags := unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY
	switch {
	case o.Read && o.Write:
		flags |= unix.O_RDWR
	case o.Write:
		flags |= unix.O_WRONLY
	}
	if o.Create {
		flags |= unix.O_CREAT
	}
	if o.Create && o.Exclusive {
		flags |= unix.O_EXCL
	}
	return flags
}

func creationMode(o rpc.OpenOptions) uint32 {
	switch {
	case !o.Create: // openat2 refuses a mode then
		return 0
	case o.Mode == 0:
		return 0o600
	}
	return rpc.ModeToLinux(o.Mode) & 0o7777
}

// regular takes over fd.
func regular(fd int, path string) (*os.File, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = unix.EISDIR
	}
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		closeFD(fd)
		return nil, &rpc.Error{Kind: rpc.KindInvalid, Errno: int32(unix.EINVAL), Message: fmt.Sprintf("open %s: not a regular file", path)}
	}
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		closeFD(fd)
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// file is an open regular file. ReadAt, WriteAt, Truncate and Close are os.File's.
type file struct{ *os.File }

func (f *file) Stat() (rpc.FileInfo, error) { return infoOf(int(f.Fd()), f.Name()) }

func (f *file) Commit() error { return f.Sync() }

// atomicFile is a file with a temporary name until it is committed.
//
//	open ─► writing ──Commit──► fsync, owner, permissions, rename, fsync of the directory ─► committed
//	           └──Close──► removed
type atomicFile struct {
	file
	path      string
	dir       int
	temporary string
	name      string
	mode      uint32
	uid, gid  int // -1: as it is
	committed bool
}

// temporaryPrefix begins the names of files that are being written.
const temporaryPrefix = ".agentvm-"

func (s *Service) openAtomic(path string, o rpc.OpenOptions) (rpc.FileHandler, error) {
	dir, name, err := s.tree.parent(path)
	if err != nil {
		return nil, err
	}
	a := &atomicFile{path: path, dir: dir, name: name, mode: 0o600, uid: -1, gid: -1}
	err = a.inherit(o)
	if err == nil {
		err = a.create()
	}
	if err != nil {
		closeFD(dir)
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return a, nil
}

// inherit looks at what will be replaced.
func (a *atomicFile) inherit(o rpc.OpenOptions) error {
	var st unix.Stat_t
	err := unix.Fstatat(a.dir, a.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	exists := err == nil
	switch {
	case exists && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return unix.EISDIR
	case exists && o.Exclusive:
		return unix.EEXIST
	case err != nil && err != unix.ENOENT:
		return err
	case o.Mode != 0:
		a.mode = rpc.ModeToLinux(o.Mode) & 0o7777
	case exists && st.Mode&unix.S_IFMT == unix.S_IFREG:
		a.mode, a.uid, a.gid = st.Mode&0o7777, int(st.Uid), int(st.Gid)
	}
	return nil
}

func (a *atomicFile) create() error {
	for range 100 {
		a.temporary = fmt.Sprintf("%s%016x", temporaryPrefix, rand.Uint64())
		fd, err := unix.Openat(a.dir, a.temporary, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err == nil {
			a.File = os.NewFile(uintptr(fd), a.path)
			return nil
		}
		if err != unix.EEXIST && err != unix.EINTR {
			return err
		}
	}
	return unix.EEXIST
}

// Commit gives the file its name. When it fails, nothing has changed under that name.
func (a *atomicFile) Commit() error {
	if a.committed {
		return &rpc.Error{Kind: rpc.KindState, Errno: int32(unix.EBADF), Message: "the file is committed already"}
	}
	fd := int(a.Fd())
	if a.uid >= 0 {
		if err := unix.Fchown(fd, a.uid, a.gid); err != nil {
			return &os.PathError{Op: "chown", Path: a.path, Err: err}
		}
	}
	if err := unix.Fchmod(fd, a.mode); err != nil {
		return &os.PathError{Op: "chmod", Path: a.path, Err: err}
	}
	if err := a.Sync(); err != nil {
		return err
	}
	if err := unix.Renameat(a.dir, a.temporary, a.dir, a.name); err != nil {
		return &os.PathError{Op: "rename", Path: a.path, Err: err}
	}
	a.committed = true
	return syncDir(a.dir, a.path)
}

// syncDir has the disk keep a directory's names. File systems that cannot do that need not.
func syncDir(dir int, path string) error {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Fsync(fd)
		closeFD(fd)
	}
	if err != nil && err != unix.EINVAL && err != unix.EACCES {
		return &os.PathError{Op: "sync the directory of", Path: path, Err: err}
	}
	return nil
}

// WriteAt, ReadAt and Truncate end with the commit: the file is its new readers' then.
func (a *atomicFile) WriteAt(b []byte, offset int64) (int, error) {
	if a.committed {
		return 0, &os.PathError{Op: "write", Path: a.path, Err: unix.EBADF}
	}
	return a.File.WriteAt(b, offset)
}

func (a *atomicFile) Truncate(size int64) error {
	if a.committed {
		return &os.PathError{Op: "truncate", Path: a.path, Err: unix.EBADF}
	}
	return a.File.Truncate(size)
}

// Close removes what is not committed.
func (a *atomicFile) Close() error {
	if !a.committed {
		_ = unix.Unlinkat(a.dir, a.temporary, 0)
	}
	closeFD(a.dir)
	return a.File.Close()
}
