package daemon

import (
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

	"agentvm/internal/host/origin"
	"agentvm/internal/httpserver"
)

// Limits of the metrics' server. Every user of the host can connect, and programs in the guest make the numbers.
const (
	maxMetricsConns   = 16
	maxMetricsHeaders = 8 << 10
	maxScrapes        = 6 // at a time; without keys all scrapers are one client, which gets 4 of them (httpserver.Places)
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
	m := &metrics{daemon: d, listener: l, conns: httpserver.Limit{Max: maxMetricsConns}}
	m.server = &http.Server{
		Handler: m.door(), MaxHeaderBytes: maxMetricsHeaders, ErrorLog: log.New(io.Discard, "", 0), ConnState: m.conns.Track,
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

// door is what the server asks of a request. No page of a browser may read metrics, not even one of the same origin.
func (m *metrics) door() http.Handler {
	return httpserver.Door{
		Server: "metrics",
		IsHost: func(host string) bool {
			return httpserver.IsHost(host, func(at netip.Addr) bool { return at.IsLoopback() && at.Zone() == "" })
		},
		Admits:   func(_ *http.Request, from origin.Request) bool { return from == origin.Request{} },
		Requests: maxScrapes,
		Refuse:   refuseScrape,
		Handler:  m,
	}.Open()
}

func refuseScrape(w http.ResponseWriter, _ *http.Request, status int) {
	setMetricsHeaders(w.Header())
	w.Header().Set("Connection", "close")
	text := strings.ToLower(http.StatusText(status))
	if status == http.StatusServiceUnavailable {
		text = "others read the metrics"
	}
	http.Error(w, text, status)
}

func setMetricsHeaders(header http.Header) {
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
}

// ServeHTTP answers a request that the door has let through.
func (m *metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != "/metrics":
		refuseScrape(w, r, http.StatusNotFound)
	case r.Method != http.MethodGet:
		w.Header().Set("Allow", http.MethodGet)
		refuseScrape(w, r, http.StatusMethodNotAllowed)
	case r.ContentLength != 0:
		refuseScrape(w, r, http.StatusRequestEntityTooLarge)
	default:
		setMetricsHeaders(w.Header())
		m.write(w, r)
	}
}

// write writes the metrics.
func (m *metrics) write(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), guestTime)
	defer cancel()
	exposition := m.daemon.sample(ctx).gather()
	m.daemon.previews.counts.Expose(exposition)
	exposition.Write(w)
}
