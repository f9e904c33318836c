package mount

import (
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/windows"

	"agentvm/internal/host/errno"
	"agentvm/internal/host/hostfile"
)

// Windows has no FIFOs in its directories, and opens directories without a flag.
const (
	hostNonblock  = 0
	hostDirectory = 0
)

// hostModes says that files have permissions.
const hostModes = false

// hostName refuses what Windows reads as more than a name: separators, streams, devices, and trailing dots and spaces.
func hostName(name string) error {
	if strings.ContainsAny(name, `\:*?"<>|`) || !filepath.IsLocal(name) || strings.TrimRight(name, ". ") != name {
		return errno.EINVAL
	}
	return nil
}

// hostPermissions lets the guest read, write and execute everything: Windows has no such bits, and programs must run.
func hostPermissions(mode fs.FileMode) uint32 {
	if mode.Perm()&0o200 == 0 {
		return 0o555
	}
	return 0o777
}

// hostTarget shows a link's target with the guest's separators.
func hostTarget(target string) string { return filepath.ToSlash(target) }

// hostStat numbers files by their path, so a renamed file is a new one to the guest.
func hostStat(info fs.FileInfo, path string) hostAttr {
	sum := fnv.New64a()
	sum.Write([]byte(path))
	host := hostAttr{Stat: hostfile.Of(info)}
	host.Inode = sum.Sum64()
	return host
}

// hostSync flushes what can be dirty; a handle for reading may not flush.
func hostSync(open *openFile) error {
	if !open.writable {
		return nil
	}
	return open.file.Sync()
}

func hostStatFS(dir *os.File) (fileSystem, error) {
	var available, total, free uint64
	name, err := windows.UTF16PtrFromString(dir.Name())
	if err != nil {
		return fileSystem{}, err
	}
	err = windows.GetDiskFreeSpaceEx(name, &available, &total, &free)
	const block = 4096
	return fileSystem{blockSize: block, blocks: total / block, free: free / block, available: available / block}, err
}

// born returns when what a name itself means was made, in nanoseconds since 1970. Windows gives a name that is made again within seconds its old
// time; the number that hostStat makes of the path does not tell either.
func (s *Server) born(name string) int64 {
	info, err := s.stat(name)
	if err != nil {
		return 0
	}
	if data, ok := info.Sys().(*syscall.Win32FileAttributeData); ok {
		return data.CreationTime.Nanoseconds()
	}
	return 0
}

// hold holds nothing: an open file could not be removed.
func (s *Server) hold(string, attr) *os.File { return nil }
