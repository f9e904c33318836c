package mount

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func statTimes(st *syscall.Stat_t) (atime, ctime time.Time) {
	return time.Unix(st.Atim.Unix()), time.Unix(st.Ctim.Unix())
}

// hostFileTimes sets the times of an open file, which needs Linux 5.8; before, /proc does, in microseconds.
func hostFileTimes(file *os.File, atime, mtime time.Time) error {
	ts := []unix.Timespec{unix.NsecToTimespec(atime.UnixNano()), unix.NsecToTimespec(mtime.UnixNano())}
	return withFD(file, func(fd int) error {
		err := unix.UtimesNanoAt(fd, "", ts, unix.AT_EMPTY_PATH)
		if err != unix.EINVAL && err != unix.ENOENT {
			return err
		}
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
