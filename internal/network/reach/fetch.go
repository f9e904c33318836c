package reach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"agentvm/internal/guest/guestrpc"
)

// HTTP requests from the host to servers in the VM:
//
//	HTTPClient ─► fetchTransport: URL and Host are the VM's loopback ─► http.Transport: connections that are kept
//	                                                                        │ a new one
//	                          guest's 127.0.0.1 or ::1 ◄─ DialContext ◄─ DialFetch: loopback? ─► Access? ─► a listener?
//
// The client reaches nothing else: no proxy, whatever the environment says, no DNS, no TLS, no other host by a redirect, and nothing
// on this host. When a guard fails, the request fails.

const (
	// fetchDialTime is how long a connection into the guest may take.
	fetchDialTime = 30 * time.Second
	// fetchIdleTime is how long a connection is kept for the next request.
	fetchIdleTime = 30 * time.Second
	// fetchIdle is how many connections are kept.
	fetchIdle = 32
	// fetchHeader is how large the header of an answer may be, in bytes.
	fetchHeader = 1 << 20
	// fetchBuffer is the size of reads and writes, in bytes.
	fetchBuffer = 64 << 10
	// fetchRedirects is how many redirects are followed.
	fetchRedirects = 10
)

// NewHTTPClient returns a client whose requests all go to servers in a VM, through dial, which is VM.DialFetch or the same over a
// connection to the VM's daemon. It is called with "tcp" and HOST:PORT, of which HOST is an address of 127.0.0.0/8, ::1 or localhost.
//
// URLs are http://localhost:PORT/; names below localhost and the addresses of loopback do as well. All others fail with
// EADDRNOTAVAIL, also as a Host header, and as redirects. It speaks HTTP/1.1, keeps connections (CloseIdleConnections ends them),
// streams both ways, compresses nothing, and has no time-out except for connecting: the request's context ends it. The body of
// an answer with status 101 (WebSocket) is an io.ReadWriteCloser.
func NewHTTPClient(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	base := &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			t, err := parseTarget(address) // again, since net/http has converted its name
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(ctx, fetchDialTime)
			defer cancel()
			return dial(ctx, "tcp", t.address())
		},
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.ErrUnsupported
		},
		Protocols:              &protocols,
		DisableCompression:     true,
		MaxIdleConns:           fetchIdle,
		MaxIdleConnsPerHost:    fetchIdle,
		IdleConnTimeout:        fetchIdleTime,
		ExpectContinueTimeout:  5 * time.Second,
		MaxResponseHeaderBytes: fetchHeader,
		ReadBufferSize:         fetchBuffer,
		WriteBufferSize:        fetchBuffer,
	}
	return &http.Client{Transport: &fetchTransport{base: base}, CheckRedirect: checkRedirect}
}

// fetchTransport lets only requests to the VM through.
type fetchTransport struct {
	base  *http.Transport
	proxy bool // the Host header is not checked
}

// ProxyTransport returns the transport of a client of NewHTTPClient for a reverse proxy, which passes on the Host header that its own
// client has sent: where a request goes is its URL's to say alone. It shares the client's connections.
func ProxyTransport(c *http.Client) http.RoundTripper {
	if t, ok := c.Transport.(*fetchTransport); ok {
		return &fetchTransport{t.base, true}
	}
	return c.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *fetchTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if _, err := requestTarget(r, t.proxy); err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, fmt.Errorf("fetch: %w", err)
	}
	return t.base.RoundTrip(r)
}

// CloseIdleConnections is called by http.Client's method of that name.
func (t *fetchTransport) CloseIdleConnections() { t.base.CloseIdleConnections() }

func checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) >= fetchRedirects {
		return fmt.Errorf("fetch: more than %d redirects", fetchRedirects)
	}
	if _, err := requestTarget(r, false); err != nil {
		return fmt.Errorf("fetch: redirected out of the VM: %w", err)
	}
	return nil
}

// HTTPClient returns the client for servers that listen in the VM, see NewHTTPClient and DialFetch. It is the same one each time.
func (d *Dialer) HTTPClient() *http.Client {
	d.fetching.once.Do(func() { d.fetching.client = NewHTTPClient(d.DialFetch) })
	return d.fetching.client
}

// fetching is a VM's HTTP client, made at its first use.
type fetching struct {
	once   sync.Once
	client *http.Client
}

// inboundGuard checks connections into the VM that come from outside of it. The checks are made in this order, and the first that
// refuses decides:
//
//	1 the host is loopback (EADDRNOTAVAIL) ─► 2 Access permits the port (EACCES) ─► 3 something listens there (ECONNREFUSED) ─► dial
//
// Each step is about the guest: in none of them this host's own loopback or names could be meant.
type inboundGuard struct {
	decide    func(who Caller, op Operation, port uint16) error
	listening func(ctx context.Context, at netip.AddrPort) (bool, error)
	dial      func(ctx context.Context, host string, port uint16) (net.Conn, error)
}

// loopbacks returns the addresses that network and host mean.
func (t target) loopbacks(network string) (list []netip.AddrPort, err error) {
	v4, v6 := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()
	hosts := []netip.Addr{v4, v6}
	if t.host != "localhost" {
		hosts = []netip.Addr{netip.MustParseAddr(t.host)} // loopbackHost has checked it
	}
	for _, a := range hosts {
		if network == "tcp" || a.Is4() == (network == "tcp4") {
			list = append(list, netip.AddrPortFrom(a, t.port))
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no address for network %s: %w", t.host, network, syscall.EADDRNOTAVAIL)
	}
	return list, nil
}

// check makes all checks, and returns what to dial.
func (e inboundGuard) check(ctx context.Context, who Caller, network, address string) (at netip.AddrPort, err error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return at, fmt.Errorf("network %q: want tcp, tcp4 or tcp6: %w", shorten(network), syscall.EINVAL)
	}
	t, err := parseTarget(address)
	if err != nil {
		return at, err
	}
	list, err := t.loopbacks(network)
	if err != nil {
		return at, err
	}
	if err := e.decide(who, OpLoopback, t.port); err != nil {
		return at, err
	}
	for _, at := range list {
		live, err := e.listening(ctx, at)
		if err != nil {
			return at, fmt.Errorf("ask the VM what listens: %w", err)
		}
		if live {
			return at, nil
		}
	}
	return at, fmt.Errorf("nothing in the VM listens at port %d: %w", t.port, syscall.ECONNREFUSED)
}

// connect makes all checks and connects.
func (e inboundGuard) connect(ctx context.Context, who Caller, network, address string) (net.Conn, error) {
	at, err := e.check(ctx, who, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: localAddr(shorten(address)), Err: err}
	}
	return e.dial(ctx, at.Addr().String(), at.Port())
}

func (d *Dialer) guard() inboundGuard {
	return inboundGuard{decide: d.config.Ports.Decide, listening: d.listening, dial: d.dialLoopback}
}

// listening asks the guest whether a program listens at one of its addresses.
func (d *Dialer) listening(ctx context.Context, at netip.AddrPort) (bool, error) {
	s, found, err := d.config.FindSocket(ctx, guestrpc.SocketQuery{Network: "tcp", Local: at})
	if err != nil {
		return false, err
	}
	return found && s.State == guestrpc.SocketListen && s.Local.Port() == at.Port(), nil
}

// DialFetch connects to a server that listens in the VM, for HTTP. vm.VM has the promises.
func (d *Dialer) DialFetch(ctx context.Context, network, address string) (net.Conn, error) {
	return d.guard().connect(ctx, CallerFetch, network, address)
}

// CheckFetch is what DialFetch checks of a port of localhost, without connecting: it asks the guest what listens.
func (d *Dialer) CheckFetch(ctx context.Context, port uint16) error {
	_, err := d.guard().check(ctx, CallerFetch, "tcp", net.JoinHostPort("localhost", strconv.Itoa(int(port))))
	return err
}

// DialFromOutside is DialFetch for an outsider, such as another VM.
func (d *Dialer) DialFromOutside(ctx context.Context, network, address string) (net.Conn, error) {
	return d.guard().connect(ctx, CallerOutside, network, address)
}
