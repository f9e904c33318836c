//go:build unix

package mount

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"agentvm/internal/host/hostfile"
)

// hostNonblock keeps the open of a FIFO or device from waiting; regular files do not care.
const (
	hostNonblock  = syscall.O_NONBLOCK
	hostDirectory = syscall.O_DIRECTORY
)

// hostModes says that files have permissions.
const hostModes = true

// hostName accepts every single path element.
func hostName(string) error { return nil }

func hostPermissions(mode fs.FileMode) uint32 { return uint32(mode.Perm()) }

func hostTarget(target string) string { return target }

// hostStat is for a FileInfo of package os or of ours; path is for systems without inode numbers.
func hostStat(info fs.FileInfo, _ string) hostAttr {
	return hostAttr{Stat: hostfile.Of(info)}
}

func hostStatFS(dir *os.File) (fileSystem, error) {
	var st unix.Statfs_t
	err := hostfile.Control(dir, func(fd int) error { return unix.Fstatfs(fd, &st) })
	return fileSystem{
		blockSize: uint32(st.Bsize),
		blocks:    st.Blocks,
		free:      st.Bfree,
		available: st.Bavail,
		files:     st.Files,
		filesFree: st.Ffree,
	}, err
}

func hostSync(open *openFile) error { return open.file.Sync() }
