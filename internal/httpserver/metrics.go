package httpserver

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Metrics count the answers of a server, for Prometheus. The zero value is ready, and must not be copied.
type Metrics struct {
	mu     sync.Mutex
	counts map[answered]uint64
	times  map[answered]float64 // seconds
}

// answered has the labels by which answers are counted: the server's own words, so a client cannot make new ones.
type answered struct {
	method, route string
	status        int
}

// count notes an answer to a request of a pattern of http.ServeMux.
func (m *Metrics) count(pattern string, status int, took time.Duration) {
	if m == nil {
		return
	}
	method, path, found := strings.Cut(pattern, " ")
	if !found {
		method, path = "", cmp.Or(pattern, "none")
	}
	labels := answered{method, path, status}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts == nil {
		m.counts, m.times = map[answered]uint64{}, map[answered]float64{}
	}
	m.counts[labels]++
	m.times[labels] += took.Seconds()
}

// ServeHTTP answers with the counts.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	var e Exposition
	m.Expose(&e)
	e.Write(w)
}

// Expose adds the counts.
func (m *Metrics) Expose(e *Exposition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	order := func(a, b answered) int {
		return cmp.Or(cmp.Compare(a.method, b.method), cmp.Compare(a.route, b.route), cmp.Compare(a.status, b.status))
	}
	for _, l := range slices.SortedFunc(maps.Keys(m.counts), order) {
		labels := []string{"method", l.method, "route", l.route, "status", strconv.Itoa(l.status)}
		e.Add(Counter, "agentvm_http_requests_total", "Requests that were answered.", float64(m.counts[l]), labels...)
		e.Add(Counter, "agentvm_http_seconds_total", "Time until their answers were complete.", m.times[l], labels...)
	}
}
