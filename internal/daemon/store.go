package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"agentvm/internal/host/lockfile"
	"agentvm/internal/host/naming"
	"agentvm/internal/host/private"
)

// Store is a directory of VMs: one directory of mode 0700 for each, with its name. The files in it:
//
//	config.json        daemon.Config, written before the daemon has the lock
//	lock               locked by the daemon for its whole life
//	starting           locked by the process that starts or removes the VM
//	process.json       the daemon's pid and when that process began
//	state.json         version, name, pid, start, address, token, while the daemon listens; mode 0600
//	daemon.sock        the socket; mode 0600. A dead daemon's is deleted by the process that finds it
//	end.json           when and why the last daemon ended, written by it or by the process that finds it dead
//	identity.json      an ID of 16 random bytes that distinguishes VMs of one name, and the port of its previews; kept until rm
//	restore.json       the snapshot that the first start, or the wake of a hibernated VM, restores; deleted when the VM runs
//	hibernated-*       the saved machine of a hibernated VM
//	saving             while it is being hibernated
//	events.log, .1     one Event of JSON a line; rotated at 1 MiB
//	network.log, .1    one egress.Event of JSON a line; rotated at 4 MiB
//	daemon.log, .1     its log and standard error; rotated at 1 MiB
//	disk.img           the VM's files, from the first start on
//	disk.made          the VM has run with a disk, so that it gets no other one
//	jobs/ID/           job.json and journal of a durable job
//
// Beside Dir, Dir with ".porter" has the activator's lock, log, log.1 and door/porter.sock. The names are those of earlier versions, whose
// activator may hold ports of VMs after an upgrade.
type Store struct {
	Dir string
	// Version is the program's version, which daemons of this store report. Default: none.
	Version string
	// Command runs a daemon: a program and arguments, to which Start appends the name. The process must call Run with this
	// Store. Default: this program with "daemon", "run", "--dir", Dir.
	Command []string
	// WakerCommand runs what wakes VMs for the activator, as RunWaker. Default: this program with "daemon", "waker", "--dir", Dir.
	WakerCommand []string
	// ActivatorCommand runs the activator, as RunActivator. Default: this program with "daemon", "activator", "--dir", Dir, or none when Command is set:
	// then ports keep a VM awake.
	ActivatorCommand []string
	// MountCommand runs the server of a mount that is added, as ServeMount: a program and arguments, to which the VM's name is appended. Default:
	// this program with "daemon", "mount", "--dir", Dir.
	MountCommand []string
	// Environment has names of variables that daemons inherit besides those that inherit.go lists.
	Environment []string
	// Owner owns the next daemon that Start starts. Default: no owner; the daemon outlives this process.
	Owner *Owner
	// Owned tells Run that the daemon's standard input is its owner's pipe. Default: it has no owner.
	Owned bool
}

// Errors that callers act on.
var (
	ErrNotFound   = errors.New("no such VM")
	ErrNotRunning = errors.New("the VM does not run")
	ErrRunning    = errors.New("the VM runs already")
	ErrExists     = errors.New("there is a VM of this name already")
)

// CheckName returns an error unless a VM can have this name: 1 to 63 lower-case letters, digits, "_", "." and "-", the first one a
// letter or a digit. Names are directories, also on systems that ignore case.
func CheckName(name string) error { return naming.Check("name", name) }

func (s Store) paths(name string) (paths, error) {
	if err := CheckName(name); err != nil {
		return paths{}, err
	}
	return paths{filepath.Join(s.Dir, name)}, nil
}

// existing returns the paths of a VM that has been started at some time. It refuses a folder that other users can change, because its
// files say what a VM gets of the host and to whom the token is shown.
func (s Store) existing(name string) (paths, error) {
	p, err := s.paths(name)
	if err != nil {
		return p, err
	}
	if _, err := os.Stat(p.config()); errors.Is(err, fs.ErrNotExist) {
		return p, fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	if err := private.CheckFolder(p.dir); err != nil {
		return p, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// Config returns the configuration of a VM's last start.
func (s Store) Config(name string) (Config, error) {
	p, err := s.existing(name)
	if err != nil {
		return Config{}, err
	}
	return readConfig(p.config())
}

// LogPath returns the path of the daemon's log; the part before it has ".1" appended.
func (s Store) LogPath(name string) (string, error) {
	p, err := s.existing(name)
	return p.log(), err
}

// NetworkLogPath returns the path of the log of a VM's network, an egress.Event of JSON in each line; the part before it has ".1"
// appended.
func (s Store) NetworkLogPath(name string) (string, error) {
	p, err := s.existing(name)
	return p.audit(), err
}

// Alive reports whether a VM has a daemon. It is cheap, and connects to none.
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
	if errors.Is(err, ErrNotFound) && private.CheckFolder(p.dir) == nil {
		return errors.Join(err, s.remove(ctx, p, name)) // files of a process that was killed while it made or removed the VM
	}
	if err != nil {
		return err
	}
	return s.remove(ctx, p, name)
}

func (s Store) remove(ctx context.Context, p paths, name string) error {
	unlock, err := lockFile(ctx, p.starting(), lockTime)
	if err != nil {
		return fmt.Errorf("remove %s: it is being started: %w", name, err)
	}
	release, err := lockStopped(ctx, p)
	if err != nil {
		return errors.Join(fmt.Errorf("remove %s: %w: stop it first", name, ErrRunning), unlock())
	}
	r, _ := p.readRestoration()
	err = removeContent(p)
	closeFiles(s.takePorts(ctx, name, r))
	err = errors.Join(err, release(), unlock(), os.Remove(p.lock()), os.Remove(p.starting()), removeFolder(ctx, p))
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// Rename gives a VM that does not run another name. Its links to previews end; its host name changes with its next start, unless it was given
// one.
func (s Store) Rename(ctx context.Context, name, to string) error {
	p, err := s.existing(name)
	if err != nil {
		return err
	}
	target, err := s.paths(to)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(target.dir); err == nil {
		return fmt.Errorf("%s: %w", to, ErrExists)
	}
	unlock, err := lockFile(ctx, p.starting(), lockTime)
	if err != nil {
		return fmt.Errorf("rename %s: it is being started: %w", name, err)
	}
	release, err := lockStopped(ctx, p)
	if err != nil {
		return errors.Join(fmt.Errorf("rename %s: %w: stop it first", name, ErrRunning), unlock())
	}
	cleanUp(p)
	r, _ := p.readRestoration()
	held := s.takePorts(ctx, name, r)
	if runtime.GOOS == "windows" { // which renames no directory that has open files
		err = errors.Join(release(), unlock(), os.Rename(p.dir, target.dir))
	} else {
		err = os.Rename(p.dir, target.dir)
		if len(held) > 0 && err == nil { // when it fails, the activator binds them soon
			_, _ = s.askActivator(ctx, activatorRequest{doGive, to, r.Key}, held)
		}
		err = errors.Join(err, release(), unlock())
	}
	closeFiles(held)
	if err != nil {
		return fmt.Errorf("rename %s to %s: %w", name, to, err)
	}
	return nil
}

// removeFolder removes the directory of a VM that is removed. Who looks at the VM meanwhile may have made its locks again; on FUSE and Windows,
// removed files disappear only a moment after they are closed. It waits for both.
func removeFolder(ctx context.Context, p paths) error {
	for deadline := time.Now().Add(lockTime / 2); ; time.Sleep(5 * time.Millisecond) {
		err := os.Remove(p.dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) || time.Now().After(deadline) {
			return err
		}
		if _, err := os.Lstat(p.config()); err == nil {
			return nil // the next one of this name
		}
		if unlock, err := lockFile(ctx, p.starting(), 0); err == nil { // else it is being started
			_ = errors.Join(unlock(), os.Remove(p.lock()), os.Remove(p.starting()))
		}
	}
}

// removeContent deletes everything except the locks. The configuration, without which there is no VM, is last.
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
	if gone := os.Remove(p.config()); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// lockTime is how long to wait for a lock that other processes hold only for moments.
const lockTime = 2 * time.Second

// lockFile takes a lock for this process and waits up to wait for it. It is an error when the previous holder has removed the file.
func lockFile(ctx context.Context, path string, wait time.Duration) (unlock func() error, err error) {
	limited, cancel := context.WithTimeout(ctx, max(wait, time.Millisecond))
	defer cancel()
	lock, err := lockfile.Wait(limited, path)
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		err = lockfile.ErrHeld
	case err == nil && !lock.Current():
		err = errors.New("it is being removed")
	}
	if err != nil {
		if lock != nil {
			err = errors.Join(err, lock.Close())
		}
		return nil, err
	}
	return lock.Close, nil
}

// lockStopped waits for the lock of a VM that does not run. Those who look at the VM hold it for moments, and when there are many of them, always
// one of them does; a daemon holds it as long as it lives.
func lockStopped(ctx context.Context, p paths) (unlock func() error, err error) {
	for began := time.Now(); ; {
		unlock, err = lockFile(ctx, p.lock(), lockTime/4)
		if !errors.Is(err, lockfile.ErrHeld) || time.Since(began) > 5*lockTime {
			return unlock, err
		}
		alive, looked, probeErr := probe(p)
		if alive || probeErr != nil {
			return nil, err
		}
		if err := looked(); err != nil {
			return nil, err
		}
	}
}

// probe reports whether a daemon lives. When none does, the lock is held, shared with other probes, until unlock is called, so that none
// begins and the files do not change.
func probe(p paths) (alive bool, unlock func() error, err error) {
	lock, err := lockfile.TryShared(p.lock())
	if errors.Is(err, lockfile.ErrHeld) {
		return true, func() error { return nil }, nil
	}
	if err != nil {
		return false, nil, fmt.Errorf("look at the lock of a VM: %w", err)
	}
	return false, lock.Close, nil
}

// Progress receives lines about a start. It may be nil.
type Progress func(level slog.Level, text string)
