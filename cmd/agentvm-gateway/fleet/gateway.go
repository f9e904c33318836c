// Package fleet is the gateway of a Kubernetes cluster: E2B's control API and the HTTP API in front of pods, each of which serves a sandbox. It
// keeps nothing: what it knows is in the labels and annotations of pods, so that any number of gateways serve at once and any of them can end
// at any time. docs/internals/fleet.md has the states.
//
//	client ── tenant's key ──► Gateway ── conditional updates ──► Kubernetes' API
//	                              └────── ticket ───────────────► pods (internal/pod)
//
// Scheduling, restarts and replacing of warm pods are Kubernetes'. E2B's and our API are the pods' own, in front of which this puts identifiers,
// tenants and time-outs.
package fleet

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"agentvm/internal/e2b/wire"
	"agentvm/internal/httpserver"
)

const (
	defaultPort = 8470
	killGrace   = 1 // seconds that a pod has when its sandbox has ended
	maxConns    = 4096
	graceTime   = 10 * time.Second
	dialTime    = 3 * time.Second
	stallTime   = 30 * time.Second
)

// Config configures a Gateway.
type Config struct {
	Client    kubernetes.Interface
	Namespace string // of the pods and of the leader's Lease
	// Identity is this gateway's name among the others.
	Identity string
	// Tenants returns the keys of clients, each with its tenant's name. It is called for each request.
	Tenants func() httpserver.Keys
	// Key is what all gateways of the cluster sign tickets with. Tokens and identifiers are computed from it.
	Key ed25519.PrivateKey
	// Domain is the end of the names by which servers in sandboxes are reached, and Hosts are names of the gateway itself, besides localhost.
	Domain  string
	Hosts   []string
	PodPort uint16 // default: 8470
	Memory  int64  // of a sandbox in bytes, for clients that ask
	// Wait is how long a claim waits for a warm pod. Default: 30 s.
	Wait   time.Duration
	Logger *slog.Logger // nil discards
}

func (c Config) warmTime() time.Duration {
	if c.Wait > 0 {
		return c.Wait
	}
	return warmTime
}

// Gateway serves clients. Its methods may be called at once.
type Gateway struct {
	config    Config
	secret    []byte
	pods      *pods
	transport *http.Transport
	ready     atomic.Bool
	leads     atomic.Bool
	metrics   metrics

	mu       sync.Mutex
	reserved map[types.UID]bool
	tickets  map[types.UID]made
}

// New makes a gateway.
func New(c Config) (*Gateway, error) {
	if len(c.Key) != ed25519.PrivateKeySize || c.Client == nil || c.Tenants == nil || c.Namespace == "" || c.Domain == "" || c.Identity == "" {
		return nil, errors.New("fleet: Client, Namespace, Identity, Tenants, Key and Domain have to be set")
	}
	if c.PodPort == 0 {
		c.PodPort = defaultPort
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	for _, key := range c.Tenants() {
		if err := CheckTenant(key); err != nil {
			return nil, err
		}
	}
	m := hmac.New(sha256.New, c.Key.Seed())
	m.Write([]byte("agentvm gateway tokens"))
	p, err := newPods(c.Client, c.Namespace)
	if err != nil {
		return nil, err
	}
	return &Gateway{
		config: c, secret: m.Sum(nil), pods: p, reserved: map[types.UID]bool{}, tickets: map[types.UID]made{},
		transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: dialTime}).DialContext, MaxIdleConns: 1024, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, DisableCompression: true,
		},
	}, nil
}

// CheckTenant reports whether a key is fit, and its name for a label.
func CheckTenant(key httpserver.Key) error {
	if problems := validation.IsValidLabelValue(key.Name); len(problems) > 0 || key.Name == "" {
		return fmt.Errorf("tenant %q: its name has to be fit for a label of Kubernetes: letters, digits, -, _ and ., at most 63", key.Name)
	}
	if err := httpserver.CheckKey(key.Value); err != nil {
		return fmt.Errorf("the key of tenant %s: %w", key.Name, err)
	}
	return nil
}

// Run watches the cluster, and leads when no other gateway does, until ctx ends.
func (g *Gateway) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	leading := make(chan struct{})
	go func() {
		defer close(leading)
		g.lead(ctx)
	}()
	err := g.pods.run(ctx, func() { g.ready.Store(true) })
	cancel()
	<-leading
	g.transport.CloseIdleConnections()
	return err
}

// Serve serves clients at an address until ctx ends. Run has to run.
func (g *Gateway) Serve(ctx context.Context, address string, listening func(url string)) error {
	l, err := httpserver.Listen(ctx, address)
	if err != nil {
		return err
	}
	server := httpserver.Server{Handler: g.Handler(), MaxConns: maxConns, Grace: graceTime, Logger: g.config.Logger}
	return server.Serve(ctx, l, listening)
}

// ServeMetrics serves /metrics at an address until ctx ends.
func (g *Gateway) ServeMetrics(ctx context.Context, address string, listening func(url string)) error {
	l, err := httpserver.Listen(ctx, address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", g.Metrics())
	server := httpserver.Server{Handler: mux, MaxConns: 64, Logger: g.config.Logger}
	return server.Serve(ctx, l, listening)
}

// find returns a sandbox. The error is a wire.Failure with 404 when there is none.
func (g *Gateway) find(ctx context.Context, id string) (*sandbox, error) {
	missing := wire.Fail(http.StatusNotFound, "sandbox %.100q was not found", id)
	if !g.isID(id) {
		return nil, missing
	}
	p, err := g.pods.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return nil, missing
	}
	list, err := recordsOf(p)
	if err != nil {
		return nil, err
	}
	r, found := list[id]
	if !found {
		return nil, missing
	}
	b := &sandbox{id: id, Record: r, pod: p}
	if !b.Paused && !time.Now().Before(b.Ends) { // the leader has not come to it yet
		if !b.Pauses {
			return nil, missing
		}
		b.Paused = true // no request reaches it any more
	}
	return b, nil
}

// refresh reads a pod again that others have changed.
func (g *Gateway) refresh(ctx context.Context, p *corev1.Pod) error {
	now, err := g.config.Client.CoreV1().Pods(g.config.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	switch {
	case err == nil && now.UID == p.UID:
		g.pods.wrote(now.UID, now)
	case err == nil || isGone(err):
		g.pods.wrote(p.UID, nil)
	default:
		return err
	}
	return nil
}
