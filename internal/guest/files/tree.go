//go:build linux

package files

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
)

// tree is a directory below which paths are looked up.
type tree struct {
	fd      int
	resolve uint64 // RESOLVE_* of openat2(2)
}

// open opens path, whose leading slashes have no meaning.
func (t tree) open(path string, flags int, mode uint32) (int, error) {
	name := strings.TrimLeft(path, "/")
	if name == "" {
		name = "."
	}
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: t.resolve}
	for tries := 0; ; tries++ {
		fd, err := unix.Openat2(t.fd, name, how)
		if err == nil {
			return fd, nil
		}
		// EAGAIN: a file was renamed during a lookup below the root.
		if err == unix.EINTR || err == unix.EAGAIN && t.resolve != 0 && tries < 100 {
			continue
		}
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
}

// handle returns an O_PATH descriptor of a file of any kind.
func (t tree) handle(path string, follow bool) (int, error) {
	flags := unix.O_PATH
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	return t.open(path, flags, 0)
}

// parent opens the directory of the last name of path.
func (t tree) parent(path string) (dir int, name string, err error) {
	up, name := split(path)
	if name == "" || name == "." || name == ".." {
		return -1, "", &os.PathError{Op: "open", Path: path, Err: unix.EINVAL}
	}
	dir, err = t.open(up, unix.O_PATH|unix.O_DIRECTORY, 0)
	return dir, name, err
}

func split(path string) (up, name string) {
	path = strings.TrimRight(path, "/")
	i := strings.LastIndexByte(path, '/')
	return path[:i+1], path[i+1:]
}

// dirOf returns the path before the last name.
func dirOf(path string) string {
	up, _ := split(path)
	if up = strings.TrimRight(up, "/"); up == "" {
		return "/"
	}
	return up
}

// closeFD closes a descriptor whose errors do not matter, because nothing was written through it.
func closeFD(fd int) { _ = unix.Close(fd) }

// procName returns a path to the file of a descriptor, which may be an O_PATH one.
func procName(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func isErrno(err error, n syscall.Errno) bool {
	var number syscall.Errno
	return errors.As(err, &number) && number == n
}

// infoOf describes an open file.
func infoOf(fd int, path string) (guestrpc.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return guestrpc.FileInfo{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	_, name := split(path)
	if name == "" {
		name = "/"
	}
	return describe(name, &st, fd, ""), nil
}

// describe converts st. It reads the target of a symbolic link from dir and link.
func describe(name string, st *unix.Stat_t, dir int, link string) guestrpc.FileInfo {
	info := guestrpc.FileInfo{
		Name: name, Mode: guestrpc.ModeFromLinux(st.Mode), Size: st.Size, Modified: time.Unix(st.Mtim.Unix()),
		UID: st.Uid, GID: st.Gid, Links: uint32(st.Nlink), Inode: st.Ino,
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		info.Target = targetOf(dir, link)
	}
	return info
}

func targetOf(dir int, link string) string {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, link, b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}
