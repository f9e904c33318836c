//go:build linux

package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"agentvm/rpc"
)

// OpenLocalTCP connects to a server in this VM; see rpc.Handler. No name is looked up.
func (s *Supervisor) OpenLocalTCP(ctx context.Context, host string, port uint16) (rpc.Stream, error) {
	hosts := []string{"127.0.0.1", "::1"}
	switch host {
	case "", "localhost":
	case "127.0.0.1", "::1":
		hosts = []string{host}
	default:
		return nil, &rpc.Error{
			Kind: rpc.KindInvalid, Errno: int32(syscall.EINVAL),
			Message: fmt.Sprintf("connect to %q: only 127.0.0.1, ::1 and localhost are this VM's own", host),
		}
	}
	var first error
	for _, h := range hosts {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(h, strconv.Itoa(int(port))))
		if err == nil {
			return c.(*net.TCPConn), nil
		}
		if first == nil {
			first = err
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
	}
	return nil, first
}
