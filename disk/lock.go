package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/gofrs/flock"
)

// The lock is on a file beside the disk: on Windows a lock would also keep its holder's other handles from reading.
func lockPath(path string) string { return path + ".lock" }

// acquire takes the lock of a disk, or fails with an *InUseError.
func acquire(path string) (*flock.Flock, error) {
	for {
		lock := flock.New(lockPath(path), flock.SetPermissions(0o600))
		ok, err := lock.TryLock()
		switch {
		case err != nil:
			return nil, fmt.Errorf("lock disk %s: %w", path, err)
		case !ok:
			return nil, errors.Join(&InUseError{path}, lock.Close())
		case current(lock):
			return lock, nil
		}
		lock.Close() // Remove has deleted the file since it was opened: that lock means nothing any more
	}
}

// current says whether the locked file is the one that others would lock now.
func current(lock *flock.Flock) bool {
	held, err := lock.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(lock.Path())
	return err == nil && os.SameFile(held, named)
}

// Remove deletes a disk that nobody uses. When it is in use the error is an *InUseError; when there is none, fs.ErrNotExist.
func Remove(path string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("remove disk: %w", err)
	}
	lock, err := acquire(path)
	if err != nil {
		return err
	}
	err = os.Remove(path)
	// Before the lock is given up where that is possible, so that nobody gets hold of it in between. Windows deletes no open
	// file, and no file that somebody else has opened.
	unlinked := os.Remove(lockPath(path))
	err = errors.Join(err, lock.Close())
	if unlinked != nil {
		_ = os.Remove(lockPath(path))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove disk: %w", err)
	}
	return nil
}
