// Package volume keeps directories of the host that VMs mount by a name and share. A volume is STORE/volumes/NAME/data, and beside it the
// lock of those who use it:
//
//	NAME/lock   held shared by a process that mounts the volume, alone by one that removes it
//	NAME/data   what VMs have written
//
// The store is hidden from guests and is never in a mount (vm.Config.Mounts). A volume's data is the one exception, and only that directory itself:
// see IsData. Nothing on the host executes or obeys what is in it.
package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentvm/internal/host/lockfile"
	"agentvm/internal/host/naming"
	"agentvm/internal/host/private"
)

// folder is below a store, data below a volume's own folder.
const (
	folder = "volumes"
	data   = "data"
	lock   = "lock"
)

// ErrNotFound says that there is no such volume, ErrInUse that a process has it mounted.
var (
	ErrNotFound = errors.New("no such volume (agentvm volume ls lists them)")
	ErrInUse    = errors.New("it is in use by a VM that runs")
)

// Store has the volumes of a store of VMs.
type Store struct{ dir string }

// In returns the volumes of a store of VMs.
func In(store string) Store { return Store{filepath.Join(store, folder)} }

// Volume is a volume.
type Volume struct {
	Name    string    `json:"name"`
	Path    string    `json:"path"` // of its data on the host
	Created time.Time `json:"created"`
}

// Check returns an error unless a volume can have this name.
func Check(name string) error { return naming.Check("volume", name) }

// IsData reports whether a slash-separated path, relative to a store, is a volume's data: not what is above or below it.
func IsData(path string) bool {
	parts := strings.Split(path, "/")
	return len(parts) == 3 && parts[0] == folder && Check(parts[1]) == nil && parts[2] == data
}

func (s Store) path(name string) string { return filepath.Join(s.dir, name) }

// Data returns where a volume's data is, or would be.
func (s Store) Data(name string) string { return filepath.Join(s.path(name), data) }

// Create makes a volume. When there is one the error is fs.ErrExist.
func (s Store) Create(name string) (Volume, error) {
	use, err := s.Use(name)
	if err != nil {
		return Volume{}, err
	}
	defer use.Close()
	if !use.Made {
		return Volume{}, fmt.Errorf("volume %s: %w", name, fs.ErrExist)
	}
	return s.Open(name)
}

// Use keeps a volume from being removed until Close, or the end of this process.
type Use struct {
	Made bool // the volume is new
	lock *lockfile.Lock
}

// Close ends the use.
func (u *Use) Close() error { return u.lock.Close() }

// Use makes a volume unless there is one, and keeps it from being removed.
func (s Store) Use(name string) (*Use, error) {
	if err := Check(name); err != nil {
		return nil, err
	}
	for {
		if err := errors.Join(private.MakeFolder(s.dir), private.MakeFolder(s.path(name))); err != nil {
			return nil, fmt.Errorf("volume %s: %w", name, err)
		}
		held, err := lockfile.TryShared(filepath.Join(s.path(name), lock))
		switch {
		case errors.Is(err, lockfile.ErrHeld):
			return nil, fmt.Errorf("volume %s: it is just being removed", name)
		case errors.Is(err, fs.ErrNotExist):
			continue // it was removed after its folder was made
		case err != nil:
			return nil, fmt.Errorf("volume %s: %w", name, err)
		}
		use := &Use{lock: held}
		switch err := os.Mkdir(s.Data(name), 0o755); {
		case err == nil:
			use.Made = true
		case !errors.Is(err, fs.ErrExist):
			return nil, errors.Join(fmt.Errorf("volume %s: %w", name, err), held.Close())
		}
		return use, nil
	}
}

// Open describes a volume.
func (s Store) Open(name string) (Volume, error) {
	if err := Check(name); err != nil {
		return Volume{}, err
	}
	info, err := os.Lstat(s.Data(name))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return Volume{}, fmt.Errorf("volume %s: %w", name, ErrNotFound)
	}
	if err != nil {
		return Volume{}, err
	}
	made, err := os.Lstat(filepath.Join(s.path(name), lock)) // which guests do not change, as they do the directory's time
	if err != nil {
		return Volume{}, err
	}
	return Volume{name, s.Data(name), made.ModTime().UTC()}, nil
}

// List returns the volumes in the order of their names.
func (s Store) List() (list []Volume, err error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		v, err := s.Open(e.Name())
		if err == nil {
			list = append(list, v)
		}
	}
	return list, err
}

// Remove removes a volume with its data. While a process uses it the error is ErrInUse.
func (s Store) Remove(name string) error {
	if _, err := s.Open(name); err != nil {
		return err
	}
	held, err := lockfile.TryExisting(filepath.Join(s.path(name), lock))
	switch {
	case errors.Is(err, lockfile.ErrHeld):
		return fmt.Errorf("volume %s: %w", name, ErrInUse)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("volume %s: %w", name, ErrNotFound)
	case err != nil:
		return fmt.Errorf("volume %s: %w", name, err)
	}
	// The data goes first: what is left of a removal that was interrupted is still a volume, or a folder that Use takes.
	if err := removeAll(s.Data(name)); err != nil {
		return errors.Join(fmt.Errorf("volume %s: %w", name, err), held.Close())
	}
	err = held.Remove()
	_ = os.Remove(s.path(name)) // unless another process makes the volume again
	return err
}

// removeAll is os.RemoveAll, also of directories to which a guest has left the host's user no right.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, _ error) error {
		if entry != nil && entry.IsDir() { // no link: and no guest has the volume, which is locked
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}
