package images

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	registrytransport "github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"agentvm/egress"
	"agentvm/internal/host/platform"
)

// registries is how registries are reached.
type registries struct {
	mirrors  map[string]*url.URL // by the registry's host
	insecure []string            // hosts whose certificate is not checked, and that may speak plain HTTP
	public   bool                // Config.PublicRegistries
	base     http.RoundTripper   // Config.Transport; nil: one for each pull
	fetch    *fetcher            // for its logger and its time-outs

	pushStall time.Duration // see the constant
}

// newRegistries takes what Config says, and for what it does not say AGENTVM_REGISTRY_MIRRORS and AGENTVM_INSECURE_REGISTRIES.
func newRegistries(c Config, fetch *fetcher) (*registries, error) {
	r := &registries{mirrors: map[string]*url.URL{}, insecure: c.InsecureRegistries, public: c.PublicRegistries, base: c.Transport, fetch: fetch, pushStall: pushStall}
	mirrors := c.RegistryMirrors
	if mirrors == nil {
		mirrors = splitList(os.Getenv("AGENTVM_REGISTRY_MIRRORS"))
	}
	if r.insecure == nil {
		r.insecure = splitList(os.Getenv("AGENTVM_INSECURE_REGISTRIES"))
	}
	for _, mirror := range mirrors {
		host, base, ok := strings.Cut(mirror, "=")
		at, err := url.Parse(base)
		if !ok || err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" || strings.Trim(at.Path, "/") != "" {
			return nil, fmt.Errorf("registry mirror %q: %w: want HOST=URL, as docker.io=https://mirror.example.org", mirror, ErrMirror)
		}
		registry, err := name.NewRegistry(host)
		if err != nil {
			return nil, fmt.Errorf("registry mirror %q: %w", mirror, err)
		}
		r.mirrors[registry.RegistryStr()] = at
	}
	return r, nil
}

func splitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// registryImage is an image in a registry, and its blobSource.
type registryImage struct {
	fetch *fetcher
	base  string // URL of the repository: scheme, host, /v2/, name
}

// find reads the manifest and the configuration of the image that ref names, of a platform that is wanted.
func (r *registries) find(ctx context.Context, ref name.Reference, want platform.Architecture) (*ociImage, error) {
	registry, options := ref.Context().Registry, []name.Option(nil)
	mirror := r.mirrors[registry.RegistryStr()]
	host := registry.RegistryStr()
	if mirror != nil {
		host = mirror.Host
	}
	insecure := mirror != nil && mirror.Scheme == "http" || slices.Contains(r.insecure, host) || slices.Contains(r.insecure, registry.Name())
	if insecure {
		options = append(options, name.Insecure)
	}
	at, err := name.NewRepository(host+"/"+ref.Context().RepositoryStr(), options...)
	if err != nil {
		return nil, err
	}
	image, err := r.connect(ctx, at, insecure, insecure || mirror != nil || !r.public)
	if err != nil {
		return nil, explainRegistry(ref, err)
	}
	found, err := image.find(ctx, ref, want)
	if err != nil {
		return nil, explainRegistry(ref, err)
	}
	return found, nil
}

// connect logs in to the registry of a repository, with the credentials that docker login left, if any. The registry may be on a private
// address if trusted is set, or if there are credentials.
func (r *registries) connect(ctx context.Context, at name.Repository, insecure, trusted bool) (*registryImage, error) {
	auth, err := authn.Resolve(ctx, authn.DefaultKeychain, at)
	if err != nil {
		return nil, fmt.Errorf("credentials of docker login for %s: %w", at.RegistryStr(), err)
	}
	trusted = trusted || auth != authn.Anonymous
	if !trusted && namesPrivate(at.Registry) { // a proxy would connect to it
		return nil, fmt.Errorf("%w: %s", errPrivate, at.RegistryStr())
	}
	base := r.base
	if base == nil {
		base = newGuardedTransport(at.Registry, insecure, trusted)
	}
	base = r.fetch.patient(base) // below the login, so that the first request and that for a token are repeated, too
	authenticated, err := registrytransport.NewWithContext(ctx, at.Registry, auth, base, []string{at.Scope(registrytransport.PullScope)})
	if err != nil {
		return nil, connectError(err)
	}
	fetch := *r.fetch
	fetch.client = &http.Client{Transport: authenticated, CheckRedirect: checkRedirect}
	fetch.accept = manifestTypes
	// The transport changes the scheme to that of the registry.
	return &registryImage{&fetch, at.Scheme() + "://" + at.RegistryStr() + "/v2/" + at.RepositoryStr()}, nil
}

func (i *registryImage) manifest(ctx context.Context, identifier string) ([]byte, error) {
	return i.fetch.text(ctx, i.base+"/manifests/"+identifier, maxManifest)
}

func (i *registryImage) find(ctx context.Context, ref name.Reference, want platform.Architecture) (*ociImage, error) {
	text, err := i.manifest(ctx, ref.Identifier())
	if err != nil {
		return nil, err
	}
	if want, ok := ref.(name.Digest); ok && digestOf(text) != want.DigestStr() {
		return nil, &ChecksumError{URL: ref.String(), Got: digestOf(text), Want: want.DigestStr()}
	}
	m, digest, err := chooseManifest(ctx, familiarName(ref), text, want, i.manifest)
	if err != nil {
		return nil, err
	}
	config, err := i.fetch.text(ctx, i.blobURL(m.Config), maxConfig)
	if err != nil {
		return nil, err
	}
	if got := digestOf(config); got != m.Config.Digest.String() {
		return nil, &ChecksumError{URL: i.blobURL(m.Config), Got: got, Want: m.Config.Digest.String()}
	}
	return &ociImage{from: ref.Context().RegistryStr(), digest: digest, config: config, layers: m.Layers, blobs: i}, nil
}

func (i *registryImage) blobURL(d v1.Descriptor) string {
	return i.base + "/blobs/" + d.Digest.String()
}

func (i *registryImage) readBlob(ctx context.Context, d v1.Descriptor, f *os.File, report func(done, total int64)) error {
	err := i.fetch.file(ctx, i.blobURL(d), f, d.Size, report)
	var status *statusError
	if errors.As(err, &status) && status.status == http.StatusNotFound && !d.MediaType.IsDistributable() {
		return fmt.Errorf("its layer %s is kept out of registries by its publisher (%s), and this one does not have it: %w", d.Digest, d.MediaType, err)
	}
	return err
}

// explainRegistry says what a registry's refusal most likely means. Registries answer 401 for images that do not exist, too.
func explainRegistry(ref name.Reference, err error) error {
	status := 0
	var refused *registrytransport.Error
	var answered *statusError
	switch {
	case errors.As(err, &refused):
		status = refused.StatusCode
	case errors.As(err, &answered):
		status = answered.status
	}
	host := ref.Context().Name()
	if errors.Is(err, errPrivate) {
		return fmt.Errorf("%s: %w; whoever owns this host can agentvm image pull it there, or list the registry in AGENTVM_REGISTRY_MIRRORS or AGENTVM_INSECURE_REGISTRIES", ref, err)
	}
	switch status {
	case http.StatusNotFound:
		return fmt.Errorf("%w: %s has no %s", ErrNotFound, host, ref.Identifier())
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w, or it needs a login (docker login %s): %s", ErrNotFound, ref.Context().RegistryStr(), host)
	case http.StatusTooManyRequests:
		return fmt.Errorf("%s has had too many requests from this address: wait, or docker login: %w", ref.Context().RegistryStr(), err)
	}
	return err
}

// guard keeps a registry on a public address from leading us to private ones, by redirects or by the address of its token server: what
// answers there may trust whoever can reach it.
type guard struct {
	trusted sync.Map    // host:port that the user named: true for the registry, false for a proxy
	private atomic.Bool // the registry itself is on a private address
	dialer  net.Dialer
}

// errPrivate is a refused connection.
var errPrivate = errors.New("the registry leads to a private address, which is refused")

// namesPrivate reports whether a registry's name is itself a private address, or one that leads to this host.
func namesPrivate(registry name.Registry) bool {
	host := (&url.URL{Host: registry.RegistryStr()}).Hostname()
	if address, err := netip.ParseAddr(host); err == nil {
		return !egress.IsPublic(address.Unmap())
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// newGuardedTransport returns the transport for a registry, which is on a public address unless trusted is set.
func newGuardedTransport(registry name.Registry, insecure, trusted bool) *http.Transport {
	g := &guard{dialer: net.Dialer{Timeout: 10 * time.Second}}
	if trusted {
		for _, port := range []string{"80", "443"} {
			g.trusted.Store(net.JoinHostPort(strings.Trim(registry.RegistryStr(), "[]"), port), true)
		}
		g.trusted.Store(registry.RegistryStr(), true)
	}
	t := &http.Transport{
		Proxy: g.proxy, DialContext: g.dial, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
	}
	if insecure {
		t.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // the user has named this registry as insecure
	}
	return t
}

// proxy is http.ProxyFromEnvironment. Proxies are on private addresses more often than not.
func (g *guard) proxy(r *http.Request) (*url.URL, error) {
	proxy, err := http.ProxyFromEnvironment(r)
	if proxy != nil {
		port := proxy.Port()
		if port == "" {
			port = map[string]string{"https": "443", "socks5": "1080", "socks5h": "1080"}[proxy.Scheme]
		}
		if port == "" {
			port = "80"
		}
		g.trusted.Store(net.JoinHostPort(proxy.Hostname(), port), false)
	}
	return proxy, err
}

func (g *guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if registry, ok := g.trusted.Load(address); ok {
		conn, err := g.dialer.DialContext(ctx, network, address)
		if err == nil && registry.(bool) && !isPublic(conn.RemoteAddr().String()) {
			g.private.Store(true)
		}
		return conn, err
	}
	if g.private.Load() {
		return g.dialer.DialContext(ctx, network, address)
	}
	strict := g.dialer
	strict.Control = func(_, to string, _ syscall.RawConn) error {
		if !isPublic(to) {
			return fmt.Errorf("%w: %s is %s", errPrivate, address, to)
		}
		return nil
	}
	return strict.DialContext(ctx, network, address)
}

func isPublic(address string) bool {
	to, err := netip.ParseAddrPort(address)
	return err == nil && egress.IsPublic(to.Addr().Unmap())
}
