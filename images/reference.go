package images

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// transport is how an image is brought in, named as skopeo and podman do (containers-transports(5)).
type transport string

const (
	transportAlpine        transport = "alpine"         // Alpine's release server
	transportBuiltin       transport = "builtin"        // compiled into the program
	transportRegistry      transport = "docker"         // a registry of the OCI distribution specification
	transportLayout        transport = "oci"            // a directory in the OCI image layout
	transportOCIArchive    transport = "oci-archive"    // a tar archive of such a directory
	transportDockerArchive transport = "docker-archive" // what docker save writes
	transportInput         transport = "-"              // an archive of either kind from standard input
)

// reference is a parsed name of an image.
type reference struct {
	transport transport
	// name is what the store keeps the image under. Archives and layouts may name the image otherwise: see ociImage.
	name     string
	registry name.Reference // of transportRegistry
	path     string         // absolute, of layouts and archives
	tag      string         // which image of a layout or an archive; empty for the only one
}

// parseReference parses what users write for an image: alpine, alpine:VERSION, busybox, NAME[:TAG][@DIGEST] of a registry with or
// without docker://, oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME:TAG], - for an archive on standard input.
func parseReference(ref string) (reference, error) {
	if version, ok, err := alpineName(ref); ok {
		return reference{transport: transportAlpine, name: version}, err
	}
	if ref == BuiltinName {
		return reference{transport: transportBuiltin, name: ref}, nil
	}
	if ref == string(transportInput) {
		return reference{transport: transportInput, name: "localhost/image:latest", path: ref}, nil
	}
	scheme, rest, found := strings.Cut(ref, ":")
	if found {
		switch transport(scheme) {
		case transportLayout, transportOCIArchive, transportDockerArchive:
			return parseFileReference(transport(scheme), rest)
		case transportRegistry:
			bare, ok := strings.CutPrefix(rest, "//")
			if !ok {
				return reference{}, fmt.Errorf("image %.200q: write docker://NAME", ref)
			}
			return parseRegistryReference(bare)
		case "docker-daemon", "containers-storage", "dir":
			return reference{}, fmt.Errorf("image %.200q: agentvm does not read %s: save the image first, as with docker save -o FILE, and name docker-archive:FILE", ref, scheme)
		}
	}
	return parseRegistryReference(ref)
}

// CheckReference returns what is wrong with how an image is named, as Store.Resolve would, without looking for the image.
func CheckReference(ref string) error {
	_, err := parseReference(ref)
	return err
}

// NamesFile reports whether ref names an image of a directory or an archive of the host: oci:, oci-archive:, docker-archive:, or -.
func NamesFile(ref string) bool {
	parsed, err := parseReference(ref)
	return err == nil && parsed.path != ""
}

// parseFileReference parses what stands after oci:, oci-archive: or docker-archive:. The path ends at the first colon; on Windows that
// of a drive does not count.
func parseFileReference(t transport, rest string) (reference, error) {
	volume := filepath.VolumeName(rest)
	path, tag, _ := strings.Cut(rest[len(volume):], ":")
	if path == "" {
		return reference{}, fmt.Errorf("image %s: no file is named, as in %s:./FILE", t, t)
	}
	path, err := filepath.Abs(volume + path)
	if err != nil {
		return reference{}, err
	}
	base := strings.ToLower(strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)))
	r := reference{transport: t, path: path, tag: tag, name: "localhost/" + base + ":latest"}
	if _, err := name.ParseReference(r.name); err != nil {
		r.name = "localhost/image:latest"
	}
	return r, nil
}

// parseRegistryReference parses NAME[:TAG][@DIGEST], where NAME may begin with a registry's host.
func parseRegistryReference(ref string) (reference, error) {
	if strings.HasPrefix(ref, ".") || strings.HasPrefix(ref, "/") {
		return reference{}, fmt.Errorf("image name %.200q: this is a path: name an archive of docker save as docker-archive:FILE, one of the OCI image layout as oci-archive:FILE, a directory in it as oci:DIR", ref)
	}
	parsed, err := name.ParseReference(ref)
	if err != nil || strings.Contains("/"+parsed.Context().RepositoryStr(), "/.") {
		return reference{}, fmt.Errorf("image name %.200q: use lower-case letters, digits and . _ - /, then perhaps : and a tag, or @sha256: and a digest", ref)
	}
	return reference{transport: transportRegistry, name: familiarName(parsed), registry: parsed}, nil
}

// familiarName is the name of an image of a registry as users write it: python:3.13 for docker.io/library/python:3.13. Names that
// stand for agentvm's own sources keep their registry.
func familiarName(ref name.Reference) string {
	repository, ending := ref.Context().RepositoryStr(), ":"+ref.Identifier()
	if _, ok := ref.(name.Digest); ok {
		ending = "@" + ref.Identifier()
	}
	host := ref.Context().RegistryStr()
	if host != name.DefaultRegistry {
		return host + "/" + repository + ending
	}
	short := strings.TrimPrefix(repository, "library/")
	if short == AlpineName || short == BuiltinName {
		return "docker.io/" + repository + ending
	}
	return short + ending
}
