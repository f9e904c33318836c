package vm

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentvm/egress"
)

// pageText is what a guest reads at http://agentvm.internal/.
const pageText = `This is a virtual machine of agentvm. What it may reach is decided outside of it.

  http://agentvm.internal/policy     the policy
  http://agentvm.internal/denials    what was denied, newest last, and what would allow it
                                     (JSON with Accept: application/json, ?format=json, or as /denials.json)

The same lines are in /run/agentvm/denials.
`

// Limits of the page's server: it has one reader, who is hostile.
const (
	maxPageConns   = 16
	pageTime       = 10 * time.Second
	maxPageHeaders = 8 << 10
)

// page serves the guest what it may know of its policy, on port 80 of the gateway.
type page struct {
	gate     *egress.Gate
	recorder *recorder
	server   *http.Server
	conns    sync.WaitGroup // goroutines of connections
	open     atomic.Int32
}

func newPage(gate *egress.Gate, r *recorder) *page {
	p := &page{gate: gate, recorder: r}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.index)
	mux.HandleFunc("GET /policy", p.policy)
	mux.HandleFunc("GET /denials", p.denials)
	mux.HandleFunc("GET /denials.json", p.denials)
	p.server = &http.Server{
		Handler: mux, MaxHeaderBytes: maxPageHeaders, ErrorLog: log.New(io.Discard, "", 0), ConnState: p.count,
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

// count keeps the number of connections small, and knows when they have ended.
func (p *page) count(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		p.conns.Add(1)
		if p.open.Add(1) > maxPageConns {
			_ = conn.Close()
		}
	case http.StateClosed, http.StateHijacked:
		p.open.Add(-1)
		p.conns.Done()
	}
}

func (p *page) index(w http.ResponseWriter, _ *http.Request) { writeText(w, pageText) }

func (p *page) policy(w http.ResponseWriter, r *http.Request) {
	policy := p.gate.Policy()
	if wantsJSON(r) {
		writeJSON(w, spellPolicy(policy))
		return
	}
	s := spellPolicy(policy)
	var b strings.Builder
	fmt.Fprintf(&b, "mode %s\n", s.Mode)
	for _, rule := range s.Allow {
		fmt.Fprintf(&b, "allow %s\n", rule)
	}
	for _, rule := range s.Deny {
		fmt.Fprintf(&b, "deny %s\n", rule)
	}
	writeText(w, b.String())
}

func (p *page) denials(w http.ResponseWriter, r *http.Request) {
	list := p.recorder.list()
	if wantsJSON(r) {
		writeJSON(w, list)
		return
	}
	if len(list) == 0 {
		writeText(w, "Nothing was denied.\n")
		return
	}
	var b strings.Builder
	for _, e := range list {
		fmt.Fprintln(&b, denialLine(e))
	}
	writeText(w, b.String())
}

func wantsJSON(r *http.Request) bool {
	return strings.HasSuffix(r.URL.Path, ".json") || r.URL.Query().Get("format") == "json" ||
		strings.Contains(r.Header.Get("Accept"), "application/json")
}

func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text)
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value)
}
