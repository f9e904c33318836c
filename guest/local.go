//go:build linux

package guest

import (
	"context"
	"syscall"

	"agentvm/rpc"
)

// OpenLocalTCP connects to a server in this VM; see rpc.Handler.
func (s *Supervisor) OpenLocalTCP(ctx context.Context, host string, port uint16) (rpc.Stream, error) {
	return nil, syscall.ENOSYS
}
