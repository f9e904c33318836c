package guestfs

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	stagingPrefix = ".agentvm-copy-"
	stagingLock   = "lock" // in the staging directory: locked while a copy is made
	stagingCopy   = "copy" // the file or directory that is not complete yet
	// maxSwept is how many entries of a directory a sweep looks at.
	maxSwept = 1 << 16
)

// staging is a temporary directory in the host's directory that gets a copy. It has a lock, by which the next copy into the same
// directory recognizes and removes what a killed process has left. Where hasStagingLocks is false it is the copy itself.
type staging struct {
	dir  *os.Root
	base string   // of the staging directory
	name string   // of the copy in it
	lock *os.File // nil without locks
}

// stage opens a directory and makes a staging directory in it.
func stage(dir string, o CopyOptions) (*staging, error) {
	place, err := o.place(dir)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	root, err := place.Root()
	if err != nil {
		return nil, err
	}
	if !hasStagingLocks {
		base := stagingPrefix + strings.ToLower(rand.Text()[:16])
		return &staging{dir: root, base: base, name: base}, nil
	}
	sweepStaging(root)
	for {
		base := stagingPrefix + strings.ToLower(rand.Text()[:16])
		lock, err := makeStaging(root, base)
		if err != nil {
			return nil, errors.Join(err, root.Close())
		}
		if lock != nil {
			return &staging{root, base, filepath.Join(base, stagingCopy), lock}, nil
		}
	}
}

// makeStaging returns the locked file, or nil when another process's sweep has removed the directory.
func makeStaging(root *os.Root, base string) (*os.File, error) {
	if err := root.Mkdir(base, 0o700); err != nil {
		return nil, err
	}
	name := filepath.Join(base, stagingLock)
	lock, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, errors.Join(err, root.RemoveAll(base))
	}
	if locked, err := tryLock(lock); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, errors.Join(err, lock.Close(), root.RemoveAll(base))
	} else if err == nil && (!locked || !isNamed(root, name, lock)) {
		return nil, lock.Close()
	}
	return lock, nil
}

// isNamed reports whether a file still has its name.
func isNamed(root *os.Root, name string, file *os.File) bool {
	held, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := root.Lstat(name)
	return err == nil && os.SameFile(held, named)
}

// discard removes the staging directory with what is left in it.
func (s *staging) discard() error {
	err := s.dir.RemoveAll(s.base)
	if s.lock != nil {
		_ = s.lock.Close()
	}
	return errors.Join(err, s.dir.Close())
}

// sweepStaging removes staging directories that no process has locked. Its failures do not prevent the copy.
func sweepStaging(root *os.Root) {
	d, err := root.Open(".")
	if err != nil {
		return
	}
	defer d.Close()
	for seen := 0; seen < maxSwept; {
		entries, err := d.ReadDir(1024)
		for _, e := range entries {
			if e.IsDir() && len(e.Name()) == len(stagingPrefix)+16 && strings.HasPrefix(e.Name(), stagingPrefix) {
				sweepOne(root, e.Name())
			}
		}
		if seen += len(entries); err != nil { // io.EOF is the end
			return
		}
	}
}

func sweepOne(root *os.Root, base string) {
	name := filepath.Join(base, stagingLock)
	lock, err := root.OpenFile(name, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		_ = root.Remove(base) // its maker was killed at once, or will make another one; a directory with other content is not agentvm's
	}
	if err != nil {
		return
	}
	defer lock.Close()
	info, err := lock.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	if locked, err := tryLock(lock); err != nil || !locked || !isNamed(root, name, lock) {
		return
	}
	// The copy is removed first: while the lock exists, another sweep finds what this one leaves when it is killed.
	if root.RemoveAll(filepath.Join(base, stagingCopy)) == nil {
		_ = root.RemoveAll(base)
	}
}
