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
	"time"

	"github.com/gofrs/flock"
)

// Bases are snapshots that nobody asked for: of machines that have just started, so that the next ones start from there. Whoever
// finds none makes one; they are removed when they are not used.
const (
	maxBases     = 8
	maxBaseBytes = 4 << 30 // on the disk
)

// keyLock ends the name of the file that is locked by who writes the base of a key: .KEY.writing.
const keyLock = ".writing"

// ErrStranger says of a base that somebody else has put it there.
var ErrStranger = errors.New("this store has not written it")

// Base opens the base of a key, up to 128 letters, digits, "-" and "_"; fs.ErrNotExist when there is none, and ErrStranger for one that
// is not the store's own. A store without a key, which cannot be written, takes what is there.
func (s *Store) Base(key string) (*File, error) {
	path, err := s.basePath(key)
	if err != nil {
		return nil, err
	}
	f, err := Open(path)
	if err == nil && !f.Own() && inStore(s.bases()) {
		return nil, errors.Join(fmt.Errorf("open snapshot %s: %w", path, ErrStranger), f.Close())
	}
	if err == nil {
		_ = os.Chtimes(path, time.Time{}, time.Now()) // when it was used; of a store that cannot be written nothing is collected
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

// WriteBase writes the base of a key. It does nothing when Base gives one, or when somebody is writing it.
func (s *Store) WriteBase(ctx context.Context, key string, c Content) error {
	path, err := s.basePath(key)
	if err != nil {
		return err
	}
	lock, err := s.lockKey(key)
	if lock == nil {
		return err
	}
	defer unlockKey(lock)
	if f, err := s.Base(key); err == nil {
		return f.Close()
	}
	return write(ctx, path, c, publication{locked: true})
}

// lockKey returns nil when somebody else has the lock.
func (s *Store) lockKey(key string) (*flock.Flock, error) {
	for {
		lock := flock.New(filepath.Join(s.bases(), "."+key+keyLock), flock.SetPermissions(0o600))
		ok, err := lock.TryLock()
		if err != nil {
			return nil, fmt.Errorf("write the base %s: %w", key, err)
		}
		if !ok {
			lock.Close()
			return nil, nil
		}
		if current(lock) {
			return lock, nil
		}
		lock.Close() // its holder has removed it
	}
}

func unlockKey(lock *flock.Flock) {
	os.Remove(lock.Path()) // while it is held, so that nobody gets hold of it in between; Windows cannot
	lock.Close()
}

// Bases returns the bases, the one used last first, and among them those that RemoveBase has left to snapshots, whose names have a dot.
func (s *Store) Bases() ([]Entry, error) {
	list, err := entries(s.bases())
	if err != nil {
		return nil, fmt.Errorf("list bases: %w", err)
	}
	slices.SortStableFunc(list, func(a, b Entry) int { return b.Used.Compare(a.Used) })
	return list, nil
}

// Collect removes bases that cannot be opened or that RemoveBase has left, for which keep is not nil and false, and those beyond 8 and beyond 4 GiB, the ones used
// last staying; never one that a snapshot is layered on. It also removes what killed processes have left. Who has a base
// open goes on with it; on Windows such a one stays.
func (s *Store) Collect(ctx context.Context, keep func(Entry) bool) error {
	return s.collect(ctx, keep, maxBases, maxBaseBytes)
}

func (s *Store) collect(ctx context.Context, keep func(Entry) bool, most int, bytes int64) error {
	for _, dir := range []string{s.snapshots(), s.bases()} {
		sweep(dir, "")
	}
	sweep(s.dir, keyName)
	unlock, err := s.lock(ctx)
	if err != nil {
		return fmt.Errorf("collect bases: %w", err)
	}
	defer unlock()
	bases, err := s.Bases()
	if err != nil {
		return err
	}
	snapshots, err := s.List()
	if err != nil {
		return err
	}
	needed, foreign := map[string]bool{}, false
	for _, e := range append(snapshots, bases...) {
		if e.unreadable() {
			return fmt.Errorf("collect bases: nothing is removed while it is not known what is needed: %w", e.Err)
		}
		needed[e.Base] = true
		foreign = foreign || errors.Is(e.Err, ErrVersion) && filepath.Dir(e.Path) == s.snapshots()
	}
	kept := func(e Entry) bool { return e.ID != "" && needed[e.ID] || foreign && errors.Is(e.Err, ErrVersion) }
	for _, e := range bases { // these first: they stay in any case
		if kept(e) {
			most, bytes = most-1, bytes-e.Allocated
		}
	}
	for _, e := range bases {
		// What another agentvm in the same store has made is for that one to judge.
		useful := !e.retired() && (errors.Is(e.Err, ErrVersion) || e.Err == nil && (keep == nil || keep(e)))
		switch {
		case kept(e):
		case useful && most > 0 && e.Allocated <= bytes:
			most, bytes = most-1, bytes-e.Allocated
		default:
			if removed := os.Remove(e.Path); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
				err = errors.Join(err, removed)
			}
		}
	}
	sweepSeals(s.snapshots())
	sweepSeals(s.bases())
	return err
}
