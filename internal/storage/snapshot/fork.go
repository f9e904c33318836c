package snapshot

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentvm/internal/host/lockfile"
	"agentvm/internal/host/private"
)

// Fork is the place of the file from which the forks of one VM continue: STORE/forks/NAME.snap. The file exists only until they have
// started. The process that makes the forks holds a lock beside it, so that the next OpenStore finds and removes the file of one that was
// killed.
type Fork struct {
	path string
	lock *lockfile.Lock
}

// forkLock ends the name of the lock of a fork's file: .NAME.lock.
const forkLock = ".lock"

// unlockedFork is the age at which a fork's file without a lock is removed. Versions of agentvm without these locks have left such files.
const unlockedFork = time.Hour

// NewFork reserves a place for a file. Close frees it.
func (s *Store) NewFork() (*Fork, error) {
	if err := private.MakeFolder(s.forks()); err != nil {
		return nil, fmt.Errorf("make a place for forks: %w", err)
	}
	for {
		name := strings.ToLower(rand.Text())
		lock, err := lockfile.Try(filepath.Join(s.forks(), "."+name+forkLock))
		if errors.Is(err, lockfile.ErrHeld) {
			continue // by a sweep, which came between the making of the file and its lock
		}
		if err != nil {
			return nil, fmt.Errorf("make a place for forks: %w", err)
		}
		return &Fork{path: filepath.Join(s.forks(), name+Suffix), lock: lock}, nil
	}
}

// isFork reports whether a path is of a fork's file.
func isFork(path string) bool { return filepath.Base(filepath.Dir(path)) == forksName }

// Path returns the path at which the caller writes the file.
func (f *Fork) Path() string { return f.path }

// Close removes the file, if there is one. A process that has it open continues to use it.
func (f *Fork) Close() {
	RemoveFile(f.path)
	_ = f.lock.Remove()
}

// listForks describes the files from which forks continue.
func (s *Store) listForks() ([]Entry, error) {
	list, err := entries(s.forks())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the files of forks: %w", err)
	}
	return list, nil
}

// sweepForks removes the files of forks in dir whose makers were killed.
func sweepForks(dir string) {
	sweep(dir, "")
	entries, _ := os.ReadDir(dir) // whoever uses the directory reports the error
	for _, entry := range entries {
		name, locked := strings.CutSuffix(strings.TrimPrefix(entry.Name(), "."), forkLock)
		path := filepath.Join(dir, strings.TrimSuffix(name, Suffix)+Suffix)
		switch {
		case locked && strings.HasPrefix(entry.Name(), ".") && !strings.Contains(name, "."):
			if lock, err := lockfile.TryExisting(filepath.Join(dir, entry.Name())); err == nil {
				(&Fork{path: path, lock: lock}).Close()
			}
		case strings.HasSuffix(entry.Name(), Suffix) && !hasLock(path):
			if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > unlockedFork {
				RemoveFile(path)
			}
		}
	}
}

// hasLock reports whether there is a lock beside a fork's file.
func hasLock(path string) bool {
	_, err := os.Lstat(filepath.Join(filepath.Dir(path), "."+strings.TrimSuffix(filepath.Base(path), Suffix)+forkLock))
	return err == nil
}

// RemoveFile removes a snapshot's file that is in no Store, if there is one, and the seal and the disk beside it.
func RemoveFile(path string) {
	_ = os.Remove(path)
	unseal(path)
	removeBeside(path, "")
}
