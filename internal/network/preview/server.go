package preview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"

	"agentvm/internal/httpserver"
)

// A Dialer connects to TCP ports of VMs as a program inside of them would, to 127.0.0.1 or ::1 of the guest, and never to the
// host's loopback. It checks that policy permits the port and that something listens. Its errors may wrap
// ErrNotRunning, syscall.ECONNREFUSED (nothing listens), EACCES (policy) and EAGAIN (too many connections).
type Dialer interface {
	DialPreview(ctx context.Context, vm string, port uint16) (net.Conn, error)
}

// Limits bound what visitors and guests can take. Zero values mean the defaults.
type Limits struct {
	// Connections of visitors at once, a quarter of which may have shown no token (httpserver.Limit). Default 1024.
	Connections int
	// Requests being served at once, streams included; more are refused. One link has no more of these places than are free after it,
	// so that requests that hang on one link leave places for others. Default 512.
	Requests int
	// HeaderBytes of a request or response. Default 32 KiB.
	HeaderBytes int
	// BodyBytes of a request. Default 1 GiB.
	BodyBytes int64
	// HeaderTimeout is for a request's whole header. Default 10 s.
	HeaderTimeout time.Duration
	// StallTimeout is how long a visitor may take for the next byte of a body, to send or to receive. Default 60 s.
	StallTimeout time.Duration
	// IdleTimeout is how long a connection is kept between requests. Default 60 s.
	IdleTimeout time.Duration
	// DialTimeout is for a connection into the VM. Some are made to a port at once and more wait, as long as it answers within
	// this time. Default 10 s.
	DialTimeout time.Duration
	// ResponseTimeout is how long the guest may take for the header of its response. Default 5 minutes.
	ResponseTimeout time.Duration
}

func (l Limits) withDefaults() Limits {
	l.Connections = cmp.Or(l.Connections, 1024)
	l.Requests = cmp.Or(l.Requests, 512)
	l.HeaderBytes = cmp.Or(l.HeaderBytes, 32<<10)
	l.BodyBytes = cmp.Or(l.BodyBytes, 1<<30)
	l.HeaderTimeout = cmp.Or(l.HeaderTimeout, 10*time.Second)
	l.StallTimeout = cmp.Or(l.StallTimeout, time.Minute)
	l.IdleTimeout = cmp.Or(l.IdleTimeout, time.Minute)
	l.DialTimeout = cmp.Or(l.DialTimeout, 10*time.Second)
	l.ResponseTimeout = cmp.Or(l.ResponseTimeout, 5*time.Minute)
	return l
}

// ServerConfig says what a Server works with. Store and Dialer are required.
type ServerConfig struct {
	// Store knows the tokens. It stays the caller's, and must outlive the Server.
	Store *Store
	// Dialer reaches the VMs.
	Dialer Dialer
	// Permit, if not nil, is called for each request after the token was found good and before the VM is touched, also when a
	// connection into the VM is used again. An error, of the kinds that Dialer's are, refuses the request. It is where the owner
	// checks that the VM of that name is still the one with the preview's VMID.
	Permit func(ctx context.Context, p Preview) error
	// Visit, if not nil, is called for each request that Permit has let through, and left when that has ended, WebSockets and
	// streams included. With it the owner counts the users of a VM.
	Visit func(p Preview) (left func())
	// Audit, if not nil, receives each request when it has been answered, without tokens: the key's name is the preview's ID. It may be called from
	// several goroutines.
	Audit func(httpserver.Record)
	// Metrics count the answers. nil: nothing is counted.
	Metrics *httpserver.Metrics
	// Ports are others than the listener's by which visitors reach it, such as the near end of an SSH tunnel.
	Ports []uint16
	// NoPaths switches off the form /p/TOKEN/.
	NoPaths bool
	// Limits: see there.
	Limits Limits
	// Logger gets what goes wrong, without tokens. nil discards.
	Logger *slog.Logger
}

// A Server is the reverse proxy behind previews.
type Server struct {
	cfg    ServerConfig
	limits Limits
	log    *slog.Logger

	http      *http.Server
	noted     http.Handler // counts and audits what answer does
	conns     httpserver.Limit
	transport *http.Transport
	proxy     *httputil.ReverseProxy
	ports     map[uint16]bool    // set by Serve, before the first request
	places    *httpserver.Places // of the requests being served
	sessions  *sessions
	dials     dialLimiter

	life context.Context // of all that Serve started
	end  context.CancelFunc

	mu      sync.Mutex
	serving bool
	closed  bool
	work    sync.WaitGroup // requests and dials; added to under mu
}

// strangerTime is how long a connection may be without a request that has a token.
const strangerTime = 10 * time.Second

// NewServer returns a Server, which does nothing until Serve.
func NewServer(cfg ServerConfig) *Server {
	s := &Server{cfg: cfg, limits: cfg.Limits.withDefaults(), log: cfg.Logger, sessions: newSessions()}
	s.conns.Max, s.conns.Strangers, s.conns.Patience = s.limits.Connections, max(s.limits.Connections/4, 1), max(s.limits.HeaderTimeout, strangerTime)
	s.dials.ports = make(map[string]*portLimiter)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.places = httpserver.NewPlaces(s.limits.Requests)
	s.life, s.end = context.WithCancel(context.Background())
	s.transport = s.newTransport()
	s.proxy = s.newProxy()
	s.http = s.newHTTP()
	s.noted = httpserver.Door{Server: "preview", Path: pathOf, Audit: cfg.Audit, Metrics: cfg.Metrics}.Passing(http.HandlerFunc(s.answer))
	return s
}

func (s *Server) newHTTP() *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:                      s,
		ConnState:                    s.conns.Track,
		ConnContext:                  s.conns.Context,
		Protocols:                    &protocols,
		DisableGeneralOptionsHandler: true,
		MaxHeaderBytes:               s.limits.HeaderBytes,
		ReadHeaderTimeout:            s.limits.HeaderTimeout,
		IdleTimeout:                  s.limits.IdleTimeout,
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		BaseContext:                  func(net.Listener) context.Context { return s.life },
	}
}

// Serve answers on the listener, which it closes, until ctx is over or Close, and then returns nil. It is to be called
// once. The listener must be on loopback.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if err := s.start(l); err != nil {
		return errors.Join(err, l.Close())
	}
	var watcher sync.WaitGroup
	watcher.Go(s.watch)
	stop := context.AfterFunc(ctx, s.shut)
	err := s.http.Serve(l)
	stop()
	s.shut()
	watcher.Wait()
	s.work.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve previews: %w", err)
}

func (s *Server) start(l net.Listener) error {
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok || !at.IP.IsLoopback() {
		return fmt.Errorf("serve previews on %v: they are for loopback only; listen on 127.0.0.1", l.Addr())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.serving:
		return errors.New("serve previews: Serve was called before")
	}
	s.serving = true
	s.ports = map[uint16]bool{uint16(at.Port): true} //nolint:gosec // a port
	for _, port := range s.cfg.Ports {
		s.ports[port] = true
	}
	return nil
}

// Close ends Serve and all that is being served, and waits for it. The listener is closed by Serve.
func (s *Server) Close() error {
	s.shut()
	s.work.Wait()
	return nil
}

// shut ends everything without waiting.
func (s *Server) shut() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.http.Close() // what it may say is about the listener, which Serve reports
	s.transport.CloseIdleConnections()
}

// begin says whether work may begin, which then ends with s.work.Done.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.work.Add(1)
	return true
}
