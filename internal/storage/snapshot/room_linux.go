package snapshot

import (
	"os"
	"syscall"
)

// tmpfsMagic is TMPFS_MAGIC of linux/magic.h.
const tmpfsMagic = 0x01021994

// fillHoles has a file on a file system in memory take the room of its holes now. Whoever touches one in a mapped file gets a page for it
// then, and when there is none the system ends the process by SIGBUS. Other file systems map zeros.
func fillHoles(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var filled error
	err = raw.Control(func(fd uintptr) {
		var system syscall.Statfs_t
		if syscall.Fstatfs(int(fd), &system) == nil && system.Type == tmpfsMagic {
			filled = syscall.Fallocate(int(fd), 0, 0, info.Size())
		}
	})
	if err == nil && filled != nil {
		err = &os.PathError{Op: "allocate", Path: file.Name(), Err: filled}
	}
	return err
}
