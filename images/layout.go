package images

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/platform"
)

// maxArchiveFiles bounds the files of an archive of images. Each layer is up to three.
const maxArchiveFiles = 16384

// layoutFile is one file of a layout or an archive.
type layoutFile interface {
	io.ReaderAt
	Size() int64
}

// layout is a directory in the OCI image layout, or an archive of one or of docker save.
type layout struct {
	open  func(name string) (layoutFile, error) // fs.ErrNotExist when there is none
	close func()
}

// openLayout opens what ref names. The caller closes it.
func (s *Store) openLayout(ctx context.Context, ref reference) (*layout, error) {
	switch ref.transport {
	case transportLayout:
		return openLayoutDir(ref.path)
	case transportInput:
		if s.input == nil {
			return nil, errors.New("there is no standard input to read an image from: name a file, as docker-archive:FILE")
		}
		l, err := s.openArchiveLayout(ctx, s.input, func() {})
		if err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
		return l, nil
	}
	f, err := os.Open(ref.path)
	if err != nil {
		return nil, err
	}
	l, err := s.openArchiveLayout(ctx, f, func() { f.Close() })
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", ref.path, err)
	}
	return l, nil
}

// sizedFile is an open file and its size.
type sizedFile struct {
	*os.File
	size int64
}

func (f sizedFile) Size() int64 { return f.size }

// openLayoutDir opens a directory. Links in it lead nowhere outside, and what is not a regular file is not opened.
func openLayoutDir(dir string) (*layout, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // layers are opened at the same time
	var files []*os.File
	open := func(name string) (layoutFile, error) {
		info, err := root.Stat(name)
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%.200s is no regular file", name)
		}
		f, err := root.Open(name)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		files = append(files, f)
		mu.Unlock()
		return sizedFile{f, info.Size()}, nil
	}
	return &layout{open, func() {
		for _, f := range files {
			f.Close()
		}
		root.Close()
	}}, nil
}

// openArchiveLayout indexes a tar archive, which is copied into the store first when it is compressed or no regular file. The layout
// calls closeFile in the end.
func (s *Store) openArchiveLayout(ctx context.Context, f *os.File, closeFile func()) (*layout, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size()
	stream, err := openArchive(&contextReader{ctx, f}, s.limits)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	if stream.compressed || !info.Mode().IsRegular() {
		spooled, err := atomicfile.Create(s.blobPath("archive"))
		if err != nil {
			return nil, err
		}
		closeSource := closeFile
		closeFile = func() { closeSource(); spooled.Discard() }
		if size, err = io.Copy(spooled, stream); err != nil {
			spooled.Discard()
			return nil, fmt.Errorf("unpack: %w", s.explain(noEOF(err)))
		}
		f = spooled.File
	}
	files, err := indexArchive(ctx, f, size)
	if err != nil {
		closeFile()
		return nil, err
	}
	open := func(name string) (layoutFile, error) {
		for range 8 { // docker save has links from one layer's folder to another's
			at, ok := files[name]
			switch {
			case !ok:
				return nil, fmt.Errorf("%.200s: %w", name, fs.ErrNotExist)
			case at.link == "":
				return io.NewSectionReader(f, at.offset, at.size), nil
			}
			name = at.link
		}
		return nil, fmt.Errorf("%.200s: too many links", name)
	}
	return &layout{open, closeFile}, nil
}

// archived is where a file is in an archive.
type archived struct {
	offset, size int64
	link         string // name of the file that has the content
}

func indexArchive(ctx context.Context, f io.ReaderAt, size int64) (map[string]archived, error) {
	in := io.NewSectionReader(f, 0, size)
	files := map[string]archived{}
	for r := tar.NewReader(in); ; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		h, err := r.Next()
		if err == io.EOF {
			return files, nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // names are only looked up
			return nil, fmt.Errorf("damaged archive: %w", noEOF(err))
		}
		if len(files) == maxArchiveFiles {
			return nil, fmt.Errorf("%w: an archive of more than %d files", ErrLimit, maxArchiveFiles)
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			offset, err := in.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			files[name] = archived{offset: offset, size: h.Size}
		case tar.TypeSymlink:
			files[name] = archived{link: path.Join(path.Dir(name), h.Linkname)}
		case tar.TypeLink:
			files[name] = archived{link: path.Clean(h.Linkname)}
		}
	}
}

// has reports whether there is a file of that name.
func (l *layout) has(name string) bool {
	_, err := l.open(name)
	return err == nil
}

// text reads a small file.
func (l *layout) text(name string, limit int64) ([]byte, error) {
	f, err := l.open(name)
	if err != nil {
		return nil, err
	}
	text, err := readBounded(io.NewSectionReader(f, 0, f.Size()), limit)
	if err != nil {
		err = fmt.Errorf("%.200s: %w", name, err)
	}
	return text, err
}

func blobName(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

// refName is the annotation that names an image of a layout (OCI image specification, annotations.md).
const refName = "org.opencontainers.image.ref.name"

// find returns the image of an OCI layout (image-layout.md) that is called tag, or its only one.
func (l *layout) find(ctx context.Context, ref, tag string, want platform.Architecture) (*ociImage, error) {
	text, err := l.text("index.json", maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is not in the OCI image layout: it has no index.json", ref)
	}
	if err != nil {
		return nil, err
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("damaged index.json: %w", err)
	}
	descriptor, err := chooseTag(ref, tag, index.Manifests)
	if err != nil {
		return nil, err
	}
	get := func(_ context.Context, digest string) ([]byte, error) { return l.text(blobName(digest), maxManifest) }
	if tag == "" && len(index.Manifests) > 1 {
		// Several without names are those of several platforms.
		if descriptor, err = choosePlatform(ref, index.Manifests, want); err != nil {
			return nil, err
		}
	}
	if text, err = get(ctx, descriptor.Digest.String()); err != nil {
		return nil, err
	}
	if got := digestOf(text); got != descriptor.Digest.String() {
		return nil, &ChecksumError{URL: ref, Got: got, Want: descriptor.Digest.String()}
	}
	m, digest, err := chooseManifest(ctx, ref, text, want, get)
	if err != nil {
		return nil, err
	}
	config, err := l.text(blobName(m.Config.Digest.String()), maxConfig)
	if err != nil {
		return nil, err
	}
	if got := digestOf(config); got != m.Config.Digest.String() {
		return nil, &ChecksumError{URL: ref, Got: got, Want: m.Config.Digest.String()}
	}
	return &ociImage{name: descriptor.Annotations[refName], from: ref, digest: digest, config: config, layers: m.Layers, blobs: l}, nil
}

// chooseTag returns the descriptor that is called tag; without a tag the only one, or the first of several without names.
func chooseTag(ref, tag string, list []v1.Descriptor) (v1.Descriptor, error) {
	var names []string
	for _, d := range list {
		called := d.Annotations[refName]
		if tag != "" && (called == tag || strings.HasSuffix(called, ":"+tag)) {
			return d, nil
		}
		if called != "" {
			names = append(names, called)
		}
	}
	switch {
	case tag != "":
		return v1.Descriptor{}, fmt.Errorf("%w: %s has no image called %q; it has %.200q", ErrNotFound, ref, tag, names)
	case len(list) == 0:
		return v1.Descriptor{}, fmt.Errorf("%w: %s has no images", ErrNotFound, ref)
	case len(names) > 1:
		return v1.Descriptor{}, fmt.Errorf("%s has several images: add one of %.200q after a colon", ref, names)
	}
	return list[0], nil
}

// findDocker returns the image of an archive of docker save (its manifest.json) that is called tag, or its only one.
func (l *layout) findDocker(ctx context.Context, ref, tag string) (*ociImage, error) {
	text, err := l.text("manifest.json", maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is not an archive of docker save: it has no manifest.json", ref)
	}
	if err != nil {
		return nil, err
	}
	var list []dockerManifest
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("damaged manifest.json: %w", err)
	}
	m, err := chooseDocker(ref, tag, list)
	if err != nil {
		return nil, err
	}
	if len(m.Layers) > maxLayers {
		return nil, fmt.Errorf("%w: %d layers are more than %d", ErrLimit, len(m.Layers), maxLayers)
	}
	config, err := l.text(path.Clean(m.Config), maxConfig)
	if err != nil {
		return nil, err
	}
	image := &ociImage{from: ref, config: config}
	if len(m.RepoTags) > 0 {
		image.name = m.RepoTags[0]
	}
	names := dockerLayers{l, map[string]string{}}
	for _, layer := range m.Layers {
		d, err := l.describe(ctx, path.Clean(layer))
		if err != nil {
			return nil, err
		}
		names.byDigest[d.Digest.String()] = path.Clean(layer)
		image.layers = append(image.layers, d)
	}
	image.blobs = names
	return image, nil
}

// dockerManifest is an element of the manifest.json of docker save.
type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func chooseDocker(ref, tag string, list []dockerManifest) (dockerManifest, error) {
	var names []string
	for _, m := range list {
		for _, called := range m.RepoTags {
			if tag != "" && sameName(called, tag) {
				m.RepoTags = []string{called}
				return m, nil
			}
			names = append(names, called)
		}
	}
	switch {
	case tag != "":
		return dockerManifest{}, fmt.Errorf("%w: %s has no image called %q; it has %.200q", ErrNotFound, ref, tag, names)
	case len(list) == 0:
		return dockerManifest{}, fmt.Errorf("%w: %s has no images", ErrNotFound, ref)
	case len(list) > 1:
		return dockerManifest{}, fmt.Errorf("%s has several images: add one of %.200q after a colon", ref, names)
	}
	return list[0], nil
}

// sameName reports whether two names of a registry mean one image: docker.io/team/app and team/app:latest do.
func sameName(a, b string) bool {
	x, errX := parseRegistryReference(a)
	y, errY := parseRegistryReference(b)
	return a == b || errX == nil && errY == nil && x.name == y.name
}

// describe hashes a file.
func (l *layout) describe(ctx context.Context, name string) (v1.Descriptor, error) {
	f, err := l.open(name)
	if err != nil {
		return v1.Descriptor{}, err
	}
	hash := sha256.New()
	size, err := io.Copy(hash, &contextReader{ctx, io.NewSectionReader(f, 0, f.Size())})
	digest := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(hash.Sum(nil))}
	return v1.Descriptor{MediaType: types.DockerUncompressedLayer, Digest: digest, Size: size}, err
}

func (l *layout) readBlob(ctx context.Context, d v1.Descriptor, f *os.File, report func(done, total int64)) error {
	return l.copyFile(ctx, blobName(d.Digest.String()), d, f, report)
}

// dockerLayers are the layers of an archive of docker save, by their digests.
type dockerLayers struct {
	*layout
	byDigest map[string]string // names of files
}

func (l dockerLayers) readBlob(ctx context.Context, d v1.Descriptor, f *os.File, report func(done, total int64)) error {
	return l.copyFile(ctx, l.byDigest[d.Digest.String()], d, f, report)
}

// copyFile replaces the content of f.
func (l *layout) copyFile(ctx context.Context, name string, d v1.Descriptor, f *os.File, report func(done, total int64)) error {
	from, err := l.open(name)
	if err != nil {
		return err
	}
	if from.Size() != d.Size {
		return fmt.Errorf("%.200s has %d bytes, but its manifest says %d", name, from.Size(), d.Size)
	}
	if err := restart(f, 0); err != nil {
		return err
	}
	done := int64(0)
	counted := readerFunc(func(p []byte) (int, error) {
		n, err := from.ReadAt(p[:min(int64(len(p)), d.Size-done)], done)
		if done += int64(n); done == d.Size {
			err = io.EOF
		}
		report(done, d.Size)
		return n, err
	})
	_, err = io.Copy(f, &contextReader{ctx, counted})
	return err
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
