package images

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/hostfile"
	"agentvm/internal/host/lockfile"
	"agentvm/internal/host/platform"
	"agentvm/internal/host/private"
	"agentvm/internal/storage/chunked"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Configuration returns the configuration of an image of the store (OCI image specification, config.md) and its layers, the lowest first. An
// image of one archive has that as its only layer.
func (s *Store) Configuration(ctx context.Context, image *Image) (*v1.ConfigFile, []Layer, error) {
	text, err := s.ReadConfig(image)
	if err != nil {
		return nil, nil, err
	}
	if text != nil {
		config, err := parseConfig(image.Name, text, len(image.Layers), image.Architecture)
		return config, image.Layers, err
	}
	source, _ := parseDigest(image.SourceDigest)
	layer, ok := s.CachedLayer(source)
	if !ok {
		r, err := s.OpenLayer(image, 0)
		if err != nil {
			return nil, nil, err
		}
		defer r.Close()
		if layer, err = s.AddLayer(ctx, r); err == nil {
			err = s.CacheLayer(source, layer)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return &v1.ConfigFile{
		Architecture: string(image.Architecture), Variant: image.Architecture.Variant(), OS: "linux",
		History: []v1.History{{CreatedBy: image.Ref, Created: v1.Time{Time: image.Created}}},
	}, []Layer{layer}, nil
}

// ReadLayer opens the plain tar archive of a layer that images of the store have. The caller closes it.
func (s *Store) ReadLayer(l Layer) (io.ReadCloser, error) {
	return s.OpenLayer(&Image{Name: "of " + l.DiffID, Layers: []Layer{l}}, 0)
}

// AddLayer puts a plain tar archive into the store. Unless an image or a step of a build has it, the next [Store.Remove] removes it: see
// [Store.Hold].
func (s *Store) AddLayer(ctx context.Context, archive io.Reader) (Layer, error) {
	f, err := atomicfile.Create(s.layerPath("new"))
	if err != nil {
		return Layer{}, err
	}
	defer f.Discard()
	w, err := chunked.NewWriter(f)
	if err != nil {
		return Layer{}, err
	}
	size, err := io.Copy(w, io.LimitReader(&contextReader{ctx, archive}, s.limits.Bytes+1))
	if err == nil && size > s.limits.Bytes {
		err = fmt.Errorf("%w: the layer is larger than %d bytes", ErrLimit, s.limits.Bytes)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return Layer{}, err
	}
	sum := hex.EncodeToString(w.Sum())
	return Layer{Digest: "sha256:" + sum, DiffID: "sha256:" + sum}, f.CommitAs(filepath.Base(s.layerPath(sum)))
}

// Hold is for a build: until the returned function is called other calls remove nothing from the store, and no images of [StepName].
func (s *Store) Hold(ctx context.Context) (func(), error) {
	unlockBuild, err := s.lock(ctx, buildLock, "another process that removes what builds have left", lockfile.WaitShared)
	if err != nil {
		return nil, err
	}
	unlock, err := s.lockShared(ctx)
	if err != nil {
		unlockBuild()
		return nil, err
	}
	return func() { unlock(); unlockBuild() }, nil
}

// stepRepository is for images that builds need while they last.
const stepRepository = "localhost/agentvm-build-step"

// StepName names an image that a step of a build needs. When the build is killed, the next [Config.Open] removes the name.
func StepName(key string) string { return stepRepository + ":" + key }

// HasLayer reports whether the store has a layer.
func (s *Store) HasLayer(l Layer) bool {
	key, ok := parseDigest(l.DiffID)
	return ok && exists(s.layerPath(key))
}

// Untag takes its name from an image, and leaves what it is made of to the next [Store.Remove].
func (s *Store) Untag(image *Image) error {
	return os.Remove(s.recordPath(image.Name, image.Architecture))
}

// CachedLayer returns the layer that a step of a build has made, by the digest (hex) of all that the step depends on.
func (s *Store) CachedLayer(key string) (Layer, bool) {
	var l Layer
	path := s.stepPath(key)
	text, err := private.ReadFile(path, maxRecord)
	if err != nil || json.Unmarshal(text, &l) != nil || !s.HasLayer(l) {
		return Layer{}, false
	}
	_ = hostfile.Touch(path) // the time of its last use, see stepTime
	return l, true
}

// CacheLayer notes the layer that a step of a build has made.
func (s *Store) CacheLayer(key string, l Layer) error {
	if err := private.MakeFolder(s.stepDir()); err != nil {
		return err
	}
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return atomicfile.Write(s.stepPath(key), text)
}

// CacheDir is for the caches that steps of builds leave to the next ones.
func (s *Store) CacheDir() string { return filepath.Join(s.dir, "build", "mounts") }

func (s *Store) stepDir() string            { return filepath.Join(s.dir, "build", "steps") }
func (s *Store) stepPath(key string) string { return filepath.Join(s.stepDir(), key+recordSuffix) }

// stepTime is how long the layer of a build's step is kept after its last use.
const stepTime = 14 * 24 * time.Hour

// cachedLayers returns the files of the layers of builds that are kept, and removes the records of others.
func (s *Store) cachedLayers() (list []string) {
	entries, err := os.ReadDir(s.stepDir())
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		path := filepath.Join(s.stepDir(), entry.Name())
		var l Layer
		text, err := private.ReadFile(path, maxRecord)
		if err == nil {
			err = json.Unmarshal(text, &l)
		}
		info, statErr := entry.Info()
		if key, ok := parseDigest(l.DiffID); ok && err == nil && statErr == nil && time.Since(info.ModTime()) < stepTime {
			list = append(list, s.layerPath(key))
			continue
		}
		os.Remove(path)
	}
	return list
}

// CheckName returns an error unless an image that is built can have this name.
func CheckName(name string) error {
	parsed, err := parseReference(name)
	switch {
	case err != nil:
		return err
	case parsed.transport != transportRegistry:
		return fmt.Errorf("image name %q belongs to an image of agentvm's own: choose another", name)
	case strings.Contains(parsed.name, "@"):
		return fmt.Errorf("image name %q has a digest, which no name of ours can promise: give it a tag", name)
	}
	return nil
}

// Compose makes an image called name of layers that the store has and a configuration, of which the layers' digests are set. What had the
// name before, for the configuration's platform, loses it. The caller holds the store.
func (s *Store) Compose(ctx context.Context, name string, config *v1.ConfigFile, layers []Layer) (*Image, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	parsed, err := parseReference(name)
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.RootFS = v1.RootFS{Type: "layers"}
	for _, l := range layers {
		hash, err := v1.NewHash(l.DiffID)
		if err != nil {
			return nil, err
		}
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, hash)
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	if _, err := parseConfig(name, text, len(layers), s.want); err != nil {
		return nil, err
	}
	image := Image{Name: parsed.name, Ref: "build", Architecture: platform.Architecture(config.Architecture), SourceDigest: digestOf(text), Layers: layers}
	image.setConfig(config.Config)
	source, _ := parseDigest(image.SourceDigest)
	unlock, err := s.lockKey(ctx, source)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := atomicfile.Write(s.blobPath(source), text); err != nil {
		return nil, err
	}
	return s.add(ctx, image, s.progress)
}
