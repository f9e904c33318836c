package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"agentvm/internal/host/private"
)

// Find returns the image that is called name in the store, without pulling it. The error wraps [ErrNotFound] when there is none.
func (s *Store) Find(name string) (*Image, error) {
	parsed, err := parseReference(name)
	if err != nil {
		return nil, err
	}
	return s.find(name, parsed)
}

// Tag gives an image of the store another name, for all platforms that it has, unless one is wanted. The name need not be free: what had it
// before, for these platforms, loses it. The names of the sources (alpine, busybox) are taken.
func (s *Store) Tag(ctx context.Context, name, other string) (*Image, error) {
	parsed, err := parseReference(other)
	if err != nil {
		return nil, err
	}
	if parsed.transport != transportRegistry {
		return nil, fmt.Errorf("image name %q belongs to an image of agentvm's own: choose another", other)
	}
	if strings.Contains(parsed.name, "@") {
		return nil, fmt.Errorf("image name %q has a digest, which no name of ours can promise: give it a tag", other)
	}
	unlock, err := s.lockShared(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	image, err := s.Find(name)
	if err != nil {
		return nil, err
	}
	for _, a := range wanted(s.want) {
		also, err := s.loadFor(image.Name, a)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		also.Name = parsed.name
		if err := s.save(also); err != nil {
			return nil, err
		}
	}
	image.Name = parsed.name
	return image, nil
}

// Step is one step of the making of an image.
type Step struct {
	Created   time.Time
	CreatedBy string // the instruction
	Layer     string // digest of the layer that it made: "sha256:" and hex digits; empty for none
}

// History returns how an image of the store was made, as its configuration says, the first step first. Images of one archive have none.
func (s *Store) History(name string) ([]Step, error) {
	image, err := s.Find(name)
	if err != nil || len(image.Layers) == 0 {
		return nil, err
	}
	text, err := s.ReadConfig(image)
	if err != nil {
		return nil, err
	}
	config, err := v1.ParseConfigFile(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("configuration of image %s: %w", image.Name, err)
	}
	layers := image.Layers
	var list []Step
	for _, h := range config.History {
		step := Step{Created: h.Created.Time, CreatedBy: h.CreatedBy}
		if !h.EmptyLayer && len(layers) > 0 {
			step.Layer, layers = layers[0].Digest, layers[1:]
		}
		list = append(list, step)
	}
	return list, nil
}

// OpenLayer opens the plain tar archive of a layer of an image, by its index in Image.Layers; 0 is also the archive of an image that has no
// layers. The caller closes it.
func (s *Store) OpenLayer(image *Image, index int) (io.ReadCloser, error) {
	keys := image.layerKeys()
	if index < 0 || index >= len(keys) {
		return nil, fmt.Errorf("image %s has no layer %d", image.Name, index)
	}
	l, err := s.openLayer(keys[index])
	if err != nil {
		return nil, fmt.Errorf("layer %d of image %s: %w", index, image.Name, err)
	}
	return struct {
		io.Reader
		io.Closer
	}{l, l.file}, nil
}

// ReadConfig returns the configuration of an image (OCI image specification, config.md) as it came. Images of one archive have none.
func (s *Store) ReadConfig(image *Image) ([]byte, error) {
	if len(image.Layers) == 0 {
		return nil, nil
	}
	source, _ := parseDigest(image.SourceDigest)
	text, err := private.ReadFile(s.blobPath(source), maxConfig)
	if err != nil {
		return nil, fmt.Errorf("configuration of image %s: %w", image.Name, err)
	}
	return text, nil
}

// NewLayer is a layer of an image that [Store.AddImage] makes.
type NewLayer struct {
	Layer
	// Size is that of the archive that Open opens, whose digest Layer.Digest is; the archive may be plain or compressed.
	Size int64
	// Open opens the archive. It is called only when the store does not have the layer.
	Open func() (io.ReadCloser, error)
}

// AddImage makes an image called name of a configuration and layers, the lowest first, as it does of those that it fetches: with the same
// checks. Ref says where the image came from.
func (s *Store) AddImage(ctx context.Context, name, ref string, config []byte, layers []NewLayer, progress ProgressFunc) (*Image, error) {
	parsed, err := parseReference(name)
	if err == nil && parsed.transport != transportRegistry {
		err = fmt.Errorf("image name %q belongs to an image of agentvm's own: choose another", name)
	}
	if err != nil {
		return nil, err
	}
	unlock, err := s.lockShared(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	from := &ociImage{from: ref, config: config, blobs: newLayers(layers)}
	for _, l := range layers {
		digest, err := v1.NewHash(l.Digest)
		if _, ok := parseDigest(l.DiffID); err != nil || !ok {
			return nil, fmt.Errorf("layer %q with the DiffID %q: not digests", l.Digest, l.DiffID)
		}
		from.layers = append(from.layers, v1.Descriptor{MediaType: types.OCILayer, Digest: digest, Size: l.Size})
	}
	if err := checkManifest(anyManifest{Config: v1.Descriptor{Digest: v1.Hash{Algorithm: "sha256", Hex: strings.TrimPrefix(digestOf(config), "sha256:")}}, Layers: from.layers}); err != nil {
		return nil, err
	}
	image, err := s.addOCI(ctx, parsed.name, from, progress)
	if err != nil {
		return nil, fmt.Errorf("add image %s: %w", name, s.explain(err))
	}
	return image, nil
}

type newLayers []NewLayer

func (l newLayers) readBlob(ctx context.Context, d v1.Descriptor, f *os.File, report func(done, total int64)) error {
	for _, layer := range l {
		if layer.Digest != d.Digest.String() || layer.Open == nil {
			continue
		}
		r, err := layer.Open()
		if err != nil {
			return err
		}
		defer r.Close()
		if err := restart(f, 0); err != nil {
			return err
		}
		n, err := io.Copy(f, &contextReader{ctx, io.LimitReader(r, d.Size+1)})
		report(n, d.Size)
		return err
	}
	return fmt.Errorf("layer %s: %w", d.Digest, os.ErrNotExist)
}
