// Package lockfile locks files. The operating system holds the locks, so they end with the process, however it ends.
//
// A locked file can be removed, by the holder of its lock too. A process that has waited for the lock, or has opened the file before, then
// locks a file that no other process will ever lock. Current reports that. The Try functions never return such a lock.
//
// A link is not a lock: it could lead to any file of the user, or make this package create one.
package lockfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// ErrHeld means that another process, or another caller in this one, has the lock.
var ErrHeld = errors.New("it is locked by another process")

// poll is the pause between two attempts to get a lock.
const poll = 5 * time.Millisecond

// Lock is held until Close.
type Lock struct{ file *flock.Flock }

// fresh returns a lock that is not held yet. O_NONBLOCK keeps open from waiting, because the file could be a FIFO.
func fresh(path string, flags int) *Lock {
	return &Lock{flock.New(path, flock.SetPermissions(0o600), flock.SetFlag(flags|os.O_RDONLY|syscall.O_NONBLOCK|noFollow))}
}

// refuseLink returns an error when there is a link at the name of a lock.
func refuseLink(path string) error {
	if named, err := os.Lstat(path); err == nil && named.Mode()&os.ModeSymlink != 0 {
		return fmt.Errorf("lock %s: it is a link", path)
	}
	return nil
}

// Try locks a file, which is made if there is none. When the lock is held it fails with ErrHeld.
func Try(path string) (*Lock, error) { return try(path, os.O_CREATE, (*flock.Flock).TryLock) }

// TryShared is Try for a lock that several may hold at a time while no process holds that of Try.
func TryShared(path string) (*Lock, error) { return try(path, os.O_CREATE, (*flock.Flock).TryRLock) }

// TryExisting is Try for an existing file; without one the error is fs.ErrNotExist.
func TryExisting(path string) (*Lock, error) { return try(path, 0, (*flock.Flock).TryLock) }

func try(path string, flags int, lock func(*flock.Flock) (bool, error)) (*Lock, error) {
	for {
		l := fresh(path, flags)
		ok, err := lock(l.file)
		switch {
		case err != nil:
			return nil, errors.Join(cmp.Or(refuseLink(path), err), l.Close())
		case !ok:
			return nil, errors.Join(ErrHeld, l.Close())
		case l.Current():
			return l, nil
		}
		// The file has been removed since it was opened, or, on Windows, is reached through a link, as it will be the next time.
		if err := errors.Join(refuseLink(path), l.Close()); err != nil {
			return nil, err
		}
	}
}

// TryOpen locks an open file until it is closed. When the lock is held it fails with ErrHeld. On Windows this lock and those of Try do not
// know of each other.
func TryOpen(f *os.File) error { return lockOpen(f) }

// Wait locks a file, which is made if there is none, and waits for the lock until ctx ends. Where locked files may be removed, the caller must check Current.
func Wait(ctx context.Context, path string) (*Lock, error) {
	return wait(ctx, path, (*flock.Flock).TryLockContext)
}

// WaitShared is Wait for a lock that several may hold at a time.
func WaitShared(ctx context.Context, path string) (*Lock, error) {
	return wait(ctx, path, (*flock.Flock).TryRLockContext)
}

func wait(ctx context.Context, path string, lock func(*flock.Flock, context.Context, time.Duration) (bool, error)) (*Lock, error) {
	l := fresh(path, os.O_CREATE)
	ok, err := lock(l.file, ctx, poll)
	if refused := refuseLink(path); refused != nil {
		err = refused
	} else if err == nil && !ok {
		err = fmt.Errorf("lock %s: not taken", path)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Current reports whether the locked file still has its name, so that others lock the same one.
func (l *Lock) Current() bool {
	held, err := l.file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(l.file.Path())
	return err == nil && os.SameFile(held, named)
}

// Close releases the lock. The file stays.
func (l *Lock) Close() error { return l.file.Close() }

// Remove releases the lock and removes its file.
func (l *Lock) Remove() error {
	path := l.file.Path()
	unlinked := os.Remove(path) // while it is held, so that no other process gets it in between; Windows removes no open file
	err := l.Close()
	if unlinked != nil {
		_ = os.Remove(path) // on Windows, where another process may have it already
	}
	return err
}
