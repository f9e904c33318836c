package script

import (
	"io"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/rogpeppe/go-internal/testscript"

	"agentvm/images/imagestest"
	"agentvm/internal/host/platform"
)

// official are images as Docker Hub has them, by what they are for (docker-library/official-images, library/python and library/node).
var official = map[string]string{
	"python:3.13-slim": "linux/amd64 linux/arm/v5 linux/arm/v7 linux/arm64/v8 linux/386 linux/ppc64le linux/riscv64 linux/s390x",
	"node:22":          "linux/amd64 linux/arm/v7 linux/arm64/v8 linux/ppc64le linux/s390x",
	"vendor/tool:1":    "linux/amd64",
}

// dockerHub starts a registry of this host in the place of Docker Hub: dockerhub. Its images are those of official, of the built-in root where it is
// for the platform, and of nothing elsewhere. As BuildKit does, each index has an attestation for each image, whose platform is unknown.
func dockerHub(ts *testscript.TestScript, _ bool, _ []string) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	ts.Defer(server.Close)
	for called, platforms := range official {
		if !strings.Contains(called, "/") {
			called = "library/" + called
		}
		ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/" + called)
		ts.Check(err)
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for text := range strings.FieldsSeq(platforms) {
			of, err := v1.ParsePlatform(text)
			ts.Check(err)
			var layers []string
			if a, err := platform.Parse(text); err == nil {
				layers = append(layers, imagestest.BuiltinArchive(a))
			}
			image, err := imagestest.MakeImage(*of, v1.Config{Env: []string{"PATH=/bin:/sbin", "OF=" + called}, Cmd: []string{"uname", "-m"}}, layers...)
			ts.Check(err)
			digest, err := image.Digest()
			ts.Check(err)
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: of}}, mutate.IndexAddendum{Add: empty.Image, Descriptor: v1.Descriptor{
				Platform:    &v1.Platform{OS: "unknown", Architecture: "unknown"},
				Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": digest.String()},
			}})
		}
		ts.Check(remote.WriteIndex(ref, index))
	}
	ts.Setenv("AGENTVM_REGISTRY_MIRRORS", "docker.io="+server.URL)
}
