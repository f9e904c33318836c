//go:build linux

package files

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
)

// Service is the file service below one root. It implements guestrpc.FilesHandler.
type Service struct {
	// Torn, when not nil, returns what says whether a regular file that is open, perhaps with O_PATH, may be incomplete (guestrpc.FileInfo), for
	// the time of one call; nil: none is.
	Torn func() func(fd int, st *unix.Stat_t) bool

	tree tree
}

var _ guestrpc.FilesHandler = (*Service)(nil)

// New returns a service whose / is root. For any root other than /, links do not lead out of it. Close frees it.
func New(root string) (*Service, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	t := tree{fd: fd}
	if root != "/" {
		t.resolve = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	}
	return &Service{tree: t}, nil
}

// Reopen makes the current "/" the service's root, after this process has changed its root. Calls that have begun end in the old one.
func (s *Service) Reopen() error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/", Err: err}
	}
	return errors.Join(unix.Dup3(fd, s.tree.fd, unix.O_CLOEXEC), unix.Close(fd))
}

// Close must not be called during another call.
func (s *Service) Close() error { return unix.Close(s.tree.fd) }

// Stat describes a file.
func (s *Service) Stat(path string, follow bool) (guestrpc.FileInfo, error) {
	fd, err := s.tree.handle(path, follow)
	if err != nil {
		return guestrpc.FileInfo{}, err
	}
	defer closeFD(fd)
	info, err := infoOf(fd, path)
	var st unix.Stat_t
	if err == nil && info.Mode.IsRegular() && unix.Fstat(fd, &st) == nil {
		info.Torn = s.torn()(fd, &st)
	}
	return info, err
}

func (s *Service) torn() func(int, *unix.Stat_t) bool {
	if s.Torn != nil {
		if torn := s.Torn(); torn != nil {
			return torn
		}
	}
	return func(int, *unix.Stat_t) bool { return false }
}

// MakeDir makes a directory with these permissions, whatever the umask.
func (s *Service) MakeDir(path string, mode fs.FileMode, parents bool) error {
	err := s.makeDir(path, mode)
	if !parents {
		return err
	}
	if isErrno(err, unix.ENOENT) {
		if up := dirOf(path); up != "/" {
			if err := s.MakeDir(up, mode, true); err != nil {
				return err
			}
		}
		err = s.makeDir(path, mode)
	}
	if err != nil && s.isDir(path) { // it exists, perhaps as / or a link
		return nil
	}
	return err
}

func (s *Service) makeDir(path string, mode fs.FileMode) error {
	dir, name, err := s.tree.parent(path)
	if err != nil {
		return err
	}
	defer closeFD(dir)
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		return &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	if err := unix.Fchmodat(dir, name, guestrpc.ModeToLinux(mode)&0o7777, 0); err != nil {
		return &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	return nil
}

func (s *Service) isDir(path string) bool {
	info, err := s.Stat(path, true)
	return err == nil && info.IsDir()
}

// Rename renames a file, replacing what has the new name.
func (s *Service) Rename(from, to string) error {
	dir, name, err := s.tree.parent(from)
	if err != nil {
		return err
	}
	defer closeFD(dir)
	toDir, toName, err := s.tree.parent(to)
	if err != nil {
		return err
	}
	defer closeFD(toDir)
	if err := unix.Renameat(dir, name, toDir, toName); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// Symlink makes a symbolic link at path.
func (s *Service) Symlink(target, path string) error {
	dir, name, err := s.tree.parent(path)
	if err != nil {
		return err
	}
	defer closeFD(dir)
	if err := unix.Symlinkat(target, dir, name); err != nil {
		return &os.LinkError{Op: "symlink", Old: target, New: path, Err: err}
	}
	return nil
}

// Chmod sets the permissions of what path leads to.
func (s *Service) Chmod(path string, mode fs.FileMode) error {
	fd, err := s.tree.handle(path, true)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if err := unix.Chmod(procName(fd), guestrpc.ModeToLinux(mode)&0o7777); err != nil {
		return &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	return nil
}

// Chown sets user and group.
func (s *Service) Chown(path string, uid, gid uint32, follow bool) error {
	fd, err := s.tree.handle(path, follow)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if err := unix.Fchownat(fd, "", idOf(uid), idOf(gid), unix.AT_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "chown", Path: path, Err: err}
	}
	return nil
}

func idOf(n uint32) int {
	if n == guestrpc.KeepID {
		return -1
	}
	return int(n)
}
