//go:build linux

package files

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
)

// OpenDir opens a directory to be listed.
func (s *Service) OpenDir(path string) (guestrpc.DirHandler, error) {
	fd, err := s.tree.open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &directory{os.NewFile(uintptr(fd), path)}, nil
}

type directory struct{ f *os.File }

// Next leaves out files that are removed between the listing and the stat.
func (d *directory) Next(limit int) ([]guestrpc.FileInfo, error) {
	var list []guestrpc.FileInfo
	for len(list) < limit {
		names, err := d.f.Readdirnames(limit - len(list))
		for _, name := range names {
			var st unix.Stat_t
			if unix.Fstatat(int(d.f.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
				list = append(list, describe(name, &st, int(d.f.Fd()), name))
			}
		}
		switch {
		case errors.Is(err, io.EOF) && len(list) > 0:
			return list, nil
		case err != nil:
			return nil, err
		}
	}
	return list, nil
}

func (d *directory) Close() error { return d.f.Close() }
