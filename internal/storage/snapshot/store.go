package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"agentvm/internal/host/hostfile"
	"agentvm/internal/host/lockfile"
	"agentvm/internal/host/naming"
	"agentvm/internal/host/private"
)

// Names of a store's directories, of mode 0700. Open finds one from another by them. The files in them:
//
//	STORE/snapshots/NAME.snap      by name
//	STORE/bases/KEY.snap           by key: machines that have just started. At most 8, of 4 GiB together, the ones last used
//	STORE/bases/KEY.ID.snap        one that was of no use, for the snapshots layered on it: found by its ID alone (here its first 16 digits)
//	STORE/*/.snapshots.lock        held for the moment in which something is added, replaced or removed
//	STORE/bases/.KEY.writing       held by who writes this base
//	STORE/*/NAME.snap.RANDOM.disk/ the disk beside a snapshot. It loses its name after the file; the next OpenStore removes one that no file names
//	STORE/forks/NAME.snap          what forks start from, until they have started. Nothing is layered on it
//	STORE/forks/.NAME.lock         held by who makes these forks
//	STORE/snapshot.key             32 random bytes, of mode 0600: the store's, never exported
//	STORE/*/.NAME.snap.seal        HMAC-SHA-256 with that key of "agentvm snapshot\n" and the ID (32 bytes): this store has written the file.
//	                               When the file has replaced another of the store's, the same of that one follows
const (
	basesName     = "bases"
	snapshotsName = "snapshots"
	forksName     = "forks"
)

// Store is a directory of snapshots by name and of bases by key. All methods may be called at once, also by several
// processes. It has no index that could be wrong: lists come from the directories.
type Store struct{ dir string }

// Entry is a file of a store.
type Entry struct {
	Name      string // the snapshot's name, or the base's key
	Path      string
	ID        string
	Base      string // the ID of the file that it is layered on, or empty
	Meta      Meta
	Size      int64     // bytes
	Allocated int64     // bytes that it takes on the disk
	Used      time.Time // bases: when Base has last opened it
	Err       error     // why it cannot be opened; then Meta is empty, and when its header cannot be read also ID and Base
}

// OpenStore opens the store in dir, making dir/snapshots and dir/bases of mode 0700 where they are missing, and removes what
// killed processes have left. It refuses directories that other users can write, because restoring a snapshot of theirs runs its code.
func OpenStore(dir string) (*Store, error) {
	s := &Store{dir: dir}
	for _, d := range []string{s.snapshots(), s.bases()} {
		if err := private.MakeFolder(d); err != nil { // which checks dir too
			return nil, fmt.Errorf("snapshot store: %w", err)
		}
	}
	s.removeAbandoned()
	makeKey(dir)
	return s, nil
}

// RemoveAbandoned removes what killed processes have left in the store in dir, if there is one.
func RemoveAbandoned(dir string) { (&Store{dir: dir}).removeAbandoned() }

func (s *Store) removeAbandoned() {
	for _, d := range []string{s.snapshots(), s.bases()} {
		sweep(d, "")
	}
	sweepKeys(s.bases())
	sweepForks(s.forks())
	s.sweepBeside()
}

func (s *Store) snapshots() string { return filepath.Join(s.dir, snapshotsName) }
func (s *Store) bases() string     { return filepath.Join(s.dir, basesName) }
func (s *Store) forks() string     { return filepath.Join(s.dir, forksName) }

// CheckName checks that a snapshot can have this name. The rules are those for names of VMs.
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

// Import makes a snapshot of an exported one. When there is one of that name the error is fs.ErrExist.
func (s *Store) Import(ctx context.Context, r io.Reader, name string, limits ImportLimits) error {
	path, err := s.Path(name)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil { // this saves the work of writing; publish checks again
		return fmt.Errorf("snapshot %s: %w: remove it, or take another name", name, fs.ErrExist)
	}
	if err := receive(ctx, r, path, limits, publication{exclusive: true, locked: true}); err != nil {
		return fmt.Errorf("import snapshot to %s: %w", path, err)
	}
	return nil
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
		if e := describe(filepath.Join(dir, file.Name()), name); !errors.Is(e.Err, fs.ErrNotExist) { // unless it has been removed meanwhile
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
		if name := f.besideName(); name != "" {
			e.Allocated += besideSize(filepath.Join(filepath.Dir(path), name))
		}
	}
	// A file that is damaged behind its header still has these, so that its base is kept.
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

// unreadable reports whether an entry's file may be intact although it cannot be read now.
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
	removeBeside(path, "")
	if err := os.Remove(CompanionPath(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove what belongs to snapshot %s: %w", name, err)
	}
	return nil
}

const companionSuffix = ".vm.json"

// CompanionPath returns the file beside the snapshot at path in which package vm keeps what else belongs to it. It is written after the
// snapshot and removed with it.
func CompanionPath(path string) string { return strings.TrimSuffix(path, Suffix) + companionSuffix }

// WriteCompanion writes the companion of the snapshot at path durably.
func WriteCompanion(path string, b []byte) error { return writePrivate(CompanionPath(path), b, true) }

// sweepCompanions removes the companions in dir without a snapshot. The caller has the lock of the directory, so that no snapshot is
// added meanwhile.
func sweepCompanions(dir string) {
	entries, _ := os.ReadDir(dir) // whoever uses the directory reports the error
	for _, e := range entries {
		owner, companion := strings.CutSuffix(e.Name(), companionSuffix)
		if !companion || e.Name()[0] == '.' {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, owner+Suffix)); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// lock keeps other processes from adding and removing.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	return lockDirectories(ctx, s.snapshots(), s.bases())
}

// sweepBeside removes disks, companions and seals whose snapshots do not exist any more. While another process adds or removes, it leaves
// them to the next OpenStore.
func (s *Store) sweepBeside() {
	entries, err := os.ReadDir(s.snapshots())
	there := map[string]bool{}
	for _, e := range entries {
		there[e.Name()] = true
	}
	if err != nil || !slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		owner, companion := strings.CutSuffix(e.Name(), companionSuffix)
		return isBeside(e.Name()) || companion && !there[owner+Suffix] || isSeal(e.Name()) && !there[strings.TrimSuffix(e.Name()[1:], sealSuffix)]
	}) {
		return
	}
	if lock, err := lockfile.Try(filepath.Join(s.snapshots(), directoryLock)); err == nil {
		sweepBeside(s.snapshots())
		sweepCompanions(s.snapshots())
		sweepSeals(s.snapshots())
		lock.Close()
	}
}

// allocated returns how many bytes a file takes on the disk.
func allocated(info fs.FileInfo) int64 { return int64(hostfile.Of(info).Blocks) * 512 }

// besideSize returns how many bytes the disk beside a snapshot takes, those that it shares with other disks included.
func besideSize(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			n += allocated(info)
		}
		return nil
	})
	return n
}

// LayeredError means that a snapshot cannot be removed, because others are layered on it.
type LayeredError struct {
	Name string
	On   []string // names of the snapshots that are layered on it
}

func (e *LayeredError) Error() string {
	return fmt.Sprintf("snapshot %s is needed by what is layered on it: remove %s first", e.Name, strings.Join(e.On, ", "))
}
