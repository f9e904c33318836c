package daemon

import (
	"context"
	"net"
	"strconv"

	"agentvm/rpc"
)

// DialLocal connects to a server in the VM, for a client.
func (h handler) DialLocal(ctx context.Context, host string, port uint16, purpose rpc.LocalPurpose) (rpc.Stream, error) {
	v, err := h.d.running()
	if err != nil {
		return nil, err
	}
	return v.DialLocal(ctx, host, port, purpose)
}

// Sockets lists the guest's sockets.
func (h handler) Sockets(ctx context.Context) ([]rpc.Socket, error) {
	v, err := h.d.awake()
	if err != nil {
		return nil, err
	}
	return v.Sockets(ctx)
}

// DialLocal connects to a server in the VM.
func (m *machine) DialLocal(ctx context.Context, host string, port uint16, _ rpc.LocalPurpose) (rpc.Stream, error) {
	if host == "" {
		host = "localhost"
	}
	c, err := m.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		return nil, err
	}
	return c.(rpc.Stream), nil
}
