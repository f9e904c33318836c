//go:build linux

package files

import (
	"context"
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// create makes a file by a system call that fails when there is one, and removes that one if so. A directory stays.
func (u *unpacker) create(dir int, name string, call func() error) error {
	err := call()
	for tries := 0; err == unix.EEXIST && tries < 10; tries++ {
		if err := unix.Unlinkat(dir, name, 0); err != nil && err != unix.ENOENT {
			return &os.PathError{Op: "replace", Path: name, Err: err}
		}
		u.lastDir = "/" // no name of an entry: what went may have been a link that led there
		err = call()
	}
	if err != nil {
		return &os.PathError{Op: "create", Path: name, Err: err}
	}
	return nil
}

func (u *unpacker) regular(dir int, name string, content io.Reader, m meta) error {
	fd := -1
	err := u.create(dir, name, func() (err error) {
		fd, err = unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, stoppable{u.ctx, content}, u.block)
	if err == nil {
		err = finishFile(fd, m)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return setTimes(dir, name, m)
}

// stoppable ends with its context, also where a few bytes of an archive stand for a file of any size.
type stoppable struct {
	ctx context.Context
	r   io.Reader
}

func (s stoppable) Read(b []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.r.Read(b)
}

// finishFile sets owner and permissions; in this order, for a change of the owner takes set-user-ID away.
func finishFile(fd int, m meta) error {
	if m.uid >= 0 || m.gid >= 0 {
		if err := unix.Fchown(fd, m.uid, m.gid); err != nil {
			return os.NewSyscallError("chown", err)
		}
	}
	return os.NewSyscallError("chmod", unix.Fchmod(fd, m.mode))
}

func setTimes(dir int, name string, m meta) error {
	return os.NewSyscallError("set times", unix.UtimesNanoAt(dir, name, m.times, unix.AT_SYMLINK_NOFOLLOW))
}

// special makes what has no content: a symbolic link, a device, a FIFO.
func (u *unpacker) special(dir int, name string, m meta, call func() error) error {
	if err := u.create(dir, name, call); err != nil {
		return err
	}
	if m.uid >= 0 || m.gid >= 0 {
		if err := unix.Fchownat(dir, name, m.uid, m.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return os.NewSyscallError("chown", err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return os.NewSyscallError("stat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(dir, name, m.mode, 0); err != nil {
			return os.NewSyscallError("chmod", err)
		}
	}
	return setTimes(dir, name, m)
}

// link makes a further name of something that is below the directory already.
func (u *unpacker) link(dir int, name, target string) error {
	target, err := inside(target)
	if err != nil {
		return err
	}
	from, err := u.below.open(path.Dir(target), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeFD(from)
	var old, there unix.Stat_t
	if unix.Fstatat(from, path.Base(target), &old, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		unix.Fstatat(dir, name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil && old.Dev == there.Dev && old.Ino == there.Ino {
		return nil // to itself, or unpacked before
	}
	return u.create(dir, name, func() error { return unix.Linkat(from, path.Base(target), dir, name, 0) })
}

// dir makes a directory, unless there is one, or a link to one below.
func (u *unpacker) dir(parent int, name, base string, m meta) error {
	err := unix.Mkdirat(parent, base, 0o700)
	if err == unix.EEXIST {
		if fd, err := u.below.open(name, unix.O_PATH|unix.O_DIRECTORY, 0); err == nil {
			closeFD(fd)
			return nil
		}
		err = u.create(parent, base, func() error { return unix.Mkdirat(parent, base, 0o700) })
		if err != nil {
			return err
		}
	} else if err != nil {
		return &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	d := made{name, m}
	if len(u.dirs) >= maxDirs {
		return u.finishDir(d)
	}
	u.dirs = append(u.dirs, d)
	return nil
}

// finishDirs sets what would not have lasted while files came into the directories.
func (u *unpacker) finishDirs() error {
	var errs []error
	for i := len(u.dirs) - 1; i >= 0; i-- {
		if err := u.finishDir(u.dirs[i]); err != nil && len(errs) < maxWarnings {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// finishDir does nothing when the directory has gone, or become something else.
func (u *unpacker) finishDir(d made) error {
	fd, err := u.below.open(d.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer closeFD(fd)
	if err := finishFile(fd, d.header); err != nil {
		return &os.PathError{Op: "finish directory", Path: d.name, Err: err}
	}
	return setTimes(fd, ".", d.header)
}
