// Package e2b serves VMs by E2B's protocols, so that programs written for E2B's SDK use VMs of this host: the control API (REST) and envd (HTTP and
// Connect RPC with JSON), which is what the SDK talks to in a sandbox. It is a thin layer on client.AnyVM; docs/guide/e2b.md says which methods of
// the SDK work, differ and are refused.
//
//	X-API-Key ────────────► control API (control.go) ──► VMs: create, fork, remove
//	X-Access-Token ───────► envd (process.go, filesystem.go, files.go) ──► client.AnyVM
//	PORT-ID.DOMAIN ───────► servers in the VM
//
// A sandbox is a VM that the server has made and that ends with the server. Its token is computed from the key and its name. What a client or a guest
// can make the server hold is bounded by the constants below.
package e2b

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/internal/api/e2b/wire"
	"agentvm/internal/api/kinds"
	"agentvm/internal/api/live"
	"agentvm/internal/httpserver"
	"agentvm/internal/network/reach"
)

const (
	maxJSON    = 4 << 20          // bytes of a request in JSON
	maxProcs   = 256              // processes of a sandbox at once, and with ended ones that can still be asked for
	maxConns   = 256              // connections of clients
	stallTime  = 30 * time.Second // a client that takes or sends nothing for so long is given up
	removeTime = time.Minute
)

// VM is a connection to a VM. Close ends the connection, not the VM.
type VM interface {
	client.AnyVM
	io.Closer
	Fork(ctx context.Context, names []string, o client.ForkOptions) error
}

// VMs makes the VMs. Methods are called from several goroutines.
type VMs interface {
	// Create starts a VM with variables, as KEY=VALUE, and a policy, and returns when it runs. adopt are the keys of commands with which a
	// client of a VM that continues does so too; see client.VM.Adopt.
	Create(ctx context.Context, name string, env []string, policy egress.Policy, adopt []string) (VM, error)
	// Open connects to a VM that runs.
	Open(ctx context.Context, name string) (VM, error)
	// Remove stops a VM and deletes it. The error is client.ErrNotFound when there is none.
	Remove(ctx context.Context, name string) error
}

// Config configures a Server.
type Config struct {
	VMs VMs
	// Snapshots keeps sandboxes. nil: there are no snapshots.
	Snapshots Snapshots
	// Key is what clients of the control API send, at least 16 characters. Tokens of sandboxes are computed from it.
	Key string
	// Domain is the end of the names by which servers in sandboxes are reached: PORT-ID.DOMAIN. It may have a port.
	Domain string
	// User runs commands and owns files where the client names no user. Default: root.
	User string
	// Policy is what sandboxes may reach at most. Clients can narrow it.
	Policy egress.Policy
	// Max is how many sandboxes there may be at once. Default: 16.
	Max    int
	CPUs   int   // of a sandbox, for clients that ask
	Memory int64 // the same, in bytes
	// NewIDs names n new sandboxes of a request, and Token computes the token of one. nil: names by chance, tokens from the key.
	NewIDs func(r *http.Request, n int) ([]string, error)
	Token  func(id string) string
	Audit  func(httpserver.Record) // receives each request when it has been answered. nil: none
	Logger *slog.Logger            // nil discards
}

// Server has the sandboxes. Close it when no request runs any more.
type Server struct {
	config Config
	ctx    context.Context // ends with Close
	end    context.CancelFunc
	work   sync.WaitGroup // removals
	stall  time.Duration  // stallTime, except in tests

	requests httpserver.Metrics

	mu        sync.Mutex
	sandboxes map[string]*sandbox
	making    int // sandboxes that are not in the map yet
}

// New makes a server.
func New(c Config) (*Server, error) {
	if err := httpserver.CheckKey(c.Key); err != nil {
		return nil, fmt.Errorf("the API key: %w", err)
	}
	if c.Max == 0 {
		c.Max = 16
	}
	if c.User == "" {
		c.User = "root"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{config: c, stall: stallTime, sandboxes: map[string]*sandbox{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s, nil
}

// Close removes the sandboxes.
func (s *Server) Close() {
	s.end()
	s.mu.Lock()
	var all []*sandbox
	for _, b := range s.sandboxes {
		all = append(all, b)
	}
	s.mu.Unlock()
	for _, b := range all {
		s.remove(b)
	}
	s.work.Wait()
}

// Serve serves clients at an address of the host's loopback until ctx ends. listening is called with the URL.
func (s *Server) Serve(ctx context.Context, address string, listening func(url string)) error {
	l, err := httpserver.ListenLoopback(ctx, address)
	if err != nil {
		return err
	}
	if s.config.Domain == "" {
		_, port, _ := net.SplitHostPort(l.Addr().String())
		s.config.Domain = "localhost:" + port
	}
	server := httpserver.Server{Handler: s.Handler(), MaxConns: maxConns, Logger: s.config.Logger}
	return server.Serve(ctx, l, listening)
}

type failure = wire.Failure

func fail(status int, format string, args ...any) error { return wire.Fail(status, format, args...) }

// status is the HTTP status of an error, of the guest's included.
func status(err error) int {
	var f *failure
	if errors.As(err, &f) {
		return f.Status
	}
	return statusOf[kinds.Of(err)]
}

var statusOf = map[kinds.Kind]int{
	kinds.Internal: http.StatusInternalServerError,
	kinds.Invalid:  http.StatusBadRequest,
	kinds.NotFound: http.StatusNotFound,
	kinds.Conflict: http.StatusConflict,
	kinds.Denied:   http.StatusForbidden,
	kinds.TooLarge: http.StatusRequestEntityTooLarge,
	kinds.Stalled:  http.StatusRequestTimeout,
	kinds.Ended:    http.StatusServiceUnavailable,
	kinds.Timeout:  http.StatusGatewayTimeout,
}

func writeJSON(w http.ResponseWriter, status int, v any) { wire.WriteJSON(w, status, v) }

func writeError(w http.ResponseWriter, err error) {
	writeJSON(w, status(err), map[string]any{"code": status(err), "message": err.Error()})
}

// Handler serves everything. It tells requests apart by Host: PORT-ID.DOMAIN leads into a sandbox; localhost and addresses of the loopback are the
// control API and, with E2B's headers or without, envd. Other names are refused, so that no page can get here by a name that it controls.
func (s *Server) Handler() http.Handler {
	mux, envd := http.NewServeMux(), http.NewServeMux() // envd is a part of mux, to tell its requests
	s.control(mux)
	s.envd(mux)
	s.envd(envd)
	ofSandbox := func(r *http.Request) bool { // envd asks for the token of a sandbox
		_, pattern := envd.Handler(r)
		return pattern != ""
	}
	door := httpserver.Door{
		Server: "e2b", Metrics: &s.requests, Audit: s.config.Audit, Stall: s.stall, Public: ofSandbox,
		IsHost: func(host string) bool {
			if port, _, found := wire.SplitHost(host, s.config.Domain); found {
				return port == wire.EnvdPort
			}
			return httpserver.IsHost(host, netip.Addr.IsLoopback)
		},
		Client: func(r *http.Request) (string, bool) {
			return httpserver.Keys{{Name: "client", Value: s.config.Key}}.Find(r.Header.Get("X-Api-Key"))
		},
		Refuse: func(w http.ResponseWriter, r *http.Request, status int) {
			text := "the header X-API-Key has no key, or a wrong one"
			switch status {
			case http.StatusMisdirectedRequest:
				text = fmt.Sprintf("%q is no name of this server: want localhost, an address of the loopback, or PORT-ID.%s", r.Host, s.config.Domain)
			case http.StatusForbidden:
				text = "a page of another origin has made this request"
			}
			writeError(w, fail(status, "%s", text))
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if token := r.Header.Get(wire.HeaderToken); token != "" && r.Header.Get(wire.HeaderSandbox) == "" {
				r.Header.Set(wire.HeaderSandbox, s.holder(token)) // SDKs before 2.16 name no sandbox
			}
			mux.ServeHTTP(w, r)
		}),
	}.Open()
	passing := httpserver.Door{Server: "e2b", Metrics: &s.requests, Audit: s.config.Audit}.Passing(http.HandlerFunc(s.proxy))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if port, id, found := wire.SplitHost(r.Host, s.config.Domain); found {
			r.Header.Set(wire.HeaderSandbox, id)
			r.Header.Set(wire.HeaderPort, strconv.Itoa(int(port)))
			if port != wire.EnvdPort {
				passing.ServeHTTP(w, r)
				return
			}
		}
		door.ServeHTTP(w, r)
	})
}

// token is the token of a sandbox.
func (s *Server) token(id string) string {
	if s.config.Token != nil {
		return s.config.Token(id)
	}
	return wire.Token(s.config.Key, id)
}

// holder returns the sandbox that has a token, "" when there is none.
func (s *Server) holder(token string) string {
	s.mu.Lock()
	ids := slices.Collect(maps.Keys(s.sandboxes))
	s.mu.Unlock()
	for _, id := range ids {
		if httpserver.Equal(token, s.token(id)) {
			return id
		}
	}
	return ""
}

// newIDs are names for VMs that no one can guess.
func (s *Server) newIDs(r *http.Request, n int) ([]string, error) {
	if s.config.NewIDs != nil {
		return s.config.NewIDs(r, n)
	}
	ids := make([]string, n)
	for i := range ids {
		ids[i] = "e2b" + strings.ToLower(rand.Text()[:20])
	}
	return ids, nil
}

// sandbox is a VM that clients have made.
type sandbox struct {
	id       string
	template string
	vm       VM
	started  time.Time
	meta     map[string]string
	env      []string

	mu     sync.Mutex
	ends   time.Time
	timer  *time.Timer
	pauses bool // at its end, instead of being removed
	paused bool
	policy egress.Policy
	asked  creation        // by the client, changes of the network included
	live   context.Context // ends when the sandbox is paused or removed: streams are cut then
	cut    context.CancelFunc
	gone   bool

	procs   *live.Table[started]
	watches watches
}

// find returns a sandbox that clients can use: one that runs.
func (s *Server) find(id string) (*sandbox, context.Context, error) {
	s.mu.Lock()
	b := s.sandboxes[id]
	s.mu.Unlock()
	if b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.paused && !b.gone {
			return b, b.live, nil
		}
	}
	return nil, nil, fail(http.StatusBadGateway, "The sandbox was not found")
}

// remove ends a sandbox. The second call for one does nothing.
func (s *Server) remove(b *sandbox) {
	b.mu.Lock()
	was := b.gone
	b.gone = true
	b.timer.Stop()
	b.cut()
	b.mu.Unlock()
	if was {
		return
	}
	s.mu.Lock()
	delete(s.sandboxes, b.id)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	err := s.config.VMs.Remove(ctx, b.id)
	b.procs.Wait()
	if err = errors.Join(err, b.vm.Close()); err != nil {
		s.config.Logger.Warn("a sandbox was not removed", "name", b.id, "err", err)
	}
}

// expire is called when a sandbox's time may have come.
func (s *Server) expire(b *sandbox) {
	s.work.Add(1)
	defer s.work.Done()
	b.mu.Lock()
	over, pauses := !b.gone && !b.paused && !time.Now().Before(b.ends), b.pauses
	b.mu.Unlock()
	if !over {
		return
	}
	if pauses {
		ctx, cancel := context.WithTimeout(context.Background(), removeTime)
		defer cancel()
		if err := s.pause(ctx, b); err == nil {
			return
		}
	}
	s.remove(b)
}

// proxy leads a request to a server in a sandbox. The guest answers it: nothing of the control API is in the way, and no key is passed on.
func (s *Server) proxy(w http.ResponseWriter, r *http.Request) {
	b, live, err := s.find(r.Header.Get("E2b-Sandbox-Id"))
	if err != nil {
		writeNoSandbox(w, r)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(live, cancel)()
	port := r.Header.Get("E2b-Sandbox-Port")
	httpserver.Known(r) // who has the name needs no key
	httpserver.StreamBody(w)
	httpserver.FullDuplex(w)
	(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", net.JoinHostPort("localhost", port)
			p.SetXForwarded()
			for _, name := range []string{"X-Api-Key", "X-Access-Token", "E2b-Sandbox-Id", "E2b-Sandbox-Port"} {
				p.Out.Header.Del(name)
			}
		},
		Transport: reach.ProxyTransport(b.vm.HTTPClient()),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			writeJSON(w, http.StatusBadGateway, map[string]any{"sandboxId": b.id, "message": "The sandbox is running but port is not open", "port": port, "code": 502})
		},
		ErrorLog: slog.NewLogLogger(s.config.Logger.Handler(), slog.LevelDebug),
	}).ServeHTTP(w, r.WithContext(ctx))
}

func writeNoSandbox(w http.ResponseWriter, r *http.Request) {
	wire.WriteNoSandbox(w, r.Header.Get(wire.HeaderSandbox))
}
