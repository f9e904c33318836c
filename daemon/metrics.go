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
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"

	"agentvm/internal/fewconns"
)

// Limits of the metrics' server. Everybody on this host may connect, and programs in the guest make the numbers.
const (
	maxMetricsConns   = 16
	maxMetricsHeaders = 8 << 10
	maxScrapes        = 4 // at a time
	metricsTime       = 10 * time.Second
	// guestTime is how long the guest may take to tell its counters.
	guestTime = 2 * time.Second
)

// metrics serves /metrics of a daemon over HTTP. A nil one does nothing.
//
// There is no token, which scrapers could not show. So who may use the host's loopback can read; nothing can be changed.
// What a browser sends for a foreign page is refused, also when the page's name leads here (DNS rebinding).
type metrics struct {
	daemon   *daemon
	listener net.Listener
	server   *http.Server
	scrapes  chan struct{}  // taken while one is made
	serving  sync.WaitGroup // the goroutine that accepts
	conns    fewconns.Limit
}

// checkMetrics says whether metrics can be served there. Empty: not at all.
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

// listenMetrics is nil when the configuration wants no metrics.
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
	m := &metrics{daemon: d, listener: l, scrapes: make(chan struct{}, maxScrapes), conns: fewconns.Limit{Max: maxMetricsConns}}
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
	_ = m.listener.Close() // the server knows it only when serve has begun
	m.serving.Wait()
	_ = m.server.Close() // of a connection that was being accepted
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

// refusal is the status that refuses a request, or 0. Who names another host comes from a page that has rebound its name.
func refusal(r *http.Request) int {
	site := r.Header.Get("Sec-Fetch-Site")
	switch {
	case !loopbackHost(r.Host):
		return http.StatusMisdirectedRequest
	case foreignOrigin(r) || site != "" && site != "none" && site != "same-origin":
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

// loopbackHost says whether a Host header names this host's loopback, with or without a port.
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

// foreignOrigin says whether a browser sent the request for a page of somebody else.
func foreignOrigin(r *http.Request) bool {
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return false
	}
	origin, err := url.Parse(origins[0])
	return err != nil || len(origins) > 1 || origin.Scheme != "http" || !strings.EqualFold(origin.Host, r.Host)
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
