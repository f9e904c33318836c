package hostfile

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func times(st *syscall.Stat_t) (accessed, changed syscall.Timespec) {
	return st.Atimespec, st.Ctimespec
}

// SetTimes sets the times of an open file, in microseconds.
func SetTimes(file *os.File, accessed, modified time.Time) error {
	ts := []unix.Timeval{unix.NsecToTimeval(accessed.UnixNano()), unix.NsecToTimeval(modified.UnixNano())}
	return Control(file, func(fd int) error { return unix.Futimes(fd, ts) })
}
