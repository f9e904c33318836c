//go:build linux

package files

import (
	"context"
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"agentvm/internal/host/sparsefile"
)

// create makes a file by call. When call fails because the name exists, it removes that file and tries again. It does not remove
// directories.
func (u *unpacker) create(dir int, name string, call func() error) error {
	err := call()
	for tries := 0; err == unix.EEXIST && tries < 10; tries++ {
		if err := unix.Unlinkat(dir, name, 0); err != nil && err != unix.ENOENT {
			return &os.PathError{Op: "replace", Path: name, Err: err}
		}
		u.lastDir = "/" // which no entry has: the removed file may have been a link in the path of lastDir
		err = call()
	}
	if err != nil {
		return &os.PathError{Op: "create", Path: name, Err: err}
	}
	return nil
}

// regular makes a file. It has a temporary name until it is complete, so that an archive that breaks off (a killed client, a broken
// pipe, a full disk) leaves no partial file, and leaves the file that would have been replaced.
func (u *unpacker) regular(dir int, name string, content io.Reader, m meta) error {
	var there unix.Stat_t
	if unix.Fstatat(dir, name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil {
		switch there.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			return &os.PathError{Op: "replace", Path: name, Err: unix.EISDIR}
		case unix.S_IFLNK:
			u.lastDir = "/" // which no entry has: the link may be in the path of lastDir
		}
	}
	fd, temporary, err := createTemporary(dir)
	if err != nil {
		return &os.PathError{Op: "create", Path: name, Err: err}
	}
	f := &sparsefile.File{File: os.NewFile(uintptr(fd), name)}
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, contextReader{u.ctx, content}, u.block)
	if err == nil && m.mode&0o111 != 0 {
		err = seal(fd)
	}
	if err == nil {
		err = finishFile(fd, m)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = setTimes(dir, temporary, m)
	}
	if err == nil {
		if err = unix.Renameat(dir, temporary, dir, name); err == nil {
			return nil
		}
		err = &os.PathError{Op: "replace", Path: name, Err: err}
	}
	_ = unix.Unlinkat(dir, temporary, 0)
	return err
}

// contextReader ends with its context, even where a few bytes of an archive stand for a large sparse file.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (s contextReader) Read(b []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.r.Read(b)
}

// finishFile sets owner and then permissions, because a change of the owner removes set-user-ID.
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

// special makes a file without content by call: a symbolic link, a device, a FIFO.
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

// link makes another name of a file that is below the directory already. Where the file system has no hard links, or the two names
// are in different file systems, as with a share, it copies the file.
func (u *unpacker) link(dir int, name, target string, m meta) error {
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
	err = u.create(dir, name, func() error { return unix.Linkat(from, path.Base(target), dir, name, 0) })
	unsupported := isErrno(err, unix.EPERM) || isErrno(err, unix.EOPNOTSUPP) || isErrno(err, unix.EXDEV) || isErrno(err, unix.EMLINK)
	if !unsupported || old.Mode&unix.S_IFMT != unix.S_IFREG {
		return err
	}
	fd, openErr := unix.Openat(from, path.Base(target), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if openErr != nil {
		return err
	}
	f, openErr := regular(fd, target)
	if openErr != nil {
		return err
	}
	defer f.Close()
	return u.regular(dir, name, f, m)
}

// dir makes a directory, unless the name is one already, or a link to one below the unpacker's root.
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
	d := pendingDir{name, m}
	if len(u.dirs) >= maxDirs {
		return u.finishDir(d)
	}
	u.dirs = append(u.dirs, d)
	return nil
}

// finishDirs sets the directories' times and permissions, after the last file was made in them.
func (u *unpacker) finishDirs() error {
	var errs []error
	for i := len(u.dirs) - 1; i >= 0; i-- {
		if err := u.finishDir(u.dirs[i]); err != nil && len(errs) < maxWarnings {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// finishDir does nothing when the name is no directory any more.
func (u *unpacker) finishDir(d pendingDir) error {
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
