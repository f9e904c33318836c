package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"agentvm/images"
)

// container is a program with the licences that belong to it.
type container struct {
	*program
	licences map[string]entry
}

// The container's program runs as this user. Its home is a volume, which runtimes fill from the image, so that the rest can be read-only.
// The store is below it, because the key of compiled code in the home may not be in the store.
const (
	containerUser  = 65532
	containerHome  = "var/lib/agentvm"
	containerStore = containerHome + "/store"
)

// writeImage writes an archive of an OCI image layout with one image for each program.
func (r *release) writeImage(ctx context.Context, programs []container) error {
	system, err := baseSystem()
	if err != nil {
		return err
	}
	store, err := r.store(ctx)
	if err != nil {
		return fmt.Errorf("the store with %s: %w", r.image, err)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range programs {
		image, err := r.containerImage(p, system, store)
		if err != nil {
			return err
		}
		platform := &v1.Platform{OS: p.os, Architecture: p.arch}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	// The layout names one index, so that tools that want one image of an archive choose by their own platform.
	named := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: index, Descriptor: v1.Descriptor{Annotations: map[string]string{"org.opencontainers.image.ref.name": r.version}},
	})
	dir := filepath.Join(r.work, "layout")
	if _, err := layout.Write(dir, named); err != nil {
		return err
	}
	tree, err := readTree(dir, "")
	if err != nil {
		return err
	}
	f, err := os.Create(r.artifact("oci.tar"))
	if err != nil {
		return err
	}
	t := tar.NewWriter(f)
	for _, name := range withParents(tree) {
		if err := addTar(t, name, tree[name], strings.HasSuffix(name, "/"), 0, r.time); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(t.Close(), f.Close())
}

// containerImage makes the image of one platform. Layers that platforms share come first.
func (r *release) containerImage(p container, system, store map[string]entry) (v1.Image, error) {
	program := map[string]entry{"usr/bin/agentvm": {p.binary, 0o755}}
	for name, e := range p.licences {
		program["usr/share/doc/agentvm/"+name] = e
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	var layers []mutate.Addendum
	for _, l := range []struct {
		what  string
		files map[string]entry
		owner int
	}{{"users and certificates", system, 0}, {"store with " + r.image, store, containerUser}, {"agentvm " + r.version, program, 0}} {
		layer, err := makeLayer(l.files, l.owner, r.time)
		if err != nil {
			return nil, err
		}
		layers = append(layers, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: r.time}, CreatedBy: l.what}})
	}
	image, err := mutate.Append(image, layers...)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.os, p.arch, v1.Time{Time: r.time}
	config.Config = v1.Config{
		User:       fmt.Sprintf("%d:%[1]d", containerUser),
		Env:        []string{"PATH=/usr/bin", "HOME=/" + containerHome, "AGENTVM_STORE=/" + containerStore, "TMPDIR=/" + containerHome},
		Entrypoint: []string{"/usr/bin/agentvm"},
		WorkingDir: "/",
		Volumes:    map[string]struct{}{"/" + containerHome: {}},
		Labels: map[string]string{
			"org.opencontainers.image.title": "agentvm", "org.opencontainers.image.version": r.version,
			"org.opencontainers.image.licenses": "Apache-2.0 AND GPL-2.0-only AND LGPL-2.1-or-later",
		},
	}
	return mutate.ConfigFile(image, config)
}

// makeLayer makes a layer of files; what is in containerHome is owner's and no other user's.
func makeLayer(files map[string]entry, owner int, at time.Time) (v1.Layer, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for _, name := range withParents(files) {
		e, user := files[name], 0
		if strings.HasPrefix(name, containerHome+"/") {
			user = owner
			if strings.HasSuffix(name, "/") {
				e.mode = 0o700
			}
		}
		if err := addTar(t, name, e, strings.HasSuffix(name, "/"), user, at); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression))
}

// baseSystem is what programs expect of a system: users, a directory for temporary files, and the certificates of authorities, as
// Go's own list has them, without those that hold under conditions, which files of certificates cannot express.
func baseSystem() (map[string]entry, error) {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return map[string]entry{
		"etc/passwd":                        {fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nagentvm:x:%d:%[1]d:agentvm:/%s:/sbin/nologin\n", containerUser, containerHome), 0o644},
		"etc/group":                         {fmt.Appendf(nil, "root:x:0:\nagentvm:x:%d:\n", containerUser), 0o644},
		"etc/ssl/certs/ca-certificates.crt": {roots.Bytes(), 0o644},
		"tmp/":                              {nil, 0o1777},
	}, nil
}

// store makes a store with r.image and returns its files.
func (r *release) store(ctx context.Context) (map[string]entry, error) {
	dir := filepath.Join(r.work, "store")
	s, err := images.Open(dir)
	if err != nil {
		return nil, err
	}
	if _, err := s.Resolve(ctx, r.image); err != nil {
		return nil, err
	}
	tree, err := readTree(dir, containerStore+"/")
	if err != nil {
		return nil, err
	}
	for name, e := range tree {
		below := strings.TrimPrefix(name, containerStore+"/")
		if strings.HasPrefix(below, "locks/") || len(e.content) == 0 {
			delete(tree, name)
			continue
		}
		if strings.HasPrefix(below, "images/") {
			if e.content, err = withTime(e.content, r.time); err != nil {
				return nil, fmt.Errorf("%s: %w", below, err)
			}
		}
		tree[name] = entry{e.content, 0o600}
	}
	if len(tree) == 0 {
		return nil, errors.New("it is empty")
	}
	return tree, nil
}

// withTime is the record of an image that was put into the store at a time.
func withTime(record []byte, at time.Time) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(record, &fields); err != nil {
		return nil, err
	}
	if !slices.Contains(slices.Collect(maps.Keys(fields)), "created") {
		return nil, errors.New("the record of the image has no time")
	}
	fields["created"] = fmt.Appendf(nil, "%q", at.Format(time.RFC3339))
	return json.MarshalIndent(fields, "", "  ")
}
