// Package serve serves the VMs of a store over HTTP. It is a thin layer on package client: it translates requests, and decides nothing itself
// but who may make them and how many.
package serve

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"agentvm/client"
	"agentvm/internal/connlimit"
)

const (
	maxConns    = 1024
	headerTime  = 10 * time.Second
	idleTime    = 2 * time.Minute
	graceTime   = 10 * time.Second // for what runs when the server ends
	maxBody     = 4 << 20          // bytes of a JSON body
	minKey      = 16               // bytes of the shortest key
	maxRequests = 256              // that are answered at once; more get status 503
)

// bodyTime is how long a JSON body may take to come, and a piece of a file. Tests have less patience.
var bodyTime = 30 * time.Second

// Key lets a program use the server.
type Key struct {
	Name  string // for the log
	Value string // at least 16 characters of ASCII without spaces
}

// Options configure a Server.
type Options struct {
	Store *client.Store
	Saved Saved
	Keys  []Key
	// Hosts are names under which clients reach the server, besides the address at which it listens and localhost.
	Hosts []string
	// Certificate is for HTTPS. Without one the server must listen at this host's loopback.
	Certificate *tls.Certificate
	Version     string
	Audit       func(Record) // receives each request when it has been answered. nil: none
	Logger      *slog.Logger // nil discards
}

// Saved has the snapshots of a store.
type Saved interface {
	List(ctx context.Context) ([]Snapshot, error)
	Create(ctx context.Context, vm, snapshot, comment string) error
	// Restore makes a VM that continues from a snapshot.
	Restore(ctx context.Context, snapshot, vm string) error
	Remove(ctx context.Context, snapshot string) error
}

// Record is a request for the audit log.
type Record struct {
	Time     time.Time     `json:"time"`
	Key      string        `json:"key,omitempty"` // its name; none: the request had no valid one
	From     string        `json:"from"`
	Method   string        `json:"method"`
	Path     string        `json:"path"`
	Status   int           `json:"status"`
	Duration time.Duration `json:"durationNanos"`
}

// Server answers requests. Its methods may be called at once.
type Server struct {
	options Options
	routes  []route
	mux     *http.ServeMux
	keys    [][sha256.Size]byte
	hosts   []string
	metrics metrics
	slots   chan struct{}
	kept    keptAnswers
	creates locks
	ctx     context.Context // ends with Close: of streams
	end     context.CancelFunc
}

// New makes a server.
func New(o Options) (*Server, error) {
	if len(o.Keys) == 0 {
		return nil, errors.New("serve: there must be a key")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{options: o, mux: http.NewServeMux(), slots: make(chan struct{}, maxRequests), hosts: append([]string{"localhost"}, o.Hosts...)}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.metrics.init()
	for _, key := range o.Keys {
		if len(key.Value) < minKey || strings.ContainsFunc(key.Value, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, fmt.Errorf("key %s: want %d characters of ASCII or more, and no spaces", key.Name, minKey)
		}
		s.keys = append(s.keys, sha256.Sum256([]byte(key.Value)))
	}
	s.routes = slices.Concat(s.vmRoutes(), s.execRoutes(), s.jobRoutes(), s.fileRoutes(), s.networkRoutes(), s.savedRoutes())
	for _, r := range s.routes {
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
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	s.mux.HandleFunc("GET /metrics", s.metrics.serve)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, problemf(http.StatusNotFound, "there is no %s %s; GET /openapi.json has what there is", r.Method, r.URL.Path))
	})
	return s, nil
}

// Close ends what streams. Serve calls it.
func (s *Server) Close() { s.end() }

// CheckListen reports whether the server may listen at an address: without a certificate only at this host's loopback.
func (o Options) CheckListen(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%q: want ADDRESS:PORT, as 127.0.0.1:8480: %w", address, err)
	}
	if !at.Addr().IsLoopback() && o.Certificate == nil {
		return fmt.Errorf("%s is reached by others, who could read the keys of plain HTTP: give --tls-cert and --tls-key, or listen at 127.0.0.1", at)
	}
	return nil
}

// Serve listens and answers until ctx ends; requests that are being answered then have ten seconds. listening is called with the URL.
func (s *Server) Serve(ctx context.Context, address string, listening func(url string)) error {
	if err := s.options.CheckListen(address); err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer s.Close()
	host, _, _ := net.SplitHostPort(l.Addr().String())
	s.hosts = append(s.hosts, host)
	limit := connlimit.Limit{Max: maxConns}
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, ConnState: limit.Track,
		ErrorLog: slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelDebug),
	}
	scheme := "http"
	if s.options.Certificate != nil {
		scheme = "https"
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*s.options.Certificate}, NextProtos: []string{"h2", "http/1.1"}})
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	listening(scheme + "://" + l.Addr().String())
	select {
	case err = <-served:
	case <-ctx.Done():
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
		defer cancel()
		context.AfterFunc(grace, s.Close)
		if server.Shutdown(grace) != nil {
			err = server.Close()
		}
		<-served
	}
	s.Close()
	limit.Wait()
	return err
}

// Handler is the server's, for other listeners. It refuses requests for other hosts (of pages that have given their name this address) and
// from pages of other origins, and all but the health and the document without a key.
func (s *Server) Handler() http.Handler {
	protected := http.NewCrossOriginProtection()
	protected.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, problemf(http.StatusForbidden, "a page of another origin has made this request"))
	}))
	inner := protected.Handler(s.mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		answer := &recorder{ResponseWriter: w, status: http.StatusOK}
		key, known := s.key(r)
		switch {
		case !s.isHost(r.Host):
			writeProblem(answer, problemf(http.StatusMisdirectedRequest, "this server is not called %q: name it with --host", r.Host))
		case r.URL.Path == "/healthz" || r.URL.Path == "/openapi.json" || known:
			r = r.WithContext(context.WithValue(r.Context(), keyOf{}, key)) // which then has its pattern
			inner.ServeHTTP(answer, r)
		default:
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeProblem(answer, problemf(http.StatusUnauthorized, "the header Authorization has no key, or a wrong one: want Bearer KEY"))
		}
		took := time.Since(began)
		s.metrics.count(r.Pattern, answer.status, took)
		if s.options.Audit != nil {
			s.options.Audit(Record{began, key, r.RemoteAddr, r.Method, r.URL.Path, answer.status, took})
		}
	})
}

// keyOf is the context's key of the name of the key.
type keyOf struct{}

// key returns the name of the request's key.
func (s *Server) key(r *http.Request) (name string, known bool) {
	given := r.Header.Get("X-API-Key")
	if bearer, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); found {
		given = bearer
	}
	got := sha256.Sum256([]byte(given)) // digests have one length, so that the time of comparing says nothing about the key's
	for i := range s.keys {
		if subtle.ConstantTimeCompare(got[:], s.keys[i][:]) == 1 {
			name, known = s.options.Keys[i].Name, true
		}
	}
	return name, known
}

// isHost reports whether the server is called so.
func (s *Server) isHost(text string) bool {
	host := text
	if h, _, err := net.SplitHostPort(text); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if at, err := netip.ParseAddr(host); err == nil && at.IsLoopback() {
		return true // no name, so that no page can have it
	}
	return slices.ContainsFunc(s.hosts, func(own string) bool { return strings.EqualFold(own, host) })
}

// limited is the handler of a route.
func (s *Server) limited(r route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if name := request.PathValue("vm"); name != "" {
			if err := client.CheckName(name); err != nil {
				writeProblem(w, invalid("%v", err))
				return
			}
		}
		if !r.stream {
			select {
			case s.slots <- struct{}{}:
				defer func() { <-s.slots }()
			default:
				w.Header().Set("Retry-After", "1")
				writeProblem(w, problemf(http.StatusServiceUnavailable, "%d requests are being answered: try again", maxRequests))
				return
			}
		}
		if key := request.Header.Get("Idempotency-Key"); key != "" && request.Method == http.MethodPost && !r.stream {
			s.kept.serve(w, request, key, r.serve)
			return
		}
		r.serve(w, request)
	})
}

// recorder notes an answer's status.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
