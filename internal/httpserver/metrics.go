package httpserver

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Metrics count the answers of a server, for Prometheus. The zero value is ready, and must not be copied.
type Metrics struct {
	mu     sync.Mutex
	counts map[string]uint64  // by labels
	times  map[string]float64 // seconds
}

// count notes an answer to a request of a pattern of http.ServeMux. The labels are the server's own words: a client cannot make new ones.
func (m *Metrics) count(pattern string, status int, took time.Duration) {
	if m == nil {
		return
	}
	method, path, found := strings.Cut(pattern, " ")
	if !found {
		method, path = "", cmp.Or(pattern, "none")
	}
	labels := fmt.Sprintf(`method=%q,route=%q,status="%d"`, method, path, status)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts == nil {
		m.counts, m.times = map[string]uint64{}, map[string]float64{}
	}
	m.counts[labels]++
	m.times[labels] += took.Seconds()
}

// ServeHTTP answers with the counts, in Prometheus's text format, version 0.0.4.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	labels := make([]string, 0, len(m.counts))
	for l := range m.counts {
		labels = append(labels, l)
	}
	slices.Sort(labels)
	var b strings.Builder
	b.WriteString("# HELP agentvm_http_requests_total Requests that were answered.\n# TYPE agentvm_http_requests_total counter\n")
	for _, l := range labels {
		fmt.Fprintf(&b, "agentvm_http_requests_total{%s} %d\n", l, m.counts[l])
	}
	b.WriteString("# HELP agentvm_http_seconds_total Time until their answers were complete.\n# TYPE agentvm_http_seconds_total counter\n")
	for _, l := range labels {
		fmt.Fprintf(&b, "agentvm_http_seconds_total{%s} %g\n", l, m.times[l])
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = io.WriteString(w, b.String())
}
