package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agentvm/internal/host/hostfile"
	"agentvm/internal/host/lockfile"
)

// Bases are snapshots of machines that have just booted, so that later machines start from there. A VM that finds none makes one; those
// that are not used are removed.
const (
	maxBases     = 8
	maxBaseBytes = 4 << 30 // on the disk
)

// keyLock ends the name of the file whose lock the writer of a key's base holds: .KEY.writing.
const keyLock = ".writing"

// ErrUntrusted means that the store did not write a base itself.
var ErrUntrusted = errors.New("this store has not written it")

// Base opens the base of a key, up to 128 letters, digits, "-" and "_"; fs.ErrNotExist when there is none, and ErrUntrusted for one that
// the store did not write. A store without a key, which cannot be written, returns any base.
func (s *Store) Base(key string) (*File, error) {
	path, err := s.basePath(key)
	if err != nil {
		return nil, err
	}
	f, err := Open(path)
	if err == nil && !f.Own() && inStore(s.bases()) {
		return nil, errors.Join(fmt.Errorf("open snapshot %s: %w", path, ErrUntrusted), f.Close())
	}
	if err == nil {
		_ = hostfile.Touch(path) // the time of use; it cannot be set in a read-only store, from which nothing is collected
	}
	return f, err
}

func (s *Store) basePath(key string) (string, error) {
	bad := func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_')
	}
	if key == "" || len(key) > 128 || strings.ContainsFunc(key, bad) {
		return "", fmt.Errorf("key of a base %.140q: want up to 128 letters, digits, \"-\" and \"_\"", key)
	}
	return filepath.Join(s.bases(), key+Suffix), nil
}

// WriteBase writes the base of a key. It does nothing when there is one, or when another process is writing it.
func (s *Store) WriteBase(ctx context.Context, key string, c Content) error {
	path, err := s.basePath(key)
	if err != nil {
		return err
	}
	lock, err := s.lockKey(key)
	if errors.Is(err, lockfile.ErrHeld) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the base %s: %w", key, err)
	}
	defer lock.Remove()
	if f, err := s.Base(key); err == nil {
		return f.Close()
	}
	return write(ctx, path, c, publication{locked: true})
}

// lockKey fails with lockfile.ErrHeld when another writer has the lock.
func (s *Store) lockKey(key string) (*lockfile.Lock, error) {
	return lockfile.Try(filepath.Join(s.bases(), "."+key+keyLock))
}

// Bases returns the bases, the one used last first. Those that RemoveBase has kept for snapshots are among them; their names have a dot.
func (s *Store) Bases() ([]Entry, error) {
	list, err := entries(s.bases())
	if err != nil {
		return nil, fmt.Errorf("list bases: %w", err)
	}
	slices.SortStableFunc(list, func(a, b Entry) int { return b.Used.Compare(a.Used) })
	return list, nil
}

// Collect removes the bases that cannot be opened, those that RemoveBase has kept for snapshots, those for which keep is not nil and
// returns false, and the ones used longest ago until at most 8 bases of 4 GiB are left. It never removes a base that a snapshot is
// layered on. It also removes the temporary files of killed processes. A process that has a base open continues to use it; on Windows
// such a base stays.
func (s *Store) Collect(ctx context.Context, keep func(Entry) bool) error {
	return s.collect(ctx, keep, maxBases, maxBaseBytes)
}

// PruneBases removes all bases that no snapshot is layered on, and returns them. With dryRun it only returns them. A process that has a base
// open continues to use it.
func (s *Store) PruneBases(ctx context.Context, dryRun bool) ([]Entry, error) {
	return s.removeBases(ctx, nil, 0, 0, dryRun)
}

func (s *Store) collect(ctx context.Context, keep func(Entry) bool, maxCount int, bytes int64) error {
	_, err := s.removeBases(ctx, keep, maxCount, bytes, false)
	return err
}

func (s *Store) removeBases(ctx context.Context, keep func(Entry) bool, maxCount int, bytes int64, dryRun bool) (gone []Entry, err error) {
	for _, dir := range []string{s.snapshots(), s.bases()} {
		sweep(dir, "")
	}
	sweep(s.dir, keyName)
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, fmt.Errorf("collect bases: %w", err)
	}
	defer unlock()
	bases, err := s.Bases()
	if err != nil {
		return nil, err
	}
	snapshots, err := s.List()
	if err != nil {
		return nil, err
	}
	forks, err := s.listForks()
	if err != nil {
		return nil, err
	}
	needed, foreign := map[string]bool{}, false
	for _, e := range slices.Concat(snapshots, bases, forks) {
		if e.unreadable() {
			return nil, fmt.Errorf("collect bases: nothing is removed while it is not known what is needed: %w", e.Err)
		}
		needed[e.Base] = true
		foreign = foreign || errors.Is(e.Err, ErrVersion) && filepath.Dir(e.Path) == s.snapshots()
	}
	kept := func(e Entry) bool { return e.ID != "" && needed[e.ID] || foreign && errors.Is(e.Err, ErrVersion) }
	for _, e := range bases { // these count first, because they stay in any case
		if kept(e) {
			maxCount, bytes = maxCount-1, bytes-e.Allocated
		}
	}
	for _, e := range bases {
		// Only another version of agentvm in the same store can tell whether its own bases are useful.
		useful := !e.retired() && (errors.Is(e.Err, ErrVersion) || e.Err == nil && (keep == nil || keep(e)))
		switch {
		case kept(e):
		case useful && maxCount > 0 && e.Allocated <= bytes:
			maxCount, bytes = maxCount-1, bytes-e.Allocated
		case dryRun:
			gone = append(gone, e)
		default:
			if removed := os.Remove(e.Path); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
				err = errors.Join(err, removed)
			} else {
				gone = append(gone, e)
			}
		}
	}
	if !dryRun {
		sweepSeals(s.snapshots())
		sweepSeals(s.bases())
	}
	return gone, err
}
