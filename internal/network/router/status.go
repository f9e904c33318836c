package router

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"agentvm/internal/httpserver"
)

// Limits of the status server: its only client is the guest, which may be hostile.
const (
	maxStatusConns   = 16
	statusTime       = 10 * time.Second
	maxStatusHeaders = 8 << 10
)

// statusServer serves the guest, on port 80 of the gateway, what it may know about its own VM: its policy, its limits, what was denied to
// it. Each answer exists as text and as JSON. Nothing in it is about the host or other VMs: the server has access to nothing but
// the gateway.
//
//	/            the list of pages
//	/policy      what may be reached, and who may reach the guest
//	/limits      what the VM can hold, and what is used
//	/denials     the last denials
type statusServer struct {
	router *Router
	server *http.Server
	conns  httpserver.Limit
}

func newStatusServer(r *Router) *statusServer {
	p := &statusServer{router: r, conns: httpserver.Limit{Max: maxStatusConns}}
	p.server = &http.Server{
		Handler: p, MaxHeaderBytes: maxStatusHeaders, ErrorLog: log.New(io.Discard, "", 0), ConnState: p.conns.Track,
		ReadTimeout: statusTime, WriteTimeout: statusTime, IdleTimeout: statusTime,
	}
	return p
}

// serve answers requests on a listener until the server is closed.
func (p *statusServer) serve(l net.Listener) { _ = p.server.Serve(l) }

// wait returns when the goroutines of all connections have ended. Every serve has returned: one that had just accepted a
// connection while the server was closed would not be waited for.
func (p *statusServer) wait() {
	_ = p.server.Close()
	p.conns.Wait()
}

// answer is one page in both forms: text for people, and a value that is encoded as JSON for programs.
type answer struct {
	text  func(io.Writer)
	value any
}

// ServeHTTP answers GET and HEAD of the pages, whatever the Host header is. Errors have the same two forms.
func (p *statusServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimSuffix(r.URL.Path, ".json")
	pages := map[string]func() answer{"/": p.index, "/policy": p.policy, "/limits": p.limits, "/denials": p.denials}
	show, known := pages[path]
	switch {
	case !known:
		reply(w, r, http.StatusNotFound, problem(http.StatusNotFound, "there is no such page; http://agentvm.internal/ lists them"))
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		reply(w, r, http.StatusMethodNotAllowed, problem(http.StatusMethodNotAllowed, "pages are only read: use GET or HEAD"))
	default:
		reply(w, r, http.StatusOK, show())
	}
}

// problem is an error as a page.
func problem(code int, what string) answer {
	type failure struct {
		Status int    `json:"status"`
		Error  string `json:"error"`
	}
	return answer{func(w io.Writer) { fmt.Fprintf(w, "%d: %s\n", code, what) }, failure{code, what}}
}

// reply sends an answer in the requested form; for HEAD only its header.
func reply(w http.ResponseWriter, r *http.Request, code int, a answer) {
	var body bytes.Buffer
	header := w.Header()
	if wantsJSON(r) {
		header.Set("Content-Type", "application/json")
		encodeJSON(&body, a.value)
	} else {
		header.Set("Content-Type", "text/plain; charset=utf-8")
		a.text(&body)
	}
	header.Set("Vary", "Accept")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(code)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body.Bytes())
	}
}

// wantsJSON reports whether a request is for JSON. The page's name decides first, then the query, then the header.
func wantsJSON(r *http.Request) bool {
	if strings.HasSuffix(r.URL.Path, ".json") {
		return true
	}
	if form := r.URL.Query().Get("format"); form != "" {
		return form == "json"
	}
	return strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "application/json")
}
