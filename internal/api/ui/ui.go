// Package ui serves the page of agentvm ui: files for a browser, and the API of package serve behind the page's session.
//
// Every page in the world, every server at another port of this host and every user of it can send requests to the server. So it requires:
//
//   - The header Host is this host's loopback, so that no page has given its own name this address.
//   - The header Origin, and Sec-Fetch-Site, are those of the page itself.
//   - Whoever opens the page brings a link that was printed and works once. It is in the fragment of the URL, which browsers send to no server and
//     name to no other page. The page exchanges it for the key of a session, keeps that in its sessionStorage and sends it in a header.
//
// There is no cookie: browsers send cookies of 127.0.0.1 to the servers of all its ports, so to what is forwarded from VMs too, and along with the
// requests of their pages. sessionStorage belongs to one port.
package ui

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentvm/internal/api/serve"
	"agentvm/internal/host/origin"
	"agentvm/internal/httpserver"
)

const (
	maxConns    = 256
	maxLinks    = 16 // that are not used yet; more, and the oldest is forgotten
	maxSessions = 32 // the same
	linkTime    = time.Hour
	graceTime   = 500 * time.Millisecond
	maxBody     = 1 << 10
)

// Options configure a Server.
type Options struct {
	// API is what the page uses. Its Keys and Hosts are set here.
	API serve.Options
	// WriteRule adds a rule to the project file, and says what it has done. nil: there is none.
	WriteRule func(rule string, allow bool) (string, error)
	Home      string       // what ~ means in the path of a mount; empty: nothing
	Logger    *slog.Logger // nil discards
}

// Server serves the page. Its methods may be called at once.
type Server struct {
	options Options
	api     *serve.Server
	calls   http.Handler // the API's
	apiKey  string
	assets  map[string]asset
	url     string // set before it answers
	ending  context.Context
	end     context.CancelFunc
	metrics httpserver.Metrics

	mu       sync.Mutex
	links    []secret
	sessions []secret
}

// secret is a link or a session's key.
type secret struct {
	value string
	made  time.Time
}

// New makes a server.
func New(o Options) (*Server, error) {
	s := &Server{options: o, apiKey: rand.Text()}
	if s.options.Logger == nil {
		s.options.Logger = slog.New(slog.DiscardHandler)
	}
	o.API.Audit = nil // requests are audited here, where the browser's are
	o.API.Keys, o.API.Hosts = httpserver.Keys{{Name: "ui", Value: s.apiKey}}, nil
	api, err := serve.New(o.API)
	if err != nil {
		return nil, err
	}
	s.api, s.calls = api, api.Handler()
	s.ending, s.end = context.WithCancel(context.Background())
	s.assets, err = readAssets()
	return s, err
}

// Serve listens at this host's loopback and answers until ctx ends. listening is called when Link can be.
func (s *Server) Serve(ctx context.Context, address string, listening func()) error {
	l, err := httpserver.ListenLoopback(ctx, address)
	if err != nil {
		return err
	}
	s.url = "http://" + l.Addr().String()
	server := httpserver.Server{
		Handler: s.Handler(), MaxConns: maxConns, Grace: graceTime, Logger: s.options.Logger,
		Ending: func(context.Context) { s.end() },
	}
	return server.Serve(ctx, l, func(string) { listening() })
}

// Link returns a new URL that opens the page once, within an hour.
func (s *Server) Link() string {
	link := secret{rand.Text(), time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links = appendLast(s.links, link, maxLinks)
	return s.url + "/#" + link.value
}

func appendLast(list []secret, one secret, most int) []secret {
	if len(list) >= most {
		list = append([]secret(nil), list[len(list)-most+1:]...)
	}
	return append(list, one)
}

// exchange takes a link and returns the key of a new session, or "".
func (s *Server) exchange(link string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := -1
	for i, one := range s.links {
		if httpserver.Equal(link, one.value) && time.Since(one.made) < linkTime {
			found = i
		}
	}
	if found < 0 {
		return ""
	}
	s.links = append(s.links[:found:found], s.links[found+1:]...)
	session := secret{rand.Text(), time.Now()}
	s.sessions = appendLast(s.sessions, session, maxSessions)
	return session.value
}

// known reports whether a key is that of a session.
func (s *Server) known(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := false
	for _, one := range s.sessions {
		if httpserver.Equal(key, one.value) {
			found = true
		}
	}
	return found
}

// Handler answers the requests of browsers.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	const pageRoute, assetRoute, sessionRoute = "GET /{$}", "GET /assets/{name}", "POST /session"
	mux.HandleFunc(pageRoute, s.page)
	mux.HandleFunc(assetRoute, s.asset)
	mux.HandleFunc(sessionRoute, s.session)
	mux.Handle("GET /metrics", &s.metrics)
	mux.HandleFunc("POST /project", s.project)
	mux.HandleFunc("POST /vms", s.create)
	mux.HandleFunc("GET /vms/{vm}/log", s.log)
	mux.HandleFunc("/v1/", s.call)
	door := httpserver.Door{
		Server: "ui", Handler: mux, IsHost: isHere, Metrics: &s.metrics, Audit: s.options.API.Audit,
		Admits: func(r *http.Request, from origin.Request) bool {
			return !from.Foreign && !from.Opaque && (!from.Elsewhere || r.URL.Path == "/")
		},
		Client: func(r *http.Request) (string, bool) {
			return "session", s.known(sessionKey(r))
		},
		Public: func(r *http.Request) bool { // what there is not is no secret
			_, pattern := mux.Handler(r)
			return slices.Contains([]string{pageRoute, assetRoute, sessionRoute, ""}, pattern)
		},
		Refuse: func(w http.ResponseWriter, r *http.Request, status int) {
			text := "there is no such session: open a new link, which Enter prints where agentvm ui runs"
			switch status {
			case http.StatusMisdirectedRequest:
				text = "this is not " + r.Host
			case http.StatusForbidden:
				text = "a page of another origin has made this request"
			case http.StatusUnauthorized:
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			http.Error(w, text, status)
		},
	}.Open()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Frame-Options", "DENY")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox") // the page has its own
		door.ServeHTTP(w, r)
	})
}

// isHere reports whether a header Host is this host's loopback with any port: ssh may forward another one to here.
func isHere(host string) bool {
	if _, port, err := net.SplitHostPort(host); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return false
		}
	}
	return httpserver.IsHost(host, netip.Addr.IsLoopback)
}

// session exchanges a link for a key.
func (s *Server) session(w http.ResponseWriter, r *http.Request) {
	var in struct{ Link string }
	if err := readJSON(w, r, &in, maxBody); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	key := s.exchange(in.Link)
	if key == "" {
		http.Error(w, "the link was used already, or is older than an hour: press Enter where agentvm ui runs for another one", http.StatusForbidden)
		return
	}
	httpserver.Known(r)
	writeJSON(w, map[string]string{"key": key})
}

// keyProtocol precedes the key among the subprotocols of a WebSocket, for which pages cannot set headers.
const keyProtocol = "agentvm.key."

// sessionKey returns the key that a request shows.
func sessionKey(r *http.Request) string {
	key := httpserver.Bearer(r)
	for text := range strings.SplitSeq(r.Header.Get("Sec-WebSocket-Protocol"), ",") {
		if given, is := strings.CutPrefix(strings.TrimSpace(text), keyProtocol); is {
			key = given
		}
	}
	return key
}

// dropKey takes the key out of a request's subprotocols, of which the API is to choose one.
func dropKey(r *http.Request) {
	var protocols []string
	for text := range strings.SplitSeq(r.Header.Get("Sec-WebSocket-Protocol"), ",") {
		if text = strings.TrimSpace(text); text != "" && !strings.HasPrefix(text, keyProtocol) {
			protocols = append(protocols, text)
		}
	}
	if len(protocols) > 0 {
		r.Header.Set("Sec-WebSocket-Protocol", strings.Join(protocols, ", "))
	}
}

// call has the API answer a request, with its own key in the place of the session's.
func (s *Server) call(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := s.untilEnd(r)
	defer cancel()
	r = r.Clone(ctx)
	dropKey(r)
	r.Header.Set("Authorization", "Bearer "+s.apiKey)
	s.calls.ServeHTTP(w, r)
}

// untilEnd is a request's context, which also ends when the server begins to end.
func (s *Server) untilEnd(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(s.ending, cancel)
	return ctx, func() { stop(); cancel() }
}

// project adds a rule to the project file.
func (s *Server) project(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Rule  string
		Allow bool
	}
	err := readJSON(w, r, &in, maxBody)
	if err != nil || s.options.WriteRule == nil {
		http.Error(w, "there is no such operation", http.StatusBadRequest)
		return
	}
	text, err := s.options.WriteRule(in.Rule, in.Allow)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	writeJSON(w, map[string]string{"message": text})
}

func readJSON(w http.ResponseWriter, r *http.Request, into any, most int64) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func writeJSON(w http.ResponseWriter, out any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}
