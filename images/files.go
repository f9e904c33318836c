package images

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentvm/internal/atomicfile"
	"agentvm/internal/errno"
)

const (
	partialPrefix = ".partial-" // a download that broke off; the next pull continues it
	partialAge    = 24 * time.Hour
)

// explain adds advice to errors of the file system that users can solve.
func (s *Store) explain(err error) error {
	if errno.In(err) == errno.ENOSPC {
		return fmt.Errorf("the disk of the image store %s is full: free some space or set AGENTVM_STORE to another place: %w", s.dir, err)
	}
	return err
}

// sweep removes temporary files, and partial downloads that no pull has continued for a day. The caller holds the store's
// exclusive lock.
func (s *Store) sweep() {
	for _, dir := range []string{s.blobDir(), s.layerDir(), s.diskDir(), s.recordDir()} {
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			if isDebris(entry) {
				os.Remove(filepath.Join(dir, entry.Name()))
			}
		}
	}
}

func isDebris(entry os.DirEntry) bool {
	if atomicfile.IsTemporary(entry.Name()) {
		return true
	}
	info, err := entry.Info()
	return strings.HasPrefix(entry.Name(), partialPrefix) && err == nil && time.Since(info.ModTime()) > partialAge
}
