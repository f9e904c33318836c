//go:build unix

package vm

import (
	"time"

	"golang.org/x/sys/unix"
)

// processTime is the processor time of this process.
func processTime() time.Duration {
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
