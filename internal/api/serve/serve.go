// Package serve serves the VMs of a store over HTTP. It is a thin layer on package client: it translates requests, and decides nothing itself
// but who may make them and how many.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentvm/client"
	"agentvm/internal/httpserver"
	"agentvm/vm"
)

const (
	maxConns    = 1024
	graceTime   = 10 * time.Second // for what runs when the server ends
	maxBody     = 4 << 20          // bytes of a JSON body
	maxRequests = 512              // that are answered at once, of one key about half; more get status 503
)

// bodyTime is how long a JSON body may take to come, and a piece of a file. Tests have less patience.
var bodyTime = 30 * time.Second

// Options configure a Server.
type Options struct {
	Store *client.Store
	Saved Saved
	// Previews has the links to servers in VMs. nil: the API has none.
	Previews Previews
	Keys     httpserver.Keys
	// Hosts are names under which clients reach the server, besides the address at which it listens and localhost.
	Hosts []string
	// Most is what VMs reach at most: what the server makes, starts, restores, forks or changes. A VM of which nothing is said has its network. nil: no limit.
	Most *vm.Network
	// Certificate is for HTTPS. Without one the server must listen at this host's loopback.
	Certificate *tls.Certificate
	Version     string
	Audit       func(httpserver.Record) // receives each request when it has been answered. nil: none
	Logger      *slog.Logger            // nil discards
}

// Saved has the snapshots of a store.
type Saved interface {
	List(ctx context.Context) ([]Snapshot, error)
	Create(ctx context.Context, vm, snapshot, comment string) error
	// Restore makes a VM that continues from a snapshot, if permit returns nil for its network.
	Restore(ctx context.Context, snapshot, vm string, permit func(vm.Network) error) error
	Remove(ctx context.Context, snapshot string) error
}

// Server answers requests. Its methods may be called at once.
type Server struct {
	options Options
	routes  []route
	mux     *http.ServeMux

	streaming map[string]bool // patterns of the routes that last as long as their clients wish
	hosts     []string
	metrics   httpserver.Metrics

	terminals chan struct{} // slots of those
	kept      keptAnswers
	creates   locks
	listening atomic.Int32    // clients that read events
	ending    context.Context // ends when the server begins to end
	end       context.CancelFunc
	sockets   struct {
		open    atomic.Int32
		running sync.WaitGroup
	}
}

// New makes a server.
func New(o Options) (*Server, error) {
	if len(o.Keys) == 0 {
		return nil, errors.New("serve: there must be a key")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		options: o, mux: http.NewServeMux(), streaming: make(map[string]bool), terminals: make(chan struct{}, maxTerminals), hosts: slices.Clone(o.Hosts),
	}
	s.ending, s.end = context.WithCancel(context.Background())
	for _, key := range o.Keys {
		if err := httpserver.CheckKey(key.Value); err != nil {
			return nil, fmt.Errorf("key %s: %w", key.Name, err)
		}
	}
	s.routes = s.allRoutes()
	for _, r := range s.routes {
		s.streaming[r.method+" "+r.path] = r.stream
		s.mux.Handle(r.method+" "+r.path, s.limited(r))
	}
	document, err := openAPI(s.routes, o.Version)
	if err != nil {
		return nil, err
	}
	s.mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(document)
	})
	s.mux.Handle("GET /metrics", &s.metrics)
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if allowed := httpserver.Allowed(s.mux, r); allowed != "" {
			w.Header().Set("Allow", allowed)
			WriteProblem(w, problemf(http.StatusMethodNotAllowed, "%s takes %s, not %s", r.URL.Path, allowed, r.Method))
			return
		}
		WriteProblem(w, problemf(http.StatusNotFound, "there is no %s %s; GET /openapi.json has what there is", r.Method, r.URL.Path))
	})
	return s, nil
}

func (s *Server) allRoutes() []route {
	return slices.Concat(s.vmRoutes(), s.execRoutes(), s.jobRoutes(), s.fileRoutes(), s.networkRoutes(), s.watchRoutes(), s.terminalRoutes(),
		s.savedRoutes(), s.previewRoutes(), s.socketRoutes(), s.eventRoutes())
}

// CheckListen reports whether the server may listen at an address: without a certificate only at this host's loopback.
func (o Options) CheckListen(address string) error {
	err := httpserver.CheckLoopback(address)
	if o.Certificate != nil && errors.Is(err, httpserver.ErrNotLoopback) {
		return nil
	}
	if errors.Is(err, httpserver.ErrNotLoopback) {
		return fmt.Errorf("%s is reached by others, who could read the keys of plain HTTP: give --tls-cert and --tls-key, or listen at 127.0.0.1", address)
	}
	return err
}

// Serve listens and answers until ctx ends. It is called once; requests that are being answered then have ten seconds. listening is called with the URL.
func (s *Server) Serve(ctx context.Context, address string, listening func(url string)) error {
	if err := s.options.CheckListen(address); err != nil {
		return err
	}
	l, err := httpserver.Listen(ctx, address)
	if err != nil {
		return err
	}
	host, _, _ := net.SplitHostPort(l.Addr().String())
	s.hosts = append(s.hosts, host)
	server := httpserver.Server{
		Handler: s.Handler(), Certificate: s.options.Certificate, MaxConns: maxConns, Grace: graceTime, Logger: s.options.Logger,
		Ending: func(context.Context) { s.end() },
	}
	defer s.sockets.running.Wait()
	return server.Serve(ctx, l, listening)
}

// Handler is the server's, for other listeners. It refuses requests for other hosts (of pages that have given their name this address) and
// from pages of other origins, and all but the health and the document without a key.
func (s *Server) Handler() http.Handler {
	return httpserver.Door{
		Server: "serve", Handler: s.mux, Client: s.options.Keys.KeyIn("X-API-Key"), Requests: maxRequests, Metrics: &s.metrics, Audit: s.options.Audit,
		IsHost:  func(host string) bool { return httpserver.IsHost(host, netip.Addr.IsLoopback, s.hosts...) },
		Public:  func(r *http.Request) bool { return r.URL.Path == "/healthz" || r.URL.Path == "/openapi.json" },
		Streams: s.streams,
		Refuse: func(w http.ResponseWriter, r *http.Request, status int) {
			switch status {
			case http.StatusMisdirectedRequest:
				WriteProblem(w, problemf(status, "this server is not called %q: name it with --host", r.Host))
			case http.StatusForbidden:
				WriteProblem(w, problemf(status, "a page of another origin has made this request"))
			case http.StatusUnauthorized:
				w.Header().Set("WWW-Authenticate", "Bearer")
				WriteProblem(w, problemf(status, "the header Authorization has no key, or a wrong one: want Bearer KEY"))
			default:
				WriteProblem(w, problemf(status, "too many requests are being answered: try again"))
			}
		},
	}.Open()
}

// streams reports whether a request is of a route that lasts as long as its client wishes.
func (s *Server) streams(r *http.Request) bool {
	_, pattern := s.mux.Handler(r)
	return s.streaming[pattern]
}

// limited is the handler of a route.
func (s *Server) limited(r route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if name := request.PathValue("vm"); name != "" {
			if err := client.CheckName(name); err != nil {
				WriteProblem(w, invalid("%v", err))
				return
			}
		}
		if err := r.checkQuery(request.URL.RawQuery); err != nil {
			WriteProblem(w, err)
			return
		}
		if key := request.Header.Get("Idempotency-Key"); key != "" && request.Method == http.MethodPost && !r.stream {
			s.kept.serve(w, request, key, r.serve)
			return
		}
		if r.method == http.MethodGet && len(r.events) > 0 { // it would last as long as its client
			ctx, cancel := context.WithCancel(request.Context())
			defer cancel()
			defer context.AfterFunc(s.ending, cancel)()
			request = request.WithContext(ctx)
		}
		r.serve(w, request)
	})
}
