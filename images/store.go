package images

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agentvm/internal/host/platform"
	"agentvm/internal/host/private"
)

// Config configures a Store. The zero value is the user's own store and Alpine's own server.
type Config struct {
	// Dir is the store's directory (default: AGENTVM_STORE, else agentvm in the user's cache directory).
	Dir string
	// AlpineMirror is the base URL of an Alpine mirror, http or https (default: AGENTVM_ALPINE_MIRROR, else
	// https://dl-cdn.alpinelinux.org/alpine).
	AlpineMirror string
	// RegistryMirrors are HOST=URL, as docker.io=https://mirror.example.org: what replaces a registry (default:
	// AGENTVM_REGISTRY_MIRRORS, separated by commas).
	RegistryMirrors []string
	// InsecureRegistries are hosts, with their ports, whose certificate is not checked and that may speak plain HTTP (default:
	// AGENTVM_INSECURE_REGISTRIES, separated by commas). Those of this host always may.
	InsecureRegistries []string
	// PublicRegistries has registries on loopback, link-local and private addresses refused, except those of RegistryMirrors and
	// InsecureRegistries and those for which there are credentials. It is for names that come from someone who may not see what this host
	// reaches.
	PublicRegistries bool
	// Transport carries the downloads (default: one with proxies from the environment and time-outs).
	Transport http.RoundTripper
	// Limits bound archives.
	Limits Limits
	// Input is what the image called - is read from, to its end. It stays open (default: there is no such image).
	Input *os.File
	// Progress receives the progress of a pull that Resolve starts (may be nil).
	Progress ProgressFunc
	// Logger receives one line for each pull (may be nil).
	Logger *slog.Logger
}

// Store is a directory of images. All methods may be called at the same time.
type Store struct {
	dir      string
	alpine   alpineSource
	limits   Limits
	progress ProgressFunc
	log      *slog.Logger
	input    *os.File              // may be nil
	want     platform.Architecture // see For

	registries *registries
}

// ErrNoPlace means that neither AGENTVM_STORE nor the system has a directory for a store. Its text says what to do.
var ErrNoPlace = errors.New("no place for images")

// DefaultDir returns the directory of a store without a Config.Dir: AGENTVM_STORE, else "agentvm" in the
// directory that the system has for caches (on Linux ~/.cache).
func DefaultDir() (string, error) {
	if dir := os.Getenv("AGENTVM_STORE"); dir != "" {
		return filepath.Abs(dir)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w: %w (set AGENTVM_STORE to a directory that can be written)", ErrNoPlace, err)
	}
	return filepath.Join(cache, "agentvm"), nil
}

// Open opens the store in dir, making it when it is not there. An empty dir means [DefaultDir].
func Open(dir string) (*Store, error) { return Config{Dir: dir}.Open() }

// Open opens the store that c describes, making its directories, readable by their owner only, when they are not there. Directories
// that others may change are refused (private.ErrNotPrivate). What killed processes have left there is removed.
func (c Config) Open() (*Store, error) {
	if c.Dir == "" {
		var err error
		if c.Dir, err = DefaultDir(); err != nil {
			return nil, err
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	fetch := newFetcher(c.Transport, c.Logger)
	alpine, err := newAlpineSource(c.AlpineMirror, fetch)
	if err != nil {
		return nil, err
	}
	registries, err := newRegistries(c, fetch)
	if err != nil {
		return nil, err
	}
	s := &Store{registries: registries, dir: c.Dir, alpine: alpine, limits: c.Limits.withDefaults(), progress: c.Progress, log: c.Logger, input: c.Input}
	for _, dir := range []string{s.dir, s.blobDir(), s.layerDir(), s.diskDir(), s.recordDir(), s.lockDir()} {
		if err := private.MakeFolder(dir); err != nil {
			return nil, fmt.Errorf("image store: %w", err)
		}
	}
	s.removeAbandoned()
	return s, nil
}

// For returns the store as one platform has it: what it finds, pulls, imports and removes is for VMs of that architecture. Without one, a name
// stands for the image that there is, in the store and in its source, and of several for that of the platform that
// [platform.Supported] has first; [Store.Remove] and [Store.Tag] take all.
func (s *Store) For(a platform.Architecture) *Store {
	of := *s
	of.want = a
	return &of
}

// Dir returns the store's directory.
func (s *Store) Dir() string { return s.dir }

func (s *Store) blobDir() string   { return filepath.Join(s.dir, "blobs", "sha256") }
func (s *Store) layerDir() string  { return filepath.Join(s.dir, "layers") }
func (s *Store) diskDir() string   { return filepath.Join(s.dir, "disks") }
func (s *Store) recordDir() string { return filepath.Join(s.dir, "images") }
func (s *Store) lockDir() string   { return filepath.Join(s.dir, "locks") }

// List returns the images in the store by name, of all platforms. Images whose disk is missing or incomplete are left out.
func (s *Store) List() ([]Image, error) {
	list, err := s.records()
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	list = slices.DeleteFunc(list, func(image Image) bool { return !s.usable(&image) && !s.isFormer(&image) })
	slices.SortFunc(list, func(a, b Image) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(string(b.Architecture), string(a.Architecture)))
	})
	return list, nil
}

// records returns every image whose record can be read.
func (s *Store) records() ([]Image, error) {
	entries, err := os.ReadDir(s.recordDir())
	if err != nil {
		return nil, err
	}
	var list []Image
	for _, entry := range entries {
		if name, a, ok := recordName(entry.Name()); ok {
			if image, err := s.loadFor(name, a); err == nil {
				list = append(list, *image)
			}
		}
	}
	return list, nil
}

// isFormer reports whether an image's disk is that of a version that did not compress them. Resolve makes it anew.
func (s *Store) isFormer(image *Image) bool {
	source, _ := parseDigest(image.SourceDigest)
	return exists(s.diskPathOf(1, source)) && s.hasSources(image)
}

// usable reports whether the files of an image's root disk exist and are complete.
func (s *Store) usable(image *Image) bool {
	source, _ := parseDigest(image.SourceDigest)
	_, ok := s.loadDisk(source)
	return ok
}

// ErrNotFound is wrapped by errors about images that are neither in the store nor known to a source.
var ErrNotFound = errors.New("no such image")
