package images

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	registrytransport "github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// pushStall is how long a registry may take nothing and answer nothing.
const pushStall = 2 * time.Minute

// Push sends an image of the store to a registry and returns what it is called there: a name with the digest of its manifest. Of an image that
// the store has for several platforms, and no platform being wanted, all go, and the digest is that of an index (OCI image specification,
// image-index.md). To is NAME[:TAG], with or without docker://; empty means the image's own name. Layers that the registry has are not
// sent. Mirrors are not pushed to. The error wraps [ErrNotFound] when the store has no such image.
func (s *Store) Push(ctx context.Context, name, to string, progress ProgressFunc) (string, error) {
	unlock, err := s.lockShared(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	image, err := s.Find(name)
	if err != nil {
		return "", fmt.Errorf("push %s: %w", name, err)
	}
	ref, err := parseDestination(image.Name, to)
	if err != nil {
		return "", fmt.Errorf("push %s: %w", name, err)
	}
	var all []*packedImage
	defer func() {
		for _, p := range all {
			p.close()
		}
	}()
	for _, a := range wanted(s.want) {
		one, err := s.loadFor(image.Name, a)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		var packed *packedImage
		if err == nil {
			packed, err = s.pack(ctx, one, progress)
		}
		if err != nil {
			return "", fmt.Errorf("push %s: %w", name, s.explain(err))
		}
		all = append(all, packed)
	}
	digest, err := s.registries.push(ctx, ref, all, image.Name, progress)
	if err != nil {
		return "", fmt.Errorf("push %s to %s: %w", name, ref.Name(), err)
	}
	return ref.Context().Name() + "@" + digest, nil
}

// pushed is what a registry gets of one image for several platforms, and its digest.
func pushed(all []*packedImage) (remote.Taggable, string, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range all {
		image, err := p.image()
		if err != nil || len(all) == 1 {
			return image, digestOf(p.manifest), err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: p.platform()}})
	}
	text, err := index.RawManifest()
	return index, digestOf(text), err
}

// parseDestination parses where an image goes.
func parseDestination(image, to string) (name.Reference, error) {
	given := to != ""
	if !given {
		to = image
	}
	bare, _ := strings.CutPrefix(to, "docker://")
	if scheme, _, ok := strings.Cut(bare, ":"); ok {
		switch transport(scheme) {
		case transportLayout, transportOCIArchive, transportDockerArchive:
			return nil, fmt.Errorf("%.200q is no registry: agentvm image save -o %[1]q writes that", to)
		}
	}
	parsed, err := parseRegistryReference(bare)
	if err != nil {
		return nil, err
	}
	at := parsed.registry.Context()
	if !given && at.RegistryStr() == name.DefaultRegistry && strings.HasPrefix(at.RepositoryStr(), "library/") {
		return nil, fmt.Errorf("its name says no registry: name one, as in agentvm image push %s docker://registry.example.org/%[1]s", image)
	}
	if _, ok := parsed.registry.(name.Digest); ok {
		return nil, fmt.Errorf("%s has a digest, which the image may not have there: give it a tag", to)
	}
	return parsed.registry, nil
}

// push sends an image, for each platform that it has, and returns the digest. Credentials are those of docker login.
func (r *registries) push(ctx context.Context, ref name.Reference, all []*packedImage, imageName string, progress ProgressFunc) (string, error) {
	host, options := ref.Context().RegistryStr(), []name.Option(nil)
	insecure := slices.Contains(r.insecure, host) || slices.Contains(r.insecure, ref.Context().Registry.Name())
	if insecure {
		options = append(options, name.Insecure)
	}
	ref, err := name.ParseReference(ref.Name(), options...)
	if err != nil {
		return "", err
	}
	at := ref.Context()
	auth, err := authn.Resolve(ctx, authn.DefaultKeychain, at)
	if err != nil {
		return "", fmt.Errorf("credentials of docker login for %s: %w", host, err)
	}
	base := r.base
	if base == nil {
		guarded := newGuardedTransport(at.Registry, insecure, true)
		dial := guarded.DialContext
		guarded.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &stallingConn{conn, r.pushStall}, nil
		}
		guarded.ResponseHeaderTimeout = r.pushStall // registries hash a layer before they answer
		defer guarded.CloseIdleConnections()
		base = guarded
	}
	if at.Scheme() == "https" {
		base = onlyHTTPS{base}
	}
	base = r.fetch.patient(base)
	what, digest, err := pushed(all)
	if err != nil {
		return "", err
	}
	var mu sync.Mutex
	state := Progress{Stage: StageUpload, Name: imageName}
	report := func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		state.Done = min(state.Done+n, state.Total) // what is sent again counts once more
		progress.report(state)
	}
	for _, p := range all {
		for _, l := range p.layers {
			state.Total += l.Descriptor.Size
			l.sent = report
		}
	}
	err = remote.Push(ref, what, remote.WithContext(ctx), remote.WithTransport(base), remote.WithAuth(auth), remote.WithJobs(layersAtOnce),
		remote.WithRetryStatusCodes(http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout)) // base repeats others
	if err != nil {
		return "", explainPush(ref, err)
	}
	report(state.Total) // the registry had the rest
	return digest, nil
}

// onlyHTTPS refuses what a registry with https leads to without it.
type onlyHTTPS struct{ base http.RoundTripper }

func (t onlyHTTPS) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, fmt.Errorf("%w: from https to %s", errRedirect, r.URL.Redacted())
	}
	return t.base.RoundTrip(r)
}

// stallingConn ends a connection to which nothing could be written for a while, nor read after that.
type stallingConn struct {
	net.Conn
	stall time.Duration
}

func (c *stallingConn) Write(p []byte) (int, error) {
	until := time.Now().Add(c.stall)
	if err := c.SetDeadline(until); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	if errors.Is(err, net.ErrClosed) && !time.Now().Before(until) {
		err = os.ErrDeadlineExceeded // the reader has met it first, and http.Transport has closed the connection
	}
	return n, err
}

func explainPush(ref name.Reference, err error) error {
	var refused *registrytransport.Error
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial" && !errors.Is(err, errPrivate):
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	case !errors.As(err, &refused):
		return err
	case refused.StatusCode == http.StatusUnauthorized, refused.StatusCode == http.StatusForbidden:
		return fmt.Errorf("the registry refuses it: docker login %s, with an account that may write to %s: %w", ref.Context().RegistryStr(), ref.Context().RepositoryStr(), err)
	case refused.StatusCode == http.StatusNotFound, refused.StatusCode == http.StatusMethodNotAllowed:
		return fmt.Errorf("the registry takes no image of that name: %w", err)
	}
	return err
}
