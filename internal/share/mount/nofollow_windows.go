package mount

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"agentvm/internal/host/errno"
)

// The calls of this file resolve a path below the mounted directory without following any link, the last element included,
// as those of nofollow_unix.go do. os.Root follows links that stay inside of it, so what is open is compared with what its name
// means afterwards: a link that was followed, or that has been put there meanwhile, is refused before anything is done with it.
// Without masks nothing inside needs hiding, and os.Root is enough.

var errFollowed = errors.New("a link was followed")

// inParent runs a call with the path's parent directory and the path's last element.
func (s *Server) inParent(name string, call func(dir *os.Root, base string) error) error {
	if len(s.masks.below) == 0 {
		return call(s.root, name)
	}
	dir := s.root
	defer func() {
		if dir != s.root {
			dir.Close()
		}
	}()
	for {
		head, tail, more := strings.Cut(name, "/")
		if !more {
			return call(dir, name)
		}
		next, err := openSubdirectory(dir, head)
		if err != nil {
			return err
		}
		if dir != s.root {
			dir.Close()
		}
		dir, name = next, tail
	}
}

// openSubdirectory opens a directory that is not a link.
func openSubdirectory(dir *os.Root, name string) (*os.Root, error) {
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	opened, err := sub.Lstat(".")
	if err == nil {
		err = isThere(dir, name, opened)
	}
	if err != nil {
		sub.Close()
		if errors.Is(err, errFollowed) {
			err = errno.ENOENT
		}
		return nil, err
	}
	return sub, nil
}

// isThere says whether what is open is what the name itself means.
func isThere(dir *os.Root, name string, opened fs.FileInfo) error {
	named, err := dir.Lstat(name)
	if err != nil {
		return err
	}
	if isLink(named) || !os.SameFile(named, opened) {
		return errFollowed
	}
	return nil
}

// isLink takes every reparse point that Go does not know for a link.
func isLink(info fs.FileInfo) bool { return info.Mode()&(fs.ModeSymlink|fs.ModeIrregular) != 0 }

// open opens what the path itself names. With os.O_CREATE the file must not exist.
func (s *Server) open(name string, flags int, perm fs.FileMode) (*os.File, error) {
	if flags&os.O_CREATE != 0 && flags&os.O_EXCL == 0 {
		return nil, errno.EINVAL
	}
	var file *os.File
	err := s.inParent(name, func(dir *os.Root, base string) (err error) {
		if flags&os.O_CREATE != 0 || len(s.masks.below) == 0 {
			file, err = dir.OpenFile(base, flags, perm)
			return err
		}
		if file, err = dir.OpenFile(base, flags&^os.O_TRUNC, perm); err != nil {
			return err
		}
		opened, err := file.Stat()
		if err == nil {
			err = isThere(dir, base, opened)
		}
		if err == nil && flags&os.O_TRUNC != 0 {
			err = file.Truncate(0)
		}
		if err != nil {
			file.Close()
		}
		return err
	})
	if errors.Is(err, errFollowed) {
		err = errno.ELOOP
	}
	if err != nil {
		return nil, err
	}
	return file, nil
}

func (s *Server) stat(name string) (info fs.FileInfo, err error) {
	err = s.inParent(name, func(dir *os.Root, base string) (err error) {
		info, err = dir.Lstat(base)
		return err
	})
	return info, err
}

// statIn is stat: a directory that is open cannot be renamed here.
func (s *Server) statIn(_ *os.File, name string) (fs.FileInfo, error) { return s.stat(name) }

func (s *Server) mkdir(name string, perm fs.FileMode) error {
	return s.inParent(name, func(dir *os.Root, base string) error { return dir.Mkdir(base, perm.Perm()) })
}

// mknod makes nothing: Windows has no FIFOs in its directories, and package os makes no sockets.
func (s *Server) mknod(string, uint32) error { return errno.EPERM }

func (s *Server) symlink(target, name string) error {
	return s.inParent(name, func(dir *os.Root, base string) error { return dir.Symlink(target, base) })
}

// link gives a file a second name; of a symbolic link it is the link itself.
func (s *Server) link(oldName, newName string) error {
	return s.betweenParents(oldName, newName, (*os.Root).Link)
}

// rename renames. os.Root refuses every existing directory as the new name, where Linux replaces an empty one.
func (s *Server) rename(oldName, newName string) error {
	err := s.betweenParents(oldName, newName, (*os.Root).Rename)
	if !errors.Is(err, syscall.EEXIST) {
		return err
	}
	info, err := s.stat(oldName)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return errno.EISDIR
	}
	if err := s.unlink(newName, true); err != nil {
		return err
	}
	return s.betweenParents(oldName, newName, (*os.Root).Rename)
}

// betweenParents runs a call of two paths. os.Root has it only below one directory. When the parents differ, both are looked at
// before, and it is the names lock that keeps them what they are: two shares of one directory can still race here.
func (s *Server) betweenParents(oldName, newName string, call func(*os.Root, string, string) error) error {
	if path.Dir(oldName) == path.Dir(newName) {
		return s.inParent(oldName, func(dir *os.Root, oldBase string) error {
			if dir == s.root {
				return call(s.root, oldName, newName)
			}
			return call(dir, oldBase, path.Base(newName))
		})
	}
	return s.inParent(oldName, func(*os.Root, string) error {
		return s.inParent(newName, func(*os.Root, string) error { return call(s.root, oldName, newName) })
	})
}

func (s *Server) unlink(name string, _ bool) error {
	return s.inParent(name, func(dir *os.Root, base string) error { return dir.Remove(base) })
}

func (s *Server) readTarget(name string) (target string, err error) {
	err = s.inParent(name, func(dir *os.Root, base string) (err error) {
		target, err = dir.Readlink(base)
		return err
	})
	return target, err
}

// chmod refuses a link. Windows' only permission is the read-only attribute: a link that comes in between costs that one.
func (s *Server) chmod(name string, mode fs.FileMode) error {
	return s.unlessLink(name, func(dir *os.Root, base string) error { return dir.Chmod(base, mode) })
}

// setTimes sets the times of what the name itself means; a link's are not worth a handle of the reparse point.
func (s *Server) setTimes(name string, atime, mtime time.Time) error {
	err := s.unlessLink(name, func(dir *os.Root, base string) error { return dir.Chtimes(base, atime, mtime) })
	if err == errno.ELOOP {
		return nil
	}
	return err
}

func (s *Server) unlessLink(name string, call func(dir *os.Root, base string) error) error {
	return s.inParent(name, func(dir *os.Root, base string) error {
		info, err := dir.Lstat(base)
		if err != nil {
			return err
		}
		if isLink(info) {
			return errno.ELOOP
		}
		return call(dir, base)
	})
}

// same says whether two names are one file.
func (s *Server) same(a, b string) bool {
	x, err := s.stat(a)
	if err != nil {
		return false
	}
	y, err := s.stat(b)
	return err == nil && os.SameFile(x, y)
}
