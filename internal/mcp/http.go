package mcp

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"agentvm/internal/connlimit"
)

const (
	// Path is where HTTP serves the protocol.
	Path = "/mcp"
	// minToken is the length in bytes of the shortest token.
	minToken = 16
	// maxConns bounds the connections of clients, maxSessions the sessions of older revisions, and sessionTime the life of one that sends nothing.
	maxConns    = 64
	maxSessions = 256
	sessionTime = time.Hour
	headerTime  = 10 * time.Second
	// statelessRevision is the first revision of the protocol without sessions.
	statelessRevision = "2026-07-28"
)

// CheckToken says whether a text is fit for a token.
func CheckToken(token string) error {
	if len(token) < minToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("the token has to have %d characters of ASCII or more, and no spaces", minToken)
	}
	return nil
}

// CheckListen says whether an address of ADDRESS:PORT is one of the host's loopback.
func CheckListen(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%q: want ADDRESS:PORT, as 127.0.0.1:8484: %w", address, err)
	}
	if !at.Addr().IsLoopback() {
		return fmt.Errorf("%s is not this host's own: want 127.0.0.1 or [::1]", at.Addr())
	}
	return nil
}

// Serve serves clients over HTTP, at Path, until ctx ends. listening is called with the URL.
func (s *Server) Serve(ctx context.Context, address, token string, listening func(url string)) error {
	if err := errors.Join(CheckListen(address), CheckToken(token)); err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	limit := connlimit.Limit{Max: maxConns}
	server := &http.Server{
		Handler: s.handler(token), ReadHeaderTimeout: headerTime, ConnState: limit.Track, BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog: slog.NewLogLogger(s.config.Logger.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	listening("http://" + l.Addr().String() + Path)
	select {
	case err = <-served:
	case <-ctx.Done():
		s.end()
		err = server.Close()
		<-served
	}
	for session := range s.sdk.Sessions() {
		_ = session.Close()
	}
	limit.Wait()
	return err
}

// handler serves Path to who sends the token. Newer clients have no session; older ones have one, by which their calls are cancelled and their
// users asked.
func (s *Server) handler(token string) http.Handler {
	server := func(*http.Request) *sdk.Server { return s.sdk }
	stateless := sdk.NewStreamableHTTPHandler(server, &sdk.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true, Logger: s.config.Logger})
	sessions := sdk.NewStreamableHTTPHandler(server, &sdk.StreamableHTTPOptions{SessionTimeout: sessionTime, Logger: s.config.Logger})
	want := sha256.Sum256([]byte("Bearer " + token))
	mux := http.NewServeMux()
	mux.HandleFunc(Path, func(w http.ResponseWriter, r *http.Request) {
		// The digests have one length, so that the time of comparing says nothing about the token's.
		if got := sha256.Sum256([]byte(r.Header.Get("Authorization"))); subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the header Authorization has no token, or a wrong one", http.StatusUnauthorized)
			return
		}
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
	return http.NewCrossOriginProtection().Handler(mux)
}

func (s *Server) sessions() (n int) {
	for range s.sdk.Sessions() {
		n++
	}
	return n
}
