package hostpath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Place is the open file to which a path led at one moment. It stays the same whatever happens to the names. It must be closed.
type Place struct {
	// Identity is that of the file; for a missing file it has only the names.
	Identity
	// Type has the type bits of the file.
	Type fs.FileMode
	// Missing reports that the file does not exist, and only its directory does.
	Missing bool

	above  []step // the directories on the way, the root first
	parent *os.File
	dir    *os.File // itself, if it is a directory
	held   *os.File // itself, if it is none and the system can hold it without opening it, so that no other file gets its number
	born   int64    // step.born of dir
	base   string   // its name in parent; empty for the root itself
	links  []link
	magic  bool // the last component is a link that only the system can follow, such as /dev/fd/3
}

// fileID is unique among the files that exist at one time.
type fileID struct{ device, file uint64 }

// step is a directory on the way. name is empty for the root. born is its time of birth, 0 where the system tells none: it tells a directory
// from a later one that has got its number.
type step struct {
	id   fileID
	born int64
	name string
}

// link is a symbolic link on the way.
type link struct {
	path, target string
	in           []step // the directories that have it
	where        location
}

// Resolve opens the file to which path leads now, through links too, for a path that the user gives. It must exist.
func Resolve(path string) (*Place, error) { return resolve(path, false) }

// ResolveNew is Resolve for a file that may be missing. Its directory must exist.
func ResolveNew(path string) (*Place, error) { return resolve(path, true) }

func resolve(path string, mayMiss bool) (*Place, error) {
	if path == "" || strings.ContainsRune(path, 0) {
		return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.EINVAL}
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return walk(absolute, walkOptions{follow: true, mayMiss: mayMiss})
}

// Reopen opens the file with an identity. It follows no link, and fails with a *ChangedError when another file is there.
func Reopen(was Identity) (*Place, error) {
	p, err := walk(was.Real, walkOptions{})
	if err != nil {
		return nil, &ChangedError{Was: was, Err: err}
	}
	p.Path = was.Path
	if !p.same(was) {
		now := p.Identity
		p.Close()
		return nil, &ChangedError{Was: was, Now: now}
	}
	return p, nil
}

// ReopenNew opens the file that is now at an identity's path without links, which may be another one or missing: for files that come and
// go, such as sockets and logs. It follows no link.
func ReopenNew(was Identity) (*Place, error) {
	p, err := walk(was.Real, walkOptions{mayMiss: true})
	if err != nil {
		return nil, &ChangedError{Was: was, Err: err}
	}
	p.Path = was.Path
	return p, nil
}

// Open is Reopen, or Resolve when the identity is not that of the path.
func Open(path string, was Identity) (*Place, error) {
	absolute, err := filepath.Abs(path)
	if err == nil && was.Of(absolute) {
		return Reopen(was)
	}
	return Resolve(path)
}

// OpenNew is ReopenNew, or ResolveNew when the identity is not that of the path.
func OpenNew(path string, was Identity) (*Place, error) {
	absolute, err := filepath.Abs(path)
	if err == nil && was.Of(absolute) {
		return ReopenNew(was)
	}
	return ResolveNew(path)
}

// Close closes the file and the directories on the way.
func (p *Place) Close() error {
	if p == nil {
		return nil
	}
	var errs []error
	for _, f := range []*os.File{p.parent, p.dir, p.held} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	p.parent, p.dir, p.held = nil, nil, nil
	return errors.Join(errs...)
}

// IsDir reports whether it is a directory.
func (p *Place) IsDir() bool { return p.dir != nil }

// Root opens the directory as an os.Root for the files below it.
func (p *Place) Root() (*os.Root, error) {
	if p.dir == nil {
		return nil, &fs.PathError{Op: "open", Path: p.Path, Err: syscall.ENOTDIR}
	}
	return rootOf(p.dir, p.Real, p.Path)
}

// ParentRoot opens the directory that contains it.
func (p *Place) ParentRoot() (*os.Root, error) {
	if p.parent == nil {
		return nil, &fs.PathError{Op: "open", Path: p.Path, Err: syscall.EISDIR}
	}
	return rootOf(p.parent, filepath.Dir(p.Real), filepath.Dir(p.Path))
}

// rootOf opens a directory that is open already, because package os makes no Root of a file. It fails when path leads elsewhere meanwhile.
func rootOf(held *os.File, path, configured string) (*os.Root, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	was, err := held.Stat()
	if err == nil {
		var now fs.FileInfo
		if now, err = root.Stat("."); err == nil && !os.SameFile(was, now) {
			err = errExchanged
		}
	}
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("%s: %w", configured, err)
	}
	return root, nil
}

// Base returns its name in the directory of ParentRoot.
func (p *Place) Base() string { return p.base }

var errExchanged = errors.New("it was exchanged for another one while it was opened")

// OpenFile opens the file with flags of package os; a missing one is made when they have O_CREATE, and one that is there is refused when they
// have O_EXCL, too. It follows no link, and fails when another file has taken its place meanwhile. With special it may be another kind of file
// than a regular one, and opening it may wait as for any program.
func (p *Place) OpenFile(flags int, perm fs.FileMode, special bool) (*os.File, error) {
	if p.dir != nil || p.parent == nil {
		return nil, &fs.PathError{Op: "open", Path: p.Path, Err: syscall.EISDIR}
	}
	if !p.Missing && !p.Type.IsRegular() && !special {
		return nil, fmt.Errorf("%s: not a regular file", p.Path)
	}
	if !p.Missing && flags&os.O_CREATE != 0 && flags&os.O_EXCL != 0 {
		return nil, &fs.PathError{Op: "open", Path: p.Path, Err: syscall.EEXIST}
	}
	if p.Missing && flags&os.O_CREATE == 0 {
		return nil, &fs.PathError{Op: "open", Path: p.Path, Err: syscall.ENOENT}
	}
	if p.Missing {
		flags |= os.O_EXCL
	} else {
		flags &^= os.O_CREATE
	}
	truncate := flags&os.O_TRUNC != 0 && (p.Missing || p.Type.IsRegular())
	file, err := p.openBase(flags&^os.O_TRUNC, perm)
	if err != nil {
		return nil, err
	}
	if p.magic {
		return file, nil
	}
	info, err := file.Stat()
	if err == nil {
		err = p.isThat(file, info)
	}
	if err == nil && truncate { // only the file that was checked
		err = file.Truncate(0)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("%s: %w", p.Path, err)
	}
	return file, nil
}

// isThat reports whether an open file is the one that p has found.
func (p *Place) isThat(file *os.File, info fs.FileInfo) error {
	if p.Missing {
		if !info.Mode().IsRegular() {
			return errExchanged
		}
		return nil
	}
	id, err := idOf(file, info)
	if err != nil {
		return err
	}
	if id != p.id() {
		return errExchanged
	}
	return nil
}

func (p *Place) id() fileID { return fileID{p.Device, p.File} }

// ReadAll reads the file, of at most limit bytes.
func (p *Place) ReadAll(limit int64) ([]byte, error) {
	file, err := p.OpenFile(os.O_RDONLY, 0, true)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s: it has more than %d bytes", p.Path, limit)
	}
	return b, err
}
