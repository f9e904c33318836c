package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// Store is a directory of VMs: one directory of mode 0700 for each, with its name.
type Store struct {
	Dir string
	// Version is the program's, which daemons of this store show. Default: none.
	Version string
	// Command is how to run a daemon: a program and arguments, to which Start adds the name. The process is to call Run
	// with this Store. Default: this program with "daemon", "run", "--dir", Dir.
	Command []string
}

// Errors that callers act on.
var (
	ErrNotFound   = errors.New("no such VM")
	ErrNotRunning = errors.New("the VM does not run")
	ErrRunning    = errors.New("the VM runs already")
	ErrExists     = errors.New("there is a VM of this name already")
)

func (s Store) paths(name string) (paths, error) {
	if err := CheckName(name); err != nil {
		return paths{}, err
	}
	return paths{filepath.Join(s.Dir, name)}, nil
}

// existing is paths of a VM that has been started at some time.
func (s Store) existing(name string) (paths, error) {
	p, err := s.paths(name)
	if err != nil {
		return p, err
	}
	if _, err := os.Stat(p.config()); errors.Is(err, fs.ErrNotExist) {
		return p, fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	return p, nil
}

// Config is what a VM was last started with.
func (s Store) Config(name string) (Config, error) {
	p, err := s.existing(name)
	if err != nil {
		return Config{}, err
	}
	return readConfig(p.config())
}

// LogPath is the daemon's log; with ".1" the part before it.
func (s Store) LogPath(name string) (string, error) {
	p, err := s.existing(name)
	return p.log(), err
}

// NetworkLogPath is where the last events of a VM's network are, an egress.Event of JSON in each line; with ".1" those
// before.
func (s Store) NetworkLogPath(name string) (string, error) {
	p, err := s.existing(name)
	return p.audit(), err
}

// Alive says whether a VM has a daemon. It is cheap, and asks nobody.
func (s Store) Alive(name string) (bool, error) {
	p, err := s.existing(name)
	if err != nil {
		return false, err
	}
	alive, unlock, err := probe(p)
	if err != nil || alive {
		return alive, err
	}
	return false, unlock()
}

// Remove deletes a VM that does not run and everything it has kept.
func (s Store) Remove(ctx context.Context, name string) error {
	p, err := s.existing(name)
	if err != nil {
		return err
	}
	unlock, err := lockFile(ctx, p.starting(), lockTime)
	if err != nil {
		return fmt.Errorf("remove %s: it is being started: %w", name, err)
	}
	release, err := lockFile(ctx, p.lock(), lockTime/10)
	if err != nil {
		return errors.Join(fmt.Errorf("remove %s: %w: stop it first", name, ErrRunning), unlock())
	}
	err = removeContent(p)
	err = errors.Join(err, release(), unlock(), os.Remove(p.lock()), os.Remove(p.starting()), os.Remove(p.dir))
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// removeContent deletes all but the locks; the configuration, without which there is no VM, last.
func removeContent(p paths) error {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return err
	}
	keep := map[string]bool{p.lock(): true, p.starting(): true, p.config(): true}
	for _, e := range entries {
		if path := filepath.Join(p.dir, e.Name()); !keep[path] {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return errors.Join(err, os.Remove(p.config()))
}

const (
	// lockTime is how long to wait for a lock that others hold for moments only.
	lockTime  = 2 * time.Second
	lockRetry = 5 * time.Millisecond
)

var errLocked = errors.New("it is locked by another process")

// lockFile takes a lock for this process, waiting up to wait for it. The file may have been removed by who held it: then
// there is nothing to lock.
func lockFile(ctx context.Context, path string, wait time.Duration) (unlock func() error, err error) {
	f := flock.New(path, flock.SetPermissions(0o600))
	limited, cancel := context.WithTimeout(ctx, max(wait, lockRetry/2))
	defer cancel()
	ok, err := f.TryLockContext(limited, lockRetry)
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		err = errLocked
	case err == nil && !ok:
		err = errLocked
	case err == nil && !inPlace(f):
		err = errors.New("it is being removed")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}

// inPlace says whether a locked file still has its name.
func inPlace(f *flock.Flock) bool {
	locked, err := f.Stat()
	named, err2 := os.Stat(f.Path())
	return err == nil && err2 == nil && os.SameFile(locked, named)
}

// probe says whether a daemon lives. When it does not, the lock is shared until unlock is called, so that none begins
// and everything found here is of the past; others may probe at the same time.
func probe(p paths) (alive bool, unlock func() error, err error) {
	f := flock.New(p.lock(), flock.SetPermissions(0o600))
	ok, err := f.TryRLock()
	if err != nil {
		return false, nil, errors.Join(fmt.Errorf("look at the lock of a VM: %w", err), f.Close())
	}
	if !ok {
		return true, func() error { return nil }, f.Close()
	}
	return false, f.Close, nil
}

// Progress is told how a start goes; it may be nil.
type Progress func(level slog.Level, text string)
