package mount

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

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
