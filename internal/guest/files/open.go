//go:build linux

package files

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
	"agentvm/internal/host/sparsefile"
)

// Open opens a regular file; see guestrpc.OpenOptions.
func (s *Service) Open(path string, o guestrpc.OpenOptions) (guestrpc.FileHandler, error) {
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

// openFlags has no O_TRUNC, because the file may be of any kind until regular has checked it.
func openFlags(o guestrpc.OpenOptions) int {
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

func creationMode(o guestrpc.OpenOptions) uint32 {
	switch {
	case !o.Create: // openat2 refuses a mode without O_CREAT
		return 0
	case o.Mode == 0:
		return 0o600
	}
	return guestrpc.ModeToLinux(o.Mode) & 0o7777
}

// regular owns fd from now on: it closes fd unless that is a regular file.
func regular(fd int, path string) (*os.File, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = unix.EISDIR
	}
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		closeFD(fd)
		return nil, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: fmt.Sprintf("open %s: not a regular file", path)}
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

func (f *file) Stat() (guestrpc.FileInfo, error) { return infoOf(int(f.Fd()), f.Name()) }

func (f *file) Commit() error { return f.Sync() }

// atomicFile is a file with a temporary name until it is committed.
//
//	open ─► writing ──Commit──► seal, fsync, owner, permissions, rename, fsync of the directory ─► committed
//	           └──Close──► removed
type atomicFile struct {
	file
	content   sparsefile.File
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

func (s *Service) openAtomic(path string, o guestrpc.OpenOptions) (guestrpc.FileHandler, error) {
	dir, name, err := s.tree.parent(path)
	if err != nil {
		return nil, err
	}
	a := &atomicFile{path: path, dir: dir, name: name, mode: 0o600, uid: -1, gid: -1}
	err = a.readReplaced(o)
	if err == nil {
		err = a.create()
	}
	if err != nil {
		closeFD(dir)
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return a, nil
}

// readReplaced takes permissions and owner from the file that will be replaced, unless o has permissions.
func (a *atomicFile) readReplaced(o guestrpc.OpenOptions) error {
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
		a.mode = guestrpc.ModeToLinux(o.Mode) & 0o7777
	case exists && st.Mode&unix.S_IFMT == unix.S_IFREG:
		a.mode, a.uid, a.gid = st.Mode&0o7777, int(st.Uid), int(st.Gid)
	}
	return nil
}

func (a *atomicFile) create() error {
	fd, name, err := createTemporary(a.dir)
	if err != nil {
		return err
	}
	a.temporary, a.File = name, os.NewFile(uintptr(fd), a.path)
	a.content.File = a.File
	return nil
}

// createTemporary makes an empty file in a directory.
func createTemporary(dir int) (fd int, name string, err error) {
	for range 100 {
		name = fmt.Sprintf("%s%016x", temporaryPrefix, rand.Uint64())
		fd, err = unix.Openat(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err == nil || err != unix.EEXIST && err != unix.EINTR {
			return fd, name, err
		}
	}
	return -1, "", unix.EEXIST
}

// Commit gives the file its name. When it fails, the file with that name has not changed.
func (a *atomicFile) Commit() error {
	if a.committed {
		return &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.EBADF, Message: "the file is committed already"}
	}
	fd := int(a.Fd())
	if err := seal(fd); err != nil {
		return &os.PathError{Op: "write", Path: a.path, Err: err}
	}
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

// A process between fork and execve needs milliseconds. sealTries bounds how long seal waits for it, because it may wait for a slow disk.
const (
	sealTries = 1000
	sealPause = time.Millisecond
)

// seal replaces fd, of a complete file, by a descriptor for reading, because executing a file that is open for writing fails with
// ETXTBSY. Processes between fork and execve have copies of all descriptors; seal waits for these. It finds out by a lease for reading,
// which the kernel refuses while any process has the file open for writing. On file systems without leases it does not wait.
func seal(fd int) error {
	reading, err := unix.Open(procName(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = unix.Dup3(reading, fd, unix.O_CLOEXEC)
	closeFD(reading)
	if err != nil {
		return err
	}
	for range sealTries {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
		if err == nil {
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
		}
		if err != unix.EAGAIN {
			break
		}
		time.Sleep(sealPause)
	}
	return nil
}

// syncDir writes a directory's names to the disk. It ignores file systems that cannot do that.
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

// WriteAt fails after the commit, because other programs may read the file then.
func (a *atomicFile) WriteAt(b []byte, offset int64) (int, error) {
	if a.committed {
		return 0, &os.PathError{Op: "write", Path: a.path, Err: unix.EBADF}
	}
	return a.content.WriteAt(b, offset)
}

func (a *atomicFile) Truncate(size int64) error {
	if a.committed {
		return &os.PathError{Op: "truncate", Path: a.path, Err: unix.EBADF}
	}
	return a.content.Truncate(size)
}

// Close removes what is not committed.
func (a *atomicFile) Close() error {
	if !a.committed {
		_ = unix.Unlinkat(a.dir, a.temporary, 0)
	}
	closeFD(a.dir)
	return a.File.Close()
}
