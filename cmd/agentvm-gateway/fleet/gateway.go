// Package fleet is the gateway of a Kubernetes cluster: E2B's control API and the HTTP API in front of pods, each of which serves a sandbox. It
// keeps no state: all that it knows is in the labels and annotations of pods and of Leases, so that any number of gateways serve at once and any of
// them can end at any time. docs/internals/fleet.md has the states.
//
//	client ── tenant's key ──► Gateway ── conditional updates ──► Kubernetes' API
//	                              ├────── ticket ───────────────► pods (internal/api/pod) ── hibernated sandboxes ──► object store
//	                              └────── what no one needs ────────────────────────────────────────────────────────┘
//
// Scheduling, restarts and replacing of warm pods are Kubernetes'. E2B's and our API are the pods' own, in front of which this puts identifiers,
// tenants and time-outs.
package fleet

import (
	"cmp"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"agentvm/internal/api/e2b/wire"
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
	// Tenants returns the keys of clients. It is called for each request.
	Tenants func() Tenants
	// Key is what all gateways of the cluster sign tickets with. Tokens and identifiers are computed from it.
	Key ed25519.PrivateKey
	// Domain is the end of the names by which servers in sandboxes are reached, and Hosts are names of the gateway itself, besides localhost.
	Domain  string
	Hosts   []string
	PodPort uint16 // default: 8470
	Memory  int64  // of a sandbox in bytes, for clients that ask
	// State is where sandboxes that are paused are kept. nil: in their pods.
	State *StateConfig
	// KeepPaused is how long a sandbox is kept in State before it ends. Default: for ever.
	KeepPaused time.Duration
	// Move is after which time a gateway that has not been heard of is taken to have left what it moved. Default: 30 s.
	Move time.Duration
	// Sweep is how often the leader removes what no sandbox needs from the object store. Default: 1 h.
	Sweep time.Duration
	// Wait is how long a claim waits for a warm pod. Default: 30 s.
	Wait   time.Duration
	Audit  func(httpserver.Record) // receives each request when it has been answered. nil: none
	Logger *slog.Logger            // nil discards
}

func (c Config) warmTime() time.Duration {
	if c.Wait > 0 {
		return c.Wait
	}
	return warmTime
}

func (c Config) moveTime() time.Duration { return cmp.Or(c.Move, moveTime) }

// Gateway serves clients. Its methods may be called at once.
type Gateway struct {
	config    Config
	secret    []byte
	pods      *pods
	leases    *leases
	states    *states // nil: there is no object store
	transport *http.Transport
	ready     atomic.Bool
	leads     atomic.Bool
	metrics   metrics
	requests  httpserver.Metrics

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
	for _, key := range c.Tenants().Keys {
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
	l, err := newLeases(c.Client, c.Namespace)
	if err != nil {
		return nil, err
	}
	states, err := newStates(c.State, c.Key.Seed())
	if err != nil {
		return nil, err
	}
	return &Gateway{
		config: c, secret: m.Sum(nil), pods: p, leases: l, states: states, reserved: map[types.UID]bool{}, tickets: map[types.UID]made{},
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
	var work sync.WaitGroup
	for _, do := range []func(context.Context){g.lead, g.pods.run, g.leases.run} {
		work.Go(func() { do(ctx) })
	}
	if cache.WaitForCacheSync(ctx.Done(), g.pods.informer.HasSynced, g.leases.informer.HasSynced) {
		g.ready.Store(true)
	}
	<-ctx.Done()
	work.Wait()
	g.transport.CloseIdleConnections()
	return nil
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
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		g.Metrics().ServeHTTP(w, r)
		g.requests.ServeHTTP(w, r)
	})
	server := httpserver.Server{Handler: mux, MaxConns: 64, Logger: g.config.Logger}
	return server.Serve(ctx, l, listening)
}

// find returns a sandbox. The error is a wire.Failure with 404 when there is none.
func (g *Gateway) find(ctx context.Context, id string) (*sandbox, error) {
	missing := wire.Fail(http.StatusNotFound, "sandbox %.100q was not found", id)
	if !g.isID(id) {
		return nil, missing
	}
	l, list := g.leases.get(id), g.pods.with(id)
	if l == nil {
		b, err := running(id, list)
		if err == nil && b == nil && !g.pods.isMissing(id) {
			// First the pods: there is a Lease whenever no pod has the sandbox.
			if list, err = g.pods.ask(ctx, id); err == nil {
				b, err = running(id, list)
			}
			if err == nil && b == nil {
				if l, err = g.leases.read(ctx, id); err == nil && l == nil {
					g.pods.miss(id)
				}
			}
		}
		if err != nil || b != nil {
			return b.at(time.Now(), missing, err)
		}
		if l == nil {
			return nil, missing
		}
	}
	if phaseOf(l) != phaseRunning {
		return saved(l)
	}
	for _, p := range list {
		if isHeld(l, p) {
			b, err := recorded(id, p)
			if b != nil {
				b.lease = l
			}
			return b.at(time.Now(), missing, err)
		}
	}
	name, uid := holderOf(l)
	p, err := g.pods.read(ctx, name, uid)
	if err != nil {
		return nil, err
	}
	if p == nil || p.DeletionTimestamp != nil {
		return nil, missing // it has ended with its pod, or was moved just now
	}
	b, err := recorded(id, p)
	if b != nil {
		b.lease = l
	}
	return b.at(time.Now(), missing, err)
}

// running returns a sandbox without a Lease; nil: no pod has it.
func running(id string, list []*corev1.Pod) (*sandbox, error) {
	for _, p := range list {
		if b, err := recorded(id, p); err != nil || b != nil && b.Resumed.IsZero() {
			return b, err
		}
	}
	return nil, nil
}

// recorded returns a sandbox as a pod has it; nil: the pod has none of that name.
func recorded(id string, p *corev1.Pod) (*sandbox, error) {
	list, err := recordsOf(p)
	if err != nil {
		return nil, err
	}
	r, found := list[id]
	if !found {
		return nil, nil
	}
	return &sandbox{id: id, Record: r, pod: p}, nil
}

// at is a sandbox as clients see it at a time: what the leader has not come to yet is over for them.
func (b *sandbox) at(now time.Time, missing, err error) (*sandbox, error) {
	if err != nil {
		return nil, err
	}
	if b == nil {
		return nil, missing
	}
	if !b.Paused && !now.Before(b.Ends) {
		if !b.Pauses {
			return nil, missing
		}
		b.Paused = true // no request reaches it any more
	}
	return b, nil
}
