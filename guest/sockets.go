//go:build linux

package guest

import (
	"agentvm/guest/sockets"
	"agentvm/rpc"
)

// Sockets lists the machine's TCP and UDP sockets; see rpc.Handler.
func (s *Supervisor) Sockets(q *rpc.SocketQuery) ([]rpc.Socket, error) {
	if q != nil {
		return sockets.Find(*q)
	}
	return sockets.List()
}
