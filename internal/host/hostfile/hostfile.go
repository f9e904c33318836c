// Package hostfile adds what package os lacks for a file of the host, the same on every host: the numbers of its stat
// structure, its times in nanoseconds, and calls on its descriptor.
package hostfile

import (
	"io/fs"
	"time"
)

// Stat is what a host's stat structure has besides the methods of fs.FileInfo.
type Stat struct {
	Device, Inode     uint64 // zero on Windows, where package os does not read them
	Links             uint64 // names of the file
	BlockSize         uint64 // preferred size of a transfer, in bytes
	Blocks            uint64 // that the file takes on the disk, of 512 bytes; on Windows what its size takes
	UID, GID          uint32 // 1<<32-1 on Windows, whose files have none
	Accessed, Changed time.Time
}

// unknown is the Stat of a file of which only its fs.FileInfo is known.
func unknown(info fs.FileInfo) Stat {
	const none = 1<<32 - 1
	return Stat{
		Links: 1, BlockSize: 4096, Blocks: uint64(info.Size()+511) / 512, UID: none, GID: none,
		Accessed: info.ModTime(), Changed: info.ModTime(),
	}
}
