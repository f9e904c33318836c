//go:build unix

package daemon

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// markDescriptors marks all descriptors that a directory of the system lists, except the standard ones, as closed on exec.
func markDescriptors(directory string) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}
