package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/platform"
	"agentvm/internal/host/private"
)

// Bounds of what a manifest may hold, and of the manifest and the configuration themselves, in bytes. Registries refuse manifests
// above 4 MiB (OCI distribution specification, "Pushing Manifests").
const (
	maxManifest   = 4 << 20
	maxConfig     = 1 << 20
	maxLayers     = 512
	maxIndexDepth = 3 // indexes in each other
	layersAtOnce  = 3
)

// ociImage is an image as the OCI image specification and docker save describe it, of which manifest and configuration have been read
// and checked.
type ociImage struct {
	name   string // what the archive or layout calls it; empty when it does not
	from   string // for Image.Ref
	digest string // of the manifest; empty for docker save, which has none
	config []byte
	layers []v1.Descriptor
	blobs  blobSource
}

// blobSource has the layers of an image.
type blobSource interface {
	// readBlob appends to f, which has the blob's beginning or nothing, what is missing, and reports how much is there. It need not
	// verify the digest.
	readBlob(ctx context.Context, d v1.Descriptor, f *os.File, report func(done, total int64)) error
}

// PlatformError says that an image is not for a platform that VMs have, or not for the one that is wanted.
type PlatformError struct {
	Ref       string
	Platforms []string              // what the image is for, such as linux/amd64
	Want      platform.Architecture // empty when any platform of VMs would do
}

func (e *PlatformError) Error() string {
	has := "is for no platform that it names"
	if len(e.Platforms) > 0 {
		has = "is for " + strings.Join(e.Platforms, ", ")
	}
	if e.Want != "" {
		return fmt.Sprintf("image %s %s, not for %s: choose another platform, or a tag or an image that has it", e.Ref, has, e.Want.Platform())
	}
	return fmt.Sprintf("image %s %s, but agentvm runs %s: choose a tag or an image that has one of these, as most official images do", e.Ref, has, platform.Names())
}

// getManifest returns the manifest of that digest ("sha256:" and hex digits).
type getManifest func(ctx context.Context, digest string) ([]byte, error)

// anyManifest has the fields of manifests and of indexes that matter here (OCI image specification, manifest.md and image-index.md;
// Docker's schema 2 has the same).
type anyManifest struct {
	SchemaVersion int             `json:"schemaVersion"`
	Config        v1.Descriptor   `json:"config"`
	Layers        []v1.Descriptor `json:"layers"`
	Manifests     []v1.Descriptor `json:"manifests"`
}

// chooseManifest returns the manifest for a platform that is wanted, and its digest, beginning with text, which is a manifest or an index.
func chooseManifest(ctx context.Context, ref string, text []byte, want platform.Architecture, get getManifest) (anyManifest, string, error) {
	for range maxIndexDepth + 1 {
		var m anyManifest
		if err := json.Unmarshal(text, &m); err != nil {
			return m, "", fmt.Errorf("damaged manifest: %w", err)
		}
		switch {
		case m.Manifests == nil && m.SchemaVersion == 1:
			return m, "", errors.New("manifest is of Docker's schema 1, which registries gave up in 2019: push the image again")
		case m.Manifests == nil:
			return m, digestOf(text), checkManifest(m)
		}
		chosen, err := choosePlatform(ref, m.Manifests, want)
		if err != nil {
			return m, "", err
		}
		if text, err = get(ctx, chosen.Digest.String()); err != nil {
			return m, "", err
		}
		if got := digestOf(text); got != chosen.Digest.String() {
			return m, "", &ChecksumError{URL: "manifest " + chosen.Digest.String(), Got: got, Want: chosen.Digest.String()}
		}
	}
	return anyManifest{}, "", fmt.Errorf("more than %d indexes in each other", maxIndexDepth)
}

// choosePlatform returns the descriptor for the platform that is wanted, else for the preferred that there is. The only one of an index
// that does not say what it is for will do. What the descriptor says only chooses: the image's configuration is what counts.
func choosePlatform(ref string, list []v1.Descriptor, want platform.Architecture) (v1.Descriptor, error) {
	for _, a := range wanted(want) {
		for _, d := range list {
			if p := d.Platform; p != nil && a.Is(p.OS, p.Architecture, p.Variant) {
				return d, nil
			}
		}
	}
	var has []string
	for _, d := range list {
		if p := d.Platform; p != nil && p.OS != "unknown" && p.Architecture != "" && !slices.Contains(has, p.String()) {
			has = append(has, p.String())
		}
	}
	if len(list) == 1 && list[0].Platform == nil {
		return list[0], nil
	}
	slices.Sort(has)
	return v1.Descriptor{}, &PlatformError{Ref: ref, Platforms: has, Want: want}
}

func checkManifest(m anyManifest) error {
	if len(m.Layers) > maxLayers {
		return fmt.Errorf("%w: %d layers are more than %d", ErrLimit, len(m.Layers), maxLayers)
	}
	if m.Config.Size > maxConfig {
		return fmt.Errorf("%w: a configuration of %d bytes", ErrLimit, m.Config.Size)
	}
	for _, d := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		switch {
		case d.Digest.Algorithm != "sha256" || !isHex(d.Digest.Hex, 64):
			return fmt.Errorf("manifest has the digest %.100q: agentvm reads sha256", d.Digest)
		case d.Size < 0:
			return fmt.Errorf("manifest has a blob of %d bytes", d.Size)
		}
	}
	for _, d := range m.Layers {
		if !d.MediaType.IsLayer() {
			return fmt.Errorf("manifest has a layer of the type %.100q, which agentvm cannot unpack", d.MediaType)
		}
	}
	return nil
}

// parseConfig parses and checks an image's configuration (OCI image specification, config.md).
func parseConfig(ref string, text []byte, layers int, want platform.Architecture) (*v1.ConfigFile, error) {
	config, err := v1.ParseConfigFile(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("damaged configuration: %w", err)
	}
	ours := func(a platform.Architecture) bool { return a.Is(config.OS, config.Architecture, config.Variant) }
	switch {
	case !slices.ContainsFunc(wanted(want), ours):
		is := v1.Platform{OS: config.OS, Architecture: config.Architecture, Variant: config.Variant}
		return nil, &PlatformError{Ref: ref, Platforms: []string{fmt.Sprintf("%.80s", is)}, Want: want}
	case len(config.RootFS.DiffIDs) != layers:
		return nil, fmt.Errorf("configuration describes %d layers, the manifest has %d", len(config.RootFS.DiffIDs), layers)
	case layers == 0:
		return nil, errors.New("image has no layers")
	}
	return config, nil
}

// addOCI brings an image into the store under a name. The caller holds the store's shared lock. Of several callers that want the same
// layer, one fetches it.
func (s *Store) addOCI(ctx context.Context, name string, from *ociImage, progress ProgressFunc) (*Image, error) {
	config, err := parseConfig(name, from.config, len(from.layers), s.want)
	if err != nil {
		return nil, err
	}
	image := Image{
		Name: name, Ref: from.from, Architecture: platform.Architecture(config.Architecture), Digest: from.digest, SourceDigest: digestOf(from.config),
	}
	image.setConfig(config.Config)
	for i, d := range from.layers {
		image.Layers = append(image.Layers, Layer{Digest: d.Digest.String(), DiffID: config.RootFS.DiffIDs[i].String()})
	}
	source, _ := parseDigest(image.SourceDigest)
	unlock, err := s.lockKey(ctx, source)
	if err != nil {
		return nil, err
	}
	defer unlock()
	known, err := s.knownLayers()
	if err != nil {
		return nil, err
	}
	verified := !slices.ContainsFunc(image.Layers, func(l Layer) bool { return !known[l] })
	if _, ok := s.loadDisk(source); ok && verified && s.hasSources(&image) {
		return s.add(ctx, image, progress)
	}
	if err := atomicfile.Write(s.blobPath(source), from.config); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fetch, err := s.fetchLayers(ctx, image.Layers, known, name, from, progress)
	if err != nil {
		return nil, err
	}
	// The disk is built of the layers that are there while others come. That it is built also verifies that digests and DiffIDs are of the
	// same archives.
	_, buildErr := s.build(ctx, &image, fetch.wait, func(p Progress) {
		if fetch.left.Load() == 0 {
			progress.report(p)
		}
	})
	if buildErr != nil && !errors.Is(buildErr, errNotFetched) {
		cancel()
	}
	if err := fetch.group.Wait(); err != nil && (buildErr == nil || errors.Is(buildErr, errNotFetched)) {
		return nil, err
	}
	if buildErr != nil {
		return nil, buildErr
	}
	return s.add(ctx, image, progress)
}

// fetch is layers of an image that are being fetched.
type fetch struct {
	group *errgroup.Group
	ctx   context.Context // ends when a layer cannot be fetched
	ready []chan struct{} // closed when a layer is in the store
	left  atomic.Int32    // layers that are not
}

// errNotFetched means that a layer does not come; the error of the fetch's group says why.
var errNotFetched = errors.New("a layer could not be fetched")

// wait waits until a layer is in the store.
func (f *fetch) wait(layer int) error {
	select {
	case <-f.ready[layer]:
		return nil
	case <-f.ctx.Done():
		return errNotFetched
	}
}

// hasSources reports whether all that the image's disk can be built from again is in the store.
func (s *Store) hasSources(image *Image) bool {
	source, _ := parseDigest(image.SourceDigest)
	if image.Layers != nil && !exists(s.blobPath(source)) {
		return false
	}
	blobs := image.layerBlobs()
	for i, key := range image.layerKeys() {
		if !exists(s.layerPath(key)) && !exists(s.blobPath(blobs[i])) {
			return false
		}
	}
	return true
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// knownLayers returns the layers of the images in the store. Of these it is verified that the digest and the DiffID are of one archive.
func (s *Store) knownLayers() (map[Layer]bool, error) {
	list, err := s.records()
	known := map[Layer]bool{}
	for _, image := range list {
		for _, l := range image.Layers {
			known[l] = true
		}
	}
	return known, err
}

// fetchLayers begins to bring the layers that the store does not have, some at once. The caller waits for the group.
func (s *Store) fetchLayers(ctx context.Context, layers []Layer, known map[Layer]bool, name string, from *ociImage, progress ProgressFunc) (*fetch, error) {
	var total int64
	for _, d := range from.layers {
		total += d.Size
		if d.Size > s.limits.Bytes || total > s.limits.Bytes {
			return nil, fmt.Errorf("%w: the layers have more than %d bytes", ErrLimit, s.limits.Bytes)
		}
	}
	var mu sync.Mutex
	done := map[int]int64{}
	f := &fetch{ready: make([]chan struct{}, len(from.layers))}
	f.group, f.ctx = errgroup.WithContext(ctx)
	f.left.Store(int32(len(from.layers)))
	places := make(chan struct{}, layersAtOnce)
	var missing []func() error
	for i, d := range from.layers {
		f.ready[i] = make(chan struct{})
		report := func(n, _ int64) {
			mu.Lock()
			defer mu.Unlock()
			done[i] = n
			at := Progress{Stage: StageDownload, Name: name, Total: total}
			for n := range maps.Values(done) {
				at.Done += n
			}
			progress.report(at)
		}
		key, _ := parseDigest(layers[i].DiffID)
		if known[layers[i]] && exists(s.layerPath(key)) {
			report(d.Size, d.Size)
			close(f.ready[i])
			f.left.Add(-1)
			continue
		}
		missing = append(missing, func() error {
			defer func() { <-places }()
			if err := s.fetchLayer(f.ctx, d, from.blobs, report); err != nil {
				return err
			}
			f.left.Add(-1)
			close(f.ready[i])
			return nil
		})
	}
	f.group.Go(func() error { // the lowest layers first, of which the disk is built first
		for _, fetch := range missing {
			select {
			case places <- struct{}{}:
				f.group.Go(fetch)
			case <-f.ctx.Done():
				return nil
			}
		}
		return nil
	})
	return f, nil
}

// fetchLayer brings one blob into the store, verified. What an earlier attempt left of it is continued.
func (s *Store) fetchLayer(ctx context.Context, d v1.Descriptor, blobs blobSource, report func(done, total int64)) error {
	digest := d.Digest.Hex
	unlock, err := s.lockKey(ctx, digest)
	if err != nil {
		return err
	}
	defer unlock()
	if s.hasBlob(d) {
		report(d.Size, d.Size)
		return nil
	}
	_, err = s.keepDownload(ctx, digest, func(f *os.File) error { return blobs.readBlob(ctx, d, f, report) },
		func(f *os.File) (string, error) { return verify(f, d.Digest.String(), d.Digest.String()) })
	return err
}

// hasBlob reports whether an earlier pull, which did not come to its end, has left all of a blob. A failure of the power since may have
// emptied it.
func (s *Store) hasBlob(d v1.Descriptor) bool {
	f, info, err := private.Open(s.blobPath(d.Digest.Hex))
	if err != nil {
		return false
	}
	defer f.Close()
	if info.Size() != d.Size {
		return false
	}
	_, err = verify(f, d.Digest.String(), d.Digest.String())
	return err == nil
}

// setConfig takes over what a container of the image would run with.
func (i *Image) setConfig(c v1.Config) {
	i.Env, i.Entrypoint, i.Cmd = c.Env, c.Entrypoint, c.Cmd
	i.User, i.WorkingDir, i.StopSignal = c.User, c.WorkingDir, c.StopSignal
	i.Volumes = slices.Sorted(maps.Keys(c.Volumes))
	i.ExposedPorts = slices.Sorted(maps.Keys(c.ExposedPorts))
	i.Labels = c.Labels
	if h := c.Healthcheck; h != nil {
		i.Healthcheck = &Healthcheck{Test: h.Test, Interval: h.Interval, Timeout: h.Timeout, StartPeriod: h.StartPeriod, Retries: h.Retries}
	}
}

// Layer is one layer of an image from a registry or an archive of images.
type Layer struct {
	// Digest names the layer as it is stored, perhaps compressed: "sha256:" and hex digits.
	Digest string `json:"digest"`
	// DiffID is the digest of the plain tar archive.
	DiffID string `json:"diffID"`
}

// layerBlobs returns the digests (hex) of the archives that the image came as, the lowest first.
func (i *Image) layerBlobs() (list []string) {
	if i.Layers == nil {
		source, _ := parseDigest(i.SourceDigest)
		return []string{source}
	}
	for _, layer := range i.Layers {
		digest, _ := parseDigest(layer.Digest)
		list = append(list, digest)
	}
	return list
}

// layerKeys returns what the layers of the image are called in the store, the lowest first: the digest (hex) of the plain archive, or of an
// archive that is a whole root, as it came.
func (i *Image) layerKeys() (list []string) {
	if i.Layers == nil {
		return i.layerBlobs()
	}
	for _, layer := range i.Layers {
		diffID, _ := parseDigest(layer.DiffID)
		list = append(list, diffID)
	}
	return list
}

// manifestTypes is what a registry may answer with.
var manifestTypes = strings.Join([]string{
	string(types.OCIImageIndex), string(types.DockerManifestList), string(types.OCIManifestSchema1), string(types.DockerManifestSchema2),
}, ", ")

// readBounded reads all of r, which may have at most limit bytes.
func readBounded(r io.Reader, limit int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%w: more than %d bytes", ErrLimit, limit)
	}
	return text, err
}
