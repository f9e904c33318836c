//go:build unix

package hostpath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

const openDirFlags = unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK

// openDir opens a directory, for reading where that is allowed: reading triggers an automounter, which searching alone does not.
func openDir(at int, name, path string) (*os.File, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(at, name, unix.O_RDONLY|openDirFlags, 0) })
	if errors.Is(err, unix.EACCES) {
		fd, err = retry(func() (int, error) { return unix.Openat(at, name, searchFlag|openDirFlags&^unix.O_NONBLOCK, 0) })
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func retry(call func() (int, error)) (fd int, err error) {
	for {
		if fd, err = call(); !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

func openRoot(string) (entry, error) {
	file, err := openDir(unix.AT_FDCWD, "/", "/")
	if err != nil {
		return entry{}, err
	}
	return dirEntry("", file)
}

func dirEntry(name string, file *os.File) (entry, error) {
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return entry{}, err
	}
	id, err := idOf(file, info)
	return entry{step: step{id, birth(file), name}, file: file, mode: info.Mode()}, err
}

func idOf(_ *os.File, info fs.FileInfo) (fileID, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, errors.New("the system does not tell which file it is")
	}
	return fileID{uint64(st.Dev), uint64(st.Ino)}, nil
}

// lookup finds a name in an open directory, and opens it if it is a directory. It may change in between: then opening it
// fails, or the open directory counts.
func lookup(dir entry, path, name string) (entry, error) {
	var st unix.Stat_t
	var err error
	fd := int(dir.file.Fd())
	whole := filepath.Join(path, name)
	_, err = retry(func() (int, error) { return 0, unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil {
		return entry{}, &fs.PathError{Op: "open", Path: whole, Err: err}
	}
	found := entry{step: step{id: fileID{uint64(st.Dev), uint64(st.Ino)}, name: name}}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		file, err := openDir(fd, name, whole)
		if err != nil {
			return entry{}, err
		}
		return dirEntry(name, file)
	case unix.S_IFLNK:
		found.mode = fs.ModeSymlink
		found.magic = isMagic(fd)
		found.target, err = readlink(fd, name, whole)
		return found, err
	case unix.S_IFREG:
	case unix.S_IFSOCK:
		found.mode = fs.ModeSocket
	case unix.S_IFIFO:
		found.mode = fs.ModeNamedPipe
	default:
		found.mode = fs.ModeDevice
	}
	if found.held, err = hold(fd, name, whole); err != nil || found.held == nil {
		return found, err
	}
	now, err := found.held.Stat()
	if err == nil && !isInode(now, found.id) {
		err = &fs.PathError{Op: "open", Path: whole, Err: errExchanged}
	}
	if err != nil {
		found.held.Close()
	}
	return found, err
}

func isInode(info fs.FileInfo, id fileID) bool {
	now, err := idOf(nil, info)
	return err == nil && now == id
}

func readlink(dir int, name, path string) (string, error) {
	b := make([]byte, unix.PathMax+1)
	n, err := retry(func() (int, error) { return unix.Readlinkat(dir, name, b) })
	if err == nil && n == 0 {
		err = unix.ENOENT
	}
	if err == nil && n > unix.PathMax {
		err = unix.ENAMETOOLONG
	}
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: path, Err: err}
	}
	return string(b[:n]), nil
}

// openBase opens the name in its directory.
func (p *Place) openBase(flags int, perm fs.FileMode) (*os.File, error) {
	flags |= unix.O_CLOEXEC
	if !p.magic {
		flags |= unix.O_NOFOLLOW
	}
	if p.Missing || p.Type.IsRegular() {
		flags |= unix.O_NONBLOCK // another kind of file may have taken its place
	}
	fd, err := retry(func() (int, error) { return unix.Openat(int(p.parent.Fd()), p.base, flags, uint32(perm.Perm())) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: p.Path, Err: err}
	}
	return os.NewFile(uintptr(fd), p.Path), nil
}
