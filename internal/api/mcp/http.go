package mcp

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"agentvm/internal/httpserver"
)

const (
	// Path is where HTTP serves the protocol.
	Path = "/mcp"
	// maxConns bounds the connections of clients, maxSessions the sessions of older revisions, and sessionTime the life of one that sends nothing.
	maxConns    = 64
	maxSessions = 256
	sessionTime = time.Hour
	// statelessRevision is the first revision of the protocol without sessions.
	statelessRevision = "2026-07-28"
)

// bodyTime is what each piece of a request's body may take. A variable for tests.
var bodyTime = 30 * time.Second

// Serve serves clients over HTTP, at Path of an address of the host's loopback, until ctx ends. listening is called with the URL.
func (s *Server) Serve(ctx context.Context, address, token string, listening func(url string)) error {
	if err := httpserver.CheckKey(token); err != nil {
		return fmt.Errorf("the token: %w", err)
	}
	l, err := httpserver.ListenLoopback(ctx, address)
	if err != nil {
		return err
	}
	server := httpserver.Server{
		Handler: s.handler(token), MaxConns: maxConns, Logger: s.config.Logger, Ending: func(context.Context) {
			s.end()
			for session := range s.sdk.Sessions() {
				_ = session.Close()
			}
		},
	}
	return server.Serve(ctx, l, func(url string) { listening(url + Path) })
}

// handler serves Path to who sends the token. Newer clients have no session; older ones have one, by which their calls are cancelled and their
// users asked.
func (s *Server) handler(token string) http.Handler {
	server := func(*http.Request) *sdk.Server { return s.sdk }
	stateless := sdk.NewStreamableHTTPHandler(server, &sdk.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true, Logger: s.config.Logger})
	sessions := sdk.NewStreamableHTTPHandler(server, &sdk.StreamableHTTPOptions{SessionTimeout: sessionTime, Logger: s.config.Logger})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", &s.metrics)
	mux.HandleFunc(Path, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Protocol-Version") >= statelessRevision {
			stateless.ServeHTTP(w, r)
			return
		}
		if r.Header.Get("Mcp-Session-Id") == "" && s.sessions() >= maxSessions {
			http.Error(w, "too many sessions: end some by DELETE, or use revision "+statelessRevision+", which has none", http.StatusServiceUnavailable)
			return
		}
		sessions.ServeHTTP(w, r)
	})
	return httpserver.Door{
		Server: "mcp", Handler: mux, Metrics: &s.metrics, Audit: s.config.Audit, Stall: bodyTime,
		IsHost: func(host string) bool { return httpserver.IsHost(host, netip.Addr.IsLoopback) },
		Client: httpserver.Keys{{Name: "client", Value: token}}.KeyIn(),
		Refuse: func(w http.ResponseWriter, r *http.Request, status int) {
			text := "the header Authorization has no token, or a wrong one"
			switch status {
			case http.StatusMisdirectedRequest:
				text = fmt.Sprintf("this server is not called %q: want localhost or an address of the loopback", r.Host)
			case http.StatusForbidden:
				text = "a page of another origin has made this request"
			case http.StatusUnauthorized:
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			http.Error(w, text, status)
		},
	}.Open()
}

func (s *Server) sessions() (n int) {
	for range s.sdk.Sessions() {
		n++
	}
	return n
}
