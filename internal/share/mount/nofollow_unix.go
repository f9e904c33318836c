//go:build unix

package mount

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/internal/host/errno"
	"agentvm/internal/host/hostfile"
)

// The calls of this file resolve a path below the mounted directory without following any symbolic link, the last
// element included. Looking first and calling afterwards is not enough: another session of the same share, another share of
// the same directory or a program of the host can put a link there in between.

// inParent runs a call with the descriptor of the path's parent directory and the path's last element.
func (s *Server) inParent(name string, call func(dir int, base string) error) error {
	return hostfile.Control(s.dir, func(root int) error {
		if path.Dir(name) == "." {
			return hostfile.Uninterrupted(func() error { return call(root, name) })
		}
		dir, err := openParent(root, path.Dir(name))
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		return hostfile.Uninterrupted(func() error { return call(dir, path.Base(name)) })
	})
}

// openParent opens a directory for use by the *at calls. An element that is no directory any more, but a link or a file, is as
// good as gone.
func openParent(root int, dir string) (int, error) {
	fd, err := openBeneath(root, dir, hostSearch|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		err = errno.ENOENT
	}
	return fd, err
}

// walkBeneath opens a path element by element.
func walkBeneath(root int, name string, flags int, perm uint32) (int, error) {
	at := root
	for {
		head, tail, more := strings.Cut(name, "/")
		use, mode := flags, perm
		if more {
			use, mode = hostSearch|unix.O_DIRECTORY|unix.O_CLOEXEC, 0
		}
		fd := -1
		err := hostfile.Uninterrupted(func() (err error) {
			fd, err = unix.Openat(at, head, use|unix.O_NOFOLLOW, mode)
			return err
		})
		if at != root {
			unix.Close(at)
		}
		if err != nil || !more {
			return fd, err
		}
		at, name = fd, tail
	}
}

// open opens what the path itself names. With os.O_CREATE the file must not exist.
func (s *Server) open(name string, flags int, perm fs.FileMode) (*os.File, error) {
	if flags&os.O_CREATE != 0 && flags&os.O_EXCL == 0 {
		return nil, errno.EINVAL
	}
	fd := -1
	flags |= unix.O_NOFOLLOW | unix.O_CLOEXEC
	err := hostfile.Control(s.dir, func(root int) (err error) {
		fd, err = openBeneath(root, name, flags, uint32(perm.Perm()))
		return err
	})
	if errors.Is(err, unix.ELOOP) { // the last element, or one before it: then inParent has another error
		err = s.inParent(name, func(dir int, base string) (err error) {
			fd, err = unix.Openat(dir, base, flags, uint32(perm.Perm()))
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (s *Server) stat(name string) (fs.FileInfo, error) {
	info := fileInfo{name: path.Base(name)}
	err := s.inParent(name, func(dir int, base string) error {
		return unix.Fstatat(dir, base, &info.stat, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		return nil, err
	}
	return &info, nil
}

// statIn is stat for a path whose directory is open.
func (s *Server) statIn(dir *os.File, name string) (fs.FileInfo, error) {
	info := fileInfo{name: path.Base(name)}
	err := hostfile.Control(dir, func(dir int) error {
		return hostfile.Uninterrupted(func() error { return unix.Fstatat(dir, info.name, &info.stat, unix.AT_SYMLINK_NOFOLLOW) })
	})
	if err != nil {
		return nil, err
	}
	return &info, nil
}

func (s *Server) mkdir(name string, perm fs.FileMode) error {
	return s.inParent(name, func(dir int, base string) error { return unix.Mkdirat(dir, base, uint32(perm.Perm())) })
}

// mknod makes a FIFO or a socket; mode is Linux's st_mode. Hosts that cannot make them say EPERM.
func (s *Server) mknod(name string, mode uint32) error {
	return s.inParent(name, func(dir int, base string) error { return mknodAt(dir, base, mode) })
}

func (s *Server) symlink(target, name string) error {
	return s.inParent(name, func(dir int, base string) error { return unix.Symlinkat(target, dir, base) })
}

// link gives a file a second name; of a symbolic link it is the link itself.
func (s *Server) link(oldName, newName string) error {
	return s.inParents(oldName, newName, func(oldDir int, oldBase string, newDir int, newBase string) error {
		return unix.Linkat(oldDir, oldBase, newDir, newBase, 0)
	})
}

func (s *Server) rename(oldName, newName string) error {
	return s.inParents(oldName, newName, unix.Renameat)
}

func (s *Server) inParents(oldName, newName string, call func(int, string, int, string) error) error {
	return s.inParent(oldName, func(oldDir int, oldBase string) error {
		return s.inParent(newName, func(newDir int, newBase string) error { return call(oldDir, oldBase, newDir, newBase) })
	})
}

func (s *Server) unlink(name string, isDir bool) error {
	flags := 0
	if isDir {
		flags = unix.AT_REMOVEDIR
	}
	return s.inParent(name, func(dir int, base string) error { return unix.Unlinkat(dir, base, flags) })
}

func (s *Server) readTarget(name string) (string, error) {
	buf := make([]byte, maxPath+1)
	n := 0
	err := s.inParent(name, func(dir int, base string) (err error) {
		n, err = unix.Readlinkat(dir, base, buf)
		return err
	})
	return string(buf[:max(n, 0)]), err
}

// chmod refuses a link.
func (s *Server) chmod(name string, mode fs.FileMode) error {
	bits := uint32(mode.Perm())
	if mode&fs.ModeSticky != 0 {
		bits |= modeSticky
	}
	return s.inParent(name, func(dir int, base string) error { return chmodAt(dir, base, bits) })
}

// setTimes sets the times of what the name itself means, of a link's too.
func (s *Server) setTimes(name string, atime, mtime time.Time) error {
	ts := []unix.Timespec{unix.NsecToTimespec(atime.UnixNano()), unix.NsecToTimespec(mtime.UnixNano())}
	return s.inParent(name, func(dir int, base string) error {
		return unix.UtimesNanoAt(dir, base, ts, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// same says whether two names are one file.
func (s *Server) same(a, b string) bool {
	x, err := s.lstat(a)
	if err != nil {
		return false
	}
	y, err := s.lstat(b)
	return err == nil && x.host.Device == y.host.Device && x.host.Inode == y.host.Inode
}

// fileInfo is what fstatat says, in the form that package os has for open files.
type fileInfo struct {
	name string
	stat unix.Stat_t
}

func (i *fileInfo) Name() string       { return i.name }
func (i *fileInfo) Size() int64        { return i.stat.Size }
func (i *fileInfo) IsDir() bool        { return i.Mode().IsDir() }
func (i *fileInfo) Sys() any           { return &i.stat }
func (i *fileInfo) ModTime() time.Time { return time.Unix(i.stat.Mtim.Unix()) }

func (i *fileInfo) Mode() fs.FileMode {
	mode := fs.FileMode(i.stat.Mode & 0o777)
	if i.stat.Mode&syscall.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	switch i.stat.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		mode |= fs.ModeDir
	case syscall.S_IFLNK:
		mode |= fs.ModeSymlink
	case syscall.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case syscall.S_IFSOCK:
		mode |= fs.ModeSocket
	case syscall.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case syscall.S_IFBLK:
		mode |= fs.ModeDevice
	}
	return mode
}
