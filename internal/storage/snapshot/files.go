package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Files is the writable disk of a snapshot, for whoever does without its memory.
type Files struct {
	SavedDisk
	// Meta is the snapshot's description, or nil when it cannot be read.
	Meta *Meta

	file *File // nil: it cannot be opened
}

// OpenFiles opens the writable disk of a snapshot whose memory is not needed, and may be of another version or damaged, without the file that
// it is layered on. A disk beside the file is found although the file cannot be read. When the snapshot has no disk the error is fs.ErrNotExist.
func OpenFiles(path string) (*Files, error) {
	file, err := openAlone(path)
	if err != nil {
		return openOrphan(path, fmt.Errorf("open snapshot %s: %w", path, err))
	}
	saved, err := file.OpenDisk()
	if err == nil && saved == nil {
		err = fmt.Errorf("snapshot %s has no disk, its files are in its memory: %w", path, fs.ErrNotExist)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	meta := file.Meta()
	return &Files{saved, &meta, file}, nil
}

// openOrphan opens the only disk beside a file that cannot be opened because of err.
func openOrphan(path string, err error) (*Files, error) {
	var found []string
	entries, _ := os.ReadDir(filepath.Dir(path))
	for _, e := range entries {
		if isBesideOf(e.Name(), path) {
			found = append(found, e.Name())
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("%w (%d disks are beside it)", err, len(found))
	}
	saved, failed := openBeside(path, found[0])
	if failed != nil {
		return nil, errors.Join(err, failed)
	}
	return &Files{SavedDisk: saved}, nil
}

// Close closes the disk, and the snapshot's file.
func (f *Files) Close() error {
	err := f.SavedDisk.Close()
	if f.file != nil {
		err = errors.Join(err, f.file.Close())
	}
	return err
}
