package mount

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hostSearch opens a directory only to pass through it.
const hostSearch = unix.O_RDONLY | unix.O_NONBLOCK

// openBeneath opens a path below a directory without following links.
func openBeneath(root int, name string, flags int, perm uint32) (int, error) {
	return walkBeneath(root, name, flags, perm)
}

// chmodAt changes the mode of a name that is no link.
func chmodAt(dir int, name string, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.EOPNOTSUPP
	}
	return unix.Fchmodat(dir, name, mode, unix.AT_SYMLINK_NOFOLLOW)
}

func statTimes(st *syscall.Stat_t) (atime, ctime time.Time) {
	return time.Unix(st.Atimespec.Unix()), time.Unix(st.Ctimespec.Unix())
}

// hostFileTimes sets the times of an open file, in microseconds.
func hostFileTimes(file *os.File, atime, mtime time.Time) error {
	return withFD(file, func(fd int) error {
		return unix.Futimes(fd, []unix.Timeval{unix.NsecToTimeval(atime.UnixNano()), unix.NsecToTimeval(mtime.UnixNano())})
	})
}

func hostStatFS(dir *os.File) (fileSystem, error) {
	var st unix.Statfs_t
	err := withFD(dir, func(fd int) error { return unix.Fstatfs(fd, &st) })
	return fileSystem{
		blockSize: uint32(st.Bsize),
		blocks:    st.Blocks,
		free:      st.Bfree,
		available: st.Bavail,
		files:     st.Files,
		filesFree: st.Ffree,
	}, err
}
