//go:build unix

package mount

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hostNonblock keeps the open of a FIFO or device from waiting; regular files do not care.
const (
	hostNonblock  = syscall.O_NONBLOCK
	hostDirectory = syscall.O_DIRECTORY
)

// hostName accepts every single path element.
func hostName(string) error { return nil }

func hostPermissions(mode fs.FileMode) uint32 { return uint32(mode.Perm()) }

func hostTarget(target string) string { return target }

// hostStat reads the stat structure, of package os or of ours; path is for systems without inode numbers.
func hostStat(info fs.FileInfo, _ string) hostAttr {
	switch st := info.Sys().(type) {
	case *unix.Stat_t:
		return hostAttr{
			dev:       uint64(st.Dev),
			ino:       uint64(st.Ino),
			nlink:     uint64(st.Nlink),
			blockSize: uint64(st.Blksize),
			blocks:    uint64(st.Blocks),
			atime:     time.Unix(st.Atim.Unix()),
			ctime:     time.Unix(st.Ctim.Unix()),
			owned:     int(st.Uid) == os.Geteuid(),
		}
	case *syscall.Stat_t:
		atime, ctime := statTimes(st)
		return hostAttr{
			dev:       uint64(st.Dev),
			ino:       uint64(st.Ino),
			nlink:     uint64(st.Nlink),
			blockSize: uint64(st.Blksize),
			blocks:    uint64(st.Blocks),
			atime:     atime,
			ctime:     ctime,
			owned:     int(st.Uid) == os.Geteuid(),
		}
	}
	return hostAttr{}
}

// withFD lends the descriptor in a way that a concurrent Close cannot give its number to another file.
func withFD(file *os.File, use func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var useErr error
	err = raw.Control(func(fd uintptr) { useErr = use(int(fd)) })
	return errors.Join(err, useErr)
}

func hostSync(open *openFile) error { return open.file.Sync() }
