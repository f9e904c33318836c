// Package pod serves the VM of a pod of a cluster to the cluster's gateways: E2B's protocols and the HTTP API, from the packages that serve them on
// one host. It adds the check of who may ask (ticket), and a sandbox whose VM runs already.
//
//	gateway ── ticket ──► Handler ──► e2b: /sandboxes, envd, ports
//	                         └──────► serve: /v1/vms/ID/...
//	   └──── ticket ──► state.go: a sandbox to an object store, and out of it
//	kubelet ────────────► /ready
//
// The pod is one tenant's from its first sandbox on. Only forks of that sandbox are added.
package pod

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/internal/api/e2b"
	"agentvm/internal/api/e2b/wire"
	"agentvm/internal/api/pod/ticket"
	"agentvm/internal/host/origin"
	"agentvm/internal/httpserver"
)

const (
	maxConns  = 1024
	graceTime = 10 * time.Second
	maxForks  = 16
)

// HeaderNew names the sandboxes that a request makes: ID=TOKEN, ID=TOKEN ...
const HeaderNew = "Agentvm-New"

// VMs has the VM that waits for its sandbox, and its forks.
type VMs interface {
	// Take returns the VM that waits, as a sandbox with variables and a policy. It is called once.
	Take(ctx context.Context, env []string, policy egress.Policy) (e2b.VM, error)
	// Open connects to a fork.
	Open(ctx context.Context, name string) (e2b.VM, error)
	// Remove stops a VM, "" for the one of the first sandbox, and deletes it.
	Remove(ctx context.Context, name string) error
	// Save writes a VM, named as for Remove, to an object store, with a note. One that runs stands still for a moment only.
	Save(ctx context.Context, name string, to State, note []byte) error
	// Fetch finds a VM in an object store. The error is fs.ErrNotExist when it is not there.
	Fetch(ctx context.Context, from State) (Saved, error)
}

// Config configures a Server.
type Config struct {
	VMs VMs
	// UID is the pod's, and Gateways the public key of the cluster's gateways.
	UID      string
	Gateways ed25519.PublicKey
	// Domain is the end of the names by which servers in sandboxes are reached.
	Domain string
	User   string
	Policy egress.Policy
	CPUs   int // of its VM
	Memory int64
	// Key is what the handlers of e2b and serve want. API serves /v1; nil: nothing does.
	Key string
	API http.Handler
	// Kept is the file that has the sandbox for a container that is started again. "": a restart ends the sandbox.
	Kept   string
	Audit  func(httpserver.Record) // receives each request when it has been answered. nil: none
	Logger *slog.Logger            // nil discards
}

// Server serves a pod. Close it when no request runs any more.
type Server struct {
	config Config
	e2b    *e2b.Server
	saving chan struct{}     // has room for the request that writes a sandbox to an object store
	saved  map[string]string // by sandbox, the state that has it as it is now; of who has put into saving

	metrics httpserver.Metrics

	mu     sync.Mutex
	first  string            // the sandbox whose VM has waited
	tokens map[string]string // of sandboxes
	over   chan struct{}     // closed when the last sandbox has ended
	live   map[string]bool
}

// New makes a server.
func New(c Config) (s *Server, err error) {
	if c.UID == "" || len(c.Gateways) != ed25519.PublicKeySize {
		return nil, errors.New("the pod's identifier and the gateways' public key are both needed")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s = &Server{config: c, tokens: map[string]string{}, live: map[string]bool{}, over: make(chan struct{}), saving: make(chan struct{}, 1), saved: map[string]string{}}
	s.e2b, err = e2b.New(e2b.Config{
		VMs: sandboxVMs{s}, Key: c.Key, Domain: c.Domain, User: c.User, Policy: c.Policy, CPUs: c.CPUs, Memory: c.Memory, Max: 1 + maxForks, Logger: c.Logger,
		NewIDs: s.newIDs, Token: s.token,
	})
	return s, err
}

// Close ends the sandboxes.
func (s *Server) Close() { s.e2b.Close() }

// Over is closed when the pod's last sandbox has ended. No other one can come.
func (s *Server) Over() <-chan struct{} { return s.over }

// newIDs are the names that the gateway has given. They are recorded here, because each sandbox needs its token before it is made.
func (s *Server) newIDs(r *http.Request, n int) ([]string, error) {
	var ids []string
	pairs := strings.Split(r.Header.Get(HeaderNew), ",")
	if len(pairs) != n {
		return nil, wire.Fail(http.StatusBadRequest, "%s names %d sandboxes and not %d", HeaderNew, len(pairs), n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pair := range pairs {
		id, token, _ := strings.Cut(strings.TrimSpace(pair), "=")
		if err := client.CheckName(id); err != nil {
			return nil, wire.Fail(http.StatusBadRequest, "%s: %v", HeaderNew, err)
		}
		if err := httpserver.CheckKey(token); err != nil {
			return nil, wire.Fail(http.StatusBadRequest, "%s: the token: %v", HeaderNew, err)
		}
		if s.tokens[id] != "" {
			return nil, wire.Fail(http.StatusConflict, "sandbox %s has been here before", id)
		}
		ids = append(ids, id)
	}
	for i, pair := range pairs {
		_, s.tokens[ids[i]], _ = strings.Cut(strings.TrimSpace(pair), "=")
	}
	return ids, nil
}

// token is what the gateway has given; what no one can have for other names.
func (s *Server) token(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if token := s.tokens[id]; token != "" {
		return token
	}
	return wire.Token(s.config.Key, id)
}

// sandboxVMs are the VMs for e2b.
type sandboxVMs struct{ *Server }

// errTaken is that of a pod that has, or had, its sandbox.
var errTaken = &wire.Failure{Status: http.StatusConflict, Text: "this pod has had its sandbox"}

// Create implements e2b.VMs. That it is the pod's first sandbox is decided here and nowhere else, so that two gateways cannot share a pod.
func (v sandboxVMs) Create(ctx context.Context, id string, env []string, policy egress.Policy, adopt []string) (e2b.VM, error) {
	v.mu.Lock()
	taken := v.first != ""
	if !taken {
		v.first, v.live[id] = id, true
	}
	v.mu.Unlock()
	if taken {
		return nil, errTaken
	}
	m, err := v.firstVM(ctx, env, policy, adopt)
	if err != nil {
		v.gone(id)
		return nil, fmt.Errorf("the VM of this pod: %w", err)
	}
	return m, nil
}

// Open implements e2b.VMs.
func (v sandboxVMs) Open(ctx context.Context, name string) (e2b.VM, error) {
	m, err := v.config.VMs.Open(ctx, name)
	if err == nil {
		v.mu.Lock()
		v.live[name] = true
		v.mu.Unlock()
	}
	return m, err
}

// Remove implements e2b.VMs.
func (v sandboxVMs) Remove(ctx context.Context, id string) error {
	err := v.config.VMs.Remove(ctx, v.vmName(id))
	v.gone(id)
	return err
}

// gone notes the end of a sandbox.
func (s *Server) gone(id string) {
	if err := s.forget(id); err != nil {
		s.config.Logger.Warn("a restart of this container will have the sandbox again", "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, id)
	select {
	case <-s.over:
	default:
		if s.first != "" && len(s.live) == 0 {
			close(s.over)
		}
	}
}

// Handler serves everything.
func (s *Server) Handler() http.Handler {
	sandboxes := s.e2b.Handler()
	check := func(r *http.Request) error {
		return ticket.Check(s.config.Gateways, s.config.UID, r.Header.Get(ticket.Header), time.Now())
	}
	probes := func(r *http.Request) bool { return r.URL.Path == "/ready" && r.Header.Get(ticket.Header) == "" }
	return httpserver.Door{
		Server: "pod", Metrics: &s.metrics, Audit: s.config.Audit, Public: probes,
		IsHost: func(string) bool { return true }, // gateways pass on what clients have said, and have checked it
		Admits: func(*http.Request, origin.Request) bool { return true },
		Client: func(r *http.Request) (string, bool) { return "gateway", check(r) == nil },
		Refuse: func(w http.ResponseWriter, r *http.Request, _ int) {
			writeFailure(w, http.StatusForbidden, "%v", check(r))
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !probes(r) {
				s.serve(w, r, sandboxes)
				return
			}
			select {
			case <-s.over:
				w.WriteHeader(http.StatusServiceUnavailable)
			default:
				w.WriteHeader(http.StatusNoContent)
			}
		}),
	}.Open()
}

// serve answers a gateway.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, sandboxes http.Handler) {
	r.Header.Del(ticket.Header)
	if _, _, port := wire.SplitHost(r.Host, s.config.Domain); port { // for the guest, or for envd, which has tokens
		sandboxes.ServeHTTP(w, r)
		return
	}
	if r.URL.Path == "/metrics" {
		s.metrics.ServeHTTP(w, r)
		return
	}
	if rest, found := strings.CutPrefix(r.URL.Path, "/v1/vms/"); found {
		if s.config.API == nil {
			writeFailure(w, http.StatusNotImplemented, "this pod does not serve /v1")
			return
		}
		s.rename(r, rest)
		r.Header.Del("Authorization")
		r.Header.Set("X-Api-Key", s.config.Key)
		s.config.API.ServeHTTP(w, r)
		return
	}
	r.Header.Set("X-Api-Key", s.config.Key) // envd has tokens instead, and does not look
	if r.Method == http.MethodPost && (r.URL.Path == "/sandboxes" || r.URL.Path == "/v2/sandboxes") {
		s.create(w, r, sandboxes)
		return
	}
	if r.Method == http.MethodPost && r.URL.Path == PathRestore {
		s.restore(w, r, sandboxes)
		return
	}
	if rest, found := strings.CutPrefix(r.URL.Path, "/sandboxes/"); found && r.Method == http.MethodPost {
		if id, found := strings.CutSuffix(rest, PathHibernate); found && client.CheckName(id) == nil {
			s.hibernate(w, r, id, sandboxes)
			return
		}
		if id, found := strings.CutSuffix(rest, PathSnapshot); found && client.CheckName(id) == nil {
			s.snapshot(w, r, id)
			return
		}
	}
	sandboxes.ServeHTTP(w, r)
}

// VMName is the name of the VM that waits for its sandbox.
const VMName = "sandbox"

// rename puts the name of the sandbox's VM into a path of the HTTP API.
func (s *Server) rename(r *http.Request, rest string) {
	id, below, _ := strings.Cut(rest, "/")
	s.mu.Lock()
	first := s.first
	s.mu.Unlock()
	if id != first {
		return
	}
	path := "/v1/vms/" + VMName
	if below != "" {
		path += "/" + below
	}
	r.URL.Path = path
	if raw := r.URL.RawPath; raw != "" {
		r.URL.RawPath = "/v1/vms/" + VMName + strings.TrimPrefix(raw, "/v1/vms/"+id)
	}
}

// Serve serves gateways until ctx ends or the last sandbox has ended.
func (s *Server) Serve(ctx context.Context, address string, listening func(url string)) error {
	l, err := httpserver.Listen(ctx, address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	server := httpserver.Server{Handler: s.Handler(), MaxConns: maxConns, Grace: graceTime, Logger: s.config.Logger}
	return server.Serve(ctx, l, listening)
}
