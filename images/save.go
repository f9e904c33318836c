package images

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"agentvm/internal/host/atomicfile"
)

// Save writes an image of the store for other programs. To is one of
//
//	docker-archive:FILE[:NAME:TAG]  what docker load reads; FILE alone means this too
//	oci-archive:FILE[:TAG]          a tar archive of a directory in the OCI image layout
//	oci:DIR[:TAG]                   such a directory, to which the image is added; what has its tag there loses it
//
// where FILE may be "-" for stdout. Configuration and layers are as the store has them; an image of one archive gets that as its only layer.
// Files appear only when they are complete. The error wraps [ErrNotFound] when the store has no such image.
func (s *Store) Save(ctx context.Context, name, to string, stdout io.Writer, progress ProgressFunc) error {
	ref, err := parseTarget(to)
	if err != nil {
		return err
	}
	unlock, err := s.lockShared(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	image, err := s.Find(name)
	if err == nil {
		err = s.saveTo(ctx, image, ref, stdout, progress)
	}
	if err != nil {
		return fmt.Errorf("save %s: %w", name, s.explain(err))
	}
	return nil
}

// standardOutput is the path of a target that is not a file.
const standardOutput = "-"

func parseTarget(to string) (reference, error) {
	scheme, rest, found := strings.Cut(to, ":")
	t := transport(scheme)
	switch {
	case found && (t == transportDockerArchive || t == transportOCIArchive) && (rest == standardOutput || strings.HasPrefix(rest, standardOutput+":")):
		return reference{transport: t, path: standardOutput, tag: strings.TrimPrefix(rest[1:], ":")}, nil
	case found && (t == transportDockerArchive || t == transportOCIArchive || t == transportLayout):
		return parseFileReference(t, rest)
	case found && (t == transportRegistry || scheme == "docker-daemon" || scheme == "containers-storage" || scheme == "dir"):
		return reference{}, fmt.Errorf("save to %.200q: write FILE, docker-archive:FILE, oci-archive:FILE or oci:DIR; agentvm image push sends images to registries", to)
	case to == "":
		return reference{}, errors.New("save: no file is named")
	case to == standardOutput:
		return reference{transport: transportDockerArchive, path: standardOutput}, nil
	}
	file, err := filepath.Abs(to)
	return reference{transport: transportDockerArchive, path: file}, err
}

func (s *Store) saveTo(ctx context.Context, image *Image, to reference, stdout io.Writer, progress ProgressFunc) error {
	if to.transport == transportLayout {
		packed, err := s.pack(ctx, image, progress)
		if err != nil {
			return err
		}
		defer packed.close()
		return packed.saveDir(ctx, to, image.Name)
	}
	out := stdout
	var replaced *atomicfile.File
	if to.path != standardOutput {
		info, err := os.Stat(to.path)
		if err == nil && !info.Mode().IsRegular() && !info.IsDir() { // a device or a pipe, which is not replaced
			f, err := os.OpenFile(to.path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			out = f
		} else {
			if err == nil && info.IsDir() {
				return fmt.Errorf("%s is a directory", to.path)
			}
			if replaced, err = atomicfile.Create(to.path); err != nil {
				return err
			}
			defer replaced.Discard()
			out = replaced
		}
	}
	w := tar.NewWriter(out)
	write := s.writeDocker
	if to.transport == transportOCIArchive {
		write = s.writeOCI
	}
	err := write(ctx, w, image, to.tag, progress)
	if err == nil {
		err = w.Close()
	}
	if err == nil && replaced != nil {
		err = replaced.Commit()
	}
	return err
}

// putFile writes one file of a layout or an archive.
type putFile func(name string, size int64, content io.Reader) error

func toArchive(w *tar.Writer) putFile {
	return func(name string, size int64, content io.Reader) error {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644}); err != nil {
			return err
		}
		_, err := io.Copy(w, content)
		return err
	}
}

func (put putFile) text(name string, text []byte) error {
	return put(name, int64(len(text)), bytes.NewReader(text))
}

func (s *Store) writeOCI(ctx context.Context, w *tar.Writer, image *Image, tag string, progress ProgressFunc) error {
	packed, err := s.pack(ctx, image, progress)
	if err != nil {
		return err
	}
	defer packed.close()
	put := toArchive(w)
	if err := packed.putBlobs(ctx, put); err != nil {
		return err
	}
	index, err := json.Marshal(packed.index(nil, tag, image.Name))
	if err != nil {
		return err
	}
	return put.text("index.json", index)
}

const layoutVersion = `{"imageLayoutVersion":"1.0.0"}` // oci-layout (OCI image specification, image-layout.md)

// putBlobs writes all of a layout except its index.
func (p *packedImage) putBlobs(ctx context.Context, put putFile) error {
	if err := put.text("oci-layout", []byte(layoutVersion)); err != nil {
		return err
	}
	written := map[v1.Hash]bool{}
	for _, l := range p.layers {
		if written[l.Descriptor.Digest] {
			continue
		}
		written[l.Descriptor.Digest] = true
		content := &contextReader{ctx, io.NewSectionReader(l.file, 0, l.Descriptor.Size)}
		if err := put(blobName(l.Descriptor.Digest.String()), l.Descriptor.Size, content); err != nil {
			return err
		}
	}
	for _, text := range [][]byte{p.config, p.manifest} {
		if err := put.text(blobName(digestOf(text)), text); err != nil {
			return err
		}
	}
	return nil
}

// index returns the index of a layout with the image under a tag, without one under its name in the store, beside what others has.
func (p *packedImage) index(others *v1.IndexManifest, tag, name string) *v1.IndexManifest {
	if others == nil {
		others = &v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	}
	d := describe(types.OCIManifestSchema1, p.manifest)
	d.Platform = p.platform()
	if tag == "" {
		tag = nameForOthers(name)
	}
	if tag != "" {
		d.Annotations = map[string]string{refName: tag}
	}
	others.Manifests = slices.DeleteFunc(others.Manifests, func(old v1.Descriptor) bool { return old.Annotations[refName] == tag })
	others.Manifests = append(others.Manifests, d)
	return others
}

// nameForOthers is an image's name with a tag, or empty where that promises what it cannot: a digest.
func nameForOthers(name string) string {
	if strings.Contains(name, "@") {
		return ""
	}
	if strings.Contains(path.Base(name), ":") {
		return name
	}
	return name + ":latest"
}

// saveDir adds the image to a directory, which is made if there is none. Links in it lead nowhere outside.
func (p *packedImage) saveDir(ctx context.Context, to reference, name string) error {
	if err := os.MkdirAll(to.path, 0o777); err != nil {
		return err
	}
	others, err := layoutIndex(to.path)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(to.path)
	if err != nil {
		return err
	}
	defer root.Close()
	put := func(name string, size int64, content io.Reader) error {
		if info, err := root.Stat(name); err == nil && info.Mode().IsRegular() && info.Size() == size {
			return nil // named by its content
		}
		folder := root
		if path.Dir(name) != "." {
			if err := root.MkdirAll(path.Dir(name), 0o777); err != nil {
				return err
			}
			if folder, err = root.OpenRoot(path.Dir(name)); err != nil {
				return err
			}
			defer folder.Close()
		}
		f, err := atomicfile.CreateIn(folder, path.Base(name))
		if err != nil {
			return err
		}
		defer f.Discard()
		if _, err := io.Copy(f, content); err != nil {
			return err
		}
		if err := f.Chmod(0o644); err != nil {
			return err
		}
		return f.Commit()
	}
	if err := p.putBlobs(ctx, put); err != nil {
		return err
	}
	index, err := json.Marshal(p.index(others, to.tag, name))
	if err != nil {
		return err
	}
	return atomicfile.WriteIn(root, "index.json", index, 0o644)
}

// layoutIndex returns the index of a layout, or nil when the directory is empty.
func layoutIndex(dir string) (*v1.IndexManifest, error) {
	l, err := openLayoutDir(dir)
	if err != nil {
		return nil, err
	}
	defer l.close()
	text, err := l.text("index.json", maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		entries, err := os.ReadDir(dir)
		if err == nil && len(entries) > 0 && !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == "oci-layout" }) {
			err = fmt.Errorf("%s is not empty and not in the OCI image layout: name another directory", dir)
		}
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	index := &v1.IndexManifest{}
	if err := json.Unmarshal(text, index); err != nil {
		return nil, fmt.Errorf("damaged %s: %w", filepath.Join(dir, "index.json"), err)
	}
	return index, nil
}

// writeDocker writes what docker save does: plain layers, the configuration, and manifest.json.
func (s *Store) writeDocker(ctx context.Context, w *tar.Writer, image *Image, tag string, progress ProgressFunc) error {
	called := nameForOthers(image.Name)
	if tag != "" {
		parsed, err := parseRegistryReference(tag)
		if err != nil {
			return err
		}
		called = nameForOthers(parsed.name)
	}
	config, layers, err := s.exported(ctx, image)
	if err != nil {
		return err
	}
	m := dockerManifest{Config: strings.TrimPrefix(digestOf(config), "sha256:") + ".json"}
	if called != "" {
		m.RepoTags = []string{called}
	}
	put, at := toArchive(w), Progress{Stage: StagePack, Name: image.Name}
	for _, l := range layers {
		key, _ := parseDigest(l.DiffID)
		file := key + ".tar"
		again := slices.Contains(m.Layers, file)
		if m.Layers = append(m.Layers, file); again {
			continue
		}
		source, err := s.openExported(l)
		if err != nil {
			return err
		}
		at.Total += source.stored
		err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file, Size: source.stored, Mode: 0o644})
		if err == nil {
			err = copyLayer(ctx, w, l, source, func(n int) {
				at.Done += int64(n)
				progress.report(at)
			})
		}
		source.close()
		if err != nil {
			return err
		}
	}
	if err := put.text(m.Config, config); err != nil {
		return err
	}
	text, err := json.Marshal([]dockerManifest{m})
	if err != nil {
		return err
	}
	return put.text("manifest.json", text)
}
