package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"agentvm/internal/host/platform"
)

const (
	alpineServer  = "https://dl-cdn.alpinelinux.org/alpine"
	alpineMaxSize = 256 << 20
	listMaxSize   = 1 << 20
)

// AlpineName is the name of Alpine's images, before the version. Alone it means the newest pinned release.
const AlpineName = "alpine"

// UnrecordedAlpine is what AlpineName meant in versions of this program that did not record the image of a VM's disk.
const UnrecordedAlpine = "alpine:3.20.3"

// alpineSource finds releases on Alpine's server or a mirror of it.
type alpineSource struct {
	base  *url.URL
	fetch *fetcher
}

// ErrMirror says what is wrong with Config.AlpineMirror; no other directory would help.
var ErrMirror = errors.New("not a URL of http, https or file")

func newAlpineSource(mirror string, fetch *fetcher) (alpineSource, error) {
	mirror = cmp.Or(mirror, os.Getenv("AGENTVM_ALPINE_MIRROR"), alpineServer)
	base, err := url.Parse(mirror)
	switch {
	case err != nil:
	case base.Scheme == "file" && (base.Host == "" || base.Host == "localhost") && base.Path != "":
		return alpineSource{base, fetch.ofHost()}, nil
	case base.Host != "" && (base.Scheme == "http" || base.Scheme == "https"):
		return alpineSource{base, fetch}, nil
	}
	return alpineSource{}, fmt.Errorf("Alpine mirror %q (AGENTVM_ALPINE_MIRROR): %w", mirror, ErrMirror)
}

// AlpineMirror returns the base URL of the mirror that the store was configured with, without a "/" at its end; empty for Alpine's own server.
// A mirror that guests cannot reach, in a directory or on loopback of this host, and one with a password are none.
func (s *Store) AlpineMirror() string {
	base := s.alpine.base
	host := base.Hostname()
	address, err := netip.ParseAddr(host)
	if base.Scheme == "file" || base.User != nil || host == "localhost" || err == nil && address.Unmap().IsLoopback() || strings.HasSuffix(base.String(), "//dl-cdn.alpinelinux.org/alpine") {
		return ""
	}
	return strings.TrimRight(base.String(), "/")
}

func (a alpineSource) path(branch string, of platform.Architecture, file string) *url.URL {
	return a.base.JoinPath(branch, "releases", of.Machine(), file)
}

// alpineName returns the name under which the store keeps an Alpine reference, and false for other references.
func alpineName(ref string) (string, bool, error) {
	name, version, tagged := strings.Cut(ref, ":")
	switch {
	case name != AlpineName:
		return "", false, nil
	case !tagged:
		return "alpine:" + pins[0].version, true, nil
	case version != "latest" && !isVersion(version, 2) && !isVersion(version, 3):
		return "", true, fmt.Errorf("image %.80q: the version of Alpine is latest, or as 3.24 or 3.24.2", ref)
	}
	return ref, true, nil
}

// find returns the release that version means. A pinned one needs no server.
func (a alpineSource) find(ctx context.Context, version string, of platform.Architecture) (release, error) {
	if pinned, ok := pinnedRelease(version, of); ok {
		return pinned, nil
	}
	if !a.trusted() {
		return release{}, fmt.Errorf("alpine:%s for %s takes its checksum from the mirror, which therefore has to be https: %s", version, of.Platform(), a.base.Redacted())
	}
	if isVersion(version, 3) {
		return a.exact(ctx, release{version: version, architecture: of})
	}
	branch := "latest-stable"
	if version != "latest" {
		branch = "v" + version
	}
	found, err := a.list(ctx, branch, of)
	if err == nil && version != "latest" && found.branch() != branch {
		err = fmt.Errorf("%s names release %s", a.path(branch, of, "latest-releases.yaml").Redacted(), found.version)
	}
	return found, err
}

// trusted reports whether checksums from the mirror can be trusted, because nothing on the way can change them.
func (a alpineSource) trusted() bool {
	ip := net.ParseIP(a.base.Hostname())
	return a.base.Scheme == "https" || a.base.Scheme == "file" || a.base.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// exact finds the checksum of one release: in the file beside it, else in its branch's list.
func (a alpineSource) exact(ctx context.Context, want release) (release, error) {
	checksum := a.path(want.branch(), want.architecture, want.fileName()+".sha512")
	text, err := a.fetch.text(ctx, checksum.String(), listMaxSize)
	if err == nil {
		if want.sha512, err = parseChecksum(text, want.fileName()); err != nil {
			err = fmt.Errorf("%s: %w", checksum.Redacted(), err)
		}
		return want, err
	}
	var status *statusError
	if !errors.As(err, &status) || status.status != http.StatusNotFound {
		return release{}, err
	}
	found, listErr := a.list(ctx, want.branch(), want.architecture)
	if listErr == nil && found.version == want.version {
		return found, nil
	}
	return release{}, fmt.Errorf("no Alpine release %s for %s: %w", want.version, want.architecture.Machine(), err)
}

// list reads a branch's newest release.
func (a alpineSource) list(ctx context.Context, branch string, of platform.Architecture) (release, error) {
	at := a.path(branch, of, "latest-releases.yaml")
	text, err := a.fetch.text(ctx, at.String(), listMaxSize)
	if err != nil {
		return release{}, err
	}
	found, err := parseReleases(text, of)
	if err != nil {
		return release{}, fmt.Errorf("%s: %w", at.Redacted(), err)
	}
	return found, nil
}
