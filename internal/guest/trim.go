//go:build linux

package guest

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// trimmer returns the room of removed files to the host: ext4 names the free blocks to the disk (FITRIM), and the host frees them. A mount
// option (discard) would do so at each commit, which is dearer for files that are made and removed again and again, and their blocks are
// soon used for others.
type trimmer struct {
	dir *os.File // of the file system

	mu      sync.Mutex
	free    uint64 // the least number of free bytes that was seen since the last trim
	written uint64 // bytes that the disk had got then
}

const (
	trimPeriod  = time.Minute
	trimRoom    = 64 << 20 // bytes, written or freed, that are worth a trim while the VM runs
	trimRoomEnd = 1 << 20  // and when it ends

	ioctlTrim = 0xc0185879 // FITRIM, _IOWR('X', 121, struct fstrim_range), include/uapi/linux/fs.h
)

// startTrimming starts a goroutine that trims the disk until the machine ends. It does nothing without a disk.
func startTrimming(u upper) *trimmer {
	if !u.onDisk {
		return nil
	}
	fd, err := unix.Openat(int(u.dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	t := &trimmer{dir: os.NewFile(uintptr(fd), upperDir)}
	t.free, t.written, _ = t.usage()
	go func() {
		for range time.Tick(trimPeriod) {
			_, _ = t.trim(trimRoom)
		}
	}()
	return t
}

// usage returns how many bytes are free, and how many the disk has got since the guest has booted.
func (t *trimmer) usage() (free, written uint64, err error) {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if err := errors.Join(unix.Fstatfs(int(t.dir.Fd()), &fs), unix.Fstat(int(t.dir.Fd()), &st)); err != nil {
		return 0, 0, err
	}
	b, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return 0, 0, err
	}
	const writtenSectors = 6 // Documentation/block/stat.rst
	if fields := strings.Fields(string(b)); len(fields) > writtenSectors {
		written, err = strconv.ParseUint(fields[writtenSectors], 10, 64)
	}
	return fs.Bfree * uint64(fs.Bsize), written * 512, err
}

// trim trims when since the last time at least room bytes were written or have become free, and reports whether it did. A file that was made
// and removed between two looks changes only the first of these. A nil trimmer does nothing.
func (t *trimmer) trim(room uint64) (did bool, err error) {
	if t == nil {
		return false, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	free, written, err := t.usage()
	if err != nil || free < t.free+room && written < t.written+room {
		t.free = min(t.free, free)
		return false, err
	}
	if err := unix.Syncfs(int(t.dir.Fd())); err != nil { // blocks are free only when the journal says so
		return false, os.NewSyscallError("syncfs", err)
	}
	t.free, t.written = free, written
	all := struct{ start, length, least uint64 }{0, 1<<64 - 1, 0}
	var failed error
	if _, _, number := unix.Syscall(unix.SYS_IOCTL, t.dir.Fd(), ioctlTrim, uintptr(unsafe.Pointer(&all))); number != 0 {
		failed = os.NewSyscallError("trim", number)
	}
	return true, errors.Join(failed, os.NewSyscallError("fsync", unix.Fsync(int(t.dir.Fd())))) // the host frees room at a flush
}
