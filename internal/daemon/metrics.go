package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"

	"agentvm/internal/host/origin"
	"agentvm/internal/httpserver"
)

// Limits of the metrics' server. Every user of the host can connect, and programs in the guest make the numbers.
const (
	maxMetricsConns   = 16
	maxMetricsHeaders = 8 << 10
	maxScrapes        = 4 // at a time
	metricsTime       = 10 * time.Second
	// guestTime is how long the guest may take to return its counters.
	guestTime = 2 * time.Second
)

// metrics serves /metrics of a daemon over HTTP. A nil one does nothing.
//
// There is no token, because scrapers could not show one. Every user of the host can read the metrics and change nothing. Requests that
// a browser sends for a foreign page are refused, also when the page's name leads here (DNS rebinding).
type metrics struct {
	daemon   *daemon
	listener net.Listener
	server   *http.Server
	scrapes  chan struct{}  // one element for each scrape under way
	serving  sync.WaitGroup // the goroutine that accepts
	conns    httpserver.Limit
}

// checkMetrics returns why metrics cannot be served at address. Empty means not served.
func checkMetrics(address string) error {
	if address == "" {
		return nil
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("metrics address %.80q: want 127.0.0.1:PORT, port 0 for any", address)
	}
	if !at.Addr().IsLoopback() || at.Addr().Is4In6() {
		return fmt.Errorf("metrics address %s: metrics have no password and are for this host only: want 127.0.0.1:%d", address, at.Port())
	}
	return nil
}

// listenMetrics returns nil when the configuration has no metrics.
func (d *daemon) listenMetrics() (*metrics, error) {
	if d.config.Metrics == "" {
		return nil, nil
	}
	if err := checkMetrics(d.config.Metrics); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", d.config.Metrics)
	if err != nil {
		return nil, fmt.Errorf("listen for readers of metrics (port 0 takes one that is free): %w", err)
	}
	m := &metrics{daemon: d, listener: l, scrapes: make(chan struct{}, maxScrapes), conns: httpserver.Limit{Max: maxMetricsConns}}
	m.server = &http.Server{
		Handler: m, MaxHeaderBytes: maxMetricsHeaders, ErrorLog: log.New(io.Discard, "", 0), ConnState: m.conns.Track,
		ReadTimeout: metricsTime, WriteTimeout: metricsTime, IdleTimeout: time.Minute,
	}
	d.logger.Info("metrics", "address", l.Addr())
	return m, nil
}

// address is where the metrics are.
func (m *metrics) address() string {
	if m == nil {
		return ""
	}
	return m.listener.Addr().String()
}

// start answers until close.
func (m *metrics) start() {
	if m != nil {
		m.serving.Go(m.serve)
	}
}

func (m *metrics) serve() {
	if err := m.server.Serve(m.listener); !errors.Is(err, http.ErrServerClosed) {
		m.daemon.logger.Warn("metrics are no longer served", "error", err)
	}
}

// close ends the listener and the connections and waits for their goroutines.
func (m *metrics) close() {
	if m == nil {
		return
	}
	_ = m.server.Close()
	_ = m.listener.Close() // the server closes it only after serve has begun
	m.serving.Wait()
	_ = m.server.Close() // for a connection that was being accepted
	m.conns.Wait()
}

// ServeHTTP answers a request.
func (m *metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	if code := refusal(r); code != 0 {
		header.Set("Connection", "close")
		if code == http.StatusMethodNotAllowed {
			header.Set("Allow", http.MethodGet)
		}
		http.Error(w, strings.ToLower(http.StatusText(code)), code)
		return
	}
	select {
	case m.scrapes <- struct{}{}:
		defer func() { <-m.scrapes }()
	default:
		http.Error(w, "others read the metrics", http.StatusServiceUnavailable)
		return
	}
	m.write(w, r)
}

// refusal returns the status that refuses a request, or 0. A request with another host's name comes from a page that has rebound it.
func refusal(r *http.Request) int {
	from, err := origin.Of(r.Header, "http://"+r.Host)
	switch {
	case !loopbackHost(r.Host):
		return http.StatusMisdirectedRequest
	case err != nil || from != origin.Request{}:
		return http.StatusForbidden
	case r.URL.Path != "/metrics":
		return http.StatusNotFound
	case r.Method != http.MethodGet:
		return http.StatusMethodNotAllowed
	case r.ContentLength != 0:
		return http.StatusRequestEntityTooLarge
	}
	return 0
}

// loopbackHost reports whether a Host header names the host's loopback interface, with or without a port.
func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	at, err := netip.ParseAddr(host)
	return err == nil && at.IsLoopback() && at.Zone() == ""
}

// write writes the metrics, all or none.
func (m *metrics) write(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), guestTime)
	defer cancel()
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	var body bytes.Buffer
	for _, family := range m.daemon.sample(ctx).gather() {
		if err := expfmt.NewEncoder(&body, format).Encode(family); err != nil {
			m.daemon.logger.Warn("make metrics", "error", err)
			http.Error(w, "the metrics cannot be made: see the daemon's log", http.StatusInternalServerError)
			return
		}
	}
	w.Header().Set("Content-Type", string(format))
	_, _ = w.Write(body.Bytes())
}
