package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agentvm/internal/host/platform"
)

// Remove takes the image called name out of the store, for all platforms that it has, unless one is wanted, with its archive and disk unless
// another image has the same.
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
	if err := s.ofLaterVersion(); err != nil {
		return fmt.Errorf("remove image %s: %w", name, err)
	}
	found := false
	for _, record := range recordNames(name, parsed) {
		for _, a := range wanted(s.want) {
			err := os.Remove(s.recordPath(record, a))
			if err != nil && !os.IsNotExist(err) {
				return fmt.Errorf("remove image %s: %w", name, err)
			}
			found = found || err == nil
		}
		if found {
			break
		}
	}
	if !found {
		return fmt.Errorf("remove image: %w", s.notFound(name))
	}
	s.removePartial()
	return s.collect()
}

// collect removes what no image refers to, except downloads that can be continued. The caller holds the store's exclusive lock.
func (s *Store) collect() error {
	list, err := s.readable()
	if err != nil {
		return err
	}
	garbage, err := s.unreferenced(list)
	if err != nil {
		return err
	}
	for _, f := range garbage {
		if !strings.HasPrefix(filepath.Base(f.path), partialPrefix) {
			os.Remove(f.path)
		}
	}
	return nil
}

// ofLaterVersion returns an error when the store has an image for a platform that this version does not know: it would take that image's files for
// garbage.
func (s *Store) ofLaterVersion() error {
	entries, err := os.ReadDir(s.recordDir())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name, record := strings.CutSuffix(entry.Name(), recordSuffix)
		_, of, marked := strings.Cut(name, architectureMark)
		if record && marked && !slices.Contains(platform.Supported(), platform.Architecture(of)) {
			return fmt.Errorf("%s is of a version of agentvm that runs %.80q, whose files this one does not know: use that version, or remove this file", filepath.Join(s.recordDir(), entry.Name()), of)
		}
	}
	return nil
}

// storedFile is a file of the store.
type storedFile struct {
	path string
	size int64
}

// readable returns all images. A record that cannot be read is an error: what it refers to is unknown.
func (s *Store) readable() (list []*Image, err error) {
	entries, err := os.ReadDir(s.recordDir())
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		name, a, ok := recordName(entry.Name())
		if !ok {
			continue
		}
		image, err := s.loadFor(name, a)
		if err != nil {
			return nil, err
		}
		list = append(list, image)
	}
	return list, nil
}

// files returns the paths that an image needs, whether they exist or not.
func (s *Store) files(image *Image) []string {
	source, _ := parseDigest(image.SourceDigest)
	list := []string{s.blobPath(source), s.diskPath(source), s.diskPath(source) + recordSuffix}
	for _, digest := range image.layerBlobs() {
		list = append(list, s.blobPath(digest))
	}
	for _, key := range image.layerKeys() {
		list = append(list, s.layerPath(key))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// unreferenced returns the files that none of these images needs.
func (s *Store) unreferenced(list []*Image) (garbage []storedFile, err error) {
	keep := map[string]bool{}
	for _, path := range s.cachedLayers() {
		keep[path] = true
	}
	for _, image := range list {
		for _, path := range s.files(image) {
			keep[path] = true
		}
	}
	for _, dir := range []string{s.blobDir(), s.layerDir(), s.diskDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			if info, err := entry.Info(); err == nil && !keep[path] {
				garbage = append(garbage, storedFile{path, info.Size()})
			}
		}
	}
	return garbage, nil
}

// Pruned is what [Store.Prune] has removed.
type Pruned struct {
	Images []Key
	Bytes  int64 // that were freed
}

// Prune removes the images that unused, unless it is nil, names, and all that no image needs, also what broken downloads have left. With
// dryRun it only says what it would remove. It waits for pulls and imports to end, and calls unused while none can begin; when that fails
// nothing is removed.
func (s *Store) Prune(ctx context.Context, unused func(*Image) (bool, error), dryRun bool) (Pruned, error) {
	unlock, err := s.lockExclusive(ctx)
	if err != nil {
		return Pruned{}, err
	}
	defer unlock()
	if err := s.ofLaterVersion(); err != nil {
		return Pruned{}, fmt.Errorf("prune images: %w", err)
	}
	list, err := s.readable()
	if err != nil {
		return Pruned{}, fmt.Errorf("prune images: %w", err)
	}
	var pruned Pruned
	kept, removed := list[:0], []*Image(nil)
	for _, image := range list {
		remove := false
		if unused != nil {
			if remove, err = unused(image); err != nil {
				return Pruned{}, fmt.Errorf("prune images: %w", err)
			}
		}
		if remove {
			removed = append(removed, image)
		} else {
			kept = append(kept, image)
		}
	}
	slices.SortFunc(removed, func(a, b *Image) int { return strings.Compare(a.Key().String(), b.Key().String()) })
	for _, image := range removed { // first, so that a record always has its files
		pruned.Images = append(pruned.Images, image.Key())
		if !dryRun {
			if err := s.Untag(image); err != nil {
				return pruned, fmt.Errorf("prune images: %w", err)
			}
		}
	}
	garbage, err := s.unreferenced(kept)
	if err != nil {
		return pruned, fmt.Errorf("prune images: %w", err)
	}
	var errs []error
	for _, f := range garbage {
		if dryRun {
			pruned.Bytes += f.size
		} else if err := os.Remove(f.path); err != nil {
			errs = append(errs, err)
		} else {
			pruned.Bytes += f.size
		}
	}
	return pruned, errors.Join(errs...)
}

// Usage is what an image takes in the store, in bytes: what its removal would free, and what other images have in common with it.
type Usage struct {
	Own    int64 `json:"own"`
	Shared int64 `json:"shared"`
}

// Total is what all images take in the store, in bytes.
type Total struct {
	Images      int   // names
	Bytes       int64 // of all files
	Reclaimable int64 // of files that no image needs
}

// Usage returns what each image takes, and what all take.
func (s *Store) Usage() (map[Key]Usage, Total, error) {
	list, err := s.readable()
	if err != nil {
		return nil, Total{}, fmt.Errorf("sizes of images: %w", err)
	}
	garbage, err := s.unreferenced(list)
	if err != nil {
		return nil, Total{}, fmt.Errorf("sizes of images: %w", err)
	}
	total := Total{Images: len(list)}
	for _, f := range garbage {
		total.Reclaimable += f.size
	}
	users := map[string]int{}
	for _, image := range list {
		for _, path := range s.files(image) {
			users[path]++
		}
	}
	sizes := map[string]int64{}
	for path := range users {
		if info, err := os.Stat(path); err == nil {
			sizes[path] = info.Size()
			total.Bytes += info.Size()
		}
	}
	total.Bytes += total.Reclaimable
	usage := map[Key]Usage{}
	for _, image := range list {
		var u Usage
		for _, path := range s.files(image) {
			if users[path] == 1 {
				u.Own += sizes[path]
			} else {
				u.Shared += sizes[path]
			}
		}
		usage[image.Key()] = u
	}
	return usage, total, nil
}
