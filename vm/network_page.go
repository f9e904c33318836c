package vm

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"agentvm/internal/fewconns"
)

// Limits of the page's server: it has one reader, who is hostile.
const (
	maxPageConns   = 16
	pageTime       = 10 * time.Second
	maxPageHeaders = 8 << 10
)

// page serves the guest, on port 80 of the gateway, what it may know of its own VM: its policy, its limits, what was denied to
// it. Each answer exists as text and as JSON. Nothing of this host is in it, and nothing of other VMs: it has nothing else to take
// it from than what is in network.
//
//	/            what there is
//	/policy      what may be reached, and who may reach the guest
//	/limits      what the VM can hold, and what is used
//	/denials     the last denials
type page struct {
	network *network
	memory  uint64 // Config.Memory
	mounts  int
	locals  atomic.Pointer[locals] // nil before there is a VM
	server  *http.Server
	conns   fewconns.Limit
}

func newPage(c Config, n *network) *page {
	p := &page{network: n, memory: c.Memory, mounts: len(c.Mounts), conns: fewconns.Limit{Max: maxPageConns}}
	p.server = &http.Server{
		Handler: p, MaxHeaderBytes: maxPageHeaders, ErrorLog: log.New(io.Discard, "", 0), ConnState: p.conns.Track,
		ReadTimeout: pageTime, WriteTimeout: pageTime, IdleTimeout: pageTime,
	}
	return p
}

// serve answers on a listener until stop.
func (p *page) serve(l net.Listener) { _ = p.server.Serve(l) }

// stop ends the listeners, so that serve returns, and the connections.
func (p *page) stop() { _ = p.server.Close() }

// wait returns when the goroutines of all connections have ended. Every serve has returned: one that had just accepted a
// connection while stop ran would not be waited for.
func (p *page) wait() {
	_ = p.server.Close()
	p.conns.Wait()
}

// answer is one page in both forms: text for people, and what is encoded as JSON for programs.
type answer struct {
	text  func(io.Writer)
	value any
}

// ServeHTTP answers GET and HEAD of the pages, by whatever name the guest calls the host, and says what is wrong with everything
// else in the same two forms.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

// reply sends an answer in the form that was asked for, and of HEAD only its header.
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

// wantsJSON reads the request's wish: the name of the page before the query, and that before the header.
func wantsJSON(r *http.Request) bool {
	if strings.HasSuffix(r.URL.Path, ".json") {
		return true
	}
	if form := r.URL.Query().Get("format"); form != "" {
		return form == "json"
	}
	return strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "application/json")
}
