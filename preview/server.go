package preview

import (
	"context"
	"log/slog"
	"net"
	"time"
)

// A Dialer connects to TCP ports of VMs as a program inside of them would, to 127.0.0.1 or ::1 of the guest, and never to the
// host's loopback. It checks that policy permits the port and that something listens. Its errors may wrap
// ErrNotRunning, syscall.ECONNREFUSED (nothing listens), EACCES (policy) and EAGAIN (too many connections).
type Dialer interface {
	DialPreview(ctx context.Context, vm string, port uint16) (net.Conn, error)
}

// Limits bound what visitors and guests can take. Zero values mean the defaults.
type Limits struct {
	// Connections of visitors at once; more wait. Default 512.
	Connections int
	// Requests being served at once, streams included; more are refused. Default 256.
	Requests int
	// HeaderBytes of a request or response. Default 32 KiB.
	HeaderBytes int
	// BodyBytes of a request. Default 1 GiB.
	BodyBytes int64
	// HeaderTimeout is for a request's whole header. Default 10 s.
	HeaderTimeout time.Duration
	// StallTimeout is how long a visitor may take for the next byte, to send or to receive. Default 60 s.
	StallTimeout time.Duration
	// IdleTimeout is how long a connection is kept between requests. Default 60 s.
	IdleTimeout time.Duration
	// DialTimeout is for a connection into the VM. Default 10 s.
	DialTimeout time.Duration
	// ResponseTimeout is how long the guest may take for the header of its response. Default 5 minutes.
	ResponseTimeout time.Duration
}

// ServerConfig says what a Server works with. Store and Dialer are required.
type ServerConfig struct {
	Store  *Store
	Dialer Dialer
	// Permit, if not nil, is asked for each request after the token was found good and before the VM is touched, also when a
	// connection into the VM is used again. An error, of the kinds that Dialer's are, refuses the request. It is where the owner
	// checks that the VM of that name is still the one with the preview's VMID.
	Permit func(ctx context.Context, p Preview) error
	// Ports are others than the listener's by which visitors may reach it, such as the near end of an SSH tunnel.
	Ports []uint16
	// NoPaths turns the form /p/TOKEN/ off.
	NoPaths bool
	Limits  Limits
	// Logger gets what goes wrong, without tokens. nil discards.
	Logger *slog.Logger
}

// A Server is the reverse proxy behind previews.
type Server struct{}

// NewServer returns a Server, which does nothing until Serve.
func NewServer(cfg ServerConfig) *Server { return &Server{} }

// Serve answers on the listener, which it closes, until ctx is over or Close. It is to be called once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error { return ErrClosed }

// Close ends Serve and all that is being served, and waits for it.
func (s *Server) Close() error { return nil }
