package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// Locks are held on files by the operating system, so they end with the process that held them. There are two
// levels, always taken in this order:
//
//	store   shared by whoever adds to the store, exclusive for whoever removes from it
//	key     one source (a download, an archive), exclusive: its second user finds it done

const lockPoll = 20 * time.Millisecond

func (s *Store) lockFile(name string) *flock.Flock {
	return flock.New(filepath.Join(s.dir, "locks", name), flock.SetPermissions(0o600))
}

// lockShared waits until nobody removes. The returned function gives the lock back.
func (s *Store) lockShared(ctx context.Context) (func(), error) {
	s.sweepIfIdle()
	lock := s.lockFile("store")
	if _, err := lock.TryRLockContext(ctx, lockPoll); err != nil {
		return nil, fmt.Errorf("wait for the image store: %w", err)
	}
	return func() { lock.Close() }, nil
}

// lockExclusive waits until nobody adds.
func (s *Store) lockExclusive(ctx context.Context) (func(), error) {
	lock := s.lockFile("store")
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		return nil, fmt.Errorf("wait for the image store: %w", err)
	}
	return func() { lock.Close() }, nil
}

// lockKey waits until nobody else works on key.
func (s *Store) lockKey(ctx context.Context, key string) (func(), error) {
	sum := sha256.Sum256([]byte(key))
	lock := s.lockFile(hex.EncodeToString(sum[:16]))
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		return nil, fmt.Errorf("wait for another process that fetches %s: %w", key, err)
	}
	return func() { lock.Close() }, nil
}

// sweepIfIdle removes what killed processes left, unless somebody is at work.
func (s *Store) sweepIfIdle() {
	lock := s.lockFile("store")
	if ok, err := lock.TryLock(); err != nil || !ok {
		return
	}
	defer lock.Close()
	s.sweep()
}
