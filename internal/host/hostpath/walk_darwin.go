package hostpath

import (
	"os"
	"syscall"
)

// searchFlag opens a directory that may be searched and not read: O_EXEC, which with O_DIRECTORY is O_SEARCH.
const searchFlag = 0x40000000

// hold returns nothing, because this system cannot hold a file without opening it.
func hold(int, string, string) (*os.File, error) { return nil, nil }

// birth returns when an open directory was made, in nanoseconds.
func birth(dir *os.File) int64 {
	info, err := dir.Stat()
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Birthtimespec.Nano()
}

// isMagic returns false, because all links here are names.
func isMagic(int) bool { return false }
