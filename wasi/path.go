package wasi

import (
	"io/fs"
	"strings"

	"github.com/tetratelabs/wazero/api"
)

// lookupSymlinkFollow is the only lookup flag (witx "lookupflags").
const lookupSymlinkFollow = 1

// maxPath bounds a guest's path in bytes.
const maxPath = 4096

// location is a path below a directory. The methods of [os.Root] keep it there: they refuse absolute paths, "..", and
// symbolic links that lead outside, and are not fooled by directories that move meanwhile. This package checks nothing
// of that itself; what it looks up beforehand serves the errno only.
type location struct {
	*dir
	path  string // without trailing slashes
	slash bool   // there were some: the path must name a directory
}

// lookupDir returns the directory that fd is, if it grants the right.
func (s *System) lookupDir(fd uint32, right Rights) (*dir, Errno) {
	d, errno := s.lookup(fd)
	if errno != ErrnoSuccess {
		return nil, errno
	}
	dd, ok := d.file.(*dir)
	switch {
	case !ok:
		return nil, ErrnoNotdir
	case dd.readonly && right&rightsWriting != 0:
		return nil, ErrnoRofs
	case d.base&right != right:
		return nil, ErrnoPerm
	}
	return dd, ErrnoSuccess
}

// locate decodes a path parameter relative to fd.
func (s *System) locate(mod api.Module, fd, ptr, n uint64, right Rights) (location, Errno) {
	d, errno := s.lookupDir(uint32(fd), right)
	if errno != ErrnoSuccess {
		return location{}, errno
	}
	path, errno := pathAt(mod, ptr, n)
	if errno != ErrnoSuccess {
		return location{}, errno
	}
	trimmed := strings.TrimRight(path, "/")
	if path == "" {
		return location{}, ErrnoNoent
	}
	if path[0] == '/' {
		return location{}, ErrnoPerm
	}
	return location{dir: d, path: trimmed, slash: len(trimmed) < len(path)}, ErrnoSuccess
}

// pathAt reads a path from the guest's memory.
func pathAt(mod api.Module, ptr, n uint64) (string, Errno) {
	if uint32(n) > maxPath {
		return "", ErrnoNametoolong
	}
	b, ok := view(mod, uint32(ptr), uint32(n))
	if !ok {
		return "", ErrnoFault
	}
	path := string(b)
	if strings.IndexByte(path, 0) >= 0 {
		return "", ErrnoInval
	}
	return path, ErrnoSuccess
}

// stat describes what the path names. A trailing slash follows a symbolic link in any case, and what it leads to must be
// a directory.
func (l location) stat(follow bool) (fs.FileInfo, Errno) {
	look := l.root.Lstat
	if follow || l.slash {
		look = l.root.Stat
	}
	info, err := look(l.path)
	if err != nil {
		return nil, errnoOf(err)
	}
	if l.slash && !info.IsDir() {
		return nil, ErrnoNotdir
	}
	return info, ErrnoSuccess
}

// split returns the directory part and the last name. Calls on the last name alone must not get "..", which would leave
// the directory part, nor ".", which names no entry; special says so.
func (l location) split() (parent, base string, special bool) {
	parent, base = ".", l.path
	if i := strings.LastIndexByte(l.path, '/'); i >= 0 {
		parent, base = l.path[:i], l.path[i+1:]
	}
	return parent, base, base == "." || base == ".."
}

// refuseSpecial returns the errno for an operation on an entry when the path ends in "." or "..".
func (l location) refuseSpecial(errno Errno) Errno {
	_, _, special := l.split()
	if !special {
		return ErrnoSuccess
	}
	if _, err := l.root.Stat(l.path); err != nil {
		return errnoOf(err)
	}
	return errno
}
