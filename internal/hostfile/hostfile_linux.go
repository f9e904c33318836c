package hostfile

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func times(st *syscall.Stat_t) (accessed, changed syscall.Timespec) { return st.Atim, st.Ctim }

// SetTimes sets the times of an open file. Kernels before 5.8 set them in microseconds.
func SetTimes(file *os.File, accessed, modified time.Time) error {
	ts := []unix.Timespec{unix.NsecToTimespec(accessed.UnixNano()), unix.NsecToTimespec(modified.UnixNano())}
	return Control(file, func(fd int) error {
		err := unix.UtimesNanoAt(fd, "", ts, unix.AT_EMPTY_PATH)
		if err != unix.EINVAL && err != unix.ENOENT {
			return err
		}
		return setMicroseconds(fd, accessed, modified)
	})
}
