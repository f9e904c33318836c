package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
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
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialTarget(ctx, dial, address)
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
	return &http.Client{Transport: &fetchTransport{base}, CheckRedirect: checkRedirect}
}

// dialTarget checks the address again, since net/http has converted its name.
func dialTarget(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error), address string) (net.Conn, error) {
	t, err := parseTarget(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, fetchDialTime)
	defer cancel()
	return dial(ctx, "tcp", t.address())
}

// fetchTransport lets only requests to the VM through.
type fetchTransport struct {
	base *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *fetchTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if _, err := requestTarget(r); err != nil {
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
	if _, err := requestTarget(r); err != nil {
		return fmt.Errorf("fetch: redirected out of the VM: %w", err)
	}
	return nil
}

// HTTPClient returns the client for servers that listen in the VM, see NewHTTPClient and DialFetch. It is the same one each time; its
// connections end with the VM.
func (v *VM) HTTPClient() *http.Client {
	v.fetching.once.Do(func() { v.fetching.client = NewHTTPClient(v.DialFetch) })
	return v.fetching.client
}

// fetching is a VM's HTTP client, made at its first use.
type fetching struct {
	once   sync.Once
	client *http.Client
}

// Fetch sends a request to a server that listens in the VM, http://localhost:PORT/, by HTTPClient.
func (v *VM) Fetch(r *http.Request) (*http.Response, error) { return v.HTTPClient().Do(r) }
