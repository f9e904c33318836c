package vm

import (
	"context"
	"net"
	"net/http"
	"strconv"
)

// DialFetch connects to a server that listens in the VM, for HTTP: network is "tcp", "tcp4" or "tcp6", address HOST:PORT, of which HOST is
// localhost, a name below it, or an address of the guest's loopback. Its guards, in this order: the host is one of those (else EADDRNOTAVAIL),
// Config.Access permits the port (else an *AccessError, EACCES), something listens there (else ECONNREFUSED). Errors are
// *net.OpError.
func (v *VM) DialFetch(ctx context.Context, network, address string) (net.Conn, error) {
	return v.dialer.DialFetch(ctx, network, address)
}

// CheckFetch is what DialFetch checks of a port of localhost, without connecting: it asks the guest what listens.
func (v *VM) CheckFetch(ctx context.Context, port uint16) error {
	return v.dialer.CheckFetch(ctx, port)
}

// DialPreview is DialFetch for previews: VM is a preview.Dialer. The name is ignored, since a VM does not know its own. A program that
// serves previews of several VMs from one store finds the VM by the name, and refuses other VMs in preview.ServerConfig.Permit.
func (v *VM) DialPreview(ctx context.Context, _ string, port uint16) (net.Conn, error) {
	return v.DialFetch(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(int(port))))
}

// DialFromOutside connects to a port of the guest's loopback for an outsider, such as another VM: as DialFetch, but only to ports that
// are exempt (Access.LoopbackExemptPorts, or named by a port forward); others are an *AccessError.
func (v *VM) DialFromOutside(ctx context.Context, network, address string) (net.Conn, error) {
	return v.dialer.DialFromOutside(ctx, network, address)
}

// HTTPClient returns the client for servers that listen in the VM; DialFetch has its guards. Its requests reach nothing else: URLs are
// http://localhost:PORT/; names below localhost and the addresses of loopback do as well. All others fail with EADDRNOTAVAIL, also as a Host
// header, and as redirects. It speaks HTTP/1.1, keeps connections (CloseIdleConnections ends them), streams both ways, compresses nothing,
// and has no time-out except for connecting: the request's context ends it. The body of an answer with status 101 (WebSocket) is an
// io.ReadWriteCloser. It is the same client each time; its connections end with the VM.
func (v *VM) HTTPClient() *http.Client { return v.dialer.HTTPClient() }

// Fetch sends a request to a server that listens in the VM, http://localhost:PORT/, by HTTPClient.
func (v *VM) Fetch(r *http.Request) (*http.Response, error) { return v.dialer.HTTPClient().Do(r) }
