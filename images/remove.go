package images

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Remove takes the image called name out of the store, with its archive and disk unless another image has the same.
// It waits for pulls and imports to end. A VM that has the disk open keeps it, except on Windows, where the
// disk stays until a later Remove.
func (s *Store) Remove(ctx context.Context, name string) error {
	parsed, err := parseReference(name)
	if err != nil {
		return err
	}
	unlock, err := s.lockExclusive(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	record := parsed.name
	if image, err := s.find(name, parsed); err == nil {
		record = image.Name
	}
	err = os.Remove(filepath.Join(s.recordDir(), recordFile(record)))
	if os.IsNotExist(err) {
		return fmt.Errorf("remove image: %w in %s: %q", ErrNotFound, s.dir, name)
	}
	if err != nil {
		return fmt.Errorf("remove image %s: %w", name, err)
	}
	s.sweep()
	return s.collect()
}

// collect removes the archives and disks that no image refers to. The caller holds the store's exclusive lock.
func (s *Store) collect() error {
	keep, err := s.referenced()
	if err != nil {
		return err
	}
	for _, dir := range []string{s.blobDir(), s.layerDir(), s.diskDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			if !keep[path] && !strings.HasPrefix(entry.Name(), partialPrefix) {
				os.Remove(path)
			}
		}
	}
	return nil
}

// referenced returns the paths that images need. A record that cannot be read stops it: what it refers to is unknown.
func (s *Store) referenced() (map[string]bool, error) {
	entries, err := os.ReadDir(s.recordDir())
	if err != nil {
		return nil, err
	}
	keep := map[string]bool{}
	for _, entry := range entries {
		name, ok := recordName(entry.Name())
		if !ok {
			continue
		}
		image, err := s.load(name)
		if err != nil {
			return nil, err
		}
		source, _ := parseDigest(image.SourceDigest)
		keep[s.blobPath(source)] = true
		for _, digest := range image.layerBlobs() {
			keep[s.blobPath(digest)] = true
		}
		for _, key := range image.layerKeys() {
			keep[s.layerPath(key)] = true
		}
		keep[s.diskPath(source)] = true
		keep[s.diskPath(source)+recordSuffix] = true
	}
	return keep, nil
}
