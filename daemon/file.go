package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// writeFile replaces a file by rename, so that a reader and a crash see the old content or the new. Mode 0600.
func writeFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), temporary(filepath.Base(path))+"*") // 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = replace(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}

const (
	renameTries = 20
	renamePause = 5 * time.Millisecond
)

// replace renames. Windows refuses that for the moment in which somebody reads the old file.
func replace(from, to string) (err error) {
	for range renameTries {
		if err = os.Rename(from, to); err == nil || runtime.GOOS != "windows" {
			return err
		}
		time.Sleep(renamePause)
	}
	return err
}

// temporary is how the names begin that writeFile uses on the way.
func temporary(base string) string { return "." + base + ".new-" }

// removeTemporary removes what writers left that died before their rename. Nobody else may write in dir meanwhile.
func removeTemporary(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, temporary("*")+"*"))
	for _, name := range left {
		_ = os.Remove(name)
	}
}

// readSmall reads a regular file of at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return b, err
}
