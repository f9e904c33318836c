//go:build !windows

package snapshot

import (
	"os"
	"syscall"
)

// allocated returns how many bytes a file takes on the disk.
func allocated(info os.FileInfo) int64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int64(stat.Blocks) * 512
	}
	return info.Size()
}
