//go:build unix

package mount

import (
	"errors"
	"io/fs"
	"os"
	"path"
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

// hostStat reads the stat structure; path is for systems without inode numbers.
func hostStat(info fs.FileInfo, _ string) hostAttr {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return hostAttr{}
	}
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

// hostLinkTimes sets the times of a name itself, which os.Root cannot: its Chtimes follows links.
func hostLinkTimes(dir *os.File, name string, atime, mtime time.Time) error {
	ts := []unix.Timespec{unix.NsecToTimespec(atime.UnixNano()), unix.NsecToTimespec(mtime.UnixNano())}
	return withFD(dir, func(fd int) error {
		return unix.UtimesNanoAt(fd, name, ts, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// replaceDir renames onto an existing directory. Both names are single elements of directories that os.Root opened, and
// renameat follows neither.
func (s *Server) replaceDir(oldPath, newPath string) error {
	return s.withDir(path.Dir(oldPath), func(oldDir *os.File) error {
		return s.withDir(path.Dir(newPath), func(newDir *os.File) error {
			return withFD(oldDir, func(oldFD int) error {
				return withFD(newDir, func(newFD int) error {
					return unix.Renameat(oldFD, path.Base(oldPath), newFD, path.Base(newPath))
				})
			})
		})
	})
}

func hostSync(open *openFile) error { return open.file.Sync() }
