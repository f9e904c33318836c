package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"golang.org/x/sync/errgroup"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/platform"
	"agentvm/internal/storage/chunked"
)

// packedImage is an image of the store as the OCI image specification has it, with its layers compressed with gzip in temporary files. It is
// a partial.CompressedImageCore. The same layers always become the same bytes, so what has them already need not take them again.
type packedImage struct {
	architecture     platform.Architecture
	manifest, config []byte
	layers           []*packedLayer
}

// packedLayer is one compressed layer, a partial.CompressedLayer.
type packedLayer struct {
	v1.Descriptor
	file *atomicfile.File
	sent func(n int64) // receives how much was read; may be nil
}

// pack compresses the layers of an image, some at once. The caller holds the store, and closes the result.
func (s *Store) pack(ctx context.Context, image *Image, progress ProgressFunc) (_ *packedImage, err error) {
	config, layers, err := s.exported(ctx, image)
	if err != nil {
		return nil, err
	}
	p := &packedImage{architecture: image.Architecture, config: config, layers: make([]*packedLayer, len(layers))}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	var sources []*storedLayer
	defer func() {
		for _, l := range sources {
			l.close()
		}
	}()
	at := Progress{Stage: StagePack, Name: image.Name}
	for _, l := range layers {
		source, err := s.openExported(l)
		if err != nil {
			return nil, err
		}
		sources = append(sources, source)
		at.Total += source.stored
	}
	var mu sync.Mutex
	report := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		at.Done += int64(n)
		progress.report(at)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(layersAtOnce)
	for i, l := range layers {
		group.Go(func() (err error) {
			p.layers[i], err = s.packLayer(ctx, l, sources[i], report)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: describe(types.OCIConfigJSON, config)}
	for _, l := range p.layers {
		manifest.Layers = append(manifest.Layers, l.Descriptor)
	}
	p.manifest, err = json.Marshal(manifest)
	return p, err
}

// exported returns an image's configuration and its layers. An image of one archive gets both: see [Store.Configuration].
func (s *Store) exported(ctx context.Context, image *Image) ([]byte, []Layer, error) {
	config, layers, err := s.Configuration(ctx, image)
	if err != nil {
		return nil, nil, err
	}
	text, err := s.ReadConfig(image)
	if err != nil || text != nil {
		return text, layers, err
	}
	config.RootFS = v1.RootFS{Type: "layers"}
	for _, l := range layers {
		diffID, err := v1.NewHash(l.DiffID)
		if err != nil {
			return nil, nil, err
		}
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, diffID)
	}
	text, err = json.Marshal(config)
	return text, layers, err
}

// openExported opens the plain archive of a layer.
func (s *Store) openExported(l Layer) (*storedLayer, error) {
	key, _ := parseDigest(l.DiffID)
	source, err := s.openLayer(key)
	if errors.Is(err, os.ErrNotExist) || errors.As(err, new(*chunked.DamagedError)) {
		return nil, fmt.Errorf("its layer %.19s is missing or damaged: pull or import the image again: %w", l.DiffID, err)
	}
	return source, err
}

// packLayer compresses a layer, and verifies that what is in the store has its digest.
func (s *Store) packLayer(ctx context.Context, l Layer, from *storedLayer, report func(n int)) (_ *packedLayer, err error) {
	f, err := atomicfile.Create(s.blobPath("packed"))
	if err != nil {
		return nil, err
	}
	packed := &packedLayer{file: f}
	defer func() {
		if err != nil {
			f.Discard()
		}
	}()
	hash, size := sha256.New(), countingWriter(0)
	w := gzip.NewWriter(io.MultiWriter(f, hash, &size))
	if err := copyLayer(ctx, w, l, from, report); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	packed.Descriptor = v1.Descriptor{
		MediaType: types.OCILayer, Size: int64(size),
		Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(hash.Sum(nil))},
	}
	return packed, nil
}

type countingWriter int64

func (c *countingWriter) Write(p []byte) (int, error) {
	*c += countingWriter(len(p))
	return len(p), nil
}

// copyLayer copies the plain archive of a layer, which it compares with its digest.
func copyLayer(ctx context.Context, w io.Writer, l Layer, from *storedLayer, report func(n int)) error {
	plain := sha256.New()
	counted := readerFunc(func(p []byte) (int, error) {
		n, err := from.Read(p)
		report(n)
		return n, err
	})
	if _, err := io.Copy(io.MultiWriter(w, plain), &contextReader{ctx, counted}); err != nil {
		return err
	}
	if got := "sha256:" + hex.EncodeToString(plain.Sum(nil)); got != l.DiffID {
		return &ChecksumError{URL: "layer of the store", Got: got, Want: l.DiffID}
	}
	return nil
}

func describe(t types.MediaType, text []byte) v1.Descriptor {
	hash, size, _ := v1.SHA256(bytes.NewReader(text)) // memory does not fail
	return v1.Descriptor{MediaType: t, Digest: hash, Size: size}
}

// image returns what go-containerregistry writes.
func (p *packedImage) image() (v1.Image, error) { return partial.CompressedToImage(p) }

// platform is what an index says of the image.
func (p *packedImage) platform() *v1.Platform {
	return &v1.Platform{OS: "linux", Architecture: string(p.architecture), Variant: p.architecture.Variant()}
}

// close removes the files.
func (p *packedImage) close() {
	for _, l := range p.layers {
		if l != nil {
			l.file.Discard()
		}
	}
}

func (p *packedImage) RawManifest() ([]byte, error)        { return p.manifest, nil }
func (p *packedImage) RawConfigFile() ([]byte, error)      { return p.config, nil }
func (p *packedImage) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (l *packedLayer) Digest() (v1.Hash, error)            { return l.Descriptor.Digest, nil }
func (l *packedLayer) Size() (int64, error)                { return l.Descriptor.Size, nil }
func (l *packedLayer) MediaType() (types.MediaType, error) { return l.Descriptor.MediaType, nil }
func (l *packedLayer) Compressed() (io.ReadCloser, error) {
	content := io.NewSectionReader(l.file, 0, l.Descriptor.Size)
	return io.NopCloser(readerFunc(func(b []byte) (int, error) {
		n, err := content.Read(b)
		if l.sent != nil {
			l.sent(int64(n))
		}
		return n, err
	})), nil
}

func (p *packedImage) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	for _, l := range p.layers {
		if l.Descriptor.Digest == digest {
			return l, nil
		}
	}
	return nil, fmt.Errorf("layer %s: %w", digest, os.ErrNotExist)
}
