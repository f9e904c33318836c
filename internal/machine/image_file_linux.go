package machine

import (
	"os"

	"golang.org/x/sys/unix"
)

// newImageFile makes a file in memory, which nothing but its descriptors keeps.
func newImageFile() (*source, error) {
	fd, err := unix.MemfdCreate("agentvm-image", unix.MFD_CLOEXEC)
	if err != nil {
		return unlinkedFile()
	}
	file := os.NewFile(uintptr(fd), "agentvm-image")
	return newSource(file, file.Close), nil
}
