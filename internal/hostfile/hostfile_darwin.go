package hostfile

import (
	"os"
	"syscall"
	"time"
)

func times(st *syscall.Stat_t) (accessed, changed syscall.Timespec) {
	return st.Atimespec, st.Ctimespec
}

// SetTimes sets the times of an open file, in microseconds.
func SetTimes(file *os.File, accessed, modified time.Time) error {
	return Control(file, func(fd int) error { return setMicroseconds(fd, accessed, modified) })
}
