package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"

	"agentvm/internal/host/lockfile"
)

// Locks are held on files by the operating system, so they end with the process that held them. There are two
// levels, always taken in this order:
//
//	store   shared for calls that add to the store, exclusive for calls that remove from it
//	key     one source (a download, an archive), exclusive: the second caller finds the work done
//
// A build holds another one, shared, while it needs temporary images.

const buildLock = "build"

func (s *Store) lockPath(name string) string { return filepath.Join(s.lockDir(), name) }

// lockShared waits until no call removes. The returned function releases the lock.
func (s *Store) lockShared(ctx context.Context) (func(), error) {
	s.removeAbandoned()
	s.removePartialIfIdle()
	return s.lock(ctx, "store", "the image store", lockfile.WaitShared)
}

// lockExclusive waits until no call adds or removes.
func (s *Store) lockExclusive(ctx context.Context) (func(), error) {
	return s.lock(ctx, "store", "the image store", lockfile.Wait)
}

// lockKey waits until no other call works on key.
func (s *Store) lockKey(ctx context.Context, key string) (func(), error) {
	sum := sha256.Sum256([]byte(key))
	return s.lock(ctx, hex.EncodeToString(sum[:16]), "another process that fetches "+key, lockfile.Wait)
}

func (s *Store) lock(ctx context.Context, name, who string, wait func(context.Context, string) (*lockfile.Lock, error)) (func(), error) {
	lock, err := wait(ctx, s.lockPath(name))
	if err != nil {
		return nil, fmt.Errorf("wait for %s: %w", who, err)
	}
	return func() { lock.Close() }, nil
}

// removePartialIfIdle is removePartial, unless another call adds or removes.
func (s *Store) removePartialIfIdle() {
	lock, err := lockfile.Try(s.lockPath("store"))
	if err != nil {
		return
	}
	defer lock.Close()
	s.removePartial()
}
