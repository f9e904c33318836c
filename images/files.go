package images

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	tempPrefix    = ".tmp-"     // being written; worthless when its process has ended
	partialPrefix = ".partial-" // a download that broke off; the next pull goes on from it
	partialAge    = 24 * time.Hour
)

// createTemp opens a new file in dir under a name that nothing takes for an image.
func createTemp(dir string) (*os.File, error) { return os.CreateTemp(dir, tempPrefix+"*") }

// publish makes the bytes of f durable and gives them their final name. f is closed in any case, and removed on failure.
func publish(f *os.File, path string) error {
	err := f.Sync()
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return syncDir(filepath.Dir(path))
}

// discard closes and removes a file that did not come to its end.
func discard(f *os.File) {
	f.Close()
	os.Remove(f.Name())
}

// syncDir makes a rename durable. Windows has no such call and does not need it.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// writeFile replaces path by text, in one step.
func writeFile(path string, text []byte) error {
	f, err := createTemp(filepath.Dir(path))
	if err != nil {
		return err
	}
	if _, err := f.Write(text); err != nil {
		discard(f)
		return err
	}
	return publish(f, path)
}

// explain says what to do about an error of the file system that users can do something about.
func (s *Store) explain(err error) error {
	const windowsDiskFull = syscall.Errno(112)
	if errors.Is(err, syscall.ENOSPC) || runtime.GOOS == "windows" && errors.Is(err, windowsDiskFull) {
		return fmt.Errorf("the disk of the image store %s is full: free some space or set AGENTVM_STORE to another place: %w", s.dir, err)
	}
	return err
}

// sweep removes temporary files, and partial downloads that nobody has come back for. The caller holds the store's
// exclusive lock.
func (s *Store) sweep() {
	for _, dir := range []string{s.blobDir(), s.diskDir(), s.recordDir()} {
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			if isDebris(entry) {
				os.Remove(filepath.Join(dir, entry.Name()))
			}
		}
	}
}

func isDebris(entry os.DirEntry) bool {
	if strings.HasPrefix(entry.Name(), tempPrefix) {
		return true
	}
	info, err := entry.Info()
	return strings.HasPrefix(entry.Name(), partialPrefix) && err == nil && time.Since(info.ModTime()) > partialAge
}

// hashFile returns the hex SHA-256 of f from its start.
func hashFile(f io.ReaderAt, size int64) (string, error) {
	hash := sha256.New()
	if _, err := io.Copy(hash, io.NewSectionReader(f, 0, size)); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
