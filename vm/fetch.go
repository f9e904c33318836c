package vm

import (
	"context"
	"errors"
	"net"
	"net/http"
)

// NewHTTPClient returns a client whose requests all go to servers in a VM, through dial, which is VM.DialFetch or its like over a
// connection to the VM's daemon.
func NewHTTPClient(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: dial}}
}

// HTTPClient returns a client for servers that listen in the VM.
func (v *VM) HTTPClient() *http.Client { return NewHTTPClient(v.DialFetch) }

// Fetch sends a request to a server that listens in the VM: http://localhost:PORT/.
func (v *VM) Fetch(r *http.Request) (*http.Response, error) { return v.HTTPClient().Do(r) }

// DialFetch connects to a server that listens in the VM, for HTTP: network is "tcp", "tcp4" or "tcp6", address a loopback address, localhost or a
// name below it, and a port. Its guards, in this order: the host is loopback (else EADDRNOTAVAIL), Config.Access permits the port
// (else an *AccessError), something listens there (else ECONNREFUSED).
func (v *VM) DialFetch(ctx context.Context, network, address string) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}

// CheckFetch is what DialFetch checks of a port of localhost, without connecting: for previews, whose owner asks it for each request.
func (v *VM) CheckFetch(ctx context.Context, port uint16) error { return errors.ErrUnsupported }

// DialPreview connects to a port for a preview: VM is a preview.Dialer.
func (v *VM) DialPreview(ctx context.Context, name string, port uint16) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}

// DialFromOutside connects to a port of the guest's loopback as an outsider does, such as another VM: only to LoopbackExemptPorts.
func (v *VM) DialFromOutside(ctx context.Context, network, address string) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}
