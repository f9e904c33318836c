// Package httpserver is the common part of the servers for clients of the host: where they listen, who their clients are, what a client can
// hold, and how they end.
package httpserver

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
)

const (
	minKey       = 16 // bytes of the shortest key
	headerTime   = 10 * time.Second
	strangerTime = 10 * time.Second // for a client to show its key
	bodyTime     = 30 * time.Second // for a body, whether a handler reads it or not
	idleTime     = 2 * time.Minute
)

// ErrNotLoopback is the error of an address that others than this host reach.
var ErrNotLoopback = errors.New("not this host's own: want 127.0.0.1 or [::1]")

// CheckLoopback reports whether ADDRESS:PORT is of this host's loopback.
func CheckLoopback(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%q: want ADDRESS:PORT, as 127.0.0.1:8480: %w", address, err)
	}
	if !at.Addr().IsLoopback() {
		return fmt.Errorf("%s is %w", at.Addr(), ErrNotLoopback)
	}
	return nil
}

// Listen listens for TCP at ADDRESS:PORT. Whether others than this host may reach it is the caller's to check.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}

// ListenLoopback is Listen for addresses of this host's loopback alone.
func ListenLoopback(ctx context.Context, address string) (net.Listener, error) {
	if err := CheckLoopback(address); err != nil {
		return nil, err
	}
	return Listen(ctx, address)
}

// Server answers the requests of one listener. Handler, MaxConns and Logger must be set.
type Server struct {
	Handler     http.Handler
	Certificate *tls.Certificate  // for HTTPS. nil: plain HTTP
	GRPC        *http.HTTP2Config // for HTTP/2 without TLS. nil: none
	MaxConns    int               // connections at once; a quarter of them, but 16 or more, may be of clients who have shown no key (Known)
	// Grace is what requests that are being answered have when the server ends; then their contexts end, and their connections.
	Grace time.Duration
	// Ending is called when the server begins to end, with a context that ends with the grace. nil: none.
	Ending func(context.Context)
	Logger *slog.Logger
}

// Serve calls listening with its URL, answers until ctx ends, closes the listener, and returns when no request is being answered any more.
func (s *Server) Serve(ctx context.Context, l net.Listener, listening func(url string)) error {
	base, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	limit := Limit{Max: s.MaxConns, Strangers: max(s.MaxConns/4, 16), Patience: strangerTime}
	server := &http.Server{
		Handler: withinTime(s.Handler, bodyTime), ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, ConnState: limit.Track, ConnContext: limit.Context, HTTP2: s.GRPC,
		BaseContext: func(net.Listener) context.Context { return base }, ErrorLog: slog.NewLogLogger(s.Logger.Handler(), slog.LevelDebug),
	}
	if s.GRPC != nil {
		server.Protocols = new(http.Protocols)
		server.Protocols.SetUnencryptedHTTP2(true)
	}
	scheme := "http://"
	if s.Certificate != nil {
		scheme = "https://"
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*s.Certificate}, NextProtos: []string{"h2", "http/1.1"}})
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	listening(scheme + l.Addr().String())
	var err error
	select {
	case err = <-served:
		err = errors.Join(err, server.Close()) // connections, for which limit waits
	case <-ctx.Done():
		grace, cancel := context.WithTimeout(base, s.Grace)
		defer cancel()
		context.AfterFunc(grace, cut)
		if s.Ending != nil {
			s.Ending(grace)
		}
		if server.Shutdown(grace) != nil {
			err = server.Close()
		}
		<-served
	}
	cut()
	limit.Wait()
	return err
}

// withinTime bounds the time in which a body comes, and what is left of it when the handler has answered. A handler that reads a stream says so with
// PatientBody or StreamBody.
func withinTime(h http.Handler, most time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			h.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		limit := func() { _ = control.SetReadDeadline(time.Now().Add(most)) }
		limit()
		body := &limitedBody{ReadCloser: r.Body, control: control}
		defer func() {
			if body.begun && !body.ended {
				limit()
			}
		}()
		r.Body = body
		h.ServeHTTP(w, r)
	})
}

// limitedBody takes the limit away at its end: the connection is watched for its own while the response is made.
type limitedBody struct {
	io.ReadCloser
	control *http.ResponseController
	begun   bool
	ended   bool // or it has failed
}

func (b *limitedBody) Read(p []byte) (int, error) {
	b.begun = true
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || err != nil
	if errors.Is(err, io.EOF) {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// StreamBody takes the limit of the time from a request's body: for protocols in which both sides wait for each other. Who calls it knows the
// client.
func StreamBody(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
}

// Key lets a program use a server.
type Key struct {
	Name  string // for the log
	Value string // at least 16 characters of ASCII without spaces
}

// CheckKey reports whether a text is fit for a key's value.
func CheckKey(value string) error {
	if len(value) < minKey || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("want %d characters of ASCII or more, and no spaces", minKey)
	}
	return nil
}

// Bearer returns the key that a request has in its header Authorization (RFC 6750, section 2.1), or "".
func Bearer(r *http.Request) string {
	if key, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); found {
		return key
	}
	return ""
}

// Equal compares secrets. The digests have one length, so that the time of comparing says nothing about a secret's.
func Equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// Keys are those of a server.
type Keys []Key

// Find returns the name of a key that a client has given.
func (k Keys) Find(given string) (name string, known bool) {
	for _, key := range k {
		if Equal(given, key.Value) {
			name, known = key.Name, true
		}
	}
	return name, known
}

// IsHost reports whether the Host of a request is this server: localhost, an address that accept accepts, or one of the names. A page that has
// given its own name the server's address (DNS rebinding) has that name as Host; an address is no name, so that no page can have it.
func IsHost(host string, accept func(netip.Addr) bool, names ...string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if at, err := netip.ParseAddr(host); err == nil {
		return accept(at)
	}
	return strings.EqualFold(host, "localhost") || slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, host) })
}

// FullDuplex is for reverse proxies: an answer may begin before the end of its request. Else net/http reads the rest of the body itself then,
// which the proxy's transport takes for a failure if it has not seen the end.
func FullDuplex(w http.ResponseWriter) { _ = http.NewResponseController(w).EnableFullDuplex() }

// PatientBody returns the body of a request, of any length, of which each piece has to come within a time.
func PatientBody(w http.ResponseWriter, r *http.Request, stall time.Duration) io.ReadCloser {
	return &patientBody{r.Body, http.NewResponseController(w), stall}
}

type patientBody struct {
	io.ReadCloser
	control *http.ResponseController
	stall   time.Duration
}

func (b *patientBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(b.stall))
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.control.SetReadDeadline(time.Time{}) // as limitedBody does
	}
	return n, err
}

// PatientWriter returns a writer of a response, of any length, of which each piece has to be taken within a time.
func PatientWriter(w http.ResponseWriter, stall time.Duration) http.ResponseWriter {
	return &patientWriter{w, http.NewResponseController(w), stall}
}

type patientWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
}

// Unwrap is for http.ResponseController.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader also takes back the time that an earlier response of the connection had.
func (w *patientWriter) WriteHeader(status int) {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.stall))
	w.ResponseWriter.WriteHeader(status)
}

func (w *patientWriter) Write(p []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.stall))
	return w.ResponseWriter.Write(p)
}
