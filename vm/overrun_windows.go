package vm

import (
	"time"

	"golang.org/x/sys/windows"
)

// processTime is the processor time of this process.
func processTime() time.Duration {
	var began, ended, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(windows.CurrentProcess(), &began, &ended, &kernel, &user); err != nil {
		return 0
	}
	spent := func(t windows.Filetime) int64 { return int64(t.HighDateTime)<<32 | int64(t.LowDateTime) } // 100 ns each
	return time.Duration(100 * (spent(kernel) + spent(user)))
}
