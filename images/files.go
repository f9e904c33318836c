package images

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/errno"
	"agentvm/internal/host/lockfile"
	"agentvm/internal/host/platform"
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

// RemoveAbandoned removes what killed processes have left in the store in dir, if there is one: temporary files, and the names of images
// that a build needed. [Config.Open] does that too.
func RemoveAbandoned(dir string) { (&Store{dir: dir}).removeAbandoned() }

func (s *Store) removeAbandoned() {
	for _, dir := range []string{s.dir, s.blobDir(), s.layerDir(), s.diskDir(), s.recordDir(), s.stepDir(), s.CacheDir()} {
		atomicfile.RemoveAllTemporary(dir)
	}
	s.untagAbandoned()
}

// untagAbandoned removes the records of temporary images, unless there is a build that could need them.
func (s *Store) untagAbandoned() {
	prefix := strings.TrimSuffix(recordFile(stepRepository+":", platform.RISCV64), recordSuffix)
	entries, _ := os.ReadDir(s.recordDir()) // whoever uses the store reports the error
	var left []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			left = append(left, filepath.Join(s.recordDir(), entry.Name()))
		}
	}
	if len(left) == 0 {
		return
	}
	lock, err := lockfile.Try(s.lockPath(buildLock))
	if err != nil {
		return
	}
	defer lock.Close()
	for _, path := range left {
		_ = os.Remove(path)
	}
}

// removePartial removes downloads that no pull has continued for a day. The caller holds the store's exclusive lock.
func (s *Store) removePartial() {
	entries, _ := os.ReadDir(s.blobDir())
	for _, entry := range entries {
		info, err := entry.Info()
		if strings.HasPrefix(entry.Name(), partialPrefix) && err == nil && time.Since(info.ModTime()) > partialAge {
			_ = os.Remove(filepath.Join(s.blobDir(), entry.Name()))
		}
	}
}
