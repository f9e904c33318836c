package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"agentvm/internal/naming"
)

// A store's directories. They are found from each other by their names: see Open.
const (
	basesName     = "bases"
	snapshotsName = "snapshots"
)

// Store is a directory of snapshots by name and of bases by key. All methods may be called at once, also by several
// processes. What is in it is listed by looking: there is no index that could be wrong.
type Store struct{ dir string }

// Entry is a file of a store.
type Entry struct {
	Name      string // the snapshot's name, or the base's key
	Path      string
	ID        string
	Base      string // the ID of what it is layered on, or empty
	Meta      Meta
	Size      int64     // bytes, with holes
	Allocated int64     // bytes that it takes on the disk
	Used      time.Time // bases: when Base has last opened it
	Err       error     // what keeps it from being opened. Meta is empty then, and ID and Base when its header cannot be read
}

// OpenStore opens the store in dir, making dir/snapshots and dir/bases of mode 0700 where they are missing, and removes what
// killed processes have left. Directories that others can write are refused: who puts a snapshot there has its reader run it.
func OpenStore(dir string) (*Store, error) {
	s := &Store{dir: dir}
	for _, d := range []string{s.snapshots(), s.bases()} {
		if err := makePrivate(d); err != nil {
			return nil, fmt.Errorf("snapshot store: %w", err)
		}
		sweep(d, "")
	}
	sweepKeys(s.bases())
	makeKey(dir)
	return s, nil
}

func makePrivate(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others can write to %s: chmod 700 it, or remove it when you did not make it", dir)
	}
	return nil
}

func (s *Store) snapshots() string { return filepath.Join(s.dir, snapshotsName) }
func (s *Store) bases() string     { return filepath.Join(s.dir, basesName) }

// CheckName says whether a snapshot can have this name: those that VMs can have.
func CheckName(name string) error {
	return naming.Check("snapshot name", name)
}

// Path returns where the snapshot of a name is, or would be.
func (s *Store) Path(name string) (string, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	return filepath.Join(s.snapshots(), name+Suffix), nil
}

// Create writes a snapshot. When there is one of that name the error is fs.ErrExist.
func (s *Store) Create(ctx context.Context, name string, c Content) error {
	path, err := s.free(name)
	if err != nil {
		return err
	}
	return write(ctx, path, c, publication{exclusive: true, locked: true})
}

// Import makes a snapshot of an exported one. When there is one of that name the error is fs.ErrExist.
func (s *Store) Import(ctx context.Context, r io.Reader, name string) error {
	path, err := s.free(name)
	if err != nil {
		return err
	}
	return importTo(ctx, r, path, publication{exclusive: true, locked: true})
}

// free returns the path of a name that is not taken; before the work, since afterwards it is looked at again.
func (s *Store) free(name string) (string, error) {
	path, err := s.Path(name)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(path); err == nil {
		return "", fmt.Errorf("snapshot %s: %w: remove it, or take another name", name, fs.ErrExist)
	}
	return path, nil
}

// Export writes a snapshot as one stream.
func (s *Store) Export(ctx context.Context, name string, w io.Writer) error {
	f, err := s.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Export(ctx, w), f.Close())
}

// Open opens a snapshot by its name; fs.ErrNotExist when there is none.
func (s *Store) Open(name string) (*File, error) {
	path, err := s.Path(name)
	if err != nil {
		return nil, err
	}
	return Open(path)
}

// List returns the snapshots by name, those that cannot be opened too.
func (s *Store) List() ([]Entry, error) {
	list, err := entries(s.snapshots())
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	return list, nil
}

// entries describes the files of a directory by name.
func entries(dir string) (list []Entry, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		name, ok := strings.CutSuffix(file.Name(), Suffix)
		if !ok || strings.HasPrefix(name, ".") {
			continue
		}
		if e := describe(filepath.Join(dir, file.Name()), name); !errors.Is(e.Err, fs.ErrNotExist) { // it has been removed meanwhile
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func describe(path, name string) Entry {
	e := Entry{Name: name, Path: path}
	info, err := os.Stat(path)
	if err != nil {
		e.Err = err
		return e
	}
	e.Size, e.Allocated, e.Used = info.Size(), allocated(info), info.ModTime()
	if f, err := openAlone(path); err != nil {
		e.Err = fmt.Errorf("open snapshot %s: %w", path, err)
	} else {
		e.Meta = f.Meta()
		f.Close()
	}
	// Also of a file that is damaged behind its header: what it is layered on is kept for it.
	if page, err := peek(path); err == nil {
		if h, err := decodeHeader(page); err == nil {
			e.ID = id(page)
			if h.base != (digest{}) {
				e.Base = fmt.Sprintf("%x", h.base)
			}
		}
	}
	return e
}

// unreadable says whether an entry's file may be a good one that cannot be read now.
func (e *Entry) unreadable() bool {
	return e.Err != nil && !errors.Is(e.Err, ErrFormat) && !errors.Is(e.Err, ErrVersion) && !errors.Is(e.Err, ErrCorrupt)
}

// Remove deletes a snapshot. When others are layered on it the error is a *LayeredError; when there is none, fs.ErrNotExist.
func (s *Store) Remove(ctx context.Context, name string) error {
	path, err := s.Path(name)
	if err != nil {
		return err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return fmt.Errorf("remove snapshot %s: %w", name, err)
	}
	defer unlock()
	if on := layeredOn(path); len(on) > 0 {
		return &LayeredError{Name: name, On: on}
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove snapshot: %w", err)
	}
	unseal(path)
	return nil
}

// lock keeps everybody from adding and removing.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	return lockDirectories(ctx, s.snapshots(), s.bases())
}

// LayeredError says that a snapshot is kept for others.
type LayeredError struct {
	Name string
	On   []string // names of those that are layered on it
}

func (e *LayeredError) Error() string {
	return fmt.Sprintf("snapshot %s is needed by what is layered on it: remove %s first", e.Name, strings.Join(e.On, ", "))
}
