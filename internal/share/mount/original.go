package mount

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"agentvm/internal/host/errno"
)

// Original is the host's directory of a copy-on-write mount, for what the user takes over of the guest's changes. Paths are below the
// directory, slash-separated. It stays within the directory and out of links, masks and protected files as a writable mount does. Methods
// may be called from several goroutines.
type Original struct {
	s    *Server
	mark uint64 // in the names of temporary files
}

// OpenOriginal opens the directory. It must be closed.
func OpenOriginal(c Config) (*Original, error) {
	c.ReadOnly = false
	s, err := NewServer(c)
	if err != nil {
		return nil, err
	}
	return &Original{s: s}, nil
}

// Close frees it.
func (o *Original) Close() error { return o.s.Close() }

// Status is what the host has at a path now.
type Status struct {
	Base
	Changed time.Time // when its contents or inode last changed; where the host does not keep that, its contents
}

// Stat returns what is at a path itself, or an error for which errors.Is(err, fs.ErrNotExist) holds.
func (o *Original) Stat(name string) (Status, error) {
	a, err := o.look(name)
	if err != nil {
		return Status{}, err
	}
	return Status{baseOf(a, name), a.host.Changed}, nil
}

func (o *Original) look(name string) (attr, error) {
	if err := checkPath(name); err != nil {
		return attr{}, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	if err := o.s.masks.hides(name); err != nil {
		return attr{}, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	a, err := o.s.lstat(name)
	if n := errno.In(err); n == errno.ENOENT || n == errno.ENOTDIR { // the latter below a file
		err = &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return a, err
}

func checkPath(name string) error {
	if len(name) > maxPath {
		return errno.ENAMETOOLONG
	}
	for element := range strings.SplitSeq(name, "/") {
		if err := checkName(element); err != nil {
			return err
		}
	}
	return nil
}

// Open opens a regular file for reading.
func (o *Original) Open(name string) (*os.File, error) {
	if _, err := o.look(name); err != nil {
		return nil, err
	}
	file, _, err := o.s.openRegular(name, os.O_RDONLY, 0)
	return file, err
}

// Target returns what a symbolic link leads to, in the guest's form.
func (o *Original) Target(name string) (string, error) {
	if _, err := o.look(name); err != nil {
		return "", err
	}
	target, err := o.s.readTarget(name)
	return hostTarget(target), err
}

// List returns the names in a directory that the guest sees, sorted, at most limit.
func (o *Original) List(name string, limit int) ([]string, error) {
	if _, err := o.look(name); err != nil {
		return nil, err
	}
	return o.names(name, limit)
}

// names is List also for the directory itself, which is ".".
func (o *Original) names(name string, limit int) ([]string, error) {
	dir, err := o.s.openDir(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(limit + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(names) > limit {
		return nil, fmt.Errorf("%s: more than %d files in a directory", name, limit)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return o.s.masks.hides(path.Join(name, n)) != nil })
	slices.Sort(names)
	return names, nil
}

// Refusal says why the guest's change of a path is not taken over, whoever asks for it; "" when it is. makes is the type of what comes to
// be there, fs.ModeIrregular for nothing.
func (o *Original) Refusal(name string, makes fs.FileMode) string {
	if err := checkPath(name); err != nil {
		return "the host cannot have a file of this name"
	}
	switch o.s.masks.find(name) {
	case standsMasked:
		return "what the host has there is hidden from the VM"
	case standsCovered:
		return "another mount is there"
	case standsAbove:
		if makes != fs.ModeDir {
			return "it contains what is hidden from the VM"
		}
	}
	if o.s.protection == nil {
		return ""
	}
	if o.s.isProtected(name) || makes != fs.ModeDir && (o.s.holds(name, makes == 0) || makes != 0 && o.s.holdsPart(name)) {
		return "programs of the host obey what is there (protected; see docs/guide/mounts.md)"
	}
	return ""
}

// The calls below change the host. Each checks Refusal, and then calls unless: with an error, it does nothing and returns that.

func (o *Original) allow(op, name string, makes fs.FileMode, unless func() error) error {
	if why := o.Refusal(name, makes); why != "" {
		return &fs.PathError{Op: op, Path: name, Err: errors.New(why)}
	}
	return unless()
}

// SetMark has the names of temporary files begin with a random number, by which RemoveTemporary finds them when this process was killed. It
// must be called before what makes files.
func (o *Original) SetMark(mark uint64) { o.mark = mark }

// temporaryPrefix is what the names of temporary files begin with.
func temporaryPrefix(mark uint64) string { return fmt.Sprintf(".agentvm-%016x-", mark) }

// temporaryName is beside a path. A guest's mount shows it while it is there. A mark of 0 is of no apply.
func temporaryName(mark uint64, name string) string {
	return path.Join(path.Dir(name), fmt.Sprintf("%s%08x", temporaryPrefix(mark), rand.Uint32()))
}

// RemoveTemporary removes the temporary files in a directory, "." for this one, that one with that mark has left. limit is as for List.
func (o *Original) RemoveTemporary(dir string, mark uint64, limit int) error {
	names, err := o.names(dir, limit)
	for _, name := range names {
		if !strings.HasPrefix(name, temporaryPrefix(mark)) {
			continue
		}
		name = path.Join(dir, name)
		if a, err := o.look(name); err != nil || a.mode&modeTypeMask == modeDir {
			continue
		}
		if err := o.s.unlink(name, false); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if n := errno.In(err); n == errno.ENOENT || n == errno.ENOTDIR {
		return nil
	}
	return err
}

// WriteFile makes a regular file of what write writes, or replaces what is not a directory, by one rename. With exact it has mode; else mode
// within the umask. It is never set-uid or set-gid.
func (o *Original) WriteFile(name string, mode fs.FileMode, exact bool, write func(io.Writer) error, unless func() error) (err error) {
	s := o.s
	if err := o.allow("write", name, 0, func() error { return nil }); err != nil {
		return err
	}
	_, none := s.lstat(name)
	replaces := none == nil
	temporary := temporaryName(o.mark, name)
	file, _, err := s.openRegular(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode.Perm())
	if err != nil {
		return err
	}
	err = write(file)
	if err == nil && replaces {
		err = file.Sync() // else the file could be empty after a power failure, which the one before was not
	}
	if err = errors.Join(err, file.Close()); err == nil && exact {
		err = s.chmod(temporary, hostMode(uint32(mode.Perm())))
	}
	return o.place("write", temporary, name, 0, err, unless)
}

// place gives what is complete its name, or removes it.
func (o *Original) place(op, temporary, name string, makes fs.FileMode, err error, unless func() error) error {
	if err == nil {
		err = o.allow(op, name, makes, unless)
	}
	if err == nil {
		noteMade := o.s.making(name)
		if err = o.s.rename(temporary, name); err == nil {
			return noteMade()
		}
	}
	return errors.Join(err, o.s.unlink(temporary, false))
}

// MakeLink makes a symbolic link, or replaces what is not a directory by one. Nothing here follows it.
func (o *Original) MakeLink(name, target string, unless func() error) error {
	if err := o.allow("link", name, fs.ModeSymlink, func() error { return nil }); err != nil {
		return err
	}
	if target == "" || len(target) > maxPath || strings.ContainsRune(target, 0) {
		return &fs.PathError{Op: "link", Path: name, Err: fs.ErrInvalid}
	}
	temporary := temporaryName(o.mark, name)
	if err := o.s.symlink(target, temporary); err != nil {
		return err
	}
	return o.place("link", temporary, name, fs.ModeSymlink, nil, unless)
}

// MakeDir makes a directory, within the umask.
func (o *Original) MakeDir(name string, mode fs.FileMode, unless func() error) error {
	if err := o.allow("mkdir", name, fs.ModeDir, unless); err != nil {
		return err
	}
	noteMade := o.s.making(name)
	if err := o.s.mkdir(name, mode); err != nil {
		return err
	}
	return noteMade()
}

// Chmod sets the permissions of a file or directory, without set-uid and set-gid.
func (o *Original) Chmod(name string, mode fs.FileMode, unless func() error) error {
	if err := o.allow("chmod", name, mode.Type(), unless); err != nil {
		return err
	}
	return o.s.chmod(name, mode.Perm()|mode&fs.ModeSticky)
}

// Remove removes a file, a link, or an empty directory.
func (o *Original) Remove(name string, isDir bool, unless func() error) error {
	if err := o.allow("remove", name, fs.ModeIrregular, unless); err != nil {
		return err
	}
	a, err := o.s.lstat(name)
	if err == nil {
		err = o.s.unlink(name, isDir)
	}
	if err == nil {
		o.s.forgetMade(a)
	}
	return err
}
