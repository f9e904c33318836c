package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/errno"
	"agentvm/internal/network/reach"
)

// DialLocal connects to a server in the VM. The VM's port access decides, and its errors reach the client.
func (h handler) DialLocal(ctx context.Context, host string, port uint16, purpose daemonrpc.LocalPurpose) (capnprpc.Stream, error) {
	v, err := h.d.awake()
	if err != nil {
		return nil, err
	}
	if host == "" {
		host = "localhost"
	}
	var dial func(context.Context, string, string) (net.Conn, error)
	switch purpose {
	case daemonrpc.ForDial:
		dial = v.DialContext
	case daemonrpc.ForFetch:
		dial = v.DialFetch
	default:
		return nil, &capnprpc.Error{
			Kind: capnprpc.KindInvalid, Errno: errno.EINVAL,
			Message: fmt.Sprintf("purpose %d of a connection into the VM is not known to this daemon: it may be older than what asks it", purpose),
		}
	}
	conn, err := dial(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		return nil, withoutOp(err)
	}
	stream, ok := conn.(capnprpc.Stream)
	if !ok {
		return nil, errors.Join(fmt.Errorf("connection of type %T: its directions cannot end one by one", conn), conn.Close())
	}
	return stream, nil
}

// withoutOp removes the connection's addresses from an error. The client adds them itself.
func withoutOp(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err
	}
	return err
}

// HTTPClient sends requests to servers in the VM, as vm.VM.HTTPClient does, over the bulk connection. Close its idle connections after
// use.
func (c *Client) HTTPClient() *http.Client {
	return reach.NewHTTPClient(func(ctx context.Context, _, address string) (net.Conn, error) {
		host, digits, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		port, err := strconv.ParseUint(digits, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("port %q: want a number", digits)
		}
		bulk, err := c.Bulk(ctx)
		if err != nil {
			return nil, err
		}
		return bulk.DialLocal(ctx, host, uint16(port), daemonrpc.ForFetch)
	})
}
